"""Signs of life of background processes, and of the devices that they train on."""

from datetime import timedelta

from django.db import models
from django.db.models.functions import Now

from flywheel.core import recipes
from flywheel.system import devices


class Pulse(models.Model):
    """When a background process last reported; `readyz` reads it."""

    name = models.CharField(max_length=32, unique=True)
    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name} at {self.at:%H:%M:%S}"


class WorkerDevice(models.Model):
    """A device that a worker offers, `system.devices`, and when one last said so. It belongs to no project."""

    ALIVE_FOR = timedelta(seconds=60)
    """Of its last word; a worker repeats it every few seconds."""

    host = models.CharField(max_length=200)
    label = models.CharField(max_length=8)
    name = models.CharField(max_length=100)
    modes = models.JSONField(default=list)
    """How the worker's installation can tune, of `core.recipes.possible_modes`."""
    at = models.DateTimeField()

    class Meta:
        ordering = ["host", "label", "name"]
        constraints = [models.UniqueConstraint(fields=["host", "label", "name"], name="workerdevice_once")]

    def __str__(self) -> str:
        return f"{self.label} {self.name} of {self.host}"

    @classmethod
    def alive(cls) -> "models.QuerySet[WorkerDevice]":
        return cls.objects.filter(at__gte=Now() - cls.ALIVE_FOR)

    @classmethod
    def label_of(cls, asked: str) -> str:
        """The label that is asked for, and for `auto` the best that a worker has now; empty where none lives."""
        if asked != "auto":
            return asked
        alive = set(cls.alive().values_list("label", flat=True))
        return next((label for label in devices.LOCAL if label in alive), "")

    @classmethod
    def lacking(cls, mode: str, asked: str) -> str:
        """Say why no worker that lives can train so on the devices that are asked for; empty where one can, where none
        lives to say so, and on a Ray cluster, of whose installation no worker knows."""
        if mode not in recipes.NEEDS:
            return ""
        label = cls.label_of(asked)
        told = list(cls.alive().filter(label=label).values_list("modes", flat=True))
        if label == "ray" or not told or any(mode in modes for modes in told):
            return ""
        needed = f"{recipes.MODES.get(mode, f'rollouts {mode}')} needs {recipes.NEEDS[mode]}"
        where = devices.WORDS[label][0]
        return f"{needed}, which no worker with a {where} has; {recipes.INSTALLED_BY[mode]} there and restart it"
