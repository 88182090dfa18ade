"""Versions whose weights, or whose adapter, a worker fetches from a model hub."""

from django.db import models

from flywheel.agents.models.agents import Agent
from flywheel.agents.models.artifacts import Artifact
from flywheel.agents.models.versions import Version
from flywheel.edge.jobs import Job, JobEvent


class HubVersion(Job):
    """A version that is made once its files are here: what somebody said of it, and where they are."""

    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="hub_versions")
    name = models.CharField(max_length=201)
    """On the hub: `owner/name`."""
    revision = models.CharField(max_length=100, default="main")
    """A commit, branch or tag, as it was asked for."""
    kind = models.CharField(max_length=16, default="model")
    """`model`, or `adapter` for one that goes on `weights`."""
    weights = models.ForeignKey(Artifact, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    adapter = models.ForeignKey(Artifact, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    content = models.JSONField()
    """The rest of a `VersionContent`, by its fields."""
    parent = models.ForeignKey(Version, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    version_note = models.CharField(max_length=300, blank=True)
    version = models.ForeignKey(Version, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    """Set with the job's success."""

    cancel_entry = "agents.cancel_hub_version"
    resume_entry = "agents.resume_hub_version"

    def __str__(self) -> str:
        return f"fetch {self.pk}"


class HubVersionEvent(JobEvent):
    job = models.ForeignKey(HubVersion, on_delete=models.CASCADE, related_name="events")
