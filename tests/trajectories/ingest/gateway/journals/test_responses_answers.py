"""Answers of the Responses API as steps: total over whatever a server says, and whole over however it was cut."""

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flywheel.core.traces import Step
from flywheel.trajectories.ingest.gateway.journals import journal_contents, journal_traces
from flywheel.trajectories.ingest.gateway.journals.journal import CHUNK, END, FRAME, HEAD, REQUEST, RESPONSE
from tests.trajectories.ingest.gateway.calls import response, told_in_events

HEADER = {
    "id": "ab" * 16,
    "trace": "cd" * 16,
    "project": 1,
    "started": 1_790_000_000.0,
    "host": "m",
    "api": "responses",
}
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10)
WORDS = """
    output input type role content text delta item response output_index arguments name call_id id usage error status
    input_tokens input_tokens_details cached_tokens incomplete_details reason summary instructions logprobs model x
"""
KINDS = """
    message reasoning function_call function_call_output item_reference error response.completed response.failed
    response.output_text.delta response.output_item.added response.function_call_arguments.delta web_search_call
"""
JSON = st.recursive(
    SCALARS | st.sampled_from(KINDS.split()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS.split()), inner, max_size=5),
    max_leaves=14,
)
ITEMS: list[dict[str, Any]] = [
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Look first."}]},
    {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Grüße 🌍"}]},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": '{"at": "ü"}'},
]
STREAM = told_in_events(response(ITEMS))


def step(*pieces: bytes, kind: str = "text/event-stream", ends: bool = True, **asked: Any) -> Step:
    request = {"model": "m", "input": "Hi", **asked}
    frames = [(HEAD, json.dumps(HEADER).encode()), (REQUEST, json.dumps(request).encode())]
    frames.append((RESPONSE, json.dumps({"status": 200, "headers": {"content-type": kind}}).encode()))
    frames += [(CHUNK, piece) for piece in pieces]
    frames += [(END, b'{"how": "complete"}')] if ends else []
    content = b"".join(
        FRAME.pack(name, 1_790_000_001.0 + at, len(body)) + body for at, (name, body) in enumerate(frames)
    )
    return journal_traces.trace_of(journal_contents.read(content)).steps[0]


def is_all_told(found: Step) -> None:
    (message,) = found.output
    assert (message.content, message.reasoning) == ("Grüße 🌍", "Look first.")
    assert [(call.id, call.name, call.arguments) for call in message.tool_calls] == [("c1", "look", {"at": "ü"})]
    assert (found.status, found.finish_reason) == ("ok", "tool_calls")
    assert (found.tokens_in, found.tokens_out, found.tokens_cached) == (9, 3, 4)


def test_a_whole_answer_is_told() -> None:
    is_all_told(step(json.dumps(response(ITEMS)).encode(), kind="application/json"))


@given(st.lists(st.integers(0, sum(map(len, STREAM))), max_size=12))
def test_a_stream_reads_the_same_however_it_was_cut_into_pieces(cuts: list[int]) -> None:
    whole = b"".join(STREAM)
    places = sorted({0, *cuts, len(whole)})
    is_all_told(step(*(whole[start:end] for start, end in itertools.pairwise(places))))


@given(st.integers(0, sum(map(len, STREAM))))
def test_a_stream_that_was_cut_off_is_told_as_far_as_it_came(cut: int) -> None:
    found = step(b"".join(STREAM)[:cut], ends=False)
    assert "Grüße 🌍".startswith("".join(message.content for message in found.output))
    assert (found.status == "ok") == (found.finish_reason == "tool_calls")
    assert found.status == "ok" or "process ended" in found.error


@given(JSON, JSON, st.sampled_from(["application/json", "text/event-stream", ""]))
def test_any_answer_to_any_request_is_a_step_that_can_be_stored(request: Any, answer: Any, kind: str) -> None:
    asked = request if isinstance(request, dict) else {"input": request, "instructions": answer}
    said = json.dumps(answer).encode()
    found = step(
        b"data: " + said + b"\n\n" if kind == "text/event-stream" else said, kind=kind, **{**asked, "model": "m"}
    )
    json.dumps([message.to_json() for message in (*found.input, *found.output)])
    assert isinstance(found.finish_reason, str)
    assert found.tokens_in is None or found.tokens_in >= 0


def test_what_the_model_is_told_is_read_and_what_cannot_be_read_is_kept() -> None:
    items = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "input_text", "text": "Where?"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "there"},
        {"type": "item_reference", "id": "msg_1"},
        {"role": "critic", "content": "Bad."},
        7,
    ]
    found = step(json.dumps(response([])).encode(), kind="application/json", input=items, instructions="You look.")
    told = [(message.role, message.content, message.tool_call_id) for message in found.input]
    assert told[:3] == [("system", "You look.", ""), ("system", "Be short.", ""), ("user", "Where?", "")]
    assert ("tool", "there", "c1") in told
    assert [call.name for message in found.input for call in message.tool_calls] == ["look"]
    assert found.raw["request"]["input"] == items
    assert "input" not in step(*STREAM).raw["request"]


def test_failures_of_every_kind_are_told() -> None:
    failed = response([], status="failed", error={"code": "server_error", "message": "out of memory"})
    for found in (step(*told_in_events(failed)), step(json.dumps(failed).encode(), kind="application/json")):
        assert (found.status, found.error) == ("error", "out of memory")
    found = step(b'data: {"type": "error", "code": "x", "message": "overloaded"}\n\n')
    assert (found.status, found.error) == ("error", "overloaded")
    found = step(
        *told_in_events(response(ITEMS, status="incomplete", incomplete_details={"reason": "max_output_tokens"}))
    )
    assert (found.status, found.finish_reason) == ("ok", "max_output_tokens")
    assert "not a response" in step(b'{"choices": []}', kind="application/json").error


def test_parameters_log_probabilities_and_the_first_token_are_kept() -> None:
    tokens = [{"token": "Hi", "logprob": -0.25, "top_logprobs": []}]
    said = [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi", "logprobs": tokens}]}
    ]
    found = step(*told_in_events(response(said)), temperature=0.5, store=False, previous_response_id="resp_0")
    assert found.sampling == {"logprobs": [-0.25], "params": {"temperature": 0.5}}
    assert found.raw["gateway"]["first_token_ms"] == 6000.0
    assert found.raw["request"]["previous_response_id"] == "resp_0"
