"""A conversation of the Responses API that goes on from a named answer stays with the arm that gave it."""

import json
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from flywheel.accounts.actors import Actor
from flywheel.accounts.project_settings import redaction_policy
from flywheel.agents.models import Agent, NamedAnswer, Split, SplitUnit
from flywheel.agents.splits import named_answers, open_splits
from flywheel.agents.splits.assignment import Unit
from flywheel.agents.splits.met_units import MetUnits
from flywheel.core.evidence.ramp.ramp_plan import WHOLE
from flywheel.trajectories.ingest.gateway.arms import answer_names, arm_choice
from flywheel.trajectories.ingest.gateway.arms.answer_names import AnswerName
from tests.agents.splits.splitting import split_at
from tests.conftest import Build, Cast
from tests.trajectories.ingest.gateway.calls import Headers, respond, response, told_in_events
from tests.trajectories.ingest.upstream import Answer, Seen, Upstream

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("recorded")]
MODEL = "assistant@live"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arm_choice, "met_units", MetUnits())
    monkeypatch.setattr(open_splits, "LEASE_S", 600.0)


@pytest.fixture
def split(build: Build, upstream: Upstream) -> Split:
    """Between two versions whose models are called after their arms, at a server that names each answer anew."""

    def say(seen: Seen) -> Answer:
        said = response(id=f"resp_{len(upstream.seen)}")
        if seen.body.get("stream"):
            return Answer(told_in_events(said), kind="text/event-stream")
        return Answer(json.dumps(said).encode())

    upstream.say(say)
    return split_at(build, upstream.url)


