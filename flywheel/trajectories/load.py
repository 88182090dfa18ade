"""Rows back into traces, as detectors, proofs and trainers read them."""

from collections.abc import Iterable

from flywheel.core import traces
from flywheel.trajectories.models import Step, Trajectory


def trace_of(trajectory: Trajectory, limit: int | None = None) -> traces.Trace:
    """The whole trajectory, or its first `limit` steps."""
    return _trace(trajectory, trajectory.steps.order_by("position")[:limit])


def traces_of(trajectories: Iterable[Trajectory]) -> dict[int, traces.Trace]:
    """Many trajectories in one read, by primary key."""
    rows = {row.pk: row for row in trajectories}
    steps: dict[int, list[Step]] = {pk: [] for pk in rows}
    for step in Step.objects.filter(trajectory__in=rows).order_by("trajectory_id", "position"):
        steps[step.trajectory_id].append(step)
    return {pk: _trace(row, steps[pk]) for pk, row in rows.items()}


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
    """One step; without `raw` when the row was read without it."""
    return traces.Step(
        span_id=row.span_id,
        kind=row.kind,  # type: ignore[arg-type]
        name=row.name,
        parent_id=row.parent_id,
        started_at=row.started_at,
        ended_at=row.ended_at,
        status=row.status,  # type: ignore[arg-type]
        error=row.error,
        model=row.model,
        input=[traces.Message.from_json(message) for message in row.input],
        output=[traces.Message.from_json(message) for message in row.output],
        tool_name=row.tool_name,
        tool_call_id=row.tool_call_id,
        arguments=row.arguments,
        result=row.result,
        finish_reason=row.finish_reason,
        tokens_in=row.tokens_in,
        tokens_out=row.tokens_out,
        tokens_cached=row.tokens_cached,
        cost_usd=row.cost_usd,
        raw={} if "raw" in row.get_deferred_fields() else row.raw,
    )
