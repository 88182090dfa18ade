"""Redaction policies: what is taken out of traces, version by version."""

from django.db import models
from django.db.models import Q
from django.utils import timezone

from flywheel.accounts.models.people import Project, User
from flywheel.core.redaction import Mode


class RedactionPolicy(models.Model):
    """One version of what is taken out of a project's traces before they are stored; the newest holds.

    A project without any has the default: `secrets` and no rules. `redaction_policy` sets it.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="redaction_policies")
    number = models.PositiveIntegerField()
    mode = models.CharField(max_length=8, choices=[(mode.value, mode.value) for mode in Mode])
    rules = models.JSONField(default=list, blank=True)
    """`{"name", "pattern", "kind"}` each."""
    made_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    made_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name_plural = "redaction policies"
        constraints = [
            models.UniqueConstraint(fields=["project", "number"], name="redaction_policy_once"),
            models.CheckConstraint(condition=Q(mode__in=[mode.value for mode in Mode]), name="redaction_mode_is_known"),
        ]

    def __str__(self) -> str:
        return f"redaction policy {self.number} of {self.project}"
