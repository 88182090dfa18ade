"""Rows back into traces, as detectors, proofs and trainers read them."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

import orjson

from flywheel.core import traces
from flywheel.system.sql import bound
from flywheel.trajectories.formats.otlp import otlp_logs
from flywheel.trajectories.formats.otlp.spans import Span
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.models import Step, Trajectory
from flywheel.trajectories.store import log_events
from flywheel.trajectories.store.rows.blobs import restore


def trace_of(trajectory: Trajectory, limit: int | None = None) -> traces.Trace:
    """The whole trajectory, or its first `limit` steps."""
    found = list(trajectory.steps.order_by("position")[:limit])
    complete(found, [trajectory])
    return _trace(trajectory, found)


def traces_of(trajectories: Iterable[Trajectory]) -> dict[int, traces.Trace]:
    """Many trajectories in one read, by primary key."""
    rows = {row.pk: row for row in trajectories}
    steps: dict[int, list[Step]] = {pk: [] for pk in rows}
    found = list(Step.objects.filter(trajectory__in=rows).order_by("trajectory_id", "position"))
    complete(found, rows.values())
    for step in found:
        steps[step.trajectory_id].append(step)
    return {pk: _trace(row, steps[pk]) for pk, row in rows.items()}


STEPS_AT_ONCE = 5_000
"""Steps held in memory together; one trajectory with more is read alone."""


@dataclass(frozen=True, slots=True)
class Outline:
    """The facts of a trajectory that detectors know before they read its steps."""

    pk: int
    project_id: int
    trace_id: str
    changed_at: datetime
    step_count: int
    event_count: int
    outcome: traces.Outcome | None
    interventions: list[dict[str, str]]
    tools: list[dict[str, Any]]
    """Those of its version where it tells of none."""
    metadata: dict[str, Any]


def chunks(rows: Sequence[Outline]) -> Iterator[list[Outline]]:
    """The rows in their order, as many at a time as have `STEPS_AT_ONCE` steps."""
    chunk: list[Outline] = []
    steps = 0
    for row in rows:
        if chunk and steps + row.step_count > STEPS_AT_ONCE:
            yield chunk
            chunk, steps = [], 0
        chunk.append(row)
        steps += row.step_count
    if chunk:
        yield chunk


def glance(outlines: Iterable[Outline]) -> Iterator[tuple[Outline, traces.Trace]]:
    """Trajectories as detectors read them, one after the other: what was said and done, and how that went.

    What the columns of a step tell is taken from them (`rereads.py` keeps them up to date), and its body is read when
    it is part of the conversation. Models, times and raw spans are left out, and what describes the whole trajectory
    but for its outcome.
    """
    rows = {row.pk: row for row in outlines}
    # What is stored apart from its step, or was cut to fit its column, is rare: that is read as for everybody else.
    rare = {pk for pk, row in rows.items() if row.event_count}
    for pk, group in groupby(bound(_GLANCE, [[pk for pk in rows if pk not in rare]]), itemgetter(0)):
        found = list(group)
        if any(is_rare for _, is_rare, *_ in found):
            rare.add(pk)
        else:
            row = rows.pop(pk)
            yield row, _glanced(row, found)
    read = traces_of(Trajectory.objects.select_related("version").filter(pk__in=rare)) if rare else {}
    for pk, row in rows.items():
        yield row, read.get(pk) or _glanced(row, [])


_GLANCE = """
SELECT trajectory_id,
    blobs IS NOT NULL OR length(name) >= 300 OR length(tool_name) >= 200 OR length(tool_call_id) >= 200
        OR length(finish_reason) >= 64,
    is_span, CASE WHEN NOT is_span OR kind <> 'other' THEN body::text END,
    span_id, kind, name, parent_id, status, error, tool_name, tool_call_id, finish_reason,
    tokens_in, tokens_out, cost_usd, priced_by
