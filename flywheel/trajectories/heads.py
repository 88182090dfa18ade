"""What ordering, comparing and summing need to know of the steps of a trajectory, without their content.

A trajectory of 35,000 steps grows by a few hundred at a time; only these narrow rows of it are read again.
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import BigIntegerField
from django.db.models.functions import Cast, Extract

from flywheel.core import traces
from flywheel.core.digests import canonical
from flywheel.trajectories.formats.reading import plain
from flywheel.trajectories.models import Step, Trajectory


@dataclass(slots=True)
class Head:
    """What ordering and summing need to know of a step."""

    pk: int | None
    span_id: str
    parent_id: str
    start_us: int | None
    end_us: int | None
    """Microseconds since 1970; as numbers, since reading a long trajectory is mostly reading its times."""
    place: int
    position: int
    status: str
    tokens_in: int | None
    tokens_out: int | None
    cost_usd: float | None
    size: int
    digest: str
    row: Step | None = None
    """The step to be written, when it is new or replaces the stored one."""

    @property
    def rank(self) -> tuple[bool, int, str]:
        return self.end_us is not None, self.size, self.digest


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _us(column: str) -> Cast:
    return Cast(Extract(column, "epoch") * 1_000_000, BigIntegerField())


_COLUMNS = (
    "pk",
    "span_id",
    "parent_id",
    _us("started_at"),
    _us("ended_at"),
    "place",
    "position",
    "status",
    "tokens_in",
    "tokens_out",
    "cost_usd",
    "size",
    "digest",
)
"""The columns of `Head`, as they are read."""


# Reading and making them


def heads_of(trajectories: Iterable[Trajectory]) -> dict[int, dict[str, Head]]:
    stored: dict[int, dict[str, Head]] = {}
    found = Step.objects.filter(trajectory__in=[row.pk for row in trajectories]).order_by()
    for trajectory_id, *values in found.values_list("trajectory_id", *_COLUMNS):
        head = Head(*values)
        stored.setdefault(trajectory_id, {})[head.span_id] = head
    return stored


def head_of(trajectory: Trajectory, step: traces.Step, place: int, now: datetime) -> Head:
    content, body = _content(step)
    row = Step(
        **content | {"started_at": step.started_at, "ended_at": step.ended_at},
        project_id=trajectory.project_id,
        trajectory=trajectory,
        trace_id=trajectory.trace_id,
        place=place,
        position=0,
        size=len(body),
        digest=hashlib.sha256(body).hexdigest(),
        received_at=now,
    )
    return Head(
        pk=None,
        span_id=row.span_id,
        parent_id=row.parent_id,
        start_us=_microseconds(step.started_at),
        end_us=_microseconds(step.ended_at),
        place=place,
        position=0,
        status=row.status,
        tokens_in=row.tokens_in,
        tokens_out=row.tokens_out,
        cost_usd=row.cost_usd,
        size=row.size,
        digest=row.digest,
        row=row,
    )


def _microseconds(moment: datetime | None) -> int | None:
    return (moment - _EPOCH) // timedelta(microseconds=1) if moment else None


def _content(step: traces.Step) -> tuple[dict[str, Any], bytes]:
    """Everything that a step says, as PostgreSQL takes it, and its canonical form, by which steps are compared."""
    content = {
        "span_id": fit(step.span_id),
        "parent_id": fit(step.parent_id),
        "kind": step.kind,
        "name": step.name[:300],
        "status": step.status,
        "error": step.error,
        "started_at": step.started_at.isoformat() if step.started_at else None,
        "ended_at": step.ended_at.isoformat() if step.ended_at else None,
        "model": step.model[:200],
        "input": [message.to_json() for message in step.input],
        "output": [message.to_json() for message in step.output],
        "tool_name": step.tool_name[:200],
        "tool_call_id": step.tool_call_id[:200],
        "arguments": step.arguments,
        "result": step.result,
        "finish_reason": step.finish_reason[:64],
        "tokens_in": step.tokens_in,
        "tokens_out": step.tokens_out,
        "tokens_cached": step.tokens_cached,
        "cost_usd": step.cost_usd,
        "raw": step.raw,
    }
    try:
        body = canonical(content)
    except ValueError:  # NaN or a lone surrogate, which a policy's own arguments may hold
        body = b"\\u0000"
    if b"\\u0000" in body:
        content = plain(content)
        body = canonical(content)
    return content, body


def fit(identity: str) -> str:
    """An id that fits its column."""
    return identity if len(identity) <= 64 else hashlib.sha256(identity.encode(errors="replace")).hexdigest()


# Order and figures


def order(heads: dict[str, Head]) -> list[tuple[int, int]]:
    """Give every step its position. Returns (primary key, position) of stored steps that move."""
    depths = _depths(heads)
    is_timed = all(head.start_us is not None for head in heads.values())

    def start(head: Head) -> float:
        return math.inf if head.start_us is None else head.start_us

    def by_clock(head: Head) -> tuple[Any, ...]:
        return start(head), head.place, depths[head.span_id], head.span_id

    def by_place(head: Head) -> tuple[Any, ...]:
        return head.place, start(head), depths[head.span_id], head.span_id

    moved = []
    for position, head in enumerate(sorted(heads.values(), key=by_clock if is_timed else by_place)):
        if head.row is not None:
            head.row.position = position
        elif head.position != position:
            assert head.pk is not None
            moved.append((head.pk, position))
    return moved


def _depths(heads: dict[str, Head]) -> dict[str, int]:
    """How far each step is below a step without a known parent. Looked up in the order of ids, so that even a circle of
    parents comes out the same every time."""
    depths: dict[str, int] = {}
    for span_id in sorted(heads):
        path: dict[str, None] = {}
        while span_id in heads and span_id not in depths and span_id not in path:
            path[span_id] = None
            span_id = heads[span_id].parent_id
        for level, name in enumerate(reversed(path), depths.get(span_id, -1) + 1):
            depths[name] = level
    return depths


def add_up(trajectory: Trajectory, heads: Iterable[Head]) -> None:
    """Compute the trajectory's figures from all of its steps."""
    every = list(heads)
    starts = [head.start_us for head in every if head.start_us is not None]
    ends = [head.end_us for head in every if head.end_us is not None]
    trajectory.started_at = _EPOCH + timedelta(microseconds=min(starts)) if starts else trajectory.received_at
    trajectory.ended_at = _EPOCH + timedelta(microseconds=max(ends)) if ends else None
    trajectory.latency_ms = (max(ends) - min(starts)) / 1000 if starts and ends else None
    trajectory.step_count = len(every)
    trajectory.error_count = sum(head.status == "error" for head in every)
    trajectory.tokens_in = _total(head.tokens_in for head in every)
    trajectory.tokens_out = _total(head.tokens_out for head in every)
    costs = [head.cost_usd for head in every if head.cost_usd is not None]
    trajectory.cost_usd = math.fsum(costs) if costs else None


def _total(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
