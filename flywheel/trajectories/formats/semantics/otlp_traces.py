"""OTLP traces over HTTP, protobuf and JSON: bytes to spans, spans to traces.

`decode` reads the wire: ids, times, attributes. A span that cannot be kept is rejected with its reason and its siblings
are kept; a body that cannot be read at all raises FormatError. Nothing else is ever raised, whatever the bytes.

A span is stored as it came (`to_json`, `from_json`) and becomes a step when somebody reads it (`step_of`), so that
whatever the dialects learn to read holds for what has long been stored. `traces_of` does so at once, for files.

`received` counts every span that was sent, so `received == steps kept + rejected`. A span id may come twice in one
batch: both steps are there, since the store merges them and counts the duplicate. Steps are in order of their start.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from flywheel.core.traces import Intervention, Outcome, Step, Trace
from flywheel.trajectories.formats.otlp import otlp_json, otlp_protobuf, request_bounds
from flywheel.trajectories.formats.otlp.spans import Decoded, Event, Facts, Rejected, Span, word
from flywheel.trajectories.formats.semantics import span_meaning
from flywheel.trajectories.formats.values.hostile_json import load, quote
from flywheel.trajectories.formats.values.times import EPOCH

PROTOBUF, JSON = otlp_protobuf.PROTOBUF, otlp_protobuf.JSON

OUTCOMES: dict[str, Outcome] = {"success": "success", "failed": "failed"}
"""Values of the attribute `flywheel.outcome`."""

LABELS: dict[str, Outcome] = {
    **OUTCOMES,
    **dict.fromkeys(("pass", "passed", "true", "correct"), "success"),
    **dict.fromkeys(("fail", "failure", "false", "incorrect"), "failed"),
}
"""Labels of an evaluation named `outcome`."""

_MAX_WARNINGS = 20


@dataclass(slots=True)
class Batch:
    traces: list[Trace] = field(default_factory=list)
    received: int = 0
    rejected: list[Rejected] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """What was kept but not understood, at most 20 sentences."""


def decode(body: bytes, content_type: str) -> Decoded:
    """The spans of an OTLP trace request. Raises FormatError for a body that cannot be read."""
    if otlp_protobuf.is_protobuf(content_type):
        return otlp_protobuf.decode(body)
    request_bounds.check_json(body)
    return otlp_json.decode(load(body))


# Spans to traces


def traces_of(decoded: Decoded) -> Batch:
    batch = Batch(received=decoded.received, rejected=decoded.rejected)
    by_trace: dict[str, list[Span]] = {}
    for span in decoded.spans:
        by_trace.setdefault(span.trace_id, []).append(span)
    for trace_id, spans in by_trace.items():
        batch.traces.append(_trace(trace_id, _ordered(spans), batch.warnings))
    del batch.warnings[_MAX_WARNINGS:]
    return batch


def _ordered(spans: list[Span]) -> list[Span]:
    """By start; a parent before its child where the clock does not tell them apart."""
    parents = {span.span_id: span.parent_id for span in spans}

    def depth(span_id: str) -> int:
        seen: set[str] = set()
        while (span_id := parents.get(span_id, "")) and span_id not in seen and len(seen) < 100:
            seen.add(span_id)
        return len(seen)

    return sorted(spans, key=lambda span: (span.start_ns, depth(span.span_id), span.span_id))


def _trace(trace_id: str, spans: list[Span], warnings: list[str]) -> Trace:
    trace = Trace(trace_id)
    named: list[tuple[str, str]] = []
    ends: list[tuple[int, Outcome]] = []
    tags: dict[str, None] = {}
    tools: dict[str, dict[str, Any]] = {}
    for span in spans:
        facts = span_meaning.facts(span)
        trace.steps.append(step_of(span))
        if facts.agent:
            named.append((facts.agent, facts.version))
        trace.session_id = trace.session_id or facts.session_id
        trace.user_id = trace.user_id or facts.user_id
        trace.environment = trace.environment or facts.environment
        tags |= dict.fromkeys(facts.tags)
        tools |= {tool["name"]: tool for tool in span_meaning.tools(span)}
        trace.metadata |= facts.metadata
        trace.interventions += interventions(span)
        ends += outcomes(span, warnings)
    if named:
        trace.agent = named[0][0]
        trace.version = next((version for name, version in named if name == trace.agent and version), "")
    service = next((name for span in spans if (name := word(span.resource, "service.name"))), "")
    release = next((name for span in spans if (name := word(span.resource, "service.version"))), "")
    trace.agent, trace.version = trace.agent or service, trace.version or release
    trace.tags, trace.tools = list(tags), list(tools.values())
    trace.outcome = max(ends, key=lambda item: item[0])[1] if ends else None
    return trace


def step_of(span: Span) -> Step:
    """Return the span as a step."""
    facts = span_meaning.facts(span)
    kind = facts.kind or "other"
    step = Step(
        span_id=span.span_id,
        kind=kind,
        name=span.name,
        parent_id=span.parent_id,
        started_at=moment_of(span.start_ns),
        ended_at=moment_of(span.end_ns),
        status=span.status,
        error=error_of(span),
        model=facts.model,
        tool_name=tool_of(span, facts),
        tool_call_id=facts.tool_call_id if kind == "tool" else "",
        finish_reason=facts.finish_reason,
        tokens_in=facts.tokens_in,
        tokens_out=facts.tokens_out,
        tokens_cached=facts.tokens_cached,
        cost_usd=facts.cost_usd,
        raw=to_json(span),
    )
    fill(step, span)
    return step


def fill(step: Step, span: Span) -> None:
    """Read into a step what its span carries: what was said in it, or done."""
    if step.kind in ("assistant", "agent"):
        content = span_meaning.content(span, step.kind)
        step.input, step.output, step.sampling = content.input, content.output, content.sampling
    elif step.kind in ("tool", "retrieval"):
        content = span_meaning.content(span, step.kind)
        step.arguments, step.result = content.arguments, content.result


def tool_of(span: Span, facts: Facts) -> str:
    """The tool that a span executed."""
    return (facts.tool_name or span.name.removeprefix("execute_tool ")) if facts.kind == "tool" else ""


def to_json(span: Span) -> dict[str, Any]:
    """The span as it is stored: everything but its ids; only what is set."""
    row: dict[str, Any] = {"name": span.name} if span.name else {}
    row["kind"] = span.kind
    if span.attributes:
        row["attributes"] = span.attributes
    if span.events:
        row["events"] = [{"name": e.name, "time_ns": str(e.time_ns), "attributes": e.attributes} for e in span.events]
    if span.links:
        row["links"] = span.links
    if span.resource:
        row["resource"] = span.resource
    if span.scope:
        row["scope"] = span.scope
    if span.trace_state:
        row["trace_state"] = span.trace_state
    row["status"] = {"code": span.status, "message": span.status_message}
    row["start_ns"], row["end_ns"] = str(span.start_ns), str(span.end_ns)
    return row


def from_json(row: dict[str, Any], *, trace_id: str, span_id: str, parent_id: str) -> Span:
    """The span that `to_json` has stored."""
    status = row.get("status", {})
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        name=row.get("name", ""),
        kind=row.get("kind", 0),
        start_ns=int(row.get("start_ns", 0)),
        end_ns=int(row.get("end_ns", 0)),
        status=status.get("code", "unset"),
        status_message=status.get("message", ""),
        trace_state=row.get("trace_state", ""),
        attributes=row.get("attributes", {}),
        events=events_of(row),
        links=row.get("links", []),
        resource=row.get("resource", {}),
        scope=row.get("scope", {}),
    )


def events_of(row: dict[str, Any]) -> list[Event]:
    """The events of a span that `to_json` has stored."""
    return [Event(item["name"], int(item["time_ns"]), item["attributes"]) for item in row.get("events", ())]


def error_of(span: Span) -> str:
    """Return the error, in the span's words."""
    if span.status_message:
        return span.status_message
    for event in span.events:
        if event.name == "exception":
            kind, message = word(event.attributes, "exception.type"), word(event.attributes, "exception.message")
            if kind or message:
                return ": ".join(part for part in (kind, message) if part)
    return word(span.attributes, "error.type", "error.message", "exception.message")


