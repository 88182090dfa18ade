"""Steps on their way into the store: what is written of each, and what it says about the whole trajectory.

A span is stored as it came and read when somebody looks at it (`stored_traces.step_of`); of any other format the step
is stored as it was mapped. Both are text in PostgreSQL's `json`, which keeps numbers as they were written.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import orjson

from flywheel.core import traces
from flywheel.core.digests import canonical
from flywheel.core.redaction import Redactor
from flywheel.core.traces import Message, Outcome
from flywheel.core.traces.stretches import Stretch, answering, following, stretch_of
from flywheel.core.traces.tooling import parse_call
from flywheel.trajectories.formats.otlp.spans import Facts, Span, word
from flywheel.trajectories.formats.semantics import (
    attribute_plans,
    judgments,
    otlp_traces,
    sent_attributes,
    span_meaning,
)
from flywheel.trajectories.formats.semantics.attribute_plans import Plan
from flywheel.trajectories.formats.semantics.judgments import Judgment
from flywheel.trajectories.formats.values.hostile_json import plain, quote, text
from flywheel.trajectories.formats.values.times import microseconds
from flywheel.trajectories.store.arrivals import trace_redaction

Key = tuple[int, bool, str]
"""`(microseconds since 1970, is a child, span id)`, which orders statements."""

MAX_US = 253_402_300_799_999_999
"""The last microsecond that a datetime holds."""
LATEST = MAX_US + 1
"""After every time, for a part without one."""
EARLIEST = -(2**62)
AT_ONCE = 32
"""Spans that are looked through for secrets together."""


@dataclass(slots=True)
class Said:
    """Claims of a step, or of a part of a trajectory, about the whole."""

    first: Key
    """When it began to speak, and when it ended: of each statement the first or the last one holds."""
    last: Key
    agent: str = ""
    version: str = ""
    session_id: str = ""
    user_id: str = ""
    environment: str = ""
    title: str | Callable[[], str] = ""
    """Called only when no earlier step has given one: it means reading messages."""
    outcome: Outcome | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    attributes: Sequence[str] = ()
    """As `sent_attributes.py` writes them; the spans of a resource that say no more share one."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_names: set[str] = field(default_factory=set)
    interventions: list[traces.Intervention] = field(default_factory=list)
    answered_by: set[str] = field(default_factory=set)
    """Versions that answered its model calls, as `core.traces.Step` has them."""
    judgments: list[Judgment] = field(default_factory=list)
    """Feedback that is kept apart from the steps (`attachments.py`)."""
    is_person: bool = False
    """Whether a person says it: of outcomes, a person's word holds."""
    is_root: bool = False
    """Whether a span without a parent says it: what judges that span judges the whole."""


@dataclass(slots=True)
class Arrival:
    """A step as it is to be written."""

    span_id: str
    parent_id: str
    start_us: int | None
    end_us: int | None
    """Microseconds since 1970."""
    place: int
    kind: str
    name: str
    status: str
    error: str
    model: str
    tool_name: str
    tool_call_id: str
    finish_reason: str
    tokens_in: int | None
    tokens_out: int | None
    tokens_cached: int | None
    cost_usd: float | None
    is_span: bool
    body: bytes
    """JSON: `otlp_traces.to_json` of a span, `step_json` of any other step."""
    size: int
    digest: bytes
    priced_by: str = ""
    """Whose price the cost was derived by, which is not its content; empty where the sender stated it."""
    answered_by: str = ""
    """As in `core.traces.Step`."""
    position: int = 0
    stretch: Stretch | None = None
    """Of a model call that came as a trace of its own: what it continues, and what continues it."""

    @property
    def rank(self) -> tuple[bool, int, bytes]:
        """The rank of this content: of two under one id, the greater one is kept."""
        return self.end_us is not None, self.size, self.digest


# Spans