def arm_and_name(client: Client, headers: Headers, text: str, **body: Any) -> tuple[str, str]:
    """The arm that answers, and the answer's name."""
    answer, content = respond(client, headers, model=MODEL, input=text, **body)
    assert answer.status_code == 200
    name = content.partition(b'"id": "resp_')[2].partition(b'"')[0].decode()
    return answer.headers.get("X-Flywheel-Arm", "none"), f"resp_{name}"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_chain_keeps_the_arm_of_its_first_call_in_every_process_and_at_every_share(
    stream: bool, client: Client, gate: Headers, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = [arm_and_name(client, gate, f"Begin {number}", stream=stream) for number in range(8)]
    assert {arm for arm, _ in heads} == {"live", "candidate"}
    monkeypatch.setattr(arm_choice, "met_units", MetUnits())
    Split.objects.update(share=WHOLE)
    for arm, name in heads:
        last = name
        for turn in range(3):
            found, last = arm_and_name(client, gate, f"Go on {turn}", previous_response_id=last, stream=stream)
            assert found == arm
        assert arm_and_name(client, gate, "Otherwise", previous_response_id=name)[0] == arm, "from any of its answers"
    assert SplitUnit.objects.count() == 8, "and all of them are one unit"
    assert NamedAnswer.objects.count() == 8 * 5


def test_a_chain_of_traces_keeps_the_arm_of_its_first_one(client: Client, gate: Headers, split: Split) -> None:
    for number in range(6):
        arm, name = arm_and_name(client, {**gate, "x-flywheel-trace-id": f"{number:032x}"}, "Hi")
        for turn in range(1, 5):
            traced = {**gate, "x-flywheel-trace-id": f"{turn}{number:031x}"}
            assert arm_and_name(client, traced, "Go on", previous_response_id=name)[0] == arm
    assert SplitUnit.objects.count() == 6


def test_a_session_that_is_named_decides_and_keeps_no_names(client: Client, gate: Headers, split: Split) -> None:
    named = {**gate, "x-flywheel-session-id": "s"}
    arm, name = arm_and_name(client, named, "Hi")
    assert arm_and_name(client, named, "Go on", previous_response_id=name)[0] == arm
    assert NamedAnswer.objects.count() == 0


@pytest.mark.parametrize("name", ["resp_before", "resp_" + "x" * 5000, "a\x00b"])
def test_a_conversation_from_before_the_ramp_stays_with_the_live_version(
    name: str, client: Client, gate: Headers, upstream: Upstream, split: Split
) -> None:
    Split.objects.update(share=WHOLE)
    assert arm_and_name(client, gate, "Go on")[0] == "candidate", "another one, which begins with the same words"
    arm, following = arm_and_name(client, gate, "Go on", previous_response_id=name)
    assert (arm, upstream.seen[-1].body["model"]) == ("live", "live")
    assert arm_and_name(client, gate, "Go on", previous_response_id=following)[0] == "live"
    assert SplitUnit.objects.count() == 1, "and is none"


def test_where_answers_have_no_name_a_trace_keeps_its_arm(
    client: Client, gate: Headers, upstream: Upstream, split: Split
) -> None:
    upstream.say(json.dumps(response(id="")).encode())
    Split.objects.update(share=WHOLE)
    traced = {**gate, "x-flywheel-trace-id": "ab" * 16}
    assert arm_and_name(client, traced, "Hi")[0] == "candidate"
    assert arm_and_name(client, traced, "Hi", previous_response_id="resp_other")[0] == "candidate"
    assert arm_and_name(client, gate, "Hi", previous_response_id="resp_other")[0] == "live"


def test_in_a_holdback_what_is_in_doubt_goes_to_the_new_version(
    client: Client, gate: Headers, upstream: Upstream, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("the database is away")

    Agent.objects.update(live=split.candidate)
    Split.objects.update(is_holdback=True, share=9500)
    monkeypatch.setattr(MetUnits, "meet", away)
    assert arm_and_name(client, gate, "Hi")[0] == "none"
    assert upstream.seen[-1].body["model"] == "candidate"


def test_after_the_way_back_the_live_version_goes_on(
    client: Client, gate: Headers, upstream: Upstream, split: Split
) -> None:
    Split.objects.update(share=WHOLE)
    arm, name = arm_and_name(client, gate, "Hi")
    assert arm == "candidate"
    Split.objects.update(share=0)
    assert arm_and_name(client, gate, "Go on", previous_response_id=name)[0] == "none"
    assert upstream.seen[-1].body["model"] == "live"


def test_a_unit_whose_name_is_not_kept_is_found(client: Client, gate: Headers, split: Split, cast: Cast) -> None:
    redaction_policy.set_policy(project=cast.project, actor=Actor(cast.admin), mode="strict", rules=[])
    arm, name = arm_and_name(client, gate, "Write to ann@example.com")
    assert arm_and_name(client, gate, "Go on", previous_response_id=name)[0] == arm


def test_an_answer_whose_name_cannot_be_kept_is_given_all_the_same(
    client: Client, gate: Headers, split: Split, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("the database is away")

    monkeypatch.setattr(named_answers, "planned", away)
    assert arm_and_name(client, gate, "Hi")[0] in ("live", "candidate")
    assert "not known to be of its arm" in caplog.text


def test_names_are_forgotten_with_their_split(
    client: Client, gate: Headers, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm_and_name(client, gate, "Hi")
    named_answers.sweep()
    assert NamedAnswer.objects.count() == 1
    Split.objects.update(closed_at=timezone.now())
    monkeypatch.setattr(named_answers, "AT_ONCE", 1)
    named_answers.sweep()
    assert NamedAnswer.objects.count() == 0
    assert SplitUnit.objects.count() == 1


def test_an_answer_that_begins_as_its_split_ends_is_not_kept(client: Client, gate: Headers, split: Split) -> None:
    arm_and_name(client, gate, "Hi")
    found = open_splits.find(split.agent)
    assert found is not None
    unit = SplitUnit.objects.get()
    Split.objects.update(closed_at=timezone.now())
    named_answers.keep(found, "resp_late", unit=Unit(unit.kind, unit.name))
    assert NamedAnswer.objects.count() == 1


WHOLE_ANSWER = {"created_at": 1, "output": [{"id": "msg_1", "text": '"id": "resp_said"}'}], "id": "abc-1"}
LONG = "resp_" + "x" * 600


@given(st.lists(st.integers(1, 40), max_size=30), st.sampled_from(["", " ", "\n\n"]))
def test_a_name_is_found_however_the_answer_is_cut(cuts: list[int], around: str) -> None:
    found: list[str] = []
    look = AnswerName(found.append).look
    rest = f"{around}{json.dumps(WHOLE_ANSWER)}{around}".encode()
    for cut in cuts:
        look(rest[:cut])
        rest = rest[cut:]
    look(rest)
    look(json.dumps({"id": "later"}).encode())
    assert found == ["abc-1"]


@given(st.lists(st.integers(1, 40), max_size=30))
def test_a_stream_says_its_name_in_its_first_event(cuts: list[int]) -> None:
    found: list[str] = []
    look = AnswerName(found.append).look
    rest = b": hello\n" + b"".join(told_in_events(response(id=LONG)))
    for cut in cuts:
        look(rest[:cut])
        rest = rest[cut:]
    look(rest)
    assert found == [LONG]


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"{}",
        b"[]",
        b'{"id": 5}',
        b'{"id": ""}',
        b"\xff{",
        b'data: {"id": "resp_1"}\n\n',
        b"data: [DONE]\n\n",
        b"{" * 5000,
    ],
)
def test_what_names_itself_in_no_way_has_no_name(said: bytes) -> None:
    found: list[str] = []
    name = AnswerName(found.append)
    name.look(said)
    assert found == []
    name.look(b" " * answer_names.LOOKED_AT)
    assert name._seen == b"", "and is let go"
