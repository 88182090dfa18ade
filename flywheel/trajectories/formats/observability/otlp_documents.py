"""Trajectories as OTLP JSON, and back.

A step that came as a span goes out as that span. Any other becomes a span in the GenAI conventions, so that every
receiver reads its messages; what they cannot say stands in `flywheel.step` and `flywheel.trace`, from which `restored`
makes the same trajectory again.
"""

import hashlib
import json
from datetime import timedelta
from typing import Any

from flywheel.core.traces import Message, Step, Trace
from flywheel.trajectories.formats.otlp import otlp_json
from flywheel.trajectories.formats.otlp.any_value import attributes
from flywheel.trajectories.formats.otlp.spans import STATUSES, Span
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.formats.values.hostile_json import FormatError, Row, load
from flywheel.trajectories.formats.values.residual import residual, restore, trace_row
from flywheel.trajectories.formats.values.times import EPOCH, microseconds

STEP = "flywheel.step"
TRACE = "flywheel.trace"
_OPERATIONS = {"assistant": "chat", "tool": "execute_tool", "agent": "invoke_agent", "retrieval": "retrieval"}
_LATE = ("outcome", "interventions", "tags", "metadata")
_SCOPE = {"name": "flywheel.export"}


def dump(trace: Trace) -> dict[str, Any]:
    """One envelope. `Step.raw` of what came as a span is that span, as `otlp_traces.to_json` has it."""
    groups: dict[str, dict[str, Any]] = {}
    if trace.steps and all(is_span(step) for step in trace.steps):
        for step in trace.steps:
            _group(groups, step.raw.get("resource", {}), step.raw.get("scope", {})).append(_as_it_came(trace, step))
        return _with_late_notes(trace, {"resourceSpans": [*groups.values()]})
    if trace.steps:
        rest = residual(trace, Trace(""), [""] * len(trace.steps))
        rows = rest.pop("steps", [])
        for index, (step, row) in enumerate(zip(trace.steps, rows, strict=True)):
            extra = {STEP: json.dumps(row["set"], ensure_ascii=False)}
            if index == 0:
                extra[TRACE] = json.dumps(rest.get("trace", {}), ensure_ascii=False)
            _group(groups, _resource(trace), _SCOPE).append(_made(trace, step, extra, index))
    return {"resourceSpans": [*groups.values()]}


def _with_late_notes(trace: Trace, document: dict[str, Any]) -> dict[str, Any]:
    """With what was said of the whole later than by its spans, under a name that receivers of OTLP pass over."""
    (back,) = otlp_traces.traces_of(otlp_json.decode(document)).traces
    known = trace_row(back)
    late = {name: value for name, value in trace_row(trace).items() if name in _LATE and value != known[name]}
    return {**document, **({"flywheel": {"trace": late}} if late else {})}


def late_notes(row: dict[str, Any], traces: list[Trace]) -> list[Trace]:
    """Return the facts that `dump` writes beside the spans, as parts of their trajectories. Raises FormatError."""
    rest = Row(row).row("flywheel")
    return [restore(Trace(trace.trace_id), rest) for trace in traces] if rest.value and len(traces) == 1 else []


def is_span(step: Step) -> bool:
    return "start_ns" in step.raw and len(step.span_id) == 16


def restored(spans: list[Span]) -> list[Trace] | None:
    """The trajectories that `dump` wrote, or None for spans that came from elsewhere. Raises FormatError."""
    if not any(STEP in span.attributes for span in spans):
        return None
    by_trace: dict[str, list[Span]] = {}
    for span in spans:
        by_trace.setdefault(span.trace_id, []).append(span)
    return [_restored(trace_id, found) for trace_id, found in by_trace.items()]


def _restored(trace_id: str, spans: list[Span]) -> Trace:
    rows = []
    whole: dict[str, Any] = {}
    for span in spans:
        if not isinstance(said := span.attributes.get(STEP), str):
            raise FormatError(f"{STEP}: missing on span {span.span_id}; the export is incomplete")
        rows.append({"set": load(said)})
        if isinstance(about := span.attributes.get(TRACE), str):
            whole = load(about)
    return restore(Trace(trace_id), Row({"trace": whole, "steps": rows}, STEP))


def _group(groups: dict[str, dict[str, Any]], resource: dict[str, Any], scope: dict[str, Any]) -> list[Any]:
    """The spans of one resource and scope."""
    key = json.dumps(resource, sort_keys=True, default=str)
    group = groups.setdefault(key, {"resource": {"attributes": attributes(resource)}, "scopeSpans": []})
    named = {key: item for key, item in scope.items() if key in ("name", "version")}
    if scope.get("attributes"):
        named["attributes"] = attributes(scope["attributes"])
    inner = next((inner for inner in group["scopeSpans"] if inner["scope"] == named), None)
    if inner is None:
        group["scopeSpans"].append(inner := {"scope": named, "spans": []})
    spans: list[Any] = inner["spans"]
    return spans


