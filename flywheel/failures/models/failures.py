"""People's decisions about trajectories: failures, and that nothing is wrong.

A decision is never overwritten: a correction is a new row that supersedes the old one.
"""

from django.db import models
from django.db.models import Q
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.trajectories.models import Trajectory


class Decision(models.TextChoices):
    CONFIRMED = "confirmed", "confirmed what was proposed"
    CHANGED = "changed", "chose another category"
    ADDED = "added", "labelled without a proposal"
    REJECTED = "rejected", "decided that nothing is wrong"


class Failure(models.Model):
    """A person's decision about a trajectory. `rejected` says that it is no failure: the trajectory passes."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="failures")
    trajectory = models.ForeignKey(Trajectory, on_delete=models.CASCADE, related_name="failures")
    decision = models.CharField(max_length=16, choices=Decision)
    bucket = models.CharField(max_length=64, blank=True)
    """Empty when rejected."""
    step = models.CharField(max_length=64, blank=True)
    """Span id of the failing step."""
    corrected = models.JSONField(null=True, blank=True)
    """What should have happened: `{"tool": name, "arguments": {…}}`, or `{"text": answer}`."""
    note = models.TextField(blank=True)
    labelled_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", db_index=False)
    labelled_at = models.DateTimeField(default=timezone.now)
    current = models.BooleanField(default=True)
    """Not superseded by a later decision: `labels/decisions.py` turns the old one off and writes the new one
    together."""
    taken_back_at = models.DateTimeField(null=True, blank=True)
    """When its maker undid it; it stays for the record."""

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["trajectory"], condition=Q(current=True), name="failure_one_current"),
            models.CheckConstraint(condition=Q(decision__in=Decision.values), name="failure_decision_is_known"),
            models.CheckConstraint(
                condition=Q(decision="rejected", bucket="") | (~Q(decision="rejected") & ~Q(bucket="")),
                name="failure_has_a_bucket_unless_rejected",
            ),
        ]
        indexes = [
            models.Index(fields=["project", "bucket", "-id"], name="failure_open", condition=Q(current=True)),
            models.Index(fields=["project", "-labelled_at", "-id"], name="failure_lately", condition=Q(current=True)),
            models.Index(fields=["labelled_by", "-labelled_at", "-id"], name="failure_by_person"),
        ]

    def __str__(self) -> str:
        return f"failure {self.pk} {self.bucket or 'none'}"

    @property
    def is_failure(self) -> bool:
        return self.decision != Decision.REJECTED
