"""A call that begins a conversation goes where its coin points before the row says so, and never to two answers."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client

from flywheel.agents.models import Split, SplitUnit
from flywheel.agents.splits import open_splits
from flywheel.agents.splits.assignment import Unit, coin
from flywheel.agents.splits.met_units import MetUnits
from flywheel.trajectories.ingest.gateway import openai_endpoints, routing
from flywheel.trajectories.ingest.gateway.arms import arm_choice
from flywheel.trajectories.ingest.gateway.journals.journal import Journal
from flywheel.trajectories.ingest.gateway.routing import Route
from flywheel.trajectories.models import Trajectory
from tests.agents.splits.splitting import split_of
from tests.conftest import Build
from tests.trajectories.ingest.gateway.calls import Headers, ask
from tests.trajectories.ingest.upstream import Answer, Upstream, completion, hello

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("recorded")]
MODEL = "assistant@live"
FURTHER = [
    {"role": "user", "content": "Book a room."},
    {"role": "assistant", "content": "For whom?"},
    {"role": "user", "content": "For Ann."},
]


class Later(Future[Route]):
    """A unit meets its arm when somebody waits for it."""

    def __init__(self, meet: Callable[[], Route], upstream: Upstream) -> None:
        super().__init__()
        self.meet, self.upstream = meet, upstream
        self.asked_before = 0
        """Calls that the server had seen."""

    def result(self, timeout: float | None = None) -> Route:
        self.asked_before = len(self.upstream.seen)
        return self.meet()


@pytest.fixture(autouse=True)
def waiting(monkeypatch: pytest.MonkeyPatch, recorded: list[Journal], upstream: Upstream) -> list[Later]:
    """Units that met their arm beside a call, in a process that had met nobody."""
    made: list[Later] = []

    def submit(meet: Callable[[], Route]) -> Later:
        made.append(Later(meet, upstream))
        return made[-1]

    monkeypatch.setattr(arm_choice, "met_units", MetUnits())
    monkeypatch.setattr(arm_choice, "submit", submit)
    monkeypatch.setattr(open_splits, "LEASE_S", 600.0)
    return made


@pytest.fixture
def split(build: Build, upstream: Upstream) -> Split:
    here = {"kind": "openai", "base_url": upstream.url}
    live = build.version(endpoint={**here, "model": "live"})
    candidate = build.version(endpoint={**here, "model": "candidate"}, system_prompt="Another")
    live.agent.live = live
    live.agent.save()
    return split_of(live, candidate)


def named(split: Split, arm: str) -> str:
    """A session whose coin points to this arm."""
    for number in range(100):
        unit = Unit("session", f"s{number}")
        is_candidate = coin(split.salt, split.agent.project_id, split.agent_id, unit) < split.share
        if is_candidate == (arm == "candidate"):
            return unit.name
    raise AssertionError("no coin of a hundred fell so")


def met_before(split: Split, session: str, *, is_candidate: bool) -> None:
    """Another process has met the session, at another share."""
    SplitUnit.objects.create(split=split, kind="session", name=session, is_candidate=is_candidate, share=1)


def call(client: Client, gate: Headers, session: str, **body: Any) -> Any:
    return ask(client, {**gate, "x-flywheel-session-id": session}, model=MODEL, **body)[0]


def asked(upstream: Upstream) -> list[str]:
    return [str(seen.body["model"]) for seen in upstream.seen]


def nothing_is_left(recorded: list[Journal]) -> bool:
    return openai_endpoints.slots.taken == 0 and not any(
        journal.path is not None and journal.path.exists() for journal in recorded
    )


@pytest.mark.parametrize("arm", ["live", "candidate"])
@pytest.mark.parametrize("said", [Answer(completion("Hi")), hello()], ids=["whole", "streamed"])
def test_who_begins_goes_where_the_coin_points_and_meets_the_arm_while_the_server_thinks(
    arm: str, said: Answer, client: Client, gate: Headers, upstream: Upstream, split: Split, waiting: list[Later]
) -> None:
    upstream.say(said)
    session = named(split, arm)
    answer = call(client, gate, session)
    assert (answer.headers["X-Flywheel-Arm"], asked(upstream)) == (arm, [arm])
    assert [later.asked_before for later in waiting] == [1], "the server was asked before somebody waited for the row"
    unit, row = SplitUnit.objects.get(), Trajectory.objects.get()
    assert (unit.name, unit.is_candidate, unit.share) == (session, arm == "candidate", split.share)
    assert unit.trace_id == row.trace_id
    assert call(client, gate, session).headers["X-Flywheel-Arm"] == arm
    assert len(waiting) == 1, "from then on the process knows it"


@pytest.mark.parametrize("arm", ["live", "candidate"])
@pytest.mark.parametrize("wrong", [Answer(completion("No")), hello(), Answer(b"{}", status=500)])
def test_a_session_that_has_met_the_other_arm_is_answered_by_it_and_the_first_answer_is_dropped(
    wrong: Answer,
    arm: str,
    client: Client,
    gate: Headers,
    upstream: Upstream,
    split: Split,
    recorded: list[Journal],
) -> None:
    other = "candidate" if arm == "live" else "live"
    session = named(split, arm)
    met_before(split, session, is_candidate=other == "candidate")
    upstream.say(wrong, completion("Yes."))
    response, content = ask(client, {**gate, "x-flywheel-session-id": session}, model=MODEL)
    assert (response.status_code, response.headers["X-Flywheel-Arm"], b"Yes." in content) == (200, other, True)
    assert asked(upstream) == [arm, other]
    row = Trajectory.objects.get()
    assert (row.version_id, row.step_count) == ((split.candidate_id if other == "candidate" else split.live_id), 1)
    assert nothing_is_left(recorded)
    assert asked(upstream)[2:] == []
    call(client, gate, session)
    assert asked(upstream)[2:] == [other], "and from then on the process knows it"


def test_a_server_that_is_away_is_not_told_where_the_other_arm_answers(
    client: Client, gate: Headers, split: Split, build: Build, recorded: list[Journal]
) -> None:
    gone = build.version(endpoint={**split.candidate.endpoint, "base_url": "http://127.0.0.1:9/v1"}, system_prompt="3")
    Split.objects.update(candidate=gone)
    met_before(split, named(split, "candidate"), is_candidate=False)
    answer = call(client, gate, named(split, "candidate"))
    assert (answer.status_code, answer.headers["X-Flywheel-Arm"]) == (200, "live")
    assert nothing_is_left(recorded)


def test_a_split_that_ended_a_moment_ago_is_not_gone_by(
    client: Client, gate: Headers, upstream: Upstream, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FRESH_S", "TRUSTED_S", "SPLIT_TRUSTED_S"):
        monkeypatch.setattr(routing, name, 100.0)
    call(client, gate, named(split, "live"))
    Split.objects.update(share=0)
    monkeypatch.setattr(arm_choice, "met_units", MetUnits())
    answer = call(client, gate, named(split, "candidate"))
    assert "X-Flywheel-Arm" not in answer.headers
    assert asked(upstream) == ["live", "candidate", "live"]


def test_without_the_database_the_live_version_answers_whatever_the_coin_says(
    client: Client, gate: Headers, upstream: Upstream, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("the database is away")

    monkeypatch.setattr(MetUnits, "meet", away)
    answer = call(client, gate, named(split, "candidate"))
    assert (answer.status_code, asked(upstream)) == (200, ["candidate", "live"])
    assert "X-Flywheel-Arm" not in answer.headers


@pytest.mark.parametrize(
    "body",
    [
        {"messages": FURTHER},
        {"messages": [None]},
        {"tools": [{"type": "mcp", "server_label": "mail"}]},
    ],
    ids=["further call", "no shape", "a tool that the server carries out"],
)
def test_what_may_be_known_elsewhere_or_changes_something_asks_before_it_goes(
    body: dict[str, Any], client: Client, gate: Headers, upstream: Upstream, split: Split, waiting: list[Later]
) -> None:
    session = named(split, "candidate")
    met_before(split, session, is_candidate=False)
    assert call(client, gate, session, **body).headers["X-Flywheel-Arm"] == "live"
    assert (asked(upstream), waiting) == (["live"], [])
