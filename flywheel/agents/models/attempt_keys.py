"""Keys of single attempts: a version's program asks its model with one, and what it asks is kept with it."""

import secrets
from datetime import datetime
from typing import Any

from django.db import models
from django.utils import timezone

from flywheel.accounts.models.keys import keyed_hash
from flywheel.agents.models.versions import Version

PREFIX = "fwa"
TRACE_MARK = "66776174"
"""What the trace id of an attempt begins with, ahead of the attempt's id: `fwat`."""


class AttemptKey(models.Model):
    """The secret of one attempt by a version's program, `fwa_<public>_<secret>`: good for the gateway and the tools of
    that attempt, until its deadline. Only a keyed hash is stored."""

    version = models.ForeignKey(Version, on_delete=models.CASCADE, related_name="+")
    public = models.CharField(max_length=32, unique=True)
    """The attempt's id, as its program knows it."""
    hashed = models.CharField(max_length=64)
    sampling = models.JSONField(default=dict)
    """What the gateway fills in where the program says nothing, beside the version's prompt and tools."""
    deadline = models.DateTimeField()
    calls = models.PositiveIntegerField(default=0)
    """Model calls that were begun with it: the attempt is judged when as many are recorded."""

    def __str__(self) -> str:
        return f"{PREFIX}_{self.public}_…"

    @classmethod
    def make(cls, version: Version, sampling: dict[str, Any], deadline: datetime) -> tuple["AttemptKey", str]:
        """A new key and its secret text, which is nowhere to be had again."""
        public, secret = secrets.token_hex(12), secrets.token_urlsafe(32).replace("_", "-")
        key = cls.objects.create(
            version=version, public=public, hashed=keyed_hash(f"attempt:{secret}"), sampling=sampling, deadline=deadline
        )
        return key, f"{PREFIX}_{public}_{secret}"

    @property
    def traceparent(self) -> str:
        """The context of W3C Trace Context by which the program's own spans are its attempt's."""
        return f"00-{TRACE_MARK}{self.public}-{self.public[:16]}-01"

    @property
    def is_over(self) -> bool:
        return self.deadline <= timezone.now()


def is_attempts(token: str) -> bool:
    """Whether this is an attempt's key, and no project's."""
    return token.startswith(f"{PREFIX}_")


def parts_of(token: str) -> tuple[str, str]:
    """The public part of an attempt's key and the hash of its secret; two empty texts for any other token."""
    prefix, _, rest = token.partition("_")
    public, _, secret = rest.partition("_")
    return (public, keyed_hash(f"attempt:{secret}")) if prefix == PREFIX and public and secret else ("", "")


class AttemptSpan(models.Model):
    """A model call of an attempt, or what its program tells of itself, until the attempt is over and stored as one
    trajectory."""

    key = models.ForeignKey(AttemptKey, on_delete=models.CASCADE, related_name="spans")
    span_id = models.CharField(max_length=32)
    started_at = models.DateTimeField()
    is_own = models.BooleanField(default=False)
    """Sent by the program, over OTLP; else a call that the gateway has carried."""
    content = models.JSONField()
    """What was asked and answered, as `gateway.attempt_calls` writes it; of its own a span, as it came."""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["key", "span_id"], name="attemptspan_once")]

    def __str__(self) -> str:
        return self.span_id
