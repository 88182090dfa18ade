"""Rollouts that nobody may train on."""

from django.db import models
from django.utils import timezone

from flywheel.accounts.models import User
from flywheel.evals.models import Result


class Dropped(models.Model):
    """A rollout that a person took out of what may be trained on, and why. Taking it back deletes the row."""

    result = models.OneToOneField(Result, on_delete=models.CASCADE, related_name="dropped")
    reason = models.CharField(max_length=300)
    actor = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-id"]
        constraints = [models.CheckConstraint(condition=~models.Q(reason=""), name="dropped_says_why")]

    def __str__(self) -> str:
        return f"{self.result} is dropped"
