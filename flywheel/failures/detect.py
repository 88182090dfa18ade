"""Detectors read trajectories and propose buckets; what they proposed before is replaced.

`Trajectory.detected_at` holds the `changed_at` of the state that was read, not the time of reading: a batch that was
still being committed while detectors read has a later `changed_at`, so that what it brings is read too.
"""

import logging
from collections.abc import Iterator, Sequence

from django.db import transaction
from django.db.models import F, Q

from flywheel.core.buckets import BUCKETS, Context
from flywheel.core.buckets import detect as run_detectors
from flywheel.core.traces import Trace
from flywheel.failures.label import tools_of
from flywheel.failures.models import Proposal
from flywheel.trajectories.formats.reading import text
from flywheel.trajectories.load import traces_of
from flywheel.trajectories.models import Source, Trajectory

log = logging.getLogger(__name__)

UNREAD = Q(detected_at=None) | Q(detected_at__lt=F("changed_at"))
STEPS_AT_ONCE = 5_000
"""Steps held in memory together; one trajectory with more is read alone."""


def unread(project_id: int | None = None, limit: int = 200, after: int = 0) -> list[Trajectory]:
    """Trajectories that detectors have not read since they last grew, oldest first. Rollouts are judged, not guessed.

    `after` is the primary key from which on to look.
    """
    rows = Trajectory.objects.filter(UNREAD, pk__gt=after).exclude(source=Source.ROLLOUT).order_by("pk")
    if project_id is not None:
        rows = rows.filter(project_id=project_id)
    return list(rows.select_related("version")[:limit])


def detect(rows: Sequence[Trajectory]) -> int:
    """Run every detector over the trajectories and store what they propose; returns the number of proposals."""
    return sum(_detect(chunk) for chunk in _chunks(rows))


def _chunks(rows: Sequence[Trajectory]) -> Iterator[list[Trajectory]]:
    chunk: list[Trajectory] = []
    steps = 0
    for row in rows:
        if chunk and steps + row.step_count > STEPS_AT_ONCE:
            yield chunk
            chunk, steps = [], 0
        chunk.append(row)
        steps += row.step_count
    if chunk:
        yield chunk


def _detect(rows: list[Trajectory]) -> int:
    found: list[Proposal] = []
    traces = traces_of(rows)
    for row in rows:
        proposals = _read(row, traces[row.pk])
        found += proposals
        best = max(proposals, key=lambda proposal: proposal.score, default=None)
        row.proposed_bucket = best.bucket if best else ""
        row.proposed_score = best.score if best else None
        row.detected_at = row.changed_at
    with transaction.atomic():
        # Locked in the order in which ingest locks, so that neither waits for the other for ever.
        alive = set(
            Trajectory.objects.filter(pk__in=[row.pk for row in rows])
            .order_by("trace_id")
            .select_for_update(no_key=True)
            .values_list("pk", flat=True)
        )
        kept = [row for row in rows if row.pk in alive]
        found = [proposal for proposal in found if proposal.trajectory_id in alive]
        Proposal.objects.filter(trajectory__in=kept).delete()
        Proposal.objects.bulk_create(found, batch_size=500)
        Trajectory.objects.bulk_update(kept, ["proposed_bucket", "proposed_score", "detected_at"], batch_size=200)
    return len(found)


def _read(row: Trajectory, trace: Trace) -> list[Proposal]:
    context = Context(tools=tools_of(row), state=row.metadata.get("state"))
    try:
        proposals = run_detectors(trace, context)
    except Exception:
        # One trajectory that cannot be read must not keep detectors from all that came after it.
        log.exception("detectors cannot read %s of project %s", row, row.project_id)
        return []
    return [
        Proposal(
            project_id=row.project_id,
            trajectory=row,
            detector=proposal.detector,
            bucket=proposal.bucket,
            step=proposal.step,
            score=proposal.score,
            evidence=text(proposal.evidence),
        )
        for proposal in proposals
        if proposal.bucket in BUCKETS
    ]
