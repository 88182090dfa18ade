"""The gateway: what goes to the upstream, what comes back, and what is kept of it."""

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import DataError, ProgrammingError
from django.test import Client

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ModelPrice, Project
from flywheel.accounts.project_settings.gateway_upstream import set_upstream
from flywheel.trajectories.ingest.gateway import openai_endpoints, routing
from flywheel.trajectories.ingest.gateway import recorder as recording
from flywheel.trajectories.ingest.gateway import upstream_connection as connections
from flywheel.trajectories.ingest.gateway.relay import Slots
from flywheel.trajectories.models import Batch, Step, Trajectory
from flywheel.trajectories.store import stored_traces
from tests.conftest import Cast
from tests.trajectories.ingest.gateway.calls import ASK, URL, Headers, ask, begin, leave, only_step, refusal
from tests.trajectories.ingest.upstream import Answer, Upstream, completion, delta, hello, sse
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("recorded")]


# Through and back


def test_a_call_goes_through_and_is_kept(client: Client, gate: Headers, upstream: Upstream, cast: Cast) -> None:
    said = completion("Hello.", system_fingerprint="fp")
    upstream.say(Answer(said, headers={"x-request-id": "req-1", "x-ratelimit-remaining-tokens": "7"}))
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    answer, content = ask(client, gate, temperature=0.2, tools=tools, user="u-1", metadata={"tier": "gold"})
    assert (answer.status_code, content) == (200, said)
    assert (answer["x-request-id"], answer["x-ratelimit-remaining-tokens"]) == ("req-1", "7")
    assert answer["Content-Length"] == str(len(said))

    sent = upstream.seen[0]
    assert (sent.path, sent.headers["authorization"]) == ("/v1/chat/completions", "Bearer sk-upstream")
    assert sent.body == {**ASK, "temperature": 0.2, "tools": tools, "user": "u-1", "metadata": {"tier": "gold"}}

    row = Trajectory.objects.get()
    assert (row.source, row.project, row.trace_id) == ("production", cast.project, answer["X-Flywheel-Trace-Id"])
    assert (row.tokens_in, row.tokens_out, row.step_count, row.user_id) == (9, 3, 1, "u-1")
    assert row.metadata == {"tier": "gold", "gateway.upstream": upstream.host}
    assert [tool["name"] for tool in row.tools] == ["look"]
    step = only_step()
    assert (step.kind, step.status, step.model, step.finish_reason) == ("assistant", "ok", "tiny-1", "stop")
    assert [message.content for message in (*step.input, *step.output)] == ["Hi", "Hello."]
    assert (step.tokens_cached, step.sampling["params"]) == (4, {"temperature": 0.2})
    assert step.raw["gateway"]["request_id"] == "req-1"
    assert step.raw["response"]["system_fingerprint"] == "fp"
    batch = Batch.objects.get()
    assert (batch.format, batch.received, batch.inserted) == ("gateway", 1, 1)
    assert batch.key is not None


def test_the_callers_own_bytes_reach_the_upstream(client: Client, gate: Headers, upstream: Upstream) -> None:
    body = b'{ "messages": [], "model":"tiny",  "odd": 1e400, "odd": "\\u0000" }'
    headers = {**gate, "cookie": "a=b", "x-secret": "s"}
    leave(client.post(URL, body, content_type="application/json", headers=headers))
    assert upstream.seen[0].raw == body
    assert not {"cookie", "x-secret"} & set(upstream.seen[0].headers)


def test_a_stream_goes_through_piece_by_piece_and_is_put_together(
    client: Client, gate: Headers, upstream: Upstream
) -> None:
    upstream.say(hello(wait_s=0.02))
    answer = begin(client, gate, stream=True)
    pieces = list(answer.streaming_content)
    leave(answer)
    assert answer["Content-Type"] == "text/event-stream; charset=utf-8"
    assert "Content-Length" not in answer
    assert len(pieces) > 1, "as it came"
    assert b"".join(pieces) == b"".join(hello().body)  # type: ignore[arg-type]
    step = only_step()
    assert [message.content for message in step.output] == ["Hello."]
    assert (step.finish_reason, step.tokens_in, step.tokens_out, step.status) == ("stop", 9, 2, "ok")
    first = step.raw["gateway"]["first_token_ms"]
    assert step.duration_ms is not None
    assert 15 < first < step.duration_ms


