"""While a split holds, each session has one arm; when it ends, everybody has the live version."""

import json
import time
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.project_settings import redaction_policy
from flywheel.agents.models import Agent, Split, SplitUnit, Version
from flywheel.agents.splits import open_splits
from flywheel.agents.splits.met_units import MetUnits
from flywheel.agents.splits.open_splits import OpenSplit
from flywheel.core.evidence.ramp.ramp_plan import WHOLE
from flywheel.trajectories.ingest.gateway import openai_endpoints, routing
from flywheel.trajectories.ingest.gateway import recorder as recording
from flywheel.trajectories.ingest.gateway.arms import arm_choice
from flywheel.trajectories.ingest.gateway.relay import Slots
from flywheel.trajectories.models import Step, Trajectory
from tests.agents.splits.splitting import renew, split_at
from tests.conftest import Build, Cast
from tests.trajectories.ingest.gateway.calls import (
    Headers,
    ask,
    begin,
    leave,
    only_step,
    refusal,
    respond,
    response,
)
from tests.trajectories.ingest.upstream import Answer, Upstream, completion, delta, hello

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("recorded")]
MODEL = "assistant@live"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has met nobody, beside a judge whose leases outlast a slow machine."""
    monkeypatch.setattr(arm_choice, "met_units", MetUnits())
    monkeypatch.setattr(open_splits, "LEASE_S", 600.0)


@pytest.fixture
def split(build: Build, upstream: Upstream) -> Split:
    """Between two versions, whose models are called after their arms."""
    return split_at(build, upstream.url)


def arm(client: Client, gate: Headers, upstream: Upstream, session: str, **body: Any) -> str:
    """Which arm answered a session's call, as all say alike."""
    answer, _ = ask(client, {**gate, "x-flywheel-session-id": session}, model=MODEL, **body)
    said = str(upstream.seen[-1].body["model"])
    assert answer.status_code == 200
    assert answer.headers.get("X-Flywheel-Arm", "none") in (said, "none")
    return said if "X-Flywheel-Arm" in answer.headers else f"{said}, no split"


def of_each_arm(client: Client, gate: Headers, upstream: Upstream) -> tuple[str, str]:
    """A session that the live version answers, and one that the candidate does."""
    found = {arm(client, gate, upstream, f"s{number}"): f"s{number}" for number in range(12)}
    return found["live"], found["candidate"]


def another(build: Build, split: Split, endpoint: dict[str, Any]) -> Version:
    """Let another version be the candidate."""
    made = build.version(endpoint=endpoint, system_prompt="A third")
    Split.objects.filter(pk=split.pk).update(candidate=made, share=WHOLE)
    return made


def seen_before(seconds: float, _: OpenSplit) -> float:
    return time.monotonic() - seconds


def all_share(split: Split, share: int = WHOLE) -> None:
    Split.objects.filter(pk=split.pk).update(share=share)


# Who answers whom


