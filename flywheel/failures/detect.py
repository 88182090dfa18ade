"""Detectors read trajectories and propose buckets; what they proposed before is replaced."""

from collections.abc import Sequence

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from flywheel.core.buckets import Context
from flywheel.core.buckets import detect as run_detectors
from flywheel.failures.models import Proposal
from flywheel.trajectories.load import trace_of
from flywheel.trajectories.models import Source, Trajectory

UNREAD = Q(detected_at=None) | Q(detected_at__lt=F("changed_at"))


def unread(project_id: int | None = None, limit: int = 200) -> list[Trajectory]:
    """Trajectories that detectors have not read since they last grew, oldest first. Rollouts are judged, not guessed."""
    rows = Trajectory.objects.filter(UNREAD).exclude(source=Source.ROLLOUT).order_by("id")
    if project_id is not None:
        rows = rows.filter(project_id=project_id)
    return list(rows[:limit])


def detect(rows: Sequence[Trajectory]) -> int:
    """Run every detector over the trajectories and store what they propose; returns the number of proposals."""
    read_at = timezone.now()
    found: list[Proposal] = []
    for row in rows:
        trace = trace_of(row)
        context = Context(
            tools=row.tools or (row.version.tools if row.version else []), state=row.metadata.get("state")
        )
        proposals = run_detectors(trace, context)
        found += [
            Proposal(
                project_id=row.project_id,
                trajectory=row,
                detector=proposal.detector,
                bucket=proposal.bucket,
                step=proposal.step,
                score=proposal.score,
                evidence=proposal.evidence,
            )
            for proposal in proposals
        ]
        best = max(proposals, key=lambda proposal: proposal.score, default=None)
        row.proposed_bucket = best.bucket if best else ""
        row.proposed_score = best.score if best else None
        row.detected_at = read_at
    with transaction.atomic():
        Proposal.objects.filter(trajectory__in=rows).delete()
        Proposal.objects.bulk_create(found)
        Trajectory.objects.bulk_update(rows, ["proposed_bucket", "proposed_score", "detected_at"], batch_size=200)
    return len(found)
