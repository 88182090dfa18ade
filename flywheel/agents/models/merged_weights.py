"""Whole models that are made of a base and its LoRA adapter, to be taken elsewhere."""

from django.db import models

from flywheel.agents.models.artifacts import Artifact
from flywheel.edge.jobs import Job, JobEvent


class MergedWeights(Job):
    """An adapter added into its base; one in a project for both and a type, whichever versions have them."""

    class Dtype(models.TextChoices):
        BASE = "base", "in the base's type"
        FLOAT32 = "float32", "in 32 bits"

    weights = models.ForeignKey(Artifact, on_delete=models.PROTECT, related_name="+")
    adapter = models.ForeignKey(Artifact, on_delete=models.PROTECT, related_name="+")
    dtype = models.CharField(max_length=16, choices=Dtype, default=Dtype.BASE)
    artifact = models.ForeignKey(Artifact, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    """Set with the job's success, as is `lost`."""
    lost = models.FloatField(null=True, blank=True)
    """Share of the weights that the adapter changes whose change is smaller than the saved type can tell."""

    resume_entry = "agents.resume_merge"

    def __str__(self) -> str:
        return f"merge {self.pk}"


class MergedWeightsEvent(JobEvent):
    job = models.ForeignKey(MergedWeights, on_delete=models.CASCADE, related_name="events")