def interventions(span: Span) -> Iterator[Intervention]:
    for event in span.events:
        if event.name == "flywheel.intervention":
            moment = moment_of(event.time_ns)
            yield Intervention(
                step=span.span_id,
                kind=word(event.attributes, "kind") or "stepped_in",
                by=word(event.attributes, "by"),
                note=word(event.attributes, "note"),
                at=moment.isoformat() if moment else "",
            )


def stated_outcome(span: Span, warnings: list[str]) -> Outcome | None:
    """Return the outcome that the attribute `flywheel.outcome` states."""
    said = span.attributes.get("flywheel.outcome")
    if isinstance(said, str) and said in OUTCOMES:
        return OUTCOMES[said]
    if said is not None:
        warnings.append(f"flywheel.outcome: {quote(said)} is not one of success, failed")
    return None


def outcomes(span: Span, warnings: list[str]) -> Iterator[tuple[int, Outcome]]:
    """Every outcome that the span reports, with its time; the last one reported holds."""
    if (said := stated_outcome(span, warnings)) is not None:
        yield span.end_ns, said
    for event in span.events:
        if event.name != "gen_ai.evaluation.result" or event.attributes.get("gen_ai.evaluation.name") != "outcome":
            continue
        label = event.attributes.get("gen_ai.evaluation.score.label")
        score = event.attributes.get("gen_ai.evaluation.score.value")
        if isinstance(label, str) and label.lower() in LABELS:
            yield event.time_ns, LABELS[label.lower()]
        elif label is None and score in (0, 1):
            yield event.time_ns, "success" if score else "failed"
        else:
            warnings.append(f"gen_ai.evaluation.score.label: {quote(label)} is neither pass nor fail")


def moment_of(ns: int) -> datetime | None:
    """Nanoseconds since 1970 as a time; None for 0, which says nothing."""
    return EPOCH + timedelta(microseconds=ns // 1000) if ns else None
