"""Fixes that need no training, tried: draft versions beside their parent."""

import uuid

from django.db import models
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.agents.models import Version
from flywheel.environments.models import TaskSet
from flywheel.evals.models import EvalRun


class FixTrial(models.Model):
    """Drafts of a version and the version itself, asked the train tasks of one set; then the best on held-out tasks.

    It is no job: its evals are, and how far it is follows from them. `fixes/trial_lifecycle.py` makes it.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="fix_trials")
    idempotency_key = models.UUIDField(default=uuid.uuid4)
    bucket = models.CharField(max_length=64)
    parent = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="fix_trials")
    task_set = models.ForeignKey(TaskSet, on_delete=models.PROTECT, related_name="fix_trials")
    parent_eval = models.ForeignKey(EvalRun, on_delete=models.PROTECT, related_name="+")
    """The parent's eval on the train tasks."""
    evaluation = models.ForeignKey(EvalRun, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    """The best draft's eval on the held-out tasks; None until somebody had it measured."""
    baseline = models.ForeignKey(EvalRun, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    """The parent's, which it is compared with."""
    measured_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["project", "idempotency_key"], name="fixtrial_one_per_key")]

    def __str__(self) -> str:
        return f"fix trial {self.pk}"


class FixDraft(models.Model):
    """A draft of a trial: a version, what it changes, and its eval on the train tasks."""

    trial = models.ForeignKey(FixTrial, on_delete=models.CASCADE, related_name="drafts")
    place = models.PositiveSmallIntegerField()
    name = models.CharField(max_length=60)
    changes = models.JSONField(default=list)
    """What it changes of its parent: `prompt`, `tool_change`, as the fix ladder calls them, and `sampling`, which is
    no step of it."""
    examples = models.JSONField(default=list)
    """Train tasks whose examples stand in its prompt, word for word: `t-3`, …"""
    version = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="fix_drafts")
    evaluation = models.ForeignKey(EvalRun, on_delete=models.PROTECT, related_name="fix_drafts")

    class Meta:
        ordering = ["trial", "place"]
        constraints = [
            models.UniqueConstraint(fields=["trial", "place"], name="fixdraft_place_once"),
            models.UniqueConstraint(fields=["trial", "version"], name="fixdraft_version_once"),
        ]

    def __str__(self) -> str:
        return self.name