Resource = tuple[dict[str, Any], Sequence[str]]
"""The words of a resource on the service, and its attributes."""
Shared = tuple[tuple[orjson.Fragment, orjson.Fragment], Resource]
"""Of spans with one resource and one scope: both as JSON, and what the resource says."""


class Reader:
    """Reads the spans of one request. What they share, such as their resource, is read once."""

    def __init__(self, redactor: Redactor | None = None) -> None:
        self.warnings: list[str] = []
        self.redactor = redactor
        self.redactions: Counter[str] = Counter()
        self._known: dict[tuple[int, int], Shared] = {}

    def span(self, span: Span) -> tuple[Arrival, Said]:
        return next(self.spans([span]))

    def spans(self, spans: Sequence[Span]) -> Iterator[tuple[Arrival, Said]]:
        """In their order. A few at a time are looked through for secrets, since each look costs."""
        for start in range(0, len(spans), AT_ONCE):
            some = spans[start : start + AT_ONCE]
            shared = [self._shared(span) for span in some]
            bodies = [_dump(span, *fragments) for span, (fragments, _) in zip(some, shared, strict=True)]
            suspects = self.redactor.suspects(bodies) if self.redactor is not None else ()
            for index, (span, body, (_, resource)) in enumerate(zip(some, bodies, shared, strict=True)):
                if self.redactor is not None and index in suspects:
                    body, left = trace_redaction.span(body, span, self.redactor, self.redactions)
                    yield self._read(left, body, resource if left is span else _resource(left.resource))
                else:
                    yield self._read(span, body, resource)

    def _read(self, span: Span, body: bytes, resource: Resource) -> tuple[Arrival, Said]:
        plan = attribute_plans.of(span.attributes)
        facts = span_meaning.facts(span, plan)
        service, shared = resource
        kind = facts.kind or "other"
        tool = kind == "tool"
        start, end = _us(span.start_ns), _us(span.end_ns)
        arrival = Arrival(
            span.span_id,
            span.parent_id,
            start,
            end,
            0,
            kind,
            span.name[:300],
            span.status,
            otlp_traces.error_of(span) if span.status_message or span.events or plan.has_error else "",
            facts.model[:200],
            otlp_traces.tool_of(span, facts)[:200] if tool else "",
            facts.tool_call_id[:200] if tool else "",
            facts.finish_reason[:64],
            facts.tokens_in,
            facts.tokens_out,
            facts.tokens_cached,
            facts.cost_usd,
            True,
            body,
            len(body),
            hashlib.sha256(body + span.parent_id.encode()).digest(),
        )
        said = self._claims(span, plan, facts, arrival, service)
        own = sent_attributes.items_of(span.attributes, plan.others) if plan.others else ()
        said.attributes = [*shared, *own] if own else shared
        if kind == "assistant" and not span.parent_id and facts.speaks:
            content = span_meaning.content(span, kind)
            is_shared = bool(facts.session_id)
            scope = ["otlp", facts.agent or str(service.get("service.name", "")), facts.session_id or facts.user_id]
            arrival.stretch = stretch_of(
                scope, content.input, content.output, has_failed=span.status == "error", is_shared=is_shared
            )
        return arrival, said

    def _claims(self, span: Span, plan: Plan, facts: Facts, arrival: Arrival, service: dict[str, Any]) -> Said:
        begun, ended, is_child = arrival.start_us, arrival.end_us or arrival.start_us, bool(span.parent_id)
        said = Said(
            (LATEST if begun is None else begun, is_child, span.span_id),
            (EARLIEST if ended is None else ended, not is_child, span.span_id),
            facts.agent,
            facts.version,
            facts.session_id,
            facts.user_id,
            facts.environment,
        )
        said.metadata = {**service, **facts.metadata} if facts.metadata else service
        said.tags = facts.tags
        said.is_root = not is_child
        if plan.has_outcome:
            said.outcome = otlp_traces.stated_outcome(span, self.warnings)
        if span.events or plan.has_judgments:
            said.interventions = list(otlp_traces.interventions(span))
            said.judgments = judgments.of_span(span)
            for judged in said.judgments:
                if judged.key == judgments.OUTCOME and judgments.outcome_of(judged.value) is None:
                    self.warnings.append(f"outcome: {quote(judged.value)} is neither pass nor fail")
        if plan.has_tools:
            said.tools = span_meaning.tools(span, plan)
        if facts.speaks:
            names = span_meaning.calls(span, plan)
            said.tool_names = (
                called(span_meaning.output(span, facts.kind)) if names is None else {name[:200] for name in names}
            )
            said.title = lambda: (
                title(span_meaning.user_messages(span, facts.kind)) or title(span_meaning.output(span, facts.kind))
            )
        if arrival.tool_name:
            said.tool_names.add(arrival.tool_name)
        return said

    def _shared(self, span: Span) -> Shared:
        key = id(span.resource), id(span.scope)
        known = self._known.get(key)
        if known is None:
            resource, scope = orjson.dumps(span.resource), orjson.dumps(span.scope)
            known = (orjson.Fragment(resource), orjson.Fragment(scope)), _resource(span.resource)
            self._known[key] = known
        return known


