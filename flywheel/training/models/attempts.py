"""Attempts of a policy while it learnt by reinforcement: the sample of them that is kept."""

from django.db import models

from flywheel.training.models.runs import TrainingRun
from flywheel.trajectories.models import Trajectory


class TrainingAttempt(models.Model):
    """An attempt that a step of a run learnt from. It outlives its trajectory, so that what somebody deleted is not
    stored again when the run resumes from before it."""

    run = models.ForeignKey(TrainingRun, on_delete=models.CASCADE, related_name="tried", db_index=False)
    step = models.PositiveIntegerField()
    """The step that learnt from it, so the policy had made one step less; from 1 on."""
    place = models.PositiveSmallIntegerField()
    """Among those of its step that are kept: from those without a reward, by reward, to the best."""
    task = models.CharField(max_length=200)
    """As the run's data names it."""
    seed = models.BigIntegerField()
    reward = models.FloatField(null=True)
    """The score less penalties; None where it was not scored."""
    score = models.FloatField(null=True)
    parts = models.JSONField(default=dict)
    reason = models.TextField(blank=True)
    trajectory = models.OneToOneField(Trajectory, on_delete=models.SET_NULL, null=True, related_name="training_attempt")
    """None once it was deleted, by a person or for its age."""

    class Meta:
        ordering = ["run", "step", "place"]
        constraints = [models.UniqueConstraint(fields=["run", "step", "place"], name="training_attempt_once")]

    def __str__(self) -> str:
        return f"attempt {self.place} of step {self.step} of {self.run}"
