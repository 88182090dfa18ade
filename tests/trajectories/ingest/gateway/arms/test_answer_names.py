"""A conversation of the Responses API that goes on from a named answer stays with the arm that gave it."""

import json
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from flywheel.accounts.actors import Actor
from flywheel.accounts.project_settings import redaction_policy
from flywheel.agents.models import NamedAnswer, Split, SplitUnit
from flywheel.agents.splits import named_answers, open_splits
from flywheel.agents.splits.met_units import MetUnits
from flywheel.core.evidence.ramp.ramp_plan import WHOLE
from flywheel.trajectories.ingest.gateway.arms import answer_names, arm_choice
from flywheel.trajectories.ingest.gateway.arms.answer_names import AnswerName
from tests.agents.splits.splitting import split_of
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
    here = {"kind": "openai", "base_url": upstream.url}
    live = build.version(endpoint={**here, "model": "live"})
    candidate = build.version(endpoint={**here, "model": "candidate"}, system_prompt="Another")
    live.agent.live = live
    live.agent.save()
    return split_of(live, candidate)


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
    arm, following = arm_and_name(client, gate, "Go on", previous_response_id=name)
    assert (arm, upstream.seen[-1].body["model"]) == ("none", "live")
    assert arm_and_name(client, gate, "Go on", previous_response_id=following)[0] == "none"
    assert SplitUnit.objects.count() == 0


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


def test_names_are_forgotten_with_their_split(client: Client, gate: Headers, split: Split) -> None:
    arm_and_name(client, gate, "Hi")
    named_answers.forget(split.pk)
    assert NamedAnswer.objects.count() == 0
    assert SplitUnit.objects.count() == 1


@given(st.lists(st.integers(1, 40), max_size=30), st.binary(max_size=200))
def test_a_name_is_found_however_the_answer_is_cut(cuts: list[int], before: bytes) -> None:
    found: list[str] = []
    look = AnswerName(found.append).look
    rest = before.replace(b'"id"', b"") + b' {"id" : "resp_abc", "output": [{"id": "resp_other"}]}'
    for cut in cuts:
        look(rest[:cut])
        rest = rest[cut:]
    look(rest)
    look(b'{"id": "resp_later"}')
    assert found == ["resp_abc"]


def test_what_has_no_name_within_reach_is_let_go() -> None:
    found: list[str] = []
    name = AnswerName(found.append)
    for piece in (b'{"text": "\\"id\\": \\"resp_said\\"",', b" " * answer_names.LOOKED_AT, b'"id": "resp_late"'):
        name.look(piece)
    assert (found, name._seen) == ([], b"")