def test_sessions_are_split_and_each_keeps_its_arm(
    client: Client, gate: Headers, upstream: Upstream, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {name: arm(client, gate, upstream, name) for name in map(str, range(20))}
    assert set(first.values()) == {"live", "candidate"}
    monkeypatch.setattr(arm_choice, "met_units", MetUnits())  # another process, or this one after a restart
    all_share(split)
    assert {name: arm(client, gate, upstream, name) for name in first} == first
    assert arm(client, gate, upstream, "new") == "candidate"


def test_an_arms_answers_bear_its_name_version_and_what_the_version_brings(
    client: Client, gate: Headers, upstream: Upstream, split: Split
) -> None:
    all_share(split)
    answer, _ = ask(client, {**gate, "x-flywheel-session-id": "s"}, model=MODEL)
    named = tuple(answer.headers[f"X-Flywheel-{name}"] for name in ("Arm", "Version", "Digest"))
    assert named == ("candidate", str(split.candidate), split.candidate.digest)
    assert upstream.seen[0].body["messages"][0] == {"role": "system", "content": "Another"}
    row = Trajectory.objects.get()
    assert (row.agent, row.version, row.session_id) == (split.agent, split.candidate, "s")
    assert only_step().raw["gateway"]["arm"] == "candidate"
    unit = SplitUnit.objects.get()
    assert (unit.kind, unit.name, unit.trace_id, unit.share) == ("session", "s", row.trace_id, WHOLE)


@pytest.mark.parametrize(
    "said",
    [Answer(completion("Hi")), hello(), Answer(b'{"error": {"message": "no"}}', status=500)],
    ids=["whole", "streamed", "error"],
)
def test_a_server_cannot_say_which_arm_it_is(
    said: Answer, client: Client, gate: Headers, upstream: Upstream, split: Split
) -> None:
    said.headers = {"X-Flywheel-Arm": "live"}
    all_share(split)
    upstream.say(said)
    answer, _ = ask(client, {**gate, "X-Flywheel-Arm": "live"}, model=MODEL)
    assert answer.headers["X-Flywheel-Arm"] == "candidate"
    assert only_step().raw["gateway"]["arm"] == "candidate"


def test_without_a_split_nobody_has_an_arm(client: Client, gate: Headers, upstream: Upstream, split: Split) -> None:
    split.delete()
    assert arm(client, gate, upstream, "s") == "live, no split"
    assert "arm" not in only_step().raw["gateway"]


def test_the_agents_own_name_is_split_and_other_models_are_not(
    client: Client, gate: Headers, upstream: Upstream, split: Split
) -> None:
    all_share(split)
    assert ask(client, gate, model="assistant")[0].headers["X-Flywheel-Arm"] == "candidate"
    assert "X-Flywheel-Arm" not in ask(client, gate, model="tiny")[0].headers
    assert SplitUnit.objects.count() == 1


# What a unit is


@pytest.mark.parametrize(
    ("headers", "kind", "name"),
    [
        ({"x-flywheel-session-id": "s", "x-flywheel-trace-id": "ab" * 16}, "session", "s"),
        ({"x-flywheel-trace-id": "AB" * 16}, "trace", "ab" * 16),
        ({"traceparent": f"00-{'cd' * 16}-{'ef' * 8}-01"}, "trace", "cd" * 16),
        ({"traceparent": f"00-{'00' * 16}-{'ef' * 8}-01"}, "beginning", ""),
        ({"x-flywheel-session-id": "s" * 10_000}, "session", "s" * 200),
        ({"x-flywheel-session-id": "a\x00\x1b[1mb"}, "session", "a  [1mb"),
        ({"x-flywheel-session-id": " \x00"}, "session", " "),
        ({"x-flywheel-session-id": "  "}, "beginning", ""),
        ({}, "beginning", ""),
    ],
    ids=["session", "trace", "traceparent", "no traceparent", "10 kB", "NUL", "NUL alone", "blank", "none"],
)
def test_a_unit_is_the_session_else_the_trace_else_the_beginning(
    headers: Headers, kind: str, name: str, client: Client, gate: Headers, split: Split
) -> None:
    ask(client, gate | headers, model=MODEL)
    unit = SplitUnit.objects.get()
    assert unit.kind == kind
    assert unit.name == name or (kind == "beginning" and len(unit.name) == 64)
    assert unit.trace_id == Trajectory.objects.get().trace_id


def test_a_conversation_without_a_name_keeps_its_arm_by_its_beginning(
    client: Client, gate: Headers, upstream: Upstream, split: Split
) -> None:
    said: list[dict[str, Any]] = [{"role": "user", "content": "Book a room."}]
    for turn in range(3):
        ask(client, gate, model=MODEL, messages=said)
        said += [{"role": "assistant", "content": "For whom?"}, {"role": "user", "content": f"For {turn}."}]
    assert SplitUnit.objects.count() == 1
    assert len({seen.body["model"] for seen in upstream.seen}) == 1
    ask(client, gate, model=MODEL, messages=[{"role": "user", "content": "Another."}])
    ask(client, gate, model=MODEL, messages=[{"role": "system", "content": "Be brief."}, *said])
    assert SplitUnit.objects.count() == 3


@pytest.mark.parametrize(
    "messages", [None, 7, "Hi", [], [None, 7, "x"], [{"role": ["user"]}], [{"role": "user", "content": "\ud800"}]]
)
def test_messages_of_no_shape_have_a_beginning_too(
    messages: Any, client: Client, gate: Headers, upstream: Upstream, split: Split
) -> None:
    assert ask(client, gate, model=MODEL, messages=messages)[0].status_code == 200
    assert SplitUnit.objects.count() == 1


def test_a_session_that_all_calls_share_is_one_unit(
    client: Client, gate: Headers, upstream: Upstream, split: Split
) -> None:
    assert len({arm(client, gate, upstream, "default", temperature=number / 10) for number in range(5)}) == 1
    assert SplitUnit.objects.count() == 1


def test_a_session_whose_name_is_not_kept_is_the_unit_that_its_traces_name(
    client: Client, gate: Headers, upstream: Upstream, split: Split, cast: Cast
) -> None:
    redaction_policy.set_policy(project=cast.project, actor=Actor(cast.admin), mode="strict", rules=[])
    assert len({arm(client, gate, upstream, "ann@example.com") for _ in range(3)}) == 1
    unit, row = SplitUnit.objects.get(), Trajectory.objects.get()
    assert "ann@" not in unit.name
    assert (unit.name, unit.trace_id) == (row.session_id, row.trace_id)


def test_the_responses_api_is_split_by_its_conversation(
    client: Client, gate: Headers, upstream: Upstream, split: Split
) -> None:
    upstream.say(json.dumps(response()).encode())
    for held in ("conv_1", {"id": "conv_1"}):
        answer, _ = respond(client, gate, model=MODEL, conversation=held)
        assert answer.headers["X-Flywheel-Arm"] == upstream.seen[-1].body["model"]
    assert (SplitUnit.objects.get().kind, SplitUnit.objects.get().name) == ("session", "conv_1")
    respond(client, gate, model=MODEL, instructions="Be brief.", input="Hi")
    respond(
        client,
        gate,
        model=MODEL,
        input=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    )
    assert SplitUnit.objects.filter(kind="beginning").count() == 1, "one beginning, in either way of writing it"


# The end of a split


@pytest.mark.parametrize(
    "change",
    [
        {"share": 0},
        {"closed_at": timezone.now()},
        {"lease_until": timezone.now() - timedelta(hours=1)},
    ],
    ids=["share 0", "closed", "no judge"],
)
def test_after_the_end_everybody_has_the_live_version(
    change: dict[str, Any], client: Client, gate: Headers, upstream: Upstream, split: Split
) -> None:
    old = of_each_arm(client, gate, upstream)
    Split.objects.update(**change)
    for session in (*old, "new"):
        assert arm(client, gate, upstream, session) == "live, no split"


def test_a_live_version_that_somebody_else_moved_answers_everybody(
    client: Client, gate: Headers, upstream: Upstream, split: Split, build: Build
) -> None:
    of_each_arm(client, gate, upstream)
    third = build.version(endpoint={"kind": "openai", "base_url": upstream.url, "model": "third"}, system_prompt="3")
    Agent.objects.update(live=third)
    assert arm(client, gate, upstream, "s1") == "third, no split"


def test_what_is_remembered_of_a_split_is_trusted_for_a_second(
    client: Client, gate: Headers, upstream: Upstream, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert routing.SPLIT_TRUSTED_S == 1.0
    for name, seconds in (("FRESH_S", 100.0), ("SPLIT_TRUSTED_S", 200.0), ("TRUSTED_S", 1000.0)):
        monkeypatch.setattr(routing, name, seconds)
    looked: list[str] = []
    monkeypatch.setattr(routing, "_look_up_soon", lambda name, *_: looked.append(name))
    _, session = of_each_arm(client, gate, upstream)
    ((name, (_, found)),) = routing._known.items()
    Split.objects.update(share=0)
    for age_s, said in ((0.0, "candidate"), (150.0, "candidate"), (200.0, "live, no split")):
        routing._known[name] = time.monotonic() - age_s, found
        assert arm(client, gate, upstream, session) == said
    assert looked == [name], "and after half of it another thread looks"


def test_a_split_that_was_seen_as_it_is_known_is_trusted_as_long_as_a_key(
    client: Client, gate: Headers, upstream: Upstream, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("FRESH_S", 1000.0), ("SPLIT_TRUSTED_S", 200.0), ("TRUSTED_S", 1000.0)):
        monkeypatch.setattr(routing, name, seconds)
    _, session = of_each_arm(client, gate, upstream)
    ((name, (_, found)),) = routing._known.items()
    Split.objects.update(share=0)
    for seen_s, age_s, said in ((150, 900, "candidate"), (250, 900, "live, no split"), (150, 1100, "live, no split")):
        routing._known[name] = time.monotonic() - age_s, found
        monkeypatch.setattr(routing.watched_splits, "seen_at", partial(seen_before, seen_s))
        assert arm(client, gate, upstream, session) == said


def test_a_process_does_not_trust_a_split_beyond_its_lease(
    client: Client, gate: Headers, upstream: Upstream, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "TRUSTED_S", 5.0)
    _, session = of_each_arm(client, gate, upstream)
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 600)  # of the whole process
    assert arm(client, gate, upstream, session) == "live, no split"
    renew(split)
    routing._known.clear()
    assert arm(client, gate, upstream, session) == "candidate", "the judge is back, and so is the arm"


def test_an_answer_that_streams_at_the_way_back_ends_as_it_began(
    client: Client, gate: Headers, upstream: Upstream, split: Split
) -> None:
    _, session = of_each_arm(client, gate, upstream)
    upstream.say(hello())
    answer = begin(client, {**gate, "x-flywheel-session-id": session}, model=MODEL, stream=True)
    pieces = iter(answer.streaming_content)
    first = next(pieces)
    Split.objects.update(share=0, closed_at=timezone.now())
    content = first + b"".join(pieces)
    leave(answer)
    assert content.endswith(b"[DONE]\n\n")
    assert Step.objects.latest("pk").answered_by == f"{split.candidate}:{split.candidate.digest}"
    upstream.say(Answer(completion("Hello.")))
    assert arm(client, gate, upstream, session) == "live, no split"


# What goes wrong


def test_without_the_database_everybody_has_the_live_version(
    client: Client, gate: Headers, upstream: Upstream, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Any] = []
    _, session = of_each_arm(client, gate, upstream)
    monkeypatch.setattr(routing, "TRUSTED_S", 5.0)
    monkeypatch.setattr(recording.recorder, "put", held.append)

    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("the database is away")

    with monkeypatch.context() as outage:
        outage.setattr(routing, "admit", away)
        outage.setattr(MetUnits, "meet", away)
        assert arm(client, gate, upstream, session) == "candidate", "for the second in which nobody has asked"
        assert arm(client, gate, upstream, "new") == "live, no split"
        assert arm(client, gate, upstream, session) == "live, no split", "now it is known to be away"
        outage.setattr(routing, "_away_until", 0.0)
        outage.setattr(routing, "SPLIT_TRUSTED_S", 0.0)
        assert arm(client, gate, upstream, session) == "live, no split"
    monkeypatch.setattr(routing, "_away_until", 0.0)
    assert arm(client, gate, upstream, session) == "candidate"


def test_a_candidate_that_does_not_answer_is_the_error_of_its_arm(
    client: Client, gate: Headers, split: Split, build: Build
) -> None:
    candidate = another(build, split, {**split.candidate.endpoint, "base_url": "http://127.0.0.1:9/v1"})
    answer, content = ask(client, gate, model=MODEL)
    assert (answer.status_code, refusal(content)["code"]) == (502, "upstream_unreachable")
    assert answer.headers["X-Flywheel-Arm"] == "candidate"
    step = Step.objects.get()
    assert (step.status, step.answered_by) == ("error", f"{candidate}:{candidate.digest}")
    assert only_step().raw["gateway"]["arm"] == "candidate"


def test_a_stream_that_breaks_off_is_the_error_of_its_arm(
    client: Client, gate: Headers, upstream: Upstream, split: Split
) -> None:
    all_share(split)
    upstream.say(Answer([delta(content="He")], kind="text/event-stream", breaks=True))
    answer = begin(client, gate, model=MODEL, stream=True)
    with pytest.raises(ConnectionResetError):
        list(answer.streaming_content)
    leave(answer)
    assert (answer.headers["X-Flywheel-Arm"], Step.objects.get().status) == ("candidate", "error")


def test_a_refusal_names_the_arm(client: Client, gate: Headers, split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_endpoints, "slots", Slots(0))
    all_share(split)
    answer, content = ask(client, gate, model=MODEL)
    assert (refusal(content)["code"], answer.headers["X-Flywheel-Arm"]) == ("gateway_busy", "candidate")


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [({"kind": "transformers"}, "no server answers for"), ({"api_key_env": "NOBODY_API_KEY"}, "NOBODY_API_KEY")],
    ids=["no server", "no key"],
)
def test_where_an_arm_leads_nowhere_everybody_has_the_live_version_and_the_judge_can_say_why(
    endpoint: dict[str, Any],
    problem: str,
    client: Client,
    gate: Headers,
    upstream: Upstream,
    split: Split,
    build: Build,
) -> None:
    assert routing.problem_of(split) == ""
    another(build, split, endpoint if "kind" in endpoint else split.candidate.endpoint | endpoint)
    assert arm(client, gate, upstream, "s") == "live, no split"
    assert SplitUnit.objects.count() == 0, "and the coin is not thrown for nothing"
    assert problem in routing.problem_of(Split.objects.get())