def test_calls_of_tools_are_put_together_from_their_parts(client: Client, gate: Headers, upstream: Upstream) -> None:
    def part(index: int, id: str | None = None, **function: str) -> bytes:
        call = {"index": index, **({"id": id, "type": "function"} if id else {}), "function": function}
        return delta(tool_calls=[call])

    upstream.say(
        sse(
            part(0, "c1", name="look", arguments=""),
            part(0, arguments='{"at":'),
            part(1, "c2", name="send", arguments='{"n"'),
            part(0, arguments=' "x"}'),
            part(1, arguments=": 2}"),
            delta(finish_reason="tool_calls"),
        )
    )
    ask(client, gate, stream=True)
    calls = only_step().tool_calls()
    assert [(call.id, call.name, call.arguments) for call in calls] == [
        ("c1", "look", {"at": "x"}),
        ("c2", "send", {"n": 2}),
    ]


def test_tokens_and_their_probabilities_are_kept(client: Client, gate: Headers, upstream: Upstream) -> None:
    def piece(text: str, ids: list[int], *logprobs: float) -> dict[str, Any]:
        content: list[Any] = [
            {"token": text, "logprob": value, "bytes": None, "top_logprobs": []} for value in logprobs
        ]
        return {"delta": {"content": text}, "logprobs": {"content": content}, "token_ids": ids, "index": 0}

    events: list[dict[str, Any]] = [
        {"prompt_token_ids": [1, 2, 3], "choices": [piece("a", [7], -0.25)]},
        {"choices": [piece("bc", [8, 9], -1.5, -0.0)]},
    ]
    upstream.say(sse(*(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)))
    ask(client, gate, stream=True, logprobs=True, seed=5)
    assert only_step().sampling == {
        "prompt_token_ids": [1, 2, 3],
        "token_ids": [7, 8, 9],
        "logprobs": [-0.25, -1.5, -0.0],
        "params": {"logprobs": True, "seed": 5},
    }


# Which trajectory


def test_calls_of_one_trace_are_one_trajectory_and_say_each_message_once(
    client: Client, gate: Headers, upstream: Upstream
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    upstream.say(
        completion(None, message={"tool_calls": [call]}),
        completion("It is there."),
    )
    named = {**gate, "x-flywheel-trace-id": "0AF76519-16cd-43dd-8448-eb211c80319c", "x-flywheel-agent": "finder@7"}
    history: list[dict[str, Any]] = [{"role": "user", "content": "Where?"}]
    ask(client, named, messages=history)
    history += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "there"},
    ]
    ask(client, {**named, "x-flywheel-outcome": "success"}, messages=history)
    row = Trajectory.objects.get()
    assert row.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert (row.step_count, row.agent_name, row.version_label, row.outcome) == (2, "finder", "7", "success")
    told = [(message.role, message.content) for message in stored_traces.trace_of(row).conversation()]
    assert told == [("user", "Where?"), ("assistant", ""), ("tool", "there"), ("assistant", "It is there.")]


def test_a_session_without_traces_is_one_trajectory(client: Client, gate: Headers) -> None:
    for session in ("a", "a", "b"):
        ask(client, {**gate, "x-flywheel-session-id": session})
    assert sorted(Trajectory.objects.values_list("session_id", "step_count")) == [("a", 2), ("b", 1)]


def test_without_a_name_each_call_is_a_trajectory(client: Client, gate: Headers) -> None:
    for _ in range(2):
        ask(client, gate)
    assert list(Trajectory.objects.values_list("step_count", flat=True)) == [1, 1]


def test_a_w3c_trace_is_joined_and_passed_on(client: Client, gate: Headers, upstream: Upstream) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    ask(client, {**gate, "traceparent": parent, "tracestate": "a=b"})
    assert Trajectory.objects.get().trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert Step.objects.get().parent_id == "b7ad6b7169203331"
    assert upstream.seen[0].headers["traceparent"] == parent


