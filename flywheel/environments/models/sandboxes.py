"""What the machines of the workers offer for code that nobody vouches for."""

from django.db import models
from django.utils import timezone


class SandboxReport(models.Model):
    """What a worker found when it tried each layer of the sandbox on its own machine. It belongs to no project."""

    host = models.CharField(max_length=200, unique=True)
    at = models.DateTimeField(default=timezone.now)
    report = models.JSONField()
    """`{"layers": [{"name", "state", "stops", "found", "getting"}], "runs", "machine", "seconds_a_call"}`."""

    class Meta:
        ordering = ["host"]

    def __str__(self) -> str:
        return self.host
