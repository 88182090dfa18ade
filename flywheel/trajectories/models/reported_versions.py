"""The names by which senders call versions of an agent, and which versions they are."""

from django.db import models

from flywheel.accounts.models import User
from flywheel.agents.models import Agent, Version


class ReportedVersion(models.Model):
    """Runs of the agent that report `label` are runs of this version; those of none where the label is empty.

    A label that is a version's own number means that version without it.
    """

    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="reported_versions")
    label = models.CharField(max_length=100, blank=True)
    version = models.ForeignKey(Version, on_delete=models.CASCADE, related_name="reported_as")
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["agent", "label"], name="reported_version_once")]

    def __str__(self) -> str:
        return f"{self.label or 'no version'} of {self.agent}"
