"""Environments and their immutable versions."""

from django.db import models
from django.db.models import Q
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.agents.models import Agent


class Environment(models.Model):
    """Where tasks live. Its content is in its versions."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="environments")
    name = models.SlugField(max_length=100)
    kind = models.CharField(max_length=32)
    """A kind of `flywheel.core.envs`."""
    description = models.TextField(blank=True)
    agent = models.ForeignKey(Agent, on_delete=models.SET_NULL, null=True, blank=True, related_name="environments")
    """Whose failures become tasks here."""
    held_out_share = models.FloatField(default=0.4)
    """Share of source clusters that are never trained on; 1 where everything is only measured."""
    sealed_share = models.FloatField(default=0)
    """Share of source clusters that are sealed, out of those that are held out."""
    reserved_slices = models.JSONField(default=list, blank=True)
    """Slices (such as wordings) that are only ever measured."""
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="environment_name_once"),
            models.CheckConstraint(condition=Q(held_out_share__gt=0, held_out_share__lte=1), name="environment_share"),
            models.CheckConstraint(
                condition=Q(sealed_share__gte=0, sealed_share__lt=models.F("held_out_share")),
                name="environment_sealed_share",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def latest(self) -> "EnvironmentVersion":
        """The newest version. Raises EnvironmentVersion.DoesNotExist for an environment without one."""
        return self.versions.latest("number")


class EnvironmentVersion(models.Model):
    """Tools, system prompt and verifier, immutable; a trigger refuses every change."""

    environment = models.ForeignKey(Environment, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    config = models.JSONField()
    """As the kind wants it: `{"system_prompt", "tools"}`."""
    verifier = models.JSONField()
    """`{"kind", "weights": {part: weight}}` of a kind, or a rubric: `core.verifiers.rubric`."""
    digest = models.CharField(max_length=64)
    verifier_digest = models.CharField(max_length=64)
    """Stored with every score: settings and code revision, `core.verifiers.digest`."""
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["environment", "number"]
        constraints = [models.UniqueConstraint(fields=["environment", "number"], name="environment_version_once")]

    def __str__(self) -> str:
        return f"{self.environment.name}@{self.number}"
