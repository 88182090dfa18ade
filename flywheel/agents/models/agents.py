"""Agents, and which version of each is live."""

from django.db import models
from django.utils import timezone

from flywheel.accounts.models import Project


class Agent(models.Model):
    """Something that acts in production, and the pointer to the version that is live."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="agents")
    name = models.SlugField(max_length=100)
    description = models.TextField(blank=True)
    live = models.ForeignKey("Version", on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    """Only `promotions.live_version` moves it, by compare-and-set on `generation`."""
    generation = models.PositiveIntegerField(default=0)
    served = models.CharField(max_length=200, blank=True, default="")
    """The name under which the vLLM server of this installation answers for the live version; empty where none does."""
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="agent_name_once")]

    def __str__(self) -> str:
        return self.name
