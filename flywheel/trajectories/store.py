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

import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

import psycopg
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from flywheel import broker
from flywheel.accounts.models import ApiKey, Project
from flywheel.agents.models import Version
from flywheel.core import traces
from flywheel.trajectories import facts, naming
from flywheel.trajectories.heads import Head, add_up, fit, head_of, heads_of, order
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
    return [written.trajectories[fit(part.trace_id)] for part in parts]


def write(project: Project, parts: Iterable[traces.Trace], *, source: str, version: Version | None = None) -> Written:
    """Merge the parts into what is stored, in one transaction."""
    by_trace: dict[str, list[traces.Trace]] = {}
    for part in parts:
        if version is not None:
            part = replace(part, agent=version.agent.name, version=str(version.number))
        by_trace.setdefault(fit(part.trace_id), []).append(part)
    written = Written()
    if not by_trace:
        return written
    now = timezone.now()
    with transaction.atomic():
        written.trajectories = _lock(project, sorted(by_trace), source, now)
        stored = heads_of(written.trajectories.values())
        changed: list[Trajectory] = []
        rows: list[Step] = []
        moved: list[tuple[int, int]] = []
        for trace_id, trajectory in written.trajectories.items():
            heads = stored.get(trajectory.pk, {})
            fresh = _merge(trajectory, heads, by_trace[trace_id], written, now)
            said = facts.merge(trajectory, by_trace[trace_id])
            if fresh:
                moved += order(heads)
                rows += (head.row for head in fresh if head.row)
            if fresh or said:
                add_up(trajectory, heads.values())
                trajectory.changed_at = now
                changed.append(trajectory)
        naming.resolve(project, changed, version)
        _upsert(rows, moved, changed)
    return written


# What `write` does with each trajectory


def _merge(
    trajectory: Trajectory,
    heads: dict[str, Head],
    parts: Iterable[traces.Trace],
    written: Written,
    now: datetime,
) -> list[Head]:
    """Put the parts' steps into `heads` where they win. Returns the heads that have to be written."""
    fresh: dict[str, Head] = {}
    for part in parts:
        for place, step in enumerate(part.steps):
            head = head_of(trajectory, step, place, now)
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
