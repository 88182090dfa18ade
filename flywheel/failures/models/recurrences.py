"""Buckets that came back after a version had mended them, by the watch."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.agents.models import Version

BOUND = "bound"


class Recurrence(models.Model):
    """The claim that a bucket is rare with a version, broken by its traffic. Not confirmed until a person answers."""

    class Answer(models.TextChoices):
        OPEN = "", "not confirmed yet"
        SAME = "same", "confirmed"
        NOT_SAME = "not_same", "not the same"

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="recurrences")
    bucket = models.CharField(max_length=64)
    version = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="+")
    """The fix that did not last."""
    claim = models.FloatField()
    """The share of sessions that was promised at most, from 0 to 1."""
    sessions = models.PositiveIntegerField()
    """Watched until then."""
    failed = models.FloatField()
    """Of the last of them, as long as the evidence grew: the share in which the bucket was found."""
    path = models.JSONField()
    """The evidence over time, thinned: `[[sessions, evidence], …]`, and last what it had to reach, as `[BOUND, …]`."""
    trajectories = ArrayField(models.BigIntegerField(), default=list)
    """In which it was found, the newest first."""
    at = models.DateTimeField(default=timezone.now)
    answer = models.CharField(max_length=16, choices=Answer, default=Answer.OPEN, blank=True)
    answered_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    answered_at = models.DateTimeField(null=True, blank=True)
    answered_because = models.TextField(blank=True)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["project", "bucket", "-id"], name="recurrence_of_bucket")]

    def __str__(self) -> str:
        return f"recurrence of {self.bucket} with {self.version}"

    @property
    def points(self) -> list[tuple[int, float]]:
        """Sessions and the evidence after them, in order."""
        return [(int(at), float(evidence)) for at, evidence in self.path if at != BOUND]

    @property
    def bound(self) -> float | None:
        """The evidence at which the claim is broken."""
        return next((float(value) for at, value in self.path if at == BOUND), None)
