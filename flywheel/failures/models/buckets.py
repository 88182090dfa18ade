"""Buckets that a project defines, and what people decided about buckets: whose one is, how urgent, whether closed.

What became of a bucket (tasks, runs, versions) is not stored here: `buckets/bucket_lifecycle.py` reads it from what was
made.
"""

from datetime import datetime

from django.db import models
from django.db.models import Q
from django.db.models.functions import Lower
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.core.detectors.standard_buckets import BUCKETS, Bucket


class ProjectBucket(models.Model):
    """A kind of failure that this project tells apart; a kind of one of the built-in buckets. `bucket_definitions.py`
    makes it."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="buckets")
    key = models.CharField(max_length=64)
    """Stored with every label, so it never changes."""
    label = models.CharField(max_length=60)
    description = models.TextField(blank=True)
    parent = models.CharField(max_length=64)
    shortcut = models.CharField(max_length=1, blank=True)
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    archived_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["project", "key"], name="bucket_once"),
            models.UniqueConstraint("project", Lower("label"), condition=Q(archived_at=None), name="bucket_label_once"),
            models.UniqueConstraint(
                fields=["project", "shortcut"],
                condition=Q(archived_at=None) & ~Q(shortcut=""),
                name="bucket_shortcut_once",
            ),
        ]

    def __str__(self) -> str:
        return self.label

    @property
    def bucket(self) -> Bucket:
        """As the rest of the code knows buckets: what usually helps is what helps its parent."""
        return Bucket(
            self.key,
            self.label,
            self.description,
            self.shortcut,
            BUCKETS[self.parent].fix,
            parent=self.parent,
            is_archived=self.archived_at is not None,
        )


class Priority(models.TextChoices):
    URGENT = "urgent"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class Severity(models.TextChoices):
    """The harm done by one failure of the bucket, whatever their number."""

    CRITICAL = "critical"
    MAJOR = "major"
    MINOR = "minor"


class BucketLife(models.Model):
    """People's decisions about a bucket of a project, also a built-in one; made when there is something to keep."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="bucket_lives")
    bucket = models.CharField(max_length=64)
    owner = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    priority = models.CharField(max_length=8, choices=Priority, default=Priority.NORMAL)
    severity = models.CharField(max_length=8, choices=Severity, blank=True)
    """Empty until somebody says."""
    closed_at = models.DateTimeField(null=True, blank=True)
    """When it was closed last; still there when it was reopened since."""
    closed_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    closed_because = models.TextField(blank=True)
    reopened_at = models.DateTimeField(null=True, blank=True)
    """Since it was closed last."""
    reopened_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    """Who reopened it, or whose label did."""
    reopened_for = models.ForeignKey(
        "failures.Failure", on_delete=models.SET_NULL, related_name="+", null=True, blank=True
    )
    """The failure that came back; none where a person or the watch reopened it."""
    reopened_by_watch = models.ForeignKey(
        "failures.Recurrence", on_delete=models.SET_NULL, related_name="+", null=True, blank=True
    )
    """What the watch of a version saw that had mended it; empty again where a person says that it is not the same."""

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "bucket"], name="bucket_life_once"),
            models.CheckConstraint(condition=Q(priority__in=Priority.values), name="bucket_priority_is_known"),
            models.CheckConstraint(condition=Q(severity__in=["", *Severity.values]), name="bucket_severity_is_known"),
            models.CheckConstraint(
                condition=Q(reopened_at=None) | Q(closed_at__isnull=False), name="bucket_reopened_after_closing"
            ),
        ]

    def __str__(self) -> str:
        return f"life of {self.bucket}"

    @property
    def is_closed(self) -> bool:
        return self.closed_at is not None and self.reopened_at is None and self.reopened_by_watch_id is None

    @property
    def came_back_at(self) -> datetime | None:
        """When it was opened again last, by whomever."""
        by_watch = self.reopened_by_watch.at if self.reopened_by_watch else None
        return max((at for at in (self.reopened_at, by_watch) if at), default=None)
