"""What the stories of releases do besides letting customers come, and what is told of them afterwards."""

from collections.abc import Callable
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.failures.models import Recurrence
from flywheel.promotions.models import Candidate, Ramp
from flywheel.promotions.ramps import ramp_judging, ramp_moves
from tests.conftest import Build, Cast
from tests.promotions.conftest import agent, candidate, evaluated
from tests.promotions.ramps.conftest import Met, met, ramp
from tests.promotions.ramps.test_claim_watching import KEY, claims_better, promote_anyway
from tests.workers.programs.releases.conftest import Customers, shows
from workers.programs import story_playback
from workers.programs.releases import story_releases
from workers.reference import story

__all__ = ["agent", "candidate", "evaluated", "met", "ramp"]
pytestmark = pytest.mark.django_db


def test_customers_come_until_the_ramp_is_over_and_what_it_showed_is_read_from_its_rows(
    ramp: Ramp, met: Met, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def some(customers: Any, sessions: Any, *, is_over: Callable[[], bool], is_ahead: Callable[[], bool]) -> None:
        assert [requests[0].session_id for requests in sessions] == ["c20-0003", "c20-0004"]
        assert not is_ahead()
        for number in range(12):
            met(number % 2 == 0, outcome="failed" if number % 2 else "success")
        assert not is_over()
        ramp_judging.look()
        row = Ramp.objects.get(pk=ramp.pk)
        ramp_moves.take_back(ramp=row, actor=Actor(cast.approver), reason="enough", generation=row.generation)
        assert is_over()

    monkeypatch.setattr(story_releases, "come", some)
    customers: Any = None
    ended = story_releases.follow(ramp, customers, story_releases.customers_from(3), most=2)
    found = story_releases.result_of(ended)
    assert (found["state"], found["because"]) == ("taken_back", "enough")
    assert found["version"] == str(ramp.candidate.version)
    assert found["sessions"] == {"live": 6, "candidate": 6}
    assert found["failed"] == {"live": 1.0, "candidate": 0.0}
    assert found["shares"] == [0.0, 0.25, 0.5, 0.0]
    assert found["not_worse_by"]["p"] == min(1.0, 1 / found["not_worse_by"]["wealth"])
    assert found["nearest_signal"]["bound"] >= 20


def test_a_ramp_that_shows_nothing_to_all_customers_is_stopped(ramp: Ramp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story_releases, "come", lambda *_, **__: None)
    monkeypatch.setattr(story_releases, "LATE_S", 0.0)
    nobody: Any = None
    ended = story_releases.follow(ramp, nobody, story_releases.customers_from(0), most=7)
    assert (ended.state, ended.changes.latest("pk").reason) == ("stopped", "nothing was shown in 7 customers' sessions")


def test_versions_of_the_story_differ_in_one_thing(build: Build) -> None:
    first = build.version(endpoint={"kind": "openai", "base_url": "http://127.0.0.1:2/v1", "model": "tiny"})
    hot = story_releases.at_temperature(first, 1.6, note="livelier answers")
    assert (hot.sampling["temperature"], hot.parent, hot.note) == (1.6, first, "livelier answers")
    assert {**hot.sampling, "temperature": None} == {**first.sampling, "temperature": None}
    assert (hot.endpoint, hot.weights, hot.tools) == (first.endpoint, first.weights, first.tools)
    moved = story_releases.behind(first, "http://127.0.0.1:1/v1", "front-desk")
    assert moved.endpoint["model"] == "front-desk"
    assert moved.sampling == first.sampling
    story_releases.load(moved)  # it has no weights here: nobody is asked
    sessions = story_releases.customers_from(5)
    assert [next(sessions) for _ in range(2)] == [story.newcomer(n, story_playback.SEED) for n in (5, 6)]


def test_only_what_comes_back_while_customers_come_counts(
    candidate: Candidate, cast: Cast, build: Build, customers: Customers
) -> None:
    claims_better(candidate)
    live = promote_anyway(candidate, cast).after
    earlier = Recurrence.objects.create(
        project=cast.project, bucket="earlier", version=live, claim=0.02, sessions=9, failed=0.5, path=[]
    )
    application: Any = None
    nobody = story_releases.recurs(live.agent, application, iter(()))
    assert nobody is None

    customers.without_ramp = lambda requests: shows(build, live, KEY, requests)
    found = story_releases.recurs(live.agent, application, story_releases.customers_from(0))
    assert found is not None
    assert (found.bucket, found.pk > earlier.pk) == (KEY, True)
    told = story_releases.came_back(found)
    assert told["state"] == "reopened"
    assert (told["found"], told["claim"], told["sessions"]) == (1.0, 0.02, found.sessions)
    assert told["trajectories"] == found.sessions == len(customers.came)
    assert told["evidence"] >= told["bound"] == 60_000
    assert told["in_next_turn"]

    found.answer = Recurrence.Answer.NOT_SAME
    found.save()
    assert not story_releases.came_back(found)["in_next_turn"]


def test_customers_stop_coming_where_nothing_comes_back(
    candidate: Candidate, cast: Cast, build: Build, customers: Customers
) -> None:
    live = promote_anyway(candidate, cast).after
    application: Any = None
    assert story_releases.recurs(live.agent, application, story_releases.customers_from(0), most=5) is None
    assert len(customers.came) == 5