def test_a_caller_who_sends_spans_of_its_own_may_leave_the_call_out(
    client: Client, gate: Headers, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setattr(recording.recorder, "put", recording.Recorder().put)
    for answer in (Answer(completion("Hello.")), hello()):
        upstream.say(answer)
        answered, _ = ask(client, {**gate, "x-flywheel-record": "no"})
        assert (answered.status_code, "X-Flywheel-Trace-Id" in answered) == (200, False)
    assert (Trajectory.objects.count(), settings.GATEWAY_DIR.exists()) == (0, False)


@pytest.mark.parametrize("name", ["a/b c", "ünïcode", "x" * 500, "00-zz-1-01"])
def test_any_name_of_a_trace_makes_a_trajectory_that_has_a_page(
    name: str, client: Client, gate: Headers, cast: Cast, sign_in: Callable[..., Client]
) -> None:
    ask(client, {**gate, "x-flywheel-trace-id": name})
    page = sign_in(cast.viewer).get(f"/p/acme/trajectories/{Trajectory.objects.get().trace_id}/")
    assert page.status_code == 200
    assert b"Hello." in page.content


# What goes wrong


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_an_upstreams_error_is_passed_on_unchanged_and_kept(
    status: int, client: Client, gate: Headers, upstream: Upstream
) -> None:
    body = b'{"error": {"message": "slow down", "type": "x", "param": null, "code": "y"}}'
    upstream.say(Answer(body, status=status, headers={"Retry-After": "7", "Set-Cookie": "a=b"}))
    answer, content = ask(client, gate)
    assert (answer.status_code, content, answer["Retry-After"]) == (status, body, "7")
    assert "Set-Cookie" not in answer
    step = only_step()
    assert (step.status, step.error, step.output) == ("error", f"{status}: slow down", [])
    assert Trajectory.objects.get().error_count == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>busy</html>",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"choices": 3}',
        b'{"choices": [{}]}',
        b'{"choices": [{"message": 5}, 5, null]}',
        b'{"choices": [{"message": {"content": ["\\u0000", 1e999]}}]}',
    ],
)
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream", "text/html"])
def test_nonsense_of_an_upstream_is_passed_on_and_kept(
    body: bytes, kind: str, client: Client, gate: Headers, upstream: Upstream
) -> None:
    upstream.say(Answer(b"data: " + body + b"\n\n" if kind == "text/event-stream" else body, kind=kind))
    answer, content = ask(client, gate)
    assert answer.status_code == 200
    assert body in content
    assert only_step().input[0].content == "Hi"


def test_an_answer_that_is_no_completion_is_an_error(client: Client, gate: Headers, upstream: Upstream) -> None:
    upstream.say(Answer(b"<html>busy</html>", kind="text/html"))
    ask(client, gate)
    step = only_step()
    assert (step.status, step.raw["response_text"]) == ("error", "<html>busy</html>")
    assert "not a chat completion" in step.error


def test_an_error_in_a_stream_is_kept(client: Client, gate: Headers, upstream: Upstream) -> None:
    upstream.say(sse(delta(content="He"), b'data: {"error": {"message": "out of memory"}}\n\n'))
    ask(client, gate, stream=True)
    step = only_step()
    assert (step.status, step.error, step.output[0].content) == ("error", "out of memory", "He")


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_breaks_off_breaks_off_for_the_caller_too(
    stream: bool, client: Client, gate: Headers, upstream: Upstream
) -> None:
    whole = completion("Hello.")
    broken = sse(delta(content="He"), breaks=True) if stream else Answer(whole[:50], length=len(whole), breaks=True)
    if stream:
        broken.body = [delta(content="He")]
    upstream.say(broken)
    with pytest.raises(ConnectionResetError):
        ask(client, gate, stream=stream)
    step = only_step()
    assert step.status == "error"
    assert "broke off" in step.error
    assert [message.content for message in step.output] == (["He"] if stream else [])
    assert openai_endpoints.slots.taken == 0


