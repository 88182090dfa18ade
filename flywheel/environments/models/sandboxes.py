"""Sandboxes that the workers' machines offer for code that nobody vouches for."""

from datetime import timedelta

from django.db import models
from django.utils import timezone

FRESH = timedelta(hours=3)
"""Workers report hourly; one that was silent for longer is gone, or hangs."""


class SandboxReport(models.Model):
    """A worker's findings from trying each layer of the sandbox on its own machine. It belongs to no project."""

    host = models.CharField(max_length=200, unique=True)
    at = models.DateTimeField(default=timezone.now)
    report = models.JSONField()
    """`{"layers": [{"name", "state", "stops", "found", "getting"}], "runs", "machine", "seconds_a_call"}`."""

    class Meta:
        ordering = ["host"]

    def __str__(self) -> str:
        return self.host

    @property
    def is_fresh(self) -> bool:
        return timezone.now() - self.at < FRESH

    @property
    def milliseconds(self) -> float | None:
        """The duration of one call."""
        seconds: float | None = self.report["seconds_a_call"]
        return None if seconds is None else seconds * 1000

    @property
    def missing(self) -> list[str]:
        return self._layers("missing")

    @property
    def given_up(self) -> list[str]:
        return self._layers("given up")

    def _layers(self, state: str) -> list[str]:
        return [layer["name"] for layer in self.report["layers"] if layer["state"] == state]
