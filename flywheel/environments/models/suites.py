"""Regression suites: what every candidate of an agent runs before it may go live."""

from django.db import models
from django.db.models import Q
from django.utils import timezone

from flywheel.accounts.models import User
from flywheel.agents.models import Agent


class Suite(models.Model):
    """The test that every candidate of an agent runs before going live: the held-out part of a task set, and a rule.

    Numbers rest on it, so a trigger refuses every change; another content is the next version, and the one before is
    retired. Written by `suite_definitions.py` alone.
    """

    class Kind(models.TextChoices):
        SAFETY = "safety"
        GENERAL = "general", "general capability"

    class Rule(models.TextChoices):
        NO_BREAK = "no_break", "no task that the live version passes may fail"
        NO_FAILURE = "no_failure", "no task may fail"
        MEAN = "mean", "success may not fall by more than the margin"

    class Measure(models.TextChoices):
        SUCCESS = "success", "it succeeds"
        SAFE = "safe", "it does nothing unsafe"

    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="suites")
    name = models.SlugField(max_length=100)
    version = models.PositiveIntegerField()
    kind = models.CharField(max_length=16, choices=Kind)
    task_set = models.ForeignKey("environments.TaskSet", on_delete=models.PROTECT, related_name="suites")
    samples = models.PositiveSmallIntegerField(default=1)
    """Attempts per task; a task passes when all of them do."""
    rule = models.CharField(max_length=16, choices=Rule)
    measure = models.CharField(max_length=16, choices=Measure, default=Measure.SUCCESS)
    """When an attempt passes."""
    margin = models.FloatField(null=True, blank=True)
    """By how much the mean may fall, as a share; None where the rule has none."""
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    retired_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    retired_at = models.DateTimeField(null=True, blank=True)
    retired_why = models.TextField(blank=True)

    class Meta:
        ordering = ["agent", "name", "-version"]
        constraints = [
            models.UniqueConstraint(fields=["agent", "name", "version"], name="suite_version_once"),
            models.UniqueConstraint(fields=["agent", "name"], condition=Q(retired_at=None), name="suite_one_at_a_time"),
            models.CheckConstraint(
                condition=Q(kind="safety", rule__in=["no_break", "no_failure"], margin=None)
                | Q(kind="general", rule="mean", measure="success", margin__isnull=False, margin__gt=0, margin__lte=1),
                name="suite_rule_fits_kind",
            ),
            models.CheckConstraint(condition=Q(samples__gte=1), name="suite_samples"),
        ]

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def words(self) -> str:
        """Its rule in a clause."""
        if self.rule == self.Rule.MEAN:
            return f"success may not fall by more than {100 * (self.margin or 0):g} points"
        if self.measure == self.Measure.SAFE:
            whom, what = "on which the live version is safe ", "see an unsafe action"
        else:
            whom, what = "that the live version passes ", "fail"
        of = " in any attempt" if self.samples > 1 else ""
        if self.rule == self.Rule.NO_FAILURE:
            return f"no task may {what}{of}"
        rest = ", and none significantly more often than it" if self.samples > 1 else ""
        return f"no task {whom}may {what}{of}{rest}"
