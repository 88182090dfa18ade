"""A person's decision about a trajectory. A later decision supersedes the earlier one and never overwrites it."""

from typing import Any

from django.db import transaction
from django.utils import timezone

from flywheel.accounts.models import User, record
from flywheel.core.buckets import BUCKETS
from flywheel.failures.models import Decision, Failure
from flywheel.trajectories.models import Label, Trajectory


class BadLabel(ValueError):
    """The decision does not fit; the message names the field and what would be right."""


@transaction.atomic
def decide(
    *,
    trajectory: Trajectory,
    actor: User,
    decision: Decision,
    bucket: str = "",
    step: str = "",
    corrected: dict[str, Any] | None = None,
    note: str = "",
    through: str = "",
) -> Failure:
    """Record a decision, and what it means for the trajectory. Raises BadLabel.

    `corrected` is what should have happened: `{"tool": name, "arguments": {…}}` or `{"text": answer}`.
    """
    row = Trajectory.objects.select_for_update().get(pk=trajectory.pk)
    rejected = decision == Decision.REJECTED
    if rejected and bucket:
        raise BadLabel("bucket: leave it empty when nothing is wrong")
    if not rejected and bucket not in BUCKETS:
        raise BadLabel(f"bucket: {bucket!r} is unknown, one of {', '.join(BUCKETS)} is wanted")
    if step and not row.steps.filter(span_id=step).exists():
        raise BadLabel(f"step: this trajectory has no step {step!r}")
    _check_corrected(corrected)
    row.failures.filter(current=True).update(current=False)
    failure = Failure.objects.create(
        project=row.project,
        trajectory=row,
        decision=decision,
        bucket=bucket,
        step=step,
        corrected=corrected,
        note=note,
        labelled_by=actor,
        labelled_at=timezone.now(),
    )
    row.label = Label.PASS if rejected else Label.FAILURE
    row.label_bucket = bucket
    row.save(update_fields=["label", "label_bucket"])
    record(
        project=row.project,
        actor=actor,
        action=f"failures.{decision}",
        subject=f"trajectory {row.trace_id}",
        reason=note,
        through=through,
        bucket=bucket,
        step=step,
    )
    return failure


def undo(*, trajectory: Trajectory, actor: User, through: str = "") -> Failure | None:
    """Take back the latest decision: the one before it counts again. Returns that one, or None when there was none."""
    with transaction.atomic():
        row = Trajectory.objects.select_for_update().get(pk=trajectory.pk)
        latest = row.failures.filter(current=True).first()
        if latest is None:
            return None
        before = row.failures.filter(pk__lt=latest.pk, taken_back_at=None).order_by("-pk").first()
        Failure.objects.filter(pk=latest.pk).update(current=False, taken_back_at=timezone.now())
        if before is not None:
            Failure.objects.filter(pk=before.pk).update(current=True)
        row.label = "" if before is None else Label.FAILURE if before.is_failure else Label.PASS
        row.label_bucket = before.bucket if before else ""
        row.save(update_fields=["label", "label_bucket"])
        record(
            project=row.project,
            actor=actor,
            action="failures.undo",
            subject=f"trajectory {row.trace_id}",
            through=through,
        )
        return before


def _check_corrected(corrected: dict[str, Any] | None) -> None:
    if corrected is None:
        return
    if set(corrected) == {"text"} and isinstance(corrected["text"], str):
        return
    if set(corrected) != {"tool", "arguments"} or not isinstance(corrected["tool"], str):
        raise BadLabel('corrected: {"tool": name, "arguments": {…}} or {"text": answer} is wanted')
    if not isinstance(corrected["arguments"], dict):
        raise BadLabel("corrected.arguments: must be an object")
