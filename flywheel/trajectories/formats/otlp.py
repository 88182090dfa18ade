"""OTLP traces over HTTP, protobuf and JSON: bytes to spans, spans to traces.

`decode` reads the wire: ids, times, attributes. `parse` also maps what GenAI and OpenInference say onto steps. One span
becomes one step. A span that cannot be kept is rejected with its reason and its siblings are kept; a body that cannot
be read at all raises FormatError. Nothing else is ever raised, whatever the bytes.

`received` counts every span that was sent, so `received == steps kept + rejected`. A span id may come twice in one
batch: both steps are there, since the store merges them and counts the duplicate. Steps are in order of their start.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from flywheel.core.traces import Intervention, Outcome, Step, Trace
from flywheel.trajectories.formats import genai, openinference, otlp_json, otlp_protobuf
from flywheel.trajectories.formats.reading import FormatError, load, quote, structured
from flywheel.trajectories.formats.spans import Decoded, Reading, Rejected, Span, word

PROTOBUF = "application/x-protobuf"
JSON = "application/json"

OUTCOMES: dict[str, Outcome] = {"success": "success", "failed": "failed"}
"""Values of the attribute `flywheel.outcome`."""

LABELS: dict[str, Outcome] = {
    **OUTCOMES,
    "pass": "success",
    "passed": "success",
    "true": "success",
    "correct": "success",
    "fail": "failed",
    "failure": "failed",
    "false": "failed",
    "incorrect": "failed",
}
"""Labels of an evaluation named `outcome`."""

META = "flywheel.meta."

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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
    media = content_type.partition(";")[0].strip().lower()
    if media in (PROTOBUF, "application/protobuf"):
        return otlp_protobuf.decode(body)
    if media == JSON:
        return otlp_json.decode(load(body))
    raise FormatError(f"Content-Type {quote(content_type)} is neither {PROTOBUF} nor {JSON}")


def parse(body: bytes, content_type: str) -> Batch:
    """The traces of an OTLP trace request. Raises FormatError for a body that cannot be read."""
    return _batch(decode(body, content_type))


def parts(body: bytes, content_type: str) -> Batch:
    """As `parse`, but a trace for each span, so that the store can merge what each span says in any order.

    A span that names no agent leaves the name empty; its service's name and version are in the metadata.
    """
    decoded = decode(body, content_type)
    batch = Batch(received=decoded.received, rejected=decoded.rejected)
    for span in decoded.spans:
        trace = _trace(span.trace_id, [span], batch.warnings, named_by_service=False)
        service = {key: value for key in ("service.name", "service.version") if (value := word(span.resource, key))}
        trace.metadata = {**service, **trace.metadata}
        batch.traces.append(trace)
    del batch.warnings[_MAX_WARNINGS:]
    return batch


def parse_envelope(value: Any) -> Batch:
    """The traces of one decoded OTLP JSON envelope, such as a line of a span export."""
    return _batch(otlp_json.decode(value))


# Spans to traces


def _batch(decoded: Decoded) -> Batch:
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


def _trace(trace_id: str, spans: list[Span], warnings: list[str], *, named_by_service: bool = True) -> Trace:
    trace = Trace(trace_id)
    named: list[tuple[str, str]] = []
    outcomes: list[tuple[int, Outcome]] = []
    tags: dict[str, None] = {}
    tools: dict[str, dict[str, Any]] = {}
    for span in spans:
        reading = genai.read(span)
        if "openinference.span.kind" in span.attributes:
            preferred = openinference.read(span)
            preferred.fill(reading)
            reading = preferred
        trace.steps.append(_step(span, reading))
        if reading.agent:
            named.append((reading.agent, reading.version))
        trace.session_id = trace.session_id or reading.session_id
        trace.user_id = trace.user_id or reading.user_id
        trace.environment = trace.environment or _environment(span)
        tags |= dict.fromkeys(reading.tags)
        tools |= {tool["name"]: tool for tool in reading.tools}
        trace.metadata |= reading.metadata
        trace.metadata |= {
            key[len(META) :]: structured(value) for key, value in span.attributes.items() if key.startswith(META)
        }
        trace.interventions += _interventions(span)
        outcomes += _outcomes(span, warnings)
    if named:
        trace.agent = named[0][0]
        trace.version = next((version for name, version in named if name == trace.agent and version), "")
    if named_by_service:
        service = next((name for span in spans if (name := word(span.resource, "service.name"))), "")
        release = next((name for span in spans if (name := word(span.resource, "service.version"))), "")
        trace.agent, trace.version = trace.agent or service, trace.version or release
    trace.tags, trace.tools = list(tags), list(tools.values())
    trace.outcome = max(outcomes, key=lambda item: item[0])[1] if outcomes else None
    return trace


def _step(span: Span, reading: Reading) -> Step:
    kind = reading.kind or "other"
    step = Step(
        span_id=span.span_id,
        kind=kind,
        name=span.name,
        parent_id=span.parent_id,
        started_at=_moment(span.start_ns),
        ended_at=_moment(span.end_ns),
        status=span.status,
        error=_error(span),
        model=reading.model,
        raw=_raw(span),
    )
    if kind in ("assistant", "agent"):
        step.input, step.output = reading.input, reading.output
        step.finish_reason = reading.finish_reason
    if kind == "tool":
        step.tool_name = reading.tool_name or span.name.removeprefix("execute_tool ")
        step.tool_call_id = reading.tool_call_id
    if kind in ("tool", "retrieval"):
        step.arguments, step.result = reading.arguments, reading.result
    # An agent's own span often repeats the sum over its model calls; counting both would count twice.
    if kind == "assistant" or word(span.attributes, "gen_ai.operation.name") == "embeddings":
        step.tokens_in, step.tokens_out = reading.tokens_in, reading.tokens_out
        step.tokens_cached, step.cost_usd = reading.tokens_cached, reading.cost_usd
    return step


def _raw(span: Span) -> dict[str, Any]:
    row = {
        "name": span.name,
        "kind": span.kind,
        "attributes": span.attributes,
        "events": [{"name": e.name, "time_ns": str(e.time_ns), "attributes": e.attributes} for e in span.events],
        "links": span.links,
        "resource": span.resource,
        "scope": span.scope,
        "trace_state": span.trace_state,
        "status": {"code": span.status, "message": span.status_message},
        "start_ns": str(span.start_ns),
        "end_ns": str(span.end_ns),
    }
    return {key: value for key, value in row.items() if value not in ("", [], {})}


def _error(span: Span) -> str:
    if span.status_message:
        return span.status_message
    for event in span.events:
        if event.name == "exception":
            kind, message = word(event.attributes, "exception.type"), word(event.attributes, "exception.message")
            if kind or message:
                return ": ".join(part for part in (kind, message) if part)
    return word(span.attributes, "error.type", "error.message", "exception.message")


def _environment(span: Span) -> str:
    keys = ("deployment.environment.name", "deployment.environment")
    return word(span.resource, *keys) or word(span.attributes, *keys, "langfuse.environment")


def _interventions(span: Span) -> Iterator[Intervention]:
    for event in span.events:
        if event.name == "flywheel.intervention":
            moment = _moment(event.time_ns)
            yield Intervention(
                step=span.span_id,
                kind=word(event.attributes, "kind") or "stepped_in",
                by=word(event.attributes, "by"),
                note=word(event.attributes, "note"),
                at=moment.isoformat() if moment else "",
            )


def _outcomes(span: Span, warnings: list[str]) -> Iterator[tuple[int, Outcome]]:
    """Every outcome that the span reports, with its time; the last one reported holds."""
    said = span.attributes.get("flywheel.outcome")
    if isinstance(said, str) and said in OUTCOMES:
        yield span.end_ns, OUTCOMES[said]
    elif said is not None:
        warnings.append(f"flywheel.outcome: {quote(said)} is not one of success, failed")
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


def _moment(ns: int) -> datetime | None:
    return _EPOCH + timedelta(microseconds=ns // 1000) if ns else None