def test_a_version_on_vllm_is_asked_under_its_own_name(
    client: Client, gate: Headers, upstream: Upstream, split: Split, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWHEEL_VLLM_URL", upstream.url.removesuffix("/v1"))
    Agent.objects.update(live=build.version(endpoint={"kind": "transformers"}, system_prompt="On vLLM"))
    candidate = another(build, split, {"kind": "transformers"})
    Split.objects.update(live=Agent.objects.get().live, served={str(candidate.pk): "assistant-v2-abc"})
    Agent.objects.update(served="assistant-v1-abc")
    ask(client, {**gate, "x-flywheel-session-id": "s"}, model=MODEL)
    Split.objects.update(share=0)
    ask(client, {**gate, "x-flywheel-session-id": "s"}, model=MODEL)
    assert [seen.body["model"] for seen in upstream.seen] == ["assistant-v2-abc", "assistant-v1-abc"]


def test_a_known_session_costs_no_question(
    client: Client,
    gate: Headers,
    upstream: Upstream,
    split: Split,
    monkeypatch: pytest.MonkeyPatch,
    django_assert_num_queries: Any,
) -> None:
    monkeypatch.setattr(routing, "TRUSTED_S", 60.0)
    monkeypatch.setattr(routing, "SPLIT_TRUSTED_S", 60.0)
    monkeypatch.setattr(recording.recorder, "put", lambda journal: journal.done())
    arm(client, gate, upstream, "s")
    with django_assert_num_queries(0):
        arm(client, gate, upstream, "s")


# What callers say otherwise


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({}, None),
        ({"temperature": 1.0, "max_tokens": 64}, None),
        ({"temperature": 0.5, "max_completion_tokens": 9}, ["max_tokens", "temperature"]),
        ({"messages": [{"role": "system", "content": "Mine."}], "tools": []}, ["system", "tools"]),
        ({"seed": 7, "stop": ["x"]}, None),
    ],
    ids=["nothing", "the same", "sampling", "prompt and tools", "what no version says"],
)
def test_calls_that_override_what_the_version_brings_are_told(
    body: dict[str, Any], names: list[str] | None, client: Client, gate: Headers, split: Split
) -> None:
    ask(client, gate, model=MODEL, **body)
    assert Step.objects.get().body["raw"]["gateway"].get("overrides") == names, "where a ramp's judge reads them"
    row = Trajectory.objects.get()
    assert row.metadata.get("gateway.overrides") == (" ".join(names) if names else None)
    assert ("gateway.overrides" in row.attributes) == bool(names)


def test_with_a_holdback_the_candidate_is_live_until_harm_is_found(
    client: Client, gate: Headers, upstream: Upstream, split: Split
) -> None:
    before, after = of_each_arm(client, gate, upstream)
    Agent.objects.update(live=split.candidate)
    Split.objects.update(is_holdback=True, share=9500)
    assert (arm(client, gate, upstream, before), arm(client, gate, upstream, after)) == ("live", "candidate")
    Split.objects.update(lease_until=split.created_at)
    assert arm(client, gate, upstream, before) == "candidate, no split", "without a judge all have the live version"
    Split.objects.update(share=0)
    assert {arm(client, gate, upstream, name) for name in (before, after, "new")} == {"live, no split"}