def _dump(span: Span, resource: orjson.Fragment, scope: orjson.Fragment) -> bytes:
    """The span as it is stored, in which what it shares with others has been written already."""
    row = otlp_traces.to_json(span)
    if "resource" in row:
        row["resource"] = resource
    if "scope" in row:
        row["scope"] = scope
    return orjson.dumps(row)


def _service(resource: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key in ("service.name", "service.version") if (value := word(resource, key))}


def _resource(resource: dict[str, Any]) -> Resource:
    keys = sent_attributes.keys_of(key for key in resource if not attribute_plans.reads(key))
    return _service(resource), sent_attributes.items_of(resource, keys)


def _us(ns: int) -> int | None:
    return min(ns // 1000, MAX_US) if ns else None


# Parts of trajectories in any other format


def part(trace: traces.Trace) -> tuple[list[Arrival], Said]:
    """The steps of a part that was mapped by its format, and what the part says."""
    arrivals = [_step(step, place) for place, step in enumerate(trace.steps)]
    first, last = _keys(trace.steps, arrivals)
    said = Said(
        first,
        last,
        text(trace.agent),
        text(trace.version),
        text(trace.session_id),
        text(trace.user_id),
        text(trace.environment),
    )
    said.title = next((found for step in trace.steps if (found := title([*step.input, *step.output]))), "")
    said.outcome = trace.outcome
    said.metadata = plain(trace.metadata)
    said.attributes = sent_attributes.items_of(said.metadata, sent_attributes.keys_of(said.metadata))
    said.tags, said.tools, said.interventions = trace.tags, trace.tools, trace.interventions
    if len(arrivals) == 1:
        arrivals[0].stretch = _stretch(trace, said)
    said.answered_by = {step.answered_by for step in trace.steps if step.answered_by}
    for step in trace.steps:
        said.tool_names |= {text(step.tool_name)[:200]} - {""}
        if step.kind in ("assistant", "agent"):
            said.tool_names |= called(step.output)
    return arrivals, said


def _stretch(trace: traces.Trace, said: Said) -> Stretch | None:
    """The stretch of the one model call that the part is, where it came as a trace of its own or its answer has a
    name."""
    call, found = trace.steps[0], None
    if trace.follows:
        found = following(trace.follows)
    elif trace.thread:
        scope, has_failed = [trace.thread, said.agent, said.user_id], call.status == "error"
        found = stretch_of(scope, call.input, call.output, has_failed=has_failed, is_shared=False)
    return answering(found, trace.answer_id) if trace.answer_id else found


def step_json(step: traces.Step) -> dict[str, Any]:
    """The content of a step as it is stored: only what is set."""
    row = {
        "input": [message.to_json() for message in step.input],
        "output": [message.to_json() for message in step.output],
        "arguments": step.arguments,
        "result": step.result,
        "sampling": step.sampling,
        "raw": step.raw,
    }
    return {key: value for key, value in row.items() if value is not None and value != [] and value != {}} | (
        {"arguments": step.arguments} if step.arguments is not None else {}
    )


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=True, separators=(",", ":")).encode


