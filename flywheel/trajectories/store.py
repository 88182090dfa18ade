"""Trajectories into rows: the one way in, for telemetry, imports and rollouts.

`write` merges parts of trajectories into what is stored, in one transaction, and answers what each step came to.
The result depends only on the set of steps that ever arrived, not on their order, their grouping or their repetition:

- A step is known by (project, trace id, span id). The same content again is a duplicate. Other content under a known
  id: the one that has ended wins, then the longer one, then the one with the greater digest. The loser counts as a
  duplicate, since nothing changes.
- Steps are put in order by their start; where a step has no clock, by their place in what was sent.
- The trajectory's columns are computed from its steps and from what the parts said of the whole (`facts.py`).

`store` also writes the ledger row; `store_rollouts` is for attempts that this house made itself.
"""

import hashlib
import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import psycopg
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from flywheel import broker
from flywheel.accounts.models import ApiKey, Project
from flywheel.agents.models import Version
from flywheel.core import traces
from flywheel.core.digests import canonical
from flywheel.trajectories import facts, naming
from flywheel.trajectories.formats.reading import plain
from flywheel.trajectories.models import Batch, Source, Step, Trajectory

log = logging.getLogger(__name__)

T = TypeVar("T")

PROBLEMS_KEPT = 100
AT_ONCE = 500
"""Rows of one statement."""
ATTEMPTS = 5

STEP_COLUMNS = [
    field.name for field in Step._meta.concrete_fields if field.name not in ("id", "project", "trace_id", "span_id")
]
TRAJECTORY_COLUMNS = [
    *facts.COMPARED,
    "agent",
    "version",
    "started_at",
    "ended_at",
    "changed_at",
    "latency_ms",
    "step_count",
    "error_count",
    "tokens_in",
    "tokens_out",
    "cost_usd",
]


@dataclass(slots=True)
class Written:
    """What became of the steps of one `write`."""

    inserted: int = 0
    updated: int = 0
    duplicate: int = 0
    trajectories: dict[str, Trajectory] = field(default_factory=dict)
    """By trace id."""


@dataclass(slots=True)
class _Head:
    """What ordering and summing need to know of a step."""

    pk: int | None
    span_id: str
    parent_id: str
    started_at: datetime | None
    ended_at: datetime | None
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
        return self.ended_at is not None, self.size, self.digest


_HEAD_COLUMNS = [name for name in _Head.__slots__ if name not in ("pk", "row")]


def store(
    project: Project,
    parts: Iterable[traces.Trace],
    *,
    source: str,
    format: str,
    sha256: str = "",
    key: ApiKey | None = None,
    problems: Sequence[dict[str, Any]] = (),
    version: Version | None = None,
) -> Batch:
    """Write the parts and the ledger row that says what became of them. `problems` are what was rejected, one each."""
    given = list(parts)

    def work() -> Batch:
        written = write(project, given, source=source, version=version)
        return Batch.objects.create(
            project=project,
            key=key,
            format=format,
            sha256=sha256,
            trajectories=len(written.trajectories),
            received=sum(len(part.steps) for part in given) + len(problems),
            inserted=written.inserted,
            updated=written.updated,
            duplicate=written.duplicate,
            rejected=len(problems),
            problems=list(problems[:PROBLEMS_KEPT]),
        )

    batch = _patiently(work)
    if batch.inserted or batch.updated:
        transaction.on_commit(lambda: announce(project.pk), robust=True)
    return batch


def announce(project_id: int) -> None:
    """Tell the detectors that there is something to read. When the broker is away, the sweeper does."""
    try:
        broker.app().send_task("workers.detect", [project_id], retry=False)
    except Exception:
        log.warning("no wake-up for project %s: the broker does not answer", project_id, exc_info=True)


def store_rollouts(
    project: Project, parts: Sequence[traces.Trace], *, version: Version | None = None
) -> list[Trajectory]:
    """Store attempts as trajectories, in the order given. Each part is a whole trajectory; no ledger row is written."""
    written = _patiently(lambda: write(project, parts, source=Source.ROLLOUT, version=version))
    return [written.trajectories[_fit(part.trace_id)] for part in parts]


def write(project: Project, parts: Iterable[traces.Trace], *, source: str, version: Version | None = None) -> Written:
    """Merge the parts into what is stored, in one transaction."""
    by_trace: dict[str, list[traces.Trace]] = {}
    for part in parts:
        by_trace.setdefault(_fit(part.trace_id), []).append(part)
    written = Written()
    if not by_trace:
        return written
    now = timezone.now()
    with transaction.atomic():
        written.trajectories = _lock(project, sorted(by_trace), source, now)
        stored = _heads(written.trajectories.values())
        changed: list[Trajectory] = []
        rows: list[Step] = []
        moved: list[tuple[int, int]] = []
        for trace_id, trajectory in written.trajectories.items():
            heads = stored.get(trajectory.pk, {})
            fresh = _merge(trajectory, heads, by_trace[trace_id], written, now)
            said = facts.merge(trajectory, by_trace[trace_id])
            if fresh:
                moved += _order(heads)
                rows += (head.row for head in fresh if head.row)
            if fresh or said:
                _sum(trajectory, heads.values(), now)
                changed.append(trajectory)
        naming.resolve(project, changed, version)
        _upsert(rows, moved, changed)
    return written


# The four things that `write` does with each trajectory


