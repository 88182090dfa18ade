"""Who or what saw the held-out and the sealed part of a task set."""

from django.db import models
from django.utils import timezone

from flywheel.accounts.models import User


class Opening(models.Model):
    """Who or what saw the held-out part of a task set: one row for each eval, training run, page and person, counted;
    and which evals asked its sealed part.

    Written by `ledger.opened` alone.
    """

    class Kind(models.TextChoices):
        EVAL = "eval"
        TRAINING = "training", "evaluation while training"
        PAGE = "page", "page with its tasks or rollouts"
        EXPORT = "export"
        SEALED = "sealed", "final comparison"
        """Of the sealed part; all the others are of the held-out one."""

    task_set = models.ForeignKey("environments.TaskSet", on_delete=models.CASCADE, related_name="openings")
    kind = models.CharField(max_length=16, choices=Kind)
    subject = models.CharField(max_length=100)
    """What was opened for or by it: `eval 5`, `r-3`."""
    actor = models.ForeignKey(User, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    """Who looked, or asked for it."""
    times = models.PositiveIntegerField(default=1)
    first_at = models.DateTimeField(default=timezone.now)
    last_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-last_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["task_set", "kind", "subject", "actor"], name="opening_once", nulls_distinct=False
            ),
            models.CheckConstraint(
                condition=models.Q(kind__in=["eval", "training", "page", "export", "sealed"]),
                name="opening_kind_is_known",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.subject} opened {self.task_set}"
