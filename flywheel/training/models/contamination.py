"""Checks of datasets against held-out sets."""

from django.db import models
from django.utils import timezone

from flywheel.environments.models import TaskSet
from flywheel.training.models.datasets import Dataset


class ContaminationCheck(models.Model):
    """Contamination of a dataset: what it has of the held-out part of a task set.

    Both never change, so it is found once and never changes either: a trigger refuses.
    """

    class Verdict(models.TextChoices):
        CLEAN = "clean"
        WARNED = "warned"
        CONTAMINATED = "contaminated"

    dataset = models.ForeignKey(Dataset, on_delete=models.CASCADE, related_name="contamination_checks")
    task_set = models.ForeignKey(TaskSet, on_delete=models.CASCADE, related_name="contamination_checks")
    method = models.PositiveSmallIntegerField()
    """`core.evidence.contamination.METHOD` when it was made."""
    verdict = models.CharField(max_length=16, choices=Verdict)
    report = models.JSONField()
    """As `core.evidence.contamination.Report.as_dict`."""
    made_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-task_set_id", "-dataset_id"]
        constraints = [
            models.UniqueConstraint(fields=["dataset", "task_set", "method"], name="contamination_check_once"),
            models.CheckConstraint(
                condition=models.Q(verdict__in=["clean", "warned", "contaminated"]),
                name="contamination_verdict_is_known",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.dataset} against {self.task_set}"
