"""Signs of life of background processes."""

from django.db import models


class Pulse(models.Model):
    """When a background process last reported; `readyz` reads it."""

    name = models.CharField(max_length=32, unique=True)
    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name} at {self.at:%H:%M:%S}"
