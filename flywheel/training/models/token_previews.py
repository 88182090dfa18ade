"""Previews of what would be learnt: rows in a base's tokens, made before anything is trained."""

from django.db import models

from flywheel.agents.models import Version
from flywheel.core.recipes import ALGORITHMS, Algorithm
from flywheel.edge.jobs import Job, JobEvent
from flywheel.environments.models import TaskSet
from flywheel.training.models.datasets import Dataset


class TokenPreview(Job):
    """Rows of a dataset as the trainer of an algorithm would get them; one for the same base, rows and settings."""

    base = models.ForeignKey(Version, on_delete=models.CASCADE, related_name="+")
    dataset = models.ForeignKey(Dataset, on_delete=models.CASCADE, related_name="previews")
    task_set = models.ForeignKey(TaskSet, on_delete=models.CASCADE, related_name="+")
    """Whose environment's tools the prompts tell of, as in a run that it measures."""
    algorithm = models.CharField(max_length=16)
    """A key of `core.recipes.ALGORITHMS`."""
    settings = models.JSONField()
    result = models.JSONField(default=dict, blank=True)
    """As `workers.programs.token_preview.Preview`; set with the job's success."""

    cancel_entry = "training.cancel_preview"
    resume_entry = "training.resume_preview"

    def __str__(self) -> str:
        return f"preview {self.pk}"

    @property
    def recipe(self) -> Algorithm:
        return ALGORITHMS[self.algorithm]


class PreviewEvent(JobEvent):
    job = models.ForeignKey(TokenPreview, on_delete=models.CASCADE, related_name="events")
