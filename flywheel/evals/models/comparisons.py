"""Comparisons of two runs, kept."""

from django.db import models
from django.utils import timezone

from flywheel.evals.models.runs import EvalRun


class Comparison(models.Model):
    """A comparison of two finished runs by `run_comparison.py`, kept because it takes a second to compute."""

    candidate = models.ForeignKey(EvalRun, on_delete=models.CASCADE, related_name="+")
    baseline = models.ForeignKey(EvalRun, on_delete=models.CASCADE, related_name="+")
    report = models.JSONField()
    """`core.evidence.statistics.arm_comparison.Comparison` as a dict."""
    revision = models.PositiveSmallIntegerField()
    """Of the code that made it; another revision makes it again."""
    made_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["candidate", "baseline"], name="comparison_once")]

    def __str__(self) -> str:
        return f"{self.candidate} against {self.baseline}"
