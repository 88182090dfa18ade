"""The audit log of every change."""

from django.db import models
from django.utils import timezone

from flywheel.accounts.models.people import Project, User


class AuditEntry(models.Model):
    """Who changed what, when and why. Append-only: a trigger refuses every update and delete."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="audit", null=True)
    at = models.DateTimeField(default=timezone.now)
    actor = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    through = models.CharField(max_length=120, blank=True)
    """The API key or command, when it was not the person's own click."""
    action = models.CharField(max_length=64)
    """Room and verb, `failures.confirm`."""
    subject = models.CharField(max_length=200)
    """What it was done to, `trajectory 9f2…`."""
    reason = models.TextField(blank=True)
    data = models.JSONField(default=dict)

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["project", "-id"], name="audit_newest"),
            models.Index(fields=["project", "subject", "-id"], name="audit_of_subject"),
        ]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M} {self.actor} {self.action} {self.subject}"