def test_a_caller_who_goes_away_ends_the_call_upstream(client: Client, gate: Headers, upstream: Upstream) -> None:
    upstream.say(sse(delta(content="He"), *[delta(content="x" * 20_000)] * 400, wait_s=0.005))
    answer = begin(client, gate, stream=True)
    next(iter(answer.streaming_content))
    leave(answer)
    assert upstream.hung_up.wait(PATIENCE_S)
    step = only_step()
    assert "the caller went away" in step.error
    assert step.output[0].content.startswith("He")
    assert step.raw["gateway"]["ended"] == "left"


def test_a_caller_who_has_all_it_wants_may_hang_up(client: Client, gate: Headers, upstream: Upstream) -> None:
    held = threading.Event()
    upstream.say(Answer([*hello().body, b": bye\n\n"], kind="text/event-stream", hold=held))
    answer = begin(client, gate, stream=True)
    seen = b""
    for piece in answer.streaming_content:
        seen += piece
        if b"[DONE]" in seen:
            break
    leave(answer)
    held.set()
    assert (only_step().status, only_step().output[0].content) == ("ok", "Hello.")


def test_a_server_that_is_not_there_is_told_and_kept(
    client: Client, gate: Headers, cast: Cast, upstream: Upstream
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    set_upstream(project=cast.project, actor=Actor(cast.admin), base_url=f"http://127.0.0.1:{port}/v1")
    answer, content = ask(client, gate)
    assert answer.status_code == 502
    assert refusal(content)["code"] == "upstream_unreachable"
    assert f"127.0.0.1:{port}" in refusal(content)["message"]
    assert "cannot be reached" in only_step().error


def test_a_silent_server_is_not_waited_for_for_ever(
    client: Client, gate: Headers, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = connections.ask
    monkeypatch.setattr(
        connections, "ask", lambda method, url, key, headers, body: original(method, url, key, headers, body, 0.2)
    )
    upstream.say(lambda _: time.sleep(0.6) or Answer(b"{}"))  # type: ignore[func-returns-value]
    answer, content = ask(client, gate)
    assert (answer.status_code, refusal(content)["code"]) == (504, "upstream_timeout")
    upstream.say(sse(delta(content="He"), delta(content="llo"), wait_s=0.1), Answer(b"{}"))
    upstream._answers[0].wait_s = 0.5  # type: ignore[union-attr]
    with pytest.raises(ConnectionResetError):
        ask(client, gate, stream=True)


def test_redirects_are_not_followed(client: Client, gate: Headers, upstream: Upstream) -> None:
    upstream.say(Answer(b"", status=307, headers={"Location": "http://elsewhere.example/"}))
    answer, content = ask(client, gate)
    assert answer.status_code == 502
    assert "elsewhere.example" in refusal(content)["message"]
    assert len(upstream.seen) == 1


def test_an_answer_without_end_is_cut_off(
    client: Client, gate: Headers, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flywheel.trajectories.ingest.gateway.relay.ANSWER_MAX", 5000)
    upstream.say(sse(*[delta(content="x" * 1000)] * 10))
    with pytest.raises(ConnectionResetError):
        ask(client, gate, stream=True)
    assert "longer than" in only_step().error


def test_a_link_local_address_is_refused_when_the_connection_stands(
    client: Client, gate: Headers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "is_metadata", lambda host: host == "127.0.0.1")
    answer, content = ask(client, gate)
    assert answer.status_code == 502
    assert "link-local" in refusal(content)["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'{"model": 5}', 400),
        (b"{}", 400),
        (b"[" * 200_000, 400),
        (b'{"model": "a\\u0000"}', 400),
        (b'{"model": "a\\ud800"}', 400),
    ],
)
def test_a_request_that_cannot_be_routed_is_refused(
    body: bytes, status: int, client: Client, gate: Headers, upstream: Upstream
) -> None:
    answer = client.post(URL, body, content_type="application/json", headers=gate)
    assert answer.status_code == status
    assert refusal(answer.content)
    assert upstream.seen == []
    assert routing._away_until == 0.0


@pytest.mark.parametrize("error", [DataError, ProgrammingError])
def test_what_the_database_cannot_be_asked_does_not_make_it_away(
    error: type[Exception], client: Client, gate: Headers, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(client, gate)

    def refuse(*_: Any) -> None:
        raise error("no")

    monkeypatch.setattr(routing, "find", refuse)
    assert ask(client, gate)[0].status_code == 503
    assert routing._away_until == 0.0


def test_a_request_that_is_too_long_is_refused(
    client: Client, gate: Headers, monkeypatch: pytest.MonkeyPatch, upstream: Upstream
) -> None:
    monkeypatch.setattr(openai_endpoints, "REQUEST_MAX", 1000)
    answer, _ = ask(client, gate, padding="x" * 2000)
    assert (answer.status_code, upstream.seen) == (413, [])


# Who may


@pytest.mark.parametrize("scopes", [["ingest"], ["read", "build", "admin"]])
def test_a_key_without_the_scope_spends_nothing(
    scopes: list[str], client: Client, gate: Headers, upstream: Upstream, key: Callable[..., Headers]
) -> None:
    answer, content = ask(client, key(*scopes))
    assert (answer.status_code, refusal(content)["code"]) == (403, "insufficient_permissions")
    assert client.get("/gateway/v1/models", headers=key(*scopes)).status_code == 403
    assert upstream.seen == []


def test_a_call_without_a_key_is_refused(client: Client, gate: Headers, upstream: Upstream) -> None:
    for headers in ({}, {"authorization": "Bearer fw_0_0"}, {"authorization": "Basic x"}):
        answer, content = ask(client, headers)
        assert (answer.status_code, refusal(content)["code"]) == (401, "invalid_api_key")
    assert upstream.seen == []


def test_a_key_whose_maker_may_build_no_more_is_refused(client: Client, gate: Headers, cast: Cast) -> None:
    cast.admin.memberships.all().delete()
    assert ask(client, gate)[0].status_code == 403


def test_a_project_without_an_upstream_says_so(client: Client, gate: Headers, cast: Cast) -> None:
    Project.objects.update(upstream={})
    answer, content = ask(client, gate)
    assert (answer.status_code, refusal(content)["code"]) == (400, "no_upstream")
    assert "Settings › Gateway" in refusal(content)["message"]


def test_a_key_of_the_upstream_that_is_not_there_is_told_by_its_name(
    client: Client, gate: Headers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEST_API_KEY")
    answer, content = ask(client, gate)
    assert answer.status_code == 503
    assert "TEST_API_KEY" in refusal(content)["message"]


def test_more_calls_than_threads_are_sent_away(
    client: Client, gate: Headers, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_endpoints, "slots", Slots(1))
    upstream.say(hello(), completion("Hello."))
    waiting = begin(client, gate, stream=True)
    answer, content = ask(client, gate)
    assert (answer.status_code, answer["Retry-After"], refusal(content)["code"]) == (503, "1", "gateway_busy")
    list(waiting.streaming_content)
    leave(waiting)
    assert ask(client, gate)[0].status_code == 200


def test_a_flywheel_that_is_its_own_upstream_says_so(client: Client, gate: Headers, upstream: Upstream) -> None:
    ask(client, gate)
    hop = upstream.seen[0].headers["x-flywheel-hop"]
    assert ask(client, {**gate, "x-flywheel-hop": hop})[0].status_code == 508


def test_other_methods_are_refused_in_openais_words(client: Client, gate: Headers) -> None:
    answer = client.get(URL, headers=gate)
    assert (answer.status_code, answer["Allow"]) == (405, "POST")
    assert refusal(answer.content)
    assert client.post("/gateway/v1/models", headers=gate)["Allow"] == "GET"


def test_a_call_costs_what_an_admin_has_named_for_its_model(client: Client, gate: Headers, upstream: Upstream) -> None:
    project = Project.objects.get(upstream__base_url=upstream.url)
    row = ModelPrice.objects.create(project=project, model="m", price_in=1.0, price_out=2.0)
    for model, cost in (("m", (9 * 1.0 + 3 * 2.0) / 1e6), ("another", None)):
        ask(client, gate, model=model)
        found = Trajectory.objects.latest("pk").cost_usd
        assert found == (cost if cost is None else pytest.approx(cost))
        assert Step.objects.latest("pk").priced_by == (f"table:{row.pk}" if cost else None)
