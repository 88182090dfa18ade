"""The Responses API through the gateway: there, back, filled in, and which trajectory it is of."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from flywheel.agents.models import AttemptKey, Version
from flywheel.trajectories.ingest.gateway import recorder as recording
from flywheel.trajectories.ingest.gateway.journals.journal import Journal
from flywheel.trajectories.models import ModelCall, Step, Trajectory
from flywheel.trajectories.store import stored_traces
from tests.conftest import Build
from tests.trajectories.ingest.gateway.calls import (
    RESPONSES,
    Headers,
    ask,
    leave,
    only_step,
    refusal,
    respond,
    response,
    told_in_events,
)
from tests.trajectories.ingest.upstream import Answer, Upstream, completion

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("recorded")]


@pytest.fixture
def live(build: Build, upstream: Upstream) -> Version:
    version = build.version(endpoint={"kind": "openai", "base_url": upstream.url, "model": "tiny-lora"})
    version.agent.live = version
    version.agent.save()
    return version


def answers(upstream: Upstream, *texts: str) -> None:
    """The next responses, named by their texts."""
    upstream.say(*[json.dumps(response(text, id=f"resp_{text}")).encode() for text in texts])


def test_a_whole_response_goes_through_and_is_kept(client: Client, gate: Headers, upstream: Upstream) -> None:
    said = json.dumps(response()).encode()
    upstream.say(Answer(said, headers={"x-request-id": "req-1"}))
    answer, content = respond(client, gate, temperature=0.2, metadata={"tier": "gold"}, store=False)
    assert (content, answer["x-request-id"], answer["Content-Length"]) == (said, "req-1", str(len(said)))
    sent = upstream.seen[0]
    assert (sent.path, sent.headers["authorization"]) == ("/v1/responses", "Bearer sk-upstream")
    step, row = only_step(), Trajectory.objects.get()
    assert [message.content for message in (*step.input, *step.output)] == ["Hi", "Hello."]
    assert (step.model, step.finish_reason, step.sampling["params"]) == ("tiny-1", "stop", {"temperature": 0.2})
    assert (row.tokens_in, row.tokens_out, step.tokens_cached, row.metadata["tier"]) == (9, 3, 4, "gold")
    assert row.trace_id == answer["X-Flywheel-Trace-Id"]


def test_a_stream_goes_through_byte_for_byte_and_bears_its_version(
    client: Client, gate: Headers, upstream: Upstream, live: Version
) -> None:
    events = told_in_events(response())
    upstream.say(Answer([*events[:3], b": ping\n\n", *events[3:]], kind="text/event-stream", wait_s=0.01))
    answer, content = respond(client, gate, model="assistant@live", stream=True)
    assert content == b"".join([*events[:3], b": ping\n\n", *events[3:]])
    assert (answer["X-Flywheel-Version"], answer["X-Flywheel-Digest"]) == (str(live), live.digest)
    assert (only_step().output[0].content, only_step().status) == ("Hello.", "ok")
    assert Step.objects.get().answered_by == f"{live}:{live.digest}"


def test_a_version_fills_in_what_the_caller_leaves_out(
    client: Client, gate: Headers, upstream: Upstream, live: Version
) -> None:
    answers(upstream, "a")
    respond(client, gate, model="assistant@live", temperature=0.5)
    sent = upstream.seen[0].body
    assert (sent["model"], sent["temperature"], sent["top_p"], sent["max_output_tokens"]) == ("tiny-lora", 0.5, 1.0, 64)
    assert (sent["instructions"], sent["input"], "max_tokens" in sent) == (live.system_prompt, "Hi", False)
    tool = sent["tools"][0]
    assert (tool["type"], tool["name"], tool["strict"]) == ("function", "calendar.create_event", False)
    assert not [name for name in tool if name.startswith("x-")]
    respond(client, gate, model="assistant@live", previous_response_id="resp_a", max_output_tokens=5)
    again = upstream.seen[1].body
    assert (again["instructions"], again["max_output_tokens"]) == (live.system_prompt, 5), "they do not carry over"


@pytest.mark.parametrize(
    "own",
    [{"instructions": "Mine."}, {"input": [{"role": "developer", "content": "Mine."}]}, {"prompt": {"id": "pmpt_1"}}],
)
def test_what_the_caller_says_comes_first(
    own: dict[str, Any], client: Client, gate: Headers, upstream: Upstream, live: Version
) -> None:
    answers(upstream, "a")
    respond(client, gate, model="assistant@live", tools=[], **own)
    sent = upstream.seen[0].body
    assert (sent.get("instructions"), sent["tools"]) == (own.get("instructions"), [])


def test_the_callers_own_bytes_reach_the_upstream(client: Client, gate: Headers, upstream: Upstream) -> None:
    answers(upstream, "a")
    body = b'{ "input": [], "model":"tiny",  "odd": 1e400, "odd": "\\u0000" }'
    leave(client.post(RESPONSES, body, content_type="application/json", headers=gate))
    assert upstream.seen[0].raw == body


def test_a_server_that_knows_only_chat_completions_says_so_itself(
    client: Client, gate: Headers, upstream: Upstream, live: Version
) -> None:
    said = b'{"error": {"message": "Not Found", "type": "x", "param": null, "code": 404}}'
    upstream.say(Answer(said, status=404))
    answer, content = respond(client, gate, model="assistant@live")
    assert (answer.status_code, content, answer["X-Flywheel-Version"]) == (404, said, str(live))
    assert only_step().error == "404: Not Found"


@pytest.mark.parametrize("body", [b"", b"[]", b'{"input": "Hi"}', b'{"model": 5}', b'{"model": "a\\u0000"}'])
def test_a_request_that_cannot_be_routed_is_refused_in_openais_words(
    body: bytes, client: Client, gate: Headers, upstream: Upstream
) -> None:
    answer = client.post(RESPONSES, body, content_type="application/json", headers=gate)
    assert answer.status_code == 400
    assert refusal(answer.content)
    assert client.get(RESPONSES, headers=gate).status_code == 405
    assert upstream.seen == []


def test_a_key_without_the_scope_spends_nothing(
    client: Client, gate: Headers, upstream: Upstream, key: Callable[..., Headers]
) -> None:
    assert respond(client, key("ingest"))[0].status_code == 403
    assert respond(client, {})[0].status_code == 401
    assert upstream.seen == []


def test_an_attempt_may_ask_so_too(client: Client, build: Build, upstream: Upstream) -> None:
    version = build.version(endpoint={"kind": "openai", "base_url": upstream.url, "model": "m"})
    key, secret = AttemptKey.make(version, {"temperature": 0.0}, timezone.now() + timedelta(minutes=5))
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 1}'}
    upstream.say(json.dumps(response([call])).encode())
    answer, _ = respond(client, {"authorization": f"Bearer {secret}"})
    assert answer["X-Flywheel-Digest"] == version.digest
    sent = upstream.seen[0].body
    assert (sent["model"], sent["temperature"], sent["max_output_tokens"]) == ("m", 0.0, 64)
    kept = key.spans.get().content
    assert kept["output"][0]["tool_calls"] == [{"id": "c1", "name": "look", "arguments": {"at": 1}}]
    assert (kept["tokens_in"], kept["finish_reason"], kept["error"]) == (9, "tool_calls", "")


# Which trajectory


def conversation() -> list[str]:
    return [message.content for message in stored_traces.trace_of(Trajectory.objects.get()).conversation()]


def test_a_response_that_names_the_one_before_continues_its_trajectory(
    client: Client, gate: Headers, upstream: Upstream, key: Callable[..., Headers]
) -> None:
    answers(upstream, "a", "b", "c")
    first, _ = respond(client, gate, input="One")
    second, _ = respond(client, gate, input="Two", previous_response_id="resp_a")
    respond(client, gate, input="Three", previous_response_id="resp_b")
    assert conversation() == ["One", "a", "Two", "b", "Three", "c"]
    found = client.get(f"/api/v1/trajectories/{second['X-Flywheel-Trace-Id']}", headers=key("read")).json()
    assert (found["trace_id"], found["step_count"]) == (first["X-Flywheel-Trace-Id"], 3)


def test_two_may_go_on_from_one_response(client: Client, gate: Headers, upstream: Upstream) -> None:
    answers(upstream, "a", "b", "c")
    respond(client, gate, input="One")
    for text in ("Two", "Three"):
        respond(client, gate, input=text, previous_response_id="resp_a")
    assert Trajectory.objects.get().step_count == 3


def test_the_one_before_may_be_recorded_later(
    client: Client, gate: Headers, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Journal] = []
    monkeypatch.setattr(recording.recorder, "put", held.append)
    answers(upstream, "a", "b")
    respond(client, gate, input="One")
    respond(client, gate, input="Two", previous_response_id="resp_a")
    for journal in reversed(held):
        recording.recorder.record([journal])
    assert conversation() == ["One", "a", "Two", "b"]


def test_a_session_or_trace_that_is_named_comes_first(client: Client, gate: Headers, upstream: Upstream) -> None:
    answers(upstream, "a", "b", "c", "d")
    respond(client, {**gate, "x-flywheel-session-id": "s"}, input="One")
    respond(client, {**gate, "x-flywheel-session-id": "t"}, input="Two", previous_response_id="resp_a")
    assert sorted(Trajectory.objects.values_list("session_id", "step_count")) == [("s", 1), ("t", 1)]
    respond(client, gate, input="Three", previous_response_id="resp_b")
    respond(client, {**gate, "x-flywheel-session-id": "t"}, input="Four")
    assert sorted(Trajectory.objects.values_list("session_id", "step_count")) == [("s", 1), ("t", 3)]


def test_a_conversation_of_the_server_is_a_session(client: Client, gate: Headers, upstream: Upstream) -> None:
    answers(upstream, "a", "b")
    respond(client, gate, input="One", conversation="conv_1")
    respond(client, gate, input="Two", conversation={"id": "conv_1"})
    row = Trajectory.objects.get()
    assert (row.session_id, row.step_count) == ("conv_1", 2)


def test_who_repeats_the_history_needs_no_names(client: Client, gate: Headers, upstream: Upstream) -> None:
    answers(upstream, "a", "b")
    respond(client, gate, input="One")
    history: list[Any] = [{"role": "user", "content": "One"}, *response("a")["output"]]
    respond(client, gate, input=[*history, {"role": "user", "content": "Two"}])
    assert conversation() == ["One", "a", "Two", "b"]


@pytest.mark.parametrize("named", ["resp_nobody", "", 5, None, ["x"], {"id": 1}, "x" * 5000, "a\x00b", "\ud800"])
def test_a_name_that_means_nothing_is_passed_on_and_joins_nothing(
    named: Any, client: Client, gate: Headers, upstream: Upstream
) -> None:
    answers(upstream, "a", "b")
    respond(client, gate, input="One")
    assert respond(client, gate, input="Two", previous_response_id=named)[0].status_code == 200
    assert upstream.seen[1].body["previous_response_id"] == named
    assert list(Trajectory.objects.values_list("step_count", flat=True)) == [1, 1]


def test_answers_without_a_name_and_chat_completions_are_joined_by_none(
    client: Client, gate: Headers, upstream: Upstream
) -> None:
    upstream.say(json.dumps(response(id="")).encode(), completion("Hello.", id="resp_1"))
    respond(client, gate, input="One")
    ask(client, gate)
    respond(client, gate, input="Two", previous_response_id="resp_1")
    assert Trajectory.objects.count() == 3
    assert not ModelCall.objects.filter(span_id__endswith=".answer").exists()