def _as_it_came(trace: Trace, step: Step) -> dict[str, Any]:
    raw = step.raw
    status = raw.get("status", {})
    span = {
        "traceId": trace.trace_id,
        "spanId": step.span_id,
        "parentSpanId": step.parent_id,
        "traceState": raw.get("trace_state", ""),
        "name": raw.get("name", ""),
        "kind": raw.get("kind", 0),
        "startTimeUnixNano": raw.get("start_ns", "0"),
        "endTimeUnixNano": raw.get("end_ns", "0"),
        "attributes": attributes(raw.get("attributes", {})),
        "events": [
            {
                "name": event["name"],
                "timeUnixNano": event["time_ns"],
                "attributes": attributes(event.get("attributes", {})),
            }
            for event in raw.get("events", ())
        ],
        "links": [
            {
                "traceId": link["trace_id"],
                "spanId": link["span_id"],
                "attributes": attributes(link.get("attributes", {})),
            }
            for link in raw.get("links", ())
        ],
        "status": {"code": STATUSES.index(status.get("code", "unset")), "message": status.get("message", "")},
    }
    return {key: value for key, value in span.items() if value not in ("", [])}


def _resource(trace: Trace) -> dict[str, Any]:
    row = {
        "service.name": trace.agent,
        "service.version": trace.version,
        "deployment.environment.name": trace.environment,
    }
    return {key: value for key, value in row.items() if value}


def _made(trace: Trace, step: Step, extra: dict[str, str], index: int) -> dict[str, Any]:
    """A span that says what the step says. A step without a clock is put where it stood, a microsecond a step."""
    given = step.sampling.get("params")
    said = {
        "gen_ai.operation.name": _OPERATIONS.get(step.kind),
        "gen_ai.agent.name": trace.agent,
        "gen_ai.agent.version": trace.version,
        "gen_ai.conversation.id": trace.session_id,
        "gen_ai.request.model": step.model,
        "gen_ai.input.messages": _messages(step.input),
        "gen_ai.output.messages": _messages(step.output),
        "gen_ai.response.finish_reasons": [step.finish_reason] if step.finish_reason else None,
        "gen_ai.usage.input_tokens": step.tokens_in,
        "gen_ai.usage.output_tokens": step.tokens_out,
        "gen_ai.usage.cache_read.input_tokens": step.tokens_cached,
        "gen_ai.request.temperature": given.get("temperature") if isinstance(given, dict) else None,
        "gen_ai.tool.name": step.tool_name,
        "gen_ai.tool.call.id": step.tool_call_id,
        "gen_ai.tool.call.arguments": _text(step.arguments),
        "gen_ai.tool.call.result": _text(step.result) if step.kind in ("tool", "retrieval") else None,
        "flywheel.outcome": trace.outcome if index == 0 else None,
    }
    start = step.started_at or step.ended_at or EPOCH + timedelta(microseconds=index)
    end = step.ended_at or start
    row = {key: value for key, value in said.items() if value not in (None, "", [])}
    return {
        "traceId": _hex(trace.trace_id, 32),
        "spanId": _hex(step.span_id, 16),
        **({"parentSpanId": _hex(step.parent_id, 16)} if step.parent_id else {}),
        "name": step.name or " ".join(filter(None, [str(_OPERATIONS.get(step.kind, step.kind)), step.model])),
        "kind": 1,
        "startTimeUnixNano": str(microseconds(start) * 1000),
        "endTimeUnixNano": str(microseconds(end) * 1000),
        "attributes": attributes({**row, **extra}),
        "status": {"code": STATUSES.index(step.status), "message": step.error},
    }


def _hex(identity: str, size: int) -> str:
    """An id as OTLP wants it; what is none is known by its hash."""
    compact = identity.replace("-", "").lower()
    if len(compact) == size and set(compact) <= set("0123456789abcdef") and compact.strip("0"):
        return compact
    return hashlib.sha256(identity.encode(errors="replace")).hexdigest()[:size]


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _messages(messages: list[Message]) -> str:
    rows = []
    for message in messages:
        parts: list[dict[str, Any]] = []
        if message.reasoning:
            parts.append({"type": "reasoning", "content": message.reasoning})
        if message.role == "tool":
            parts.append({"type": "tool_call_response", "id": message.tool_call_id, "response": message.content})
        elif message.content:
            parts.append({"type": "text", "content": message.content})
        for call in message.tool_calls:
            parts.append({"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments})
        rows.append({"role": message.role, "parts": parts, **({"name": message.name} if message.name else {})})
    return json.dumps(rows, ensure_ascii=False) if rows else ""
