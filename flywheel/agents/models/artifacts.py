"""Artifacts: the files that versions are made of."""

from django.db import models
from django.utils import timezone


class Artifact(models.Model):
    """An immutable, content-addressed set of files (weights, tokenizer, adapter); `agents.artifacts` reads and
    writes."""

    digest = models.CharField(max_length=64, unique=True)
    """SHA-256 of the manifest."""
    manifest = models.JSONField()
    """`{file name: {"sha256": hex, "size": bytes}}`"""
    kind = models.CharField(max_length=16)
    """`model`, `adapter` or `reward_model`."""
    size = models.PositiveBigIntegerField()
    created_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"{self.kind} {self.digest[:12]}"
