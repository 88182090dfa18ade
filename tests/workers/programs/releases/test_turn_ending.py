"""The end of `make turn` on real rows: the real judge ends its ramps, and the real watch opens what comes back."""

from collections.abc import Sequence

import pytest

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ApiKey
from flywheel.agents.models import Agent, Version
from flywheel.environments.models import TaskSet
from flywheel.evals.models import EvalRun
from flywheel.promotions.candidacy import propose
from flywheel.promotions.models import Candidate
from tests.conftest import Build, Cast
from tests.promotions.conftest import Evaluated, agent, evaluated, pair_of
from tests.promotions.ramps.test_claim_watching import KEY, claims_better
from tests.workers.programs.releases.conftest import Customers, shows
from workers.programs import story_playback
from workers.programs.releases import turn_ending
from workers.reference import story

__all__ = ["agent", "evaluated"]
pytestmark = pytest.mark.django_db


@pytest.fixture
def candidate(build: Build, cast: Cast, agent: Agent, evaluated: Evaluated) -> Candidate:
    """An eligible one whose weights are on a server, where nobody asks."""
    endpoint = {"kind": "openai", "base_url": "http://127.0.0.1:2/v1", "model": "tiny"}
    return propose(**pair_of(build, agent, evaluated, endpoint=endpoint), actor=Actor(cast.trainer))


def test_a_version_goes_live_by_steps_a_worse_one_is_taken_back_and_what_comes_back_is_reopened(
    candidate: Candidate, evaluated: Evaluated, customers: Customers, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    better, wanted = candidate.version, list[Sequence[story.Request]]()
    before = candidate.baseline
    claims_better(candidate)

    def evaluate(version: Version, task_set: TaskSet, samples: int) -> EvalRun:
        return evaluated(version, task_set, passing=2, samples=samples)

    def shows_what_is_back(requests: Sequence[story.Request]) -> None:
        wanted.append(requests)
        shows(build, better, KEY, requests)

    monkeypatch.setattr(story_playback, "evaluate", evaluate)
    customers.fails = lambda version: {before: 0.7, better: 0.1}.get(version, 0.9)
    customers.without_ramp = shows_what_is_back
    result = turn_ending.go_on(candidate, "http://here", 40, said.append)

    ramp, taken_back, reopened = (result[key] for key in ("ramp", "taken_back", "reopened"))
    assert (ramp["version"], ramp["state"]) == (str(better), "finished")
    assert ramp["failed"]["candidate"] < 0.3 < ramp["failed"]["live"]
    assert ramp["not_worse_by"]["p"] <= 0.05
    assert (taken_back["state"], taken_back["nearest_signal"]["name"]) == ("taken_back", "failed")
    assert taken_back["nearest_signal"]["wealth"] >= taken_back["nearest_signal"]["bound"]
    candidate.agent.refresh_from_db()
    assert candidate.agent.live == better
    worse = candidate.agent.versions.latest("number")
    assert (str(worse), worse.sampling["temperature"]) == (taken_back["version"], turn_ending.WILD)
    assert (reopened["bucket"], reopened["version"], reopened["state"]) == (KEY, str(better), "reopened")
    assert reopened["evidence"] >= reopened["bound"]
    assert reopened["found"] > reopened["claim"]
    assert reopened["in_next_turn"]
    arguments = {name for requests in wanted for request in requests for name in request.target["arguments"]}
    assert not arguments & set(story.RENAMED), "the world has changed for who comes now"
    assert customers.came[0] == "c20-0040"
    assert len(set(customers.came)) == len(customers.came), "nobody comes twice"
    assert said[-1].startswith(f"{KEY} is back: claimed in at most 2%")
    assert not ApiKey.objects.filter(revoked_at=None).exists()


def test_where_customers_show_nothing_the_story_ends_with_the_first_ramp(
    candidate: Candidate, customers: Customers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(customers, "come", lambda *_, **__: None)
    monkeypatch.setattr("workers.programs.releases.story_releases.come", customers.come)
    result = turn_ending.go_on(candidate, "http://here", 0, lambda _: None)
    assert result["ramp"]["state"] == "stopped"
    assert (result["taken_back"], result["reopened"]) == (None, None)
    candidate.agent.refresh_from_db()
    assert candidate.agent.live == candidate.baseline


def test_where_nothing_comes_back_nothing_is_told(
    candidate: Candidate, customers: Customers, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("workers.programs.releases.story_releases.come", lambda *_, **__: None)
    assert turn_ending._change_world(candidate, "http://here", iter(()), said.append) is None
    assert said[-1] == "nothing came back"
