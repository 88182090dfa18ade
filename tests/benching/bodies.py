"""OTLP requests as an agent's SDK sends them: gzip, 128 spans of about 1.5 kB, 16 traces of 8 spans, every id fresh.

They are made before a clock starts and lie in one file, so that every system gets the same bytes and the client, which
shares the cores, only has to send them.
"""

import gzip
import json
import mmap
import random
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

TRACES, SPANS_EACH = 16, 8
SPANS = TRACES * SPANS_EACH
PROBE_SPANS = 2
PATTERNS = 64
"""Requests whose words differ. What is repeated after them differs in its ids."""
LEVEL = 6
_WORDS = """
order invoice please meeting cancel customer refund address delivery tomorrow check status because waiting since monday
could you tell me where my parcel is it was paid twice by card in march and nobody answered the phone
""".split()  # noqa: SIM905 words read better so
_AGE_S = 86_400
"""They began yesterday, so that a request made now stands before them in a list of the newest."""


class Bodies:
    """The requests of a file, by number."""

    def __init__(self, directory: Path) -> None:
        with (directory / "bodies").open("rb") as file:
            self._all = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._ends = array("Q", (directory / "ends").read_bytes())
        self._ids = (directory / "ids").read_bytes()

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> bytes:
        return self._all[self._ends[number - 1] if number else 0 : self._ends[number]]

    def trace_ids(self, number: int) -> list[str]:
        at = number * TRACES * 16
        return [self._ids[n : n + 16].hex() for n in range(at, at + TRACES * 16, 16)]


def make(directory: Path, count: int, processes: int = 2) -> Bodies:
    """Write `count` requests into the directory."""
    seed = time.time_ns()
    shares = [(directory, part, range(part, count, processes), seed) for part in range(processes)]
    with ProcessPoolExecutor(processes) as pool:
        made = list(pool.map(_share, shares))
    ends, end = array("Q"), 0
    ids = bytearray()
    readers = [(path.open("rb"), iter(sizes), iter(names)) for path, sizes, names in made]
    with (directory / "bodies").open("wb") as file:
        for number in range(count):
            source, sizes, names = readers[number % processes]
            size = next(sizes)
            file.write(source.read(size))
            end += size
            ends.append(end)
            ids += next(names)
    for (path, _, _), (source, _, _) in zip(made, readers, strict=True):
        source.close()
        path.unlink()
    (directory / "ends").write_bytes(ends.tobytes())
    (directory / "ids").write_bytes(ids)
    return Bodies(directory)


def _share(share: tuple[Path, int, range, int]) -> tuple[Path, list[int], list[bytes]]:
    directory, part, numbers, seed = share
    source = random.Random(f"{seed}-{part}")
    patterns: dict[int, TracesData] = {}
    path, sizes, names = directory / f"part-{part}", [], []
    with path.open("wb") as file:
        for number in numbers:
            pattern = number % PATTERNS
            if pattern not in patterns:
                patterns[pattern] = request(random.Random(pattern))
            body = gzip.compress(_afresh(patterns[pattern], source), LEVEL)
            file.write(body)
            sizes.append(len(body))
            spans = patterns[pattern].resource_spans[0].scope_spans[0].spans
            names.append(b"".join(spans[first].trace_id for first in range(0, SPANS, SPANS_EACH)))
    return path, sizes, names


def _afresh(data: TracesData, source: random.Random) -> bytes:
    """The same request with new ids."""
    spans = data.resource_spans[0].scope_spans[0].spans
    for first in range(0, SPANS, SPANS_EACH):
        trace, root = source.randbytes(16), source.randbytes(8)
        session = trace.hex()[:12]
        for span in spans[first : first + SPANS_EACH]:
            span.trace_id = trace
            span.span_id = source.randbytes(8)
            span.parent_span_id = root
            for pair in span.attributes:
                if pair.key == "gen_ai.conversation.id":
                    pair.value.string_value = session
        spans[first].span_id, spans[first].parent_span_id = root, b""
    body: bytes = data.SerializeToString()
    return body