def _step(step: traces.Step, place: int) -> Arrival:
    body = _encode(step_json(step))
    if "\\u0000" in body or "NaN" in body or "Infinity" in body or not _is_utf8(body):
        body = json.dumps(plain(step_json(step)), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    arrival = Arrival(
        span_id=text(fit(step.span_id)),
        parent_id=text(fit(step.parent_id)),
        start_us=microseconds(step.started_at) if step.started_at else None,
        end_us=microseconds(step.ended_at) if step.ended_at else None,
        place=place,
        kind=step.kind,
        name=text(step.name)[:300],
        status=step.status,
        error=text(step.error),
        model=text(step.model)[:200],
        tool_name=text(step.tool_name)[:200],
        tool_call_id=text(step.tool_call_id)[:200],
        finish_reason=text(step.finish_reason)[:64],
        tokens_in=step.tokens_in,
        tokens_out=step.tokens_out,
        tokens_cached=step.tokens_cached,
        cost_usd=step.cost_usd,
        is_span=False,
        body=body.encode(),
        size=0,
        digest=b"",
        priced_by=step.priced_by,
        answered_by=step.answered_by,
    )
    stated = None if step.priced_by else step.cost_usd
    whole = canonical([*_columns(arrival), stated, body])
    arrival.size, arrival.digest = len(whole), hashlib.sha256(whole).digest()
    return arrival


_columns = attrgetter(
    "parent_id", "start_us", "end_us", "kind", "name", "status", "error", "model", "tool_name", "tool_call_id",
    "finish_reason", "tokens_in", "tokens_out", "tokens_cached",
)  # fmt: skip
"""Everything that a step says beside its cost and its body; its place among its siblings is not its content."""


def _is_utf8(body: str) -> bool:
    try:
        body.encode()
    except UnicodeEncodeError:
        return False
    return True


def _keys(steps: list[traces.Step], arrivals: list[Arrival]) -> tuple[Key, Key]:
    """Keys of the first and of the last thing that the part says."""
    if not steps:
        return (LATEST, True, ""), (EARLIEST, True, "")
    opening, closing = [], []
    for step, arrival in zip(steps, arrivals, strict=True):
        begun, ended = arrival.start_us, arrival.start_us if arrival.end_us is None else arrival.end_us
        opening.append((LATEST if begun is None else begun, bool(step.parent_id), step.span_id))
        closing.append((EARLIEST if ended is None else ended, not step.parent_id, step.span_id))
    return min(opening), max(closing)


# What both read


def fit(identity: str) -> str:
    """An id that fits its column."""
    return identity if len(identity) <= 64 else hashlib.sha256(identity.encode(errors="replace")).hexdigest()


def title(messages: Iterable[Message]) -> str:
    """The first line of the first thing that the user said."""
    for message in messages:
        if message.role == "user" and message.content.strip():
            return message.content.strip().splitlines()[0].strip()
    return ""


def called(messages: list[Message]) -> set[str]:
    """Names of the tools that were asked for, also in a call written as text."""
    # A call written as text may spell out what PostgreSQL refuses: `\u0000` in JSON is a NUL once it is read.
    return {text(name)[:200] for message in messages for name in _called_tools(message) if name}


def _called_tools(message: Message) -> list[str]:
    if message.tool_calls:
        return [call.name for call in message.tool_calls]
    if message.content.lstrip().startswith(span_meaning.WRITTEN_CALL) and (call := parse_call(message).call):
        return [call.name]
    return []
