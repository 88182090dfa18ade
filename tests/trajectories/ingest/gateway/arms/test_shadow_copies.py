"""Copies of calls: sent after the caller has its answer, stored apart, bounded, and given to nobody."""

from typing import Any

import pytest
from django.test import Client

from flywheel.agents.models import Shadow, ShadowCopy, Split
from flywheel.agents.splits import open_splits
from flywheel.trajectories.ingest.gateway import openai_endpoints
from flywheel.trajectories.ingest.gateway import recorder as recording
from flywheel.trajectories.ingest.gateway.arms import shadow_copies
from flywheel.trajectories.ingest.gateway.journals.journal import Journal
from flywheel.trajectories.ingest.gateway.relay import Slots
from flywheel.trajectories.models import Trajectory
from tests.agents.splits.splitting import split_at
from tests.conftest import Build
from tests.trajectories.ingest.gateway.calls import Headers, ask
from tests.trajectories.ingest.upstream import Answer, Upstream, completion, hello

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("recorded")]


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was handed over, and not done yet."""
    handed: list[Any] = []
    monkeypatch.setattr(shadow_copies, "submit", lambda *what: handed.append(what))
    monkeypatch.setattr(shadow_copies, "places", Slots(shadow_copies.AT_ONCE))
    monkeypatch.setattr(open_splits, "LEASE_S", 600.0)
    shadow_copies._skipped.clear()
    return handed


@pytest.fixture
def split(build: Build, upstream: Upstream, waiting: list[Any]) -> Split:
    made = split_at(build, upstream.url, share=0)
    Shadow.objects.create(split=made, is_on=True, calls=3)
    return made


def call(client: Client, gate: Headers, session: str = "s", **more: str) -> Any:
    answer, content = ask(client, {**gate, "x-flywheel-session-id": session, **more}, model="assistant@live")
    return answer, content


def work(waiting: list[Any]) -> int:
    done = list(waiting)
    waiting.clear()
    for work, *what in done:
        work(*what)
    return len(done)


@pytest.mark.parametrize("said", [Answer(completion("Hi")), hello()], ids=["whole", "streamed"])
def test_a_copy_goes_to_the_candidate_after_the_answer_and_is_stored_apart(
    said: Answer, client: Client, gate: Headers, upstream: Upstream, split: Split, waiting: list[Any]
) -> None:
    upstream.say(said)
    answer, _ = call(client, gate)
    assert "X-Flywheel-Arm" not in answer.headers
    assert answer.headers["X-Flywheel-Version"] == str(split.live)
    assert [seen.body["model"] for seen in upstream.seen] == ["live"], "nothing was sent before the answer was"
    assert work(waiting) == 1
    assert upstream.seen[1].body["model"] == "candidate"
    assert upstream.seen[1].body["messages"][0] == {"role": "system", "content": "Another"}
    live, own = Trajectory.objects.order_by("source")
    assert (live.source, own.source, own.version, own.session_id) == ("production", "shadow", split.candidate, "s")
    assert (own.is_attempt, own.metadata["gateway.shadow_of"], own.outcome) == (True, live.trace_id, None)
    copy = ShadowCopy.objects.get()
    assert (copy.trace_id, copy.copy_trace_id, copy.name) == (live.trace_id, own.trace_id, "s")
    assert live.steps.get().span_id == copy.span_id
    assert Shadow.objects.get().copies == 1


def test_a_copy_costs_no_more_than_the_budget_and_none_is_made_where_nobody_watches(
    client: Client, gate: Headers, upstream: Upstream, split: Split, waiting: list[Any]
) -> None:
    call(client, gate, **{"x-flywheel-record": "no"})
    assert not waiting, "what is not to be recorded is not copied"
    for _ in range(5):
        call(client, gate)
        work(waiting)
    assert Shadow.objects.get().copies == ShadowCopy.objects.count() == 3
    Shadow.objects.update(calls=9, tokens=10, tokens_used=10)
    call(client, gate)
    work(waiting)
    assert Shadow.objects.get().copies == 3
    Shadow.objects.update(tokens=None, dollars=0.5, dollars_used=0.5)
    call(client, gate)
    work(waiting)
    assert Shadow.objects.get().copies == 3
    Shadow.objects.update(dollars=0.6)
    call(client, gate)
    work(waiting)
    assert Shadow.objects.get().copies == 4, "what is left is used"
    Split.objects.update(lease_until=split.created_at)
    call(client, gate)
    assert not waiting


def test_copies_are_dropped_and_counted_where_there_is_much_to_do(
    client: Client, gate: Headers, upstream: Upstream, split: Split, waiting: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow_copies, "places", Slots(1))
    for _ in range(3):
        call(client, gate)
    assert [what[0] for what in waiting] == [shadow_copies._answer, shadow_copies._count_skipped]
    work(waiting)
    assert (Shadow.objects.get().copies, Shadow.objects.get().skipped) == (1, 2)
    call(client, gate)
    assert work(waiting) == 1, "the place is free again"


def test_copies_are_the_first_thing_to_go_where_the_gateway_has_much_to_do(
    client: Client, gate: Headers, upstream: Upstream, split: Split, waiting: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way = Slots(4)
    monkeypatch.setattr(openai_endpoints, "slots", under_way)
    for _ in range(3):  # others' calls: more than half of the places
        under_way.take()
    call(client, gate)
    assert [what[0] for what in waiting] == [shadow_copies._count_skipped]
    work(waiting)
    assert (Shadow.objects.get().copies, Shadow.objects.get().skipped) == (0, 1)
    assert shadow_copies.places.taken == 0, "no place is kept for what was dropped"
    under_way.give_back()
    call(client, gate)
    work(waiting)
    assert (Shadow.objects.get().copies, Shadow.objects.get().skipped) == (1, 1)


def test_an_answer_that_fails_is_stored_and_one_whose_process_died_is_lost(
    client: Client, gate: Headers, upstream: Upstream, split: Split, waiting: list[Any]
) -> None:
    call(client, gate)
    upstream.say(Answer(b'{"error": {"message": "no"}}', status=500))
    work(waiting)
    own = Trajectory.objects.get(source="shadow")
    assert own.steps.get().error == "500: no"
    head = {"id": "ab" * 16, "project": own.project_id, "shadow": {"split": split.pk, "of": "t"}, "trace": "t" * 32}
    left = Journal.begin(head, b"{}")
    recording.recorder.record([left])
    assert Trajectory.objects.count() == 2
    assert left.path is not None
    assert not left.path.exists()


@pytest.mark.parametrize(
    ("asked", "is_copied"),
    [
        ({"tools": [{"type": "function", "function": {"name": "find"}}, {"type": "custom", "name": "run"}]}, True),
        ({"tools": [{"type": "mcp", "server_url": "https://x"}]}, False),
        ({"tools": ["web"]}, False),
        ({"conversation": "c"}, False),
        ({"previous_response_id": "r"}, False),
        ({"previous_response_id": None, "tools": None}, True),
    ],
    ids=["our tools", "a server's tool", "no tool", "a conversation", "a response", "nothing"],
)
def test_what_a_server_would_carry_out_is_not_copied(asked: dict[str, Any], is_copied: bool) -> None:
    assert shadow_copies.changes_nothing(asked) is is_copied


def test_a_copy_does_not_name_the_call(
    client: Client, gate: Headers, upstream: Upstream, split: Split, waiting: list[Any]
) -> None:
    call(client, gate, **{"idempotency-key": "once", "user-agent": "agent/1"})
    work(waiting)
    first, own = ({name.lower(): value for name, value in seen.headers.items()} for seen in upstream.seen)
    assert (first["idempotency-key"], first["user-agent"], own["user-agent"]) == ("once", "agent/1", "agent/1")
    assert "idempotency-key" not in own
