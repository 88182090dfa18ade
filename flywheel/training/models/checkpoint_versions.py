"""Versions that are made of a run's kept checkpoints, beside the one that it made at its end."""

from django.db import models

from flywheel.agents.models import Version
from flywheel.edge.jobs import Job, JobEvent
from flywheel.training.models.runs import TrainingRun


class CheckpointVersion(Job):
    """A version with the weights that a run had at a step; one for each checkpoint."""

    run = models.ForeignKey(TrainingRun, on_delete=models.CASCADE, related_name="checkpoint_versions")
    step = models.PositiveIntegerField()
    version = models.ForeignKey(
        Version, on_delete=models.PROTECT, null=True, blank=True, related_name="checkpoint_versions"
    )
    """Set with the job's success. The one that the run produced, where both have the same weights."""

    resume_entry = "training.resume_checkpoint_version"

    class Meta(Job.Meta):
        constraints = [
            *Job.Meta.constraints,
            models.UniqueConstraint(fields=["run", "step"], name="checkpointversion_once"),
        ]

    def __str__(self) -> str:
        return f"step {self.step} of {self.run}"


class CheckpointVersionEvent(JobEvent):
    job = models.ForeignKey(CheckpointVersion, on_delete=models.CASCADE, related_name="events")
