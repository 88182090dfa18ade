"""Gate policies."""

from django.db import models
from django.utils import timezone

from flywheel.accounts.models import Project, User


class Policy(models.Model):
    """Requirements for a candidate, as `core.evidence.gate.decision.Policy`; immutable, a change is a new version."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="policies")
    version = models.PositiveIntegerField()
    rules = models.JSONField()
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name_plural = "policies"
        constraints = [models.UniqueConstraint(fields=["project", "version"], name="policy_version_once")]

    def __str__(self) -> str:
        return f"policy@{self.version}"
