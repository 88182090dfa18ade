"""A call that begins a conversation goes where its coin points before the row says so, and never to two answers."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from django.db import DataError, OperationalError
from django.test import Client
from django.utils import timezone

from flywheel.agents.models import Split, SplitUnit
from flywheel.agents.splits import open_splits
from flywheel.agents.splits.assignment import Unit, coin
from flywheel.agents.splits.met_units import MetUnits
from flywheel.trajectories.ingest.gateway import openai_endpoints, routing
from flywheel.trajectories.ingest.gateway.arms import arm_choice
from flywheel.trajectories.ingest.gateway.journals import journal_contents
from flywheel.trajectories.ingest.gateway.journals.journal import CHUNK, Frame, Journal
from flywheel.trajectories.ingest.gateway.recorder import is_for_nobody
from flywheel.trajectories.ingest.gateway.relay import Slots
from flywheel.trajectories.ingest.gateway.routing import Route
from flywheel.trajectories.models import Step, Trajectory
from tests.agents.splits.splitting import split_at
from tests.conftest import Build
from tests.trajectories.ingest.gateway.calls import Headers, ask
from tests.trajectories.ingest.upstream import Answer, Seen, Upstream, completion, hello

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
    return split_at(build, upstream.url)


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
        {"store": True},
        {"prompt": {"id": "pmpt_1"}},
    ],
    ids=[
        "further call",
        "no shape",
        "a tool that the server carries out",
        "an answer that it keeps",
        "a prompt of its",
    ],
)
def test_what_may_be_known_elsewhere_or_changes_something_asks_before_it_goes(
    body: dict[str, Any], client: Client, gate: Headers, upstream: Upstream, split: Split, waiting: list[Later]
) -> None:
    session = named(split, "candidate")
    met_before(split, session, is_candidate=False)
    assert call(client, gate, session, **body).headers["X-Flywheel-Arm"] == "live"
    assert (asked(upstream), waiting) == (["live"], [])


def test_a_call_with_an_idempotency_key_asks_before_it_goes(
    client: Client, gate: Headers, upstream: Upstream, split: Split, waiting: list[Later]
) -> None:
    """Its server would answer the second call with what it said to the first one, of the other arm."""
    session = named(split, "candidate")
    met_before(split, session, is_candidate=False)
    answer = call(client, {**gate, "Idempotency-Key": "k1"}, session)
    assert (answer.headers["X-Flywheel-Arm"], asked(upstream), waiting) == ("live", ["live"], [])


def test_a_way_back_while_the_wrong_server_thinks_is_gone_by(
    client: Client, gate: Headers, upstream: Upstream, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = named(split, "live")
    met_before(split, session, is_candidate=True)
    result = Later.result

    def taken_back_after(self: Later, timeout: float | None = None) -> Route:
        found = result(self, timeout)
        Split.objects.update(share=0)
        return found

    monkeypatch.setattr(Later, "result", taken_back_after)
    answer = call(client, gate, session)
    assert ("X-Flywheel-Arm" in answer.headers, asked(upstream)) == (False, ["live", "live"])


def test_the_right_arm_is_not_charged_with_the_time_of_the_wrong_one(
    client: Client, gate: Headers, upstream: Upstream, split: Split
) -> None:
    session = named(split, "candidate")
    met_before(split, session, is_candidate=False)

    def dawdle(_: Seen) -> Answer:
        time.sleep(0.4)
        return Answer(completion("No."))

    upstream.say(dawdle, completion("Yes."))
    began = timezone.now()
    call(client, gate, session)
    started = Step.objects.values_list("started_at", flat=True).get()
    assert started is not None
    assert started - began > timedelta(seconds=0.4)


def test_a_full_process_names_the_arm_that_the_unit_has_met(
    client: Client, gate: Headers, upstream: Upstream, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_endpoints, "slots", Slots(0))
    session = named(split, "candidate")
    met_before(split, session, is_candidate=False)
    answer = call(client, gate, session)
    assert (answer.status_code, answer.headers["X-Flywheel-Arm"], asked(upstream)) == (503, "live", [])


def test_what_the_database_refuses_is_told_without_an_arm_and_not_recorded(
    client: Client, gate: Headers, upstream: Upstream, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise DataError("no such thing")

    monkeypatch.setattr(MetUnits, "meet", refuse)
    answer = call(client, gate, named(split, "candidate"))
    assert (answer.status_code, "X-Flywheel-Arm" in answer.headers) == (503, False)
    assert Trajectory.objects.count() == 0


def test_where_the_database_was_away_a_moment_ago_nobody_waits_for_it(
    client: Client, gate: Headers, upstream: Upstream, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = routing.find
    monkeypatch.setattr(routing, "_away_until", 0.0)

    def lost(*given: Any) -> Any:
        fork = found(*given)
        routing.lose_database()
        return fork

    monkeypatch.setattr(routing, "find", lost)
    answer = call(client, gate, named(split, "candidate"))
    assert (answer.status_code, "X-Flywheel-Arm" in answer.headers) == (200, False)
    assert SplitUnit.objects.count() == 0


def test_a_call_that_was_sent_on_a_guess_and_died_with_its_process_is_nobodys(
    client: Client, gate: Headers, upstream: Upstream, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[dict[str, Any]] = []
    begin = Journal.begin

    def see(head: dict[str, Any], request: bytes) -> Journal:
        heads.append(head)
        return begin(head, request)

    monkeypatch.setattr(Journal, "begin", see)
    session = named(split, "candidate")
    call(client, gate, session)
    call(client, gate, session)
    guess, known = (journal_contents.Seen(head=head, request=b"{}") for head in heads)
    assert (is_for_nobody(guess), is_for_nobody(known)) == (True, False)
    guess.pieces.append(Frame(CHUNK, 0.0, b"x"))
    assert not is_for_nobody(guess), "its caller has heard of it"
