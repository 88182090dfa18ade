"""Signs of life of background processes, and of the devices that they train on."""

from datetime import timedelta

from django.db import models
from django.db.models.functions import Now


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
    """How the worker's installation can tune, of `core.recipes.MODES`."""
    at = models.DateTimeField()

    class Meta:
        ordering = ["host", "label", "name"]
        constraints = [models.UniqueConstraint(fields=["host", "label", "name"], name="workerdevice_once")]

    def __str__(self) -> str:
        return f"{self.label} {self.name} of {self.host}"

    @classmethod
    def alive(cls) -> "models.QuerySet[WorkerDevice]":
        return cls.objects.filter(at__gte=Now() - cls.ALIVE_FOR)
