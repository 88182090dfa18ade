"""Datasets on their way: what a worker reads rows of, until they are frozen."""

from typing import Any

from django.db import models

from flywheel.edge.jobs import Job, JobEvent, StaleState
from flywheel.training.models.datasets import Dataset
from flywheel.trajectories.import_export import uploads


class DatasetBuild(Job):
    """A dataset that a worker builds of an upload or of trajectories (`build_jobs.py`); nothing of it is seen before it
    is whole. Its `done` of `total` are bytes of a file, or trajectories."""

    name = models.SlugField(max_length=100)
    """Of the dataset."""
    origin = models.CharField(max_length=16, choices=Dataset.Origin)
    kind = models.CharField(max_length=8, blank=True)
    """Empty for that of the first good row."""
    card = models.JSONField(default=dict, blank=True)
    file = models.CharField(max_length=200, blank=True)
    """As the person's machine calls the file; only ever shown."""
    upload = models.CharField(max_length=32, blank=True)
    """The file's token in `uploads`; empty where it is gone, and for trajectories."""
    choice = models.JSONField(default=dict, blank=True)
    """Of trajectories, as `demonstrations.Wanted`, the version by its key."""
    through = models.CharField(max_length=120, blank=True)
    """The API key that asked."""
    report = models.JSONField(default=dict, blank=True)
    """What became of what was read so far, as `Uploaded.report` and `Gathered.report`."""
    dataset = models.ForeignKey(Dataset, on_delete=models.CASCADE, null=True, blank=True, related_name="+")
    """Set with the job's success: the new one, or the one that has these very rows already."""

    cancel_entry = "training.cancel_build"
    resume_entry = "training.resume_build"

    @property
    def is_file_gone(self) -> bool:
        """Whether it was to be built of a file that is no longer here: it cannot be built again."""
        return self.origin == Dataset.Origin.UPLOAD and uploads.find(self.project, self.upload) is None

    def check_resume(self) -> None:
        if self.is_file_gone:
            raise StaleState("the file is no longer here; send it again")

    @property
    def problems(self) -> list[dict[str, Any]]:
        """Lines that are no rows, the first of them: `{"at", "field", "reason"}`."""
        found: list[dict[str, Any]] = self.report.get("problems", [])
        return found

    def __str__(self) -> str:
        return f"build {self.pk}"


class BuildEvent(JobEvent):
    job = models.ForeignKey(DatasetBuild, on_delete=models.CASCADE, related_name="events")
