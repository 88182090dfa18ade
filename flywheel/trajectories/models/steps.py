"""The steps of trajectories, one row a step, and what lies beside their bodies: log records and large values."""

from collections.abc import Sequence
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.utils import timezone
from psycopg.types.json import Json as Psycopg

from flywheel.accounts.models import Project
from flywheel.trajectories.models.trajectory import AnsweredBy, Trajectory


class Json(models.Field):  # type: ignore[type-arg]
    """JSON as text, PostgreSQL's `json`: numbers and the order of keys stay as they were written.

    Token ids and log-probabilities survive in it to the last bit, which `jsonb` does not promise.
    """

    def db_type(self, connection: Any) -> str:
        return "json"

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        return None if value is None else Psycopg(value)


class Step(models.Model):
    """One span or message of a trajectory. `stored_traces.step_of` reads it as `core.traces.Step`.

    The columns are what lists, orders and sums; `body` is all of it.
    """

    trajectory = models.ForeignKey(
        Trajectory, on_delete=models.CASCADE, related_name="steps", db_constraint=False, db_index=False
    )
    """Without a constraint, which would look the trajectory up for every step. Whoever writes steps holds their
    trajectory locked, and a trigger (migration 0101) deletes them with it, however it is deleted."""
    span_id = models.CharField(max_length=64)
    parent_id = models.CharField(max_length=64, blank=True)
    position = models.PositiveIntegerField()
    """Order within the trajectory, from 0; set anew when late steps arrive."""
    place = models.PositiveIntegerField(default=0)
    """Position in what was sent; orders steps that the clock does not."""
    kind = models.CharField(max_length=16)
    name = models.CharField(max_length=300, blank=True)
    status = models.CharField(max_length=8, default="unset")
    error = models.TextField(blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    model = models.CharField(max_length=200, blank=True)
    tool_name = models.CharField(max_length=200, blank=True)
    tool_call_id = models.CharField(max_length=200, blank=True)
    finish_reason = models.CharField(max_length=64, blank=True)
    tokens_in = models.PositiveIntegerField(null=True, blank=True)
    tokens_out = models.PositiveIntegerField(null=True, blank=True)
    tokens_cached = models.PositiveIntegerField(null=True, blank=True)
    cost_usd = models.FloatField(null=True, blank=True)
    priced_by = models.CharField(max_length=300, null=True, blank=True)  # noqa: DJ001 takes no room where it is empty
    """Whose price the cost was derived by (`call_prices.Price.origin`); empty where the sender stated it."""
    answered_by = models.CharField(max_length=200, null=True, blank=True)  # noqa: DJ001 takes no room where it is empty
    """The version that answered a model call and its digest, as `core.traces.Step` has them: only the gateway knows."""
    is_span = models.BooleanField(default=False)
    body = Json(default=dict)
    """A span as it came (`otlp_traces.to_json`), or the content of a step that another format has mapped
    (`step_json`)."""
    blobs = ArrayField(models.CharField(max_length=64), null=True, blank=True)
    """Digests of the values that `blobs.py` has taken out of the body."""
    size = models.PositiveIntegerField(default=0)
    digest = models.BinaryField(default=bytes)
    """Length and SHA-256 of the content: what `merge.py` compares when a span comes again."""
    received_at = models.DateTimeField(default=timezone.now)
    log_events: Sequence[Any] = ()
    """What came for it as logs (`otlp_logs.LogEvent`), once `stored_traces.complete` has looked."""

    class Meta:
        ordering = ["trajectory", "position"]
        constraints = [models.UniqueConstraint(fields=["trajectory", "span_id"], name="step_once")]
        indexes = [
            models.Index(fields=["trajectory", "position"], name="step_in_order"),
            GinIndex(fields=["blobs"], name="step_blobs", condition=models.Q(blobs__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"step {self.span_id}"

    @property
    def duration_ms(self) -> float | None:
        if self.started_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.started_at).total_seconds() * 1000

    @property
    def answerer(self) -> AnsweredBy | None:
        return AnsweredBy.of(self.answered_by)

    @property
    def raw(self) -> dict[str, Any]:
        """The step as it arrived."""
        arrived: dict[str, Any] = self.body if self.is_span else self.body.get("raw", {})
        return arrived


class ModelCall(models.Model):
    """A model call that came as a trace of its own: in which trajectory it is, and what can be joined to it.

    A call whose answer has a name has a second row for it (`continuations.ANSWER`)."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_index=False)
    trajectory = models.ForeignKey(Trajectory, on_delete=models.CASCADE, related_name="model_calls")
    trace_id = models.CharField(max_length=64)
    """As it was sent: the trajectory has that of the call of it that came first."""
    span_id = models.CharField(max_length=64)
    reaches = models.UUIDField(null=True)
    passes = ArrayField(models.UUIDField(), default=list)
    """Points of `core.traces.stretches` at which other calls can still be joined to this one."""

    class Meta:
        # No index begins with the project: a look-up would be planned through it while there are few rows.
        constraints = [models.UniqueConstraint(fields=["trace_id", "span_id", "project"], name="model_call_once")]
        indexes = [
            models.Index(fields=["reaches", "-id"], name="model_call_end", condition=models.Q(reaches__isnull=False)),
            GinIndex(fields=["passes"], name="model_call_points", fastupdate=False),
        ]

    def __str__(self) -> str:
        return f"call {self.span_id} of {self.trace_id[:12]}"


class Event(models.Model):
    """A log record that carries content of a span, or judges one. It may come before its span, or without one."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_index=False)
    trace_id = models.CharField(max_length=64)
    span_id = models.CharField(max_length=64, blank=True)
    name = models.CharField(max_length=64)
    at = models.DateTimeField(null=True, blank=True)
    body = Json(default=dict)
    """`{"time_ns", "attributes", "body"}`, as `log_events.py` writes it."""
    digest = models.BinaryField()
    """SHA-256 of name and body: what an exporter sends again is there already."""
    received_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "trace_id", "span_id", "digest"], name="event_once")]

    def __str__(self) -> str:
        return f"{self.name} of {self.trace_id[:12]}"


class Blob(models.Model):
    """A value too large for its step, once however many steps hold it."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    sha256 = models.CharField(max_length=64)
    content = models.TextField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "sha256"], name="blob_once")]

    def __str__(self) -> str:
        return f"blob {self.sha256[:12]}"
