"""Recommendations of the fix ladder."""

from django.db import models
from django.utils import timezone

from flywheel.accounts.models import Project
from flywheel.agents.models import Version
from flywheel.environments.models import TaskSet
from flywheel.evals.models import EvalRun


class Recommendation(models.Model):
    """The fix ladder's advice on a baseline, with the evidence that it rests on."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="recommendations")
    version = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="recommendations")
    task_set = models.ForeignKey(TaskSet, on_delete=models.PROTECT, related_name="recommendations")
    eval_run = models.ForeignKey(EvalRun, on_delete=models.PROTECT, null=True, related_name="recommendations")
    evidence = models.JSONField()
    ladder = models.JSONField()
    """Every fix in order, the recommended first: as `core.evidence.fix_ladder.Recommendation`."""
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"recommendation {self.pk}"
