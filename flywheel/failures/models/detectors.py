"""Proposals of detectors; and a project's settings for a detector, whether it proposes there and into which bucket.

`detectors/detector_settings.py` changes the settings.
"""

from django.db import models
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.core.detectors.standard_buckets import DETECTORS
from flywheel.trajectories.models import Trajectory


class Proposal(models.Model):
    """A detector's suggestion of a bucket, with the step that shows it. Replaced when the trajectory grows."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    trajectory = models.ForeignKey(Trajectory, on_delete=models.CASCADE, related_name="proposals")
    detector = models.CharField(max_length=64)
    bucket = models.CharField(max_length=64)
    step = models.CharField(max_length=64, blank=True)
    """Span id of the step that shows it."""
    score = models.FloatField()
    """How sure it is, in [0, 1]: by the detector's own rule and its record in the project then."""
    own_score = models.FloatField()
    """By its rule alone. What is compared over time goes by this: decisions of people move the other."""
    evidence = models.TextField()
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-score", "id"]
        indexes = [models.Index(fields=["project", "bucket"], name="proposal_by_bucket")]

    def __str__(self) -> str:
        return f"{self.detector} proposes {self.bucket}"


class DetectorSetting(models.Model):
    """A detector in a project; without a row it is on if it is by default, and proposes its own bucket."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="detector_settings")
    detector = models.CharField(max_length=64)
    is_on = models.BooleanField(default=True)
    by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(default=timezone.now)
    """When it was switched last, and by whom."""
    bucket = models.CharField(max_length=64, blank=True)
    """What it proposes here in the place of its own bucket; empty for its own."""
    bucket_since = models.DateTimeField(null=True, blank=True)
    reads_all = models.BooleanField(default=False)
    """Every trajectory is to be read again, not only those for which it proposed something else than it would now."""
    marked_to = models.PositiveBigIntegerField(default=0)
    """Key of the last trajectory that was put up for reading again."""
    caught_up_at = models.DateTimeField(null=True, blank=True)
    """When all were; empty until then."""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "detector"], name="detector_setting_once")]

    def __str__(self) -> str:
        return f"{self.detector} {'on' if self.is_on else 'off'}"

    @property
    def proposes(self) -> str:
        """The key of the bucket."""
        return self.bucket or DETECTORS[self.detector].bucket
