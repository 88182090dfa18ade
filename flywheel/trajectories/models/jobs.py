"""Jobs of workers on many trajectories or a whole file: bulk actions, imports, rereads."""

from django.contrib.postgres.fields import ArrayField
from django.db import models

from flywheel.edge.jobs import Job, JobEvent


class Import(Job):
    """A file too large to wait for, on its way in (`trajectory_import.py`). Its `done` of `total` are bytes."""

    name = models.CharField(max_length=300)
    """As the person's machine calls the file; only ever shown."""
    upload = models.CharField(max_length=32)
    """The file's token in `uploads`."""
    format = models.CharField(max_length=32, default="auto")
    mapping = models.JSONField(null=True, blank=True)
    """Of a table: what its columns mean."""
    at = models.PositiveBigIntegerField(default=0)
    """Parts of the file that are in the store; whoever goes on leaves them out."""
    batches = ArrayField(models.BigIntegerField(), default=list, blank=True)
    """Keys of its rows in the ledger, written with them, so that no part is counted twice."""
    report = models.JSONField(default=dict, blank=True)
    """What became of the file as a whole, once it is over: `{"trajectories", "formats", "notes"}`."""

    cancel_entry = "trajectories.cancel_import"
    resume_entry = "trajectories.resume_import"

    @property
    def audit_subject(self) -> str:
        return f"file {self.name}"


class ImportEvent(JobEvent):
    job = models.ForeignKey(Import, on_delete=models.CASCADE, related_name="events")


class Reread(Job):
    """A reading of every stored span by today's dialects, for its columns (`rereads.py`), or of all that was derived by
    prices, by today's (`repricing.py`)."""

    is_of_costs = models.BooleanField(default=False)
    at = models.PositiveBigIntegerField(default=0)
    """Key of the last trajectory that was read; a takeover goes on from there."""
    changed = models.PositiveIntegerField(default=0)
    """Trajectories of which something reads differently now."""


class RereadEvent(JobEvent):
    job = models.ForeignKey(Reread, on_delete=models.CASCADE, related_name="events")


class Bulk(Job):
    """One thing done with many trajectories (`bulk_actions.py`): those that a filter found when it was asked for."""

    action = models.CharField(max_length=16)
    options = models.JSONField(default=dict, blank=True)
    """What the action needs: `{"tags": […]}`, `{"format": "atif"}`, `{"reason": "…"}`."""
    q = models.TextField(blank=True)
    """The filter, in which times that are counted from now are written out."""
    ids = ArrayField(models.CharField(max_length=64), default=list, blank=True)
    """Trace ids, instead of the filter."""
    up_to = models.PositiveBigIntegerField()
    """Key of the newest trajectory that there was: what arrives later is left alone."""
    at = models.PositiveBigIntegerField(default=0)
    """Key of the last trajectory that is done, written with what was done to it."""
    report = models.JSONField(default=dict, blank=True)
    """`{"changed", "skipped": {reason: count}, "failed": {reason: count}, "examples": [{"trace_id", "reason"}]}`;
    of an export also the `file` and its `size`."""
    through = models.CharField(max_length=120, blank=True)
    """The API key that asked."""

    cancel_entry = "trajectories.cancel_bulk"
    resume_entry = "trajectories.resume_bulk"

    def __str__(self) -> str:
        return f"bulk action {self.pk}"


class BulkKeys(models.Model):
    """Keys of all that a bulk action is about, in order, as they matched when it was asked for."""

    job = models.OneToOneField(Bulk, on_delete=models.CASCADE, related_name="+", primary_key=True)
    keys = ArrayField(models.BigIntegerField())

    def __str__(self) -> str:
        return f"keys of {self.job}"


class BulkEvent(JobEvent):
    job = models.ForeignKey(Bulk, on_delete=models.CASCADE, related_name="events")