def _merge(
    trajectory: Trajectory,
    heads: dict[str, _Head],
    parts: Iterable[traces.Trace],
    written: Written,
    now: datetime,
) -> list[_Head]:
    """Put the parts' steps into `heads` where they win. Returns the heads that have to be written."""
    fresh: dict[str, _Head] = {}
    for part in parts:
        for place, step in enumerate(part.steps):
            head = _head(trajectory, step, place, now)
            known = heads.get(head.span_id)
            if known is not None and known.rank >= head.rank:
                written.duplicate += 1
                continue
            if known is None:
                written.inserted += 1
            elif known.row is None:
                written.updated += 1
            else:
                written.duplicate += 1  # of one that came in the same batch, and is written only once
            head.pk = known.pk if known else None
            heads[head.span_id] = fresh[head.span_id] = head
    return list(fresh.values())


def _order(heads: dict[str, _Head]) -> list[tuple[int, int]]:
    """Give every step its position. Returns (primary key, position) of stored steps that move."""
    depths = _depths(heads)
    is_timed = all(head.started_at for head in heads.values())

    def moment(head: _Head) -> float:
        return head.started_at.timestamp() if head.started_at else math.inf

    def by_clock(head: _Head) -> tuple[Any, ...]:
        return moment(head), head.place, depths[head.span_id], head.span_id

    def by_place(head: _Head) -> tuple[Any, ...]:
        return head.place, moment(head), depths[head.span_id], head.span_id

    moved = []
    for position, head in enumerate(sorted(heads.values(), key=by_clock if is_timed else by_place)):
        if head.row is not None:
            head.row.position = position
        elif head.position != position:
            assert head.pk is not None
            moved.append((head.pk, position))
    return moved


def _depths(heads: dict[str, _Head]) -> dict[str, int]:
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


def _sum(trajectory: Trajectory, heads: Iterable[_Head], now: datetime) -> None:
    """Compute the trajectory's figures from all of its steps."""
    every = list(heads)
    starts = [head.started_at for head in every if head.started_at]
    ends = [head.ended_at for head in every if head.ended_at]
    trajectory.started_at = min(starts, default=trajectory.received_at)
    trajectory.ended_at = max(ends, default=None)
    trajectory.latency_ms = None
    if starts and trajectory.ended_at:
        trajectory.latency_ms = (trajectory.ended_at - trajectory.started_at).total_seconds() * 1000
    trajectory.step_count = len(every)
    trajectory.error_count = sum(head.status == "error" for head in every)
    trajectory.tokens_in = _total(head.tokens_in for head in every)
    trajectory.tokens_out = _total(head.tokens_out for head in every)
    costs = [head.cost_usd for head in every if head.cost_usd is not None]
    trajectory.cost_usd = math.fsum(costs) if costs else None
    trajectory.changed_at = now


def _total(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


# Rows


def _lock(project: Project, trace_ids: list[str], source: str, now: datetime) -> dict[str, Trajectory]:
    """The trajectories, made where they are new, locked in the order of their ids so that no two writers deadlock."""
    new = [
        Trajectory(
            project=project,
            trace_id=trace_id,
            source=source,
            started_at=now,
            received_at=now,
            # Rollouts are judged by verifiers, so no detector has to read them.
            detected_at=now if source == Source.ROLLOUT else None,
        )
        for trace_id in trace_ids
    ]
    Trajectory.objects.bulk_create(new, ignore_conflicts=True, batch_size=AT_ONCE)
    rows = Trajectory.objects.select_for_update(no_key=True).filter(project=project, trace_id__in=trace_ids)
    return {row.trace_id: row for row in rows.order_by("trace_id")}


def _heads(trajectories: Iterable[Trajectory]) -> dict[int, dict[str, _Head]]:
    stored: dict[int, dict[str, _Head]] = {}
    found = Step.objects.filter(trajectory__in=[row.pk for row in trajectories]).order_by()
    for trajectory_id, *values in found.values_list("trajectory_id", "pk", *_HEAD_COLUMNS):
        head = _Head(*values)
        stored.setdefault(trajectory_id, {})[head.span_id] = head
    return stored


def _upsert(rows: list[Step], moved: list[tuple[int, int]], changed: list[Trajectory]) -> None:
    Step.objects.bulk_create(
        rows,
        batch_size=AT_ONCE,
        update_conflicts=True,
        unique_fields=["project", "trace_id", "span_id"],
        update_fields=STEP_COLUMNS,
    )
    if moved:
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE trajectories_step AS step SET position = moved.position"
                " FROM unnest(%s::bigint[], %s::int[]) AS moved (id, position) WHERE step.id = moved.id",
                [[pk for pk, _ in moved], [position for _, position in moved]],
            )
    Trajectory.objects.bulk_create(
        changed,
        batch_size=AT_ONCE,
        update_conflicts=True,
        unique_fields=["project", "trace_id"],
        update_fields=TRAJECTORY_COLUMNS,
    )


def _head(trajectory: Trajectory, step: traces.Step, place: int, now: datetime) -> _Head:
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
    head = _Head(None, *(getattr(row, name) for name in _HEAD_COLUMNS))
    head.row = row
    return head


def _content(step: traces.Step) -> tuple[dict[str, Any], bytes]:
    """Everything that a step says, as PostgreSQL takes it, and its canonical form, by which steps are compared."""
    content = {
        "span_id": _fit(step.span_id),
        "parent_id": _fit(step.parent_id),
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


def _fit(identity: str) -> str:
    """An id that fits its column."""
    return identity if len(identity) <= 64 else hashlib.sha256(identity.encode(errors="replace")).hexdigest()


def _patiently(work: Callable[[], T]) -> T:
    """Run `work` in a transaction, again when the database chose it as the victim of a deadlock."""
    if connection.in_atomic_block:
        return work()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with transaction.atomic():
                return work()
        except OperationalError as error:
            if attempt == ATTEMPTS or not isinstance(error.__cause__, _VICTIM):
                raise
            time.sleep(random.uniform(0, 0.05 * attempt))
    raise AssertionError("unreachable")


_VICTIM = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