FROM trajectories_step
WHERE trajectory_id = ANY(%s)
ORDER BY trajectory_id, position
"""


def _glanced(row: Outline, found: list[tuple[Any, ...]]) -> traces.Trace:
    """A trace of what `_GLANCE` finds."""
    steps = []
    bodies: dict[str, tuple[bool, str | None]] = {}
    for values in found:
        _, _, is_span, body, span_id, kind, name, parent_id, status, error, *rest = values
        step = traces.Step(span_id, kind, name, parent_id, None, None, status, error)
        step.tool_name, step.tool_call_id, step.finish_reason, step.tokens_in, step.tokens_out, *costs = rest
        step.cost_usd, step.priced_by = costs[0], costs[1] or ""
        steps.append(step)
        bodies[span_id] = is_span, body
    for step in traces.speaking(steps):
        is_span, body = bodies[step.span_id]
        if body is not None:
            _read(step, is_span, read_json(body))
    return traces.Trace(
        trace_id=row.trace_id,
        steps=steps,
        tools=row.tools,
        outcome=row.outcome,
        interventions=[traces.Intervention(**item) for item in row.interventions],
        metadata=row.metadata,
    )


def read_json(text: str) -> Any:
    """As fast as can be. What only Python reads is left to it."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


def _read(step: traces.Step, is_span: bool, body: dict[str, Any]) -> None:
    """Fill in the content of a step: a span is read by what its dialect is known to mean today."""
    if is_span:
        span = Span(
            "", step.span_id, step.parent_id, attributes=body.get("attributes", {}), scope=body.get("scope", {})
        )
        span.events = otlp_traces.events_of(body)
        otlp_traces.fill(step, span)
    else:
        step.input = [traces.Message.from_json(message) for message in body.get("input", ())]
        step.output = [traces.Message.from_json(message) for message in body.get("output", ())]
        step.arguments, step.result = body.get("arguments"), body.get("result")


def complete(steps: Sequence[Step], trajectories: Iterable[Trajectory]) -> None:
    """Put back what is stored apart from these steps of these trajectories: large values, and events sent as logs."""
    restore(steps)
    log_events.put_back(steps, trajectories)


def _trace(row: Trajectory, steps: Iterable[Step]) -> traces.Trace:
    return traces.Trace(
        trace_id=row.trace_id,
        steps=[step_of(step) for step in steps],
        agent=row.agent_name,
        version=row.version_label,
        session_id=row.session_id,
        user_id=row.user_id,
        environment=row.environment,
        tools=row.tools,
        outcome=row.outcome,  # type: ignore[arg-type]
        interventions=[traces.Intervention(**item) for item in row.interventions],
        tags=row.tags,
        metadata=row.metadata,
    )


def step_of(row: Step) -> traces.Step:
    """One step that is `complete`. A span is read here, by what its dialect is known to mean today."""
    if row.is_span:
        ids = {"trace_id": "", "span_id": row.span_id, "parent_id": row.parent_id}
        step = otlp_traces.step_of(otlp_logs.joined(otlp_traces.from_json(row.body, **ids), row.log_events))
        if row.priced_by:
            step.cost_usd, step.priced_by = row.cost_usd, row.priced_by
        return step
    body = row.body
    step = traces.Step(
        span_id=row.span_id,
        kind=row.kind,  # type: ignore[arg-type]
        name=row.name,
        parent_id=row.parent_id,
        started_at=row.started_at,
        ended_at=row.ended_at,
        status=row.status,  # type: ignore[arg-type]
        error=row.error,
        model=row.model,
        tool_name=row.tool_name,
        tool_call_id=row.tool_call_id,
        finish_reason=row.finish_reason,
        tokens_in=row.tokens_in,
        tokens_out=row.tokens_out,
        tokens_cached=row.tokens_cached,
        cost_usd=row.cost_usd,
        priced_by=row.priced_by or "",
        answered_by=row.answered_by or "",
        sampling=body.get("sampling", {}),
        raw=body.get("raw", {}),
    )
    _read(step, False, body)
    return step
