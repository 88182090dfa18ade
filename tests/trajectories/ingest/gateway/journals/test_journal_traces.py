"""Journals as steps: total over whatever a server says, and whole over however it was cut."""

import contextlib
import itertools
import json
import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flywheel.core.digests import canonical
from flywheel.core.traces import Step
from flywheel.trajectories.ingest.gateway.journals import journal_contents, journal_traces
from flywheel.trajectories.ingest.gateway.journals.journal import CHUNK, END, FRAME, HEAD, REQUEST, RESPONSE
from tests.trajectories.ingest.upstream import DONE, delta

HEADER = {"id": "ab" * 16, "trace": "cd" * 16, "project": 1, "started": 1_790_000_000.0, "host": "model:8000"}
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10)
WORDS = """
    choices message delta content tool_calls function arguments name id index usage error logprobs token_ids model role
    finish_reason prompt_tokens completion_tokens prompt_tokens_details x
"""
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS.split()), inner, max_size=4),
    max_leaves=12,
)
STREAM = (
    delta(role="assistant", content=""),
    delta(content="Grüße, "),
    delta(content="Welt 🌍"),
    delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "look", "arguments": '{"at": "'}}]),
    delta(tool_calls=[{"index": 0, "function": {"arguments": 'ü"}'}}]),
    delta(finish_reason="tool_calls"),
    delta(usage={"prompt_tokens": 5, "completion_tokens": 7}),
    DONE,
)


def journal(*pieces: bytes, kind: str = "text/event-stream", ends: bool = True, request: Any = None) -> bytes:
    asked = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]} if request is None else request)
    frames = [(HEAD, json.dumps(HEADER).encode()), (REQUEST, asked.encode())]
    frames.append((RESPONSE, json.dumps({"status": 200, "headers": {"content-type": kind}}).encode()))
    frames += [(CHUNK, piece) for piece in pieces]
    frames += [(END, b'{"how": "complete"}')] if ends else []
    return b"".join(FRAME.pack(name, 1_790_000_001.0 + at, len(body)) + body for at, (name, body) in enumerate(frames))


def step(content: bytes) -> Step:
    return journal_traces.trace_of(journal_contents.read(content)).steps[0]


@given(st.lists(st.integers(0, sum(map(len, STREAM))), max_size=12), st.booleans())
def test_a_stream_reads_the_same_however_it_was_cut_into_pieces(cuts: list[int], crlf: bool) -> None:
    whole = b"".join(STREAM)
    places = sorted({0, *cuts, len(whole)})
    pieces = [whole[start:end] for start, end in itertools.pairwise(places)]
    if crlf:
        pieces = [piece.replace(b"\n", b"\r\n") for piece in pieces]
    found = step(journal(*pieces))
    (message,) = found.output
    assert message.content == "Grüße, Welt 🌍"
    assert [(call.id, call.name, call.arguments) for call in message.tool_calls] == [("c1", "look", {"at": "ü"})]
    assert (found.status, found.finish_reason, found.tokens_in, found.tokens_out) == ("ok", "tool_calls", 5, 7)


@given(st.integers(0, 10_000))
def test_a_journal_that_was_cut_anywhere_is_read_up_to_there(cut: int) -> None:
    whole = journal(*STREAM)
    start = len(journal(ends=False))
    found = step(whole[: max(start, min(cut, len(whole)))])
    assert "Grüße, Welt 🌍".startswith("".join(message.content for message in found.output))
    assert found.status in ("ok", "error")
    assert (found.status == "ok") == (found.finish_reason == "tool_calls" or not found.error)


@given(JSON, JSON, st.sampled_from(["application/json", "text/event-stream", ""]))
def test_any_answer_to_any_request_is_a_step_that_can_be_stored(request: Any, answer: Any, kind: str) -> None:
    asked = {"model": "m", "messages": [], **(request if isinstance(request, dict) else {"messages": request})}
    said = json.dumps(answer).encode()
    piece = b"data: " + said + b"\n\n" if kind == "text/event-stream" else said
    found = step(journal(piece, kind=kind, request=asked))
    assert found.kind == "assistant"
    assert found.span_id == "ab" * 8
    json.dumps([message.to_json() for message in (*found.input, *found.output)])
    assert isinstance(found.finish_reason, str)
    assert found.tokens_in is None or found.tokens_in >= 0


@given(st.binary(max_size=200))
def test_what_is_no_journal_is_refused_and_nothing_else(content: bytes) -> None:
    with contextlib.suppress(ValueError):
        journal_contents.read(content)


def test_lengths_that_lie_end_the_journal() -> None:
    whole = journal(b"x") + struct.pack(">cdI", CHUNK, 0.0, 2**32 - 1) + b"y"
    assert journal_contents.read(whole).body == b"x"


def test_the_time_of_the_first_token_is_that_of_its_piece() -> None:
    found = step(journal(*STREAM))
    assert found.raw["gateway"]["first_token_ms"] == 5000.0
    assert canonical(found.raw)


def test_several_choices_are_all_kept() -> None:
    found = step(journal(delta(1, content="b"), delta(0, content="a"), delta(1, content="c"), DONE))
    assert [message.content for message in found.output] == ["a", "bc"]


def test_parts_of_a_message_are_kept_as_they_came() -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "data:…"}}]
    request = {"model": "m", "messages": [{"role": "user", "content": parts}]}
    found = step(journal(*STREAM, request=request))
    assert found.input[0].content.startswith("What is this?")
    assert found.raw["request"]["messages"] == request["messages"]
    assert "messages" not in step(journal(*STREAM)).raw["request"]