def request(source: random.Random) -> TracesData:
    data = TracesData()
    group = data.resource_spans.add()
    group.resource.attributes.extend(
        _pairs(
            {
                "service.name": "support",
                "service.version": "1.4.2",
                "deployment.environment.name": "production",
                "telemetry.sdk.language": "python",
                "telemetry.sdk.name": "opentelemetry",
                "telemetry.sdk.version": "1.36.0",
            }
        )
    )
    scoped = group.scope_spans.add()
    scoped.scope.name, scoped.scope.version = "support.agent", "1"
    newest = time.time_ns() - _AGE_S * 10**9
    for _ in range(TRACES):
        began = newest - source.randrange(_AGE_S * 10**9)
        for step in range(SPANS_EACH):
            span = scoped.spans.add(kind=Span.SPAN_KIND_CLIENT)
            span.start_time_unix_nano = began + step * 50_000_000
            span.end_time_unix_nano = began + step * 50_000_000 + 40_000_000
            span.status.code = 1
            span.name, attributes = (
                _root(source) if step == 0 else _chat(source, step) if step % 2 else _tool(source, step)
            )
            span.attributes.extend(_pairs(attributes))
    return data


def probe(trace_id: bytes) -> bytes:
    """One trace of two spans that begins now."""
    data = request(random.Random(1))
    spans = data.resource_spans[0].scope_spans[0].spans
    del spans[PROBE_SPANS:]
    now = time.time_ns()
    for number, span in enumerate(spans):
        span.trace_id, span.span_id = trace_id, trace_id[:7] + bytes([number + 1])
        span.parent_span_id = trace_id[:7] + b"\1" if number else b""
        span.start_time_unix_nano, span.end_time_unix_nano = now, now + 1_000_000
    return gzip.compress(data.SerializeToString(), LEVEL)


def _text(source: random.Random, words: int) -> str:
    return " ".join(source.choices(_WORDS, k=words))


def _root(source: random.Random) -> tuple[str, dict[str, Any]]:
    return "invoke_agent support", {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "support",
        "gen_ai.agent.version": "3",
        "gen_ai.conversation.id": "",
        "gen_ai.provider.name": "openai",
        "user.id": f"u{source.randrange(1000)}",
        "gen_ai.input.messages": _messages({"role": "user", "content": _text(source, 60)}),
        "gen_ai.output.messages": _messages({"role": "assistant", "content": _text(source, 80)}),
    }


def _chat(source: random.Random, step: int) -> tuple[str, dict[str, Any]]:
    call = {"type": "tool_call", "id": f"c{step}", "name": "orders.find", "arguments": {"q": _text(source, 6)}}
    return "chat gpt-5", {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-5",
        "gen_ai.response.model": "gpt-5-2026",
        "gen_ai.request.temperature": 0.2,
        "gen_ai.usage.input_tokens": source.randrange(300, 3000),
        "gen_ai.usage.output_tokens": source.randrange(10, 300),
        "gen_ai.response.finish_reasons": ["tool_call"],
        "gen_ai.conversation.id": "",
        "gen_ai.input.messages": _messages(
            {"role": "system", "content": _text(source, 30)}, {"role": "user", "content": _text(source, 60)}
        ),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [call], "finish_reason": "tool_call"}]),
        "server.address": "api.example.com",
        "server.port": 443,
    }


def _tool(source: random.Random, step: int) -> tuple[str, dict[str, Any]]:
    return "execute_tool orders.find", {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "orders.find",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": f"c{step - 1}",
        "gen_ai.tool.call.arguments": json.dumps({"q": _text(source, 6)}),
        "gen_ai.tool.call.result": json.dumps({"rows": [_text(source, 25) for _ in range(8)]}),
    }


def _messages(*messages: dict[str, str]) -> str:
    return json.dumps(
        [{"role": one["role"], "parts": [{"type": "text", "content": one["content"]}]} for one in messages]
    )


def _pairs(values: dict[str, Any]) -> Iterator[KeyValue]:
    for key, value in values.items():
        match value:
            case float():
                held = AnyValue(double_value=value)
            case int():
                held = AnyValue(int_value=value)
            case list():
                held = AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=item) for item in value]))
            case _:
                held = AnyValue(string_value=value)
        yield KeyValue(key=key, value=held)
