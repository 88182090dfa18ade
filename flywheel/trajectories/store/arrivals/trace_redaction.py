"""Redaction of arrivals: what a project does not keep is taken out here, before anything is read out of them.

A span is redacted as the JSON that is stored; when something was found, what it says of itself is read from what is
left. Parts of other formats are redacted value by value. Rejected spans and lines are kept only without their secrets.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import orjson
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from flywheel.core import traces
from flywheel.core.redaction import Mode, Redactor
from flywheel.core.traces import Intervention, Message
from flywheel.trajectories.formats.otlp.spans import Span
from flywheel.trajectories.formats.semantics import otlp_traces

LARGEST = 1024 * 1024
"""Bytes of protobuf that are made JSON to be looked through, which takes many times their memory."""

_WORDS = (
    "name", "error", "model", "tool_name", "tool_call_id", "finish_reason", "arguments", "result", "raw", "sampling",
)  # fmt: skip
"""What a step says, beside its messages."""
_SAID = ("agent", "version", "session_id", "user_id", "environment", "tools", "tags", "metadata")


def span(body: bytes, came: Span, redactor: Redactor, counts: Counter[str]) -> tuple[bytes, Span]:
    """The span's stored JSON without its secrets, and the span as it reads then: the same one when it held none."""
    clean, found = redactor.json(body)
    if clean is body:
        return body, came
    counts.update(found)
    row = orjson.loads(clean)
    return clean, otlp_traces.from_json(row, trace_id=came.trace_id, span_id=came.span_id, parent_id=came.parent_id)


def part(came: traces.Trace, redactor: Redactor, counts: Counter[str]) -> traces.Trace:
    """A part without its secrets. The same object when it held none."""
    steps = [step(each, redactor, counts) for each in came.steps]
    said = {name: getattr(came, name) for name in _SAID}
    new, found = redactor.value(said)
    done, more = redactor.value([item.to_json() for item in came.interventions])
    counts.update(found)
    counts.update(more)
    interventions = [Intervention(**item) for item in done] if more else came.interventions
    if not found and not more and all(a is b for a, b in zip(steps, came.steps, strict=True)):
        return came
    return replace(came, steps=steps, interventions=interventions, **(new if found else {}))


def step(came: traces.Step, redactor: Redactor, counts: Counter[str]) -> traces.Step:
    row: dict[str, Any] = {name: getattr(came, name) for name in _WORDS}
    row["input"] = [message.to_json() for message in came.input]
    row["output"] = [message.to_json() for message in came.output]
    new, found = redactor.value(row)
    if not found:
        return came
    counts.update(found)
    new["input"] = [Message.from_json(message) for message in new["input"]]
    new["output"] = [Message.from_json(message) for message in new["output"]]
    return replace(came, **{name: new[name] for name in new if name in _FIELDS})


_FIELDS = frozenset(item.name for item in fields(traces.Step))


def rejected(content: bytes, redactor: Redactor, counts: Counter[str]) -> bytes:
    """Redact a rejected item, kept for a person to look at; empty when it held a secret that cannot be cut out."""
    text = readable(content)
    clean, found = redactor.json(text)
    counts.update(found)
    if not found:
        return content
    return clean if text is content else b""


def is_clean(body: bytes, redactor: Redactor) -> bool:
    """Whether a trace request holds no secret anywhere, also in what is stored nowhere. False where it cannot be read
    to know, or only at a price."""
    if not body or redactor.mode is Mode.OFF:
        return True
    if not _is_json(body) and not _is_all_readable(body):
        return False
    text = readable(body)
    return _is_json(text) and not redactor.json(text)[1]


def _is_all_readable(body: bytes) -> bool:
    """Whether JSON says all of this protobuf: no field in it is unknown, or sent again."""
    if len(body) > LARGEST:
        return False
    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError:
        return False
    request.DiscardUnknownFields()
    return bool(request.ByteSize() == len(body))


def _is_json(content: bytes) -> bool:
    return content.lstrip()[:1] in (b"{", b"[")


def readable(content: bytes) -> bytes:
    """A trace request, or what was rejected of one, as JSON; as it is where it is no protobuf."""
    if _is_json(content):
        return content
    try:
        return json.dumps(MessageToDict(ExportTraceServiceRequest.FromString(content))).encode()
    except (DecodeError, ValueError):
        return content


def sentences(told: Sequence[str], redactor: Redactor) -> list[str]:
    """Warnings and reasons, which quote what they are about."""
    return [redactor.text(sentence)[0] for sentence in told]
