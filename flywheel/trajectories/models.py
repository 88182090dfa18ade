"""What agents did: trajectories and their steps, one row a step, and the ledger of what arrived.

A trajectory is identified by (project, trace id), a step by (project, trace id, span id); both arrive again by design
(OTLP clients resend) and out of order. Columns on `Trajectory` that other rooms fill (`proposed_bucket`, `label`) are
here so that the list never joins.
"""

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.utils import timezone

from flywheel.accounts.models import ApiKey, Project
from flywheel.agents.models import Agent, Version
from flywheel.core.buckets import BUCKETS


class Source(models.TextChoices):
    PRODUCTION = "production", "production"
    IMPORT = "import", "import"
    ROLLOUT = "rollout", "rollout"


class Outcome(models.TextChoices):
    SUCCESS = "success"
    FAILED = "failed"


class Label(models.TextChoices):
    """What a person said of the whole trajectory."""

    FAILURE = "failure"
    PASS = "pass"  # noqa: S105


def name_of_bucket(key: str) -> str:
    known = BUCKETS.get(key)
    return known.label.lower() if known else key.replace("_", " ")


class Trajectory(models.Model):
    """A complete agent episode."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="trajectories")
    trace_id = models.CharField(max_length=64)
    source = models.CharField(max_length=16, choices=Source, default=Source.PRODUCTION)
    agent = models.ForeignKey(Agent, on_delete=models.SET_NULL, null=True, blank=True, related_name="trajectories")
    version = models.ForeignKey(Version, on_delete=models.SET_NULL, null=True, blank=True, related_name="trajectories")
    agent_name = models.CharField(max_length=200, blank=True)
    version_label = models.CharField(max_length=100, blank=True)
    """As the agent reported it, whether we know that version or not."""
    session_id = models.CharField(max_length=200, blank=True)
    """The source cluster: everything of one session is split together."""
    user_id = models.CharField(max_length=200, blank=True)
    environment = models.CharField(max_length=100, blank=True)
    title = models.CharField(max_length=300, blank=True)
    """The first line of the first request."""
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    received_at = models.DateTimeField(default=timezone.now)
    changed_at = models.DateTimeField(default=timezone.now)
    """When the last step arrived."""
    detected_at = models.DateTimeField(null=True, blank=True)
    """When detectors last read it; older than `changed_at` or empty means that they still have to."""
    latency_ms = models.FloatField(null=True, blank=True)
    step_count = models.PositiveIntegerField(default=0)
    tool_names = ArrayField(models.CharField(max_length=200), default=list, blank=True)
    error_count = models.PositiveIntegerField(default=0)
    tokens_in = models.PositiveBigIntegerField(null=True, blank=True)
    tokens_out = models.PositiveBigIntegerField(null=True, blank=True)
    cost_usd = models.FloatField(null=True, blank=True)
    outcome = models.CharField(max_length=16, choices=Outcome, null=True, blank=True)  # noqa: DJ001 unknown is not ""
    interventions = models.JSONField(default=list, blank=True)
    """As `core.traces.Intervention.to_json`, oldest first."""
    tools = models.JSONField(default=list, blank=True)
    """Tool definitions that the agent had."""
    tags = ArrayField(models.CharField(max_length=100), default=list, blank=True)
    metadata = models.JSONField(default=dict, blank=True)
    said = models.JSONField(default=dict, blank=True)
    """Which step said what about the whole, and when: `facts.py` merges late parts with it, in any order."""
    proposed_bucket = models.CharField(max_length=64, blank=True)
    """The strongest open proposal; `failures` keeps it."""
    proposed_score = models.FloatField(null=True, blank=True)
    label = models.CharField(max_length=16, choices=Label, blank=True)
    """What a person decided; `failures` keeps it."""
    label_bucket = models.CharField(max_length=64, blank=True)

    class Meta:
        verbose_name_plural = "trajectories"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["project", "trace_id"], name="trajectory_once")
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["project", "-started_at", "-id"], name="trajectory_newest"),
            models.Index(fields=["project", "source", "-started_at", "-id"], name="trajectory_by_source"),
            models.Index(
                fields=["project", "-started_at", "-id"],
                name="trajectory_traffic",
                condition=~models.Q(source=Source.ROLLOUT),
            ),
            models.Index(fields=["project", "proposed_bucket", "-started_at"], name="trajectory_by_bucket"),
            models.Index(fields=["project", "version", "-started_at"], name="trajectory_by_version"),
            models.Index(fields=["project", "session_id"], name="trajectory_by_session"),
            models.Index(
                fields=["project", "label", "-started_at"], name="trajectory_labelled", condition=~models.Q(label="")
            ),
            models.Index(
                fields=["project", "id"],
                name="trajectory_undetected",
                condition=models.Q(detected_at=None) | models.Q(detected_at__lt=models.F("changed_at")),
            ),
            GinIndex(fields=["tool_names"], name="trajectory_tools"),
        ]

    def __str__(self) -> str:
        return f"trajectory {self.trace_id[:12]}"

    @property
    def bucket_name(self) -> str:
        """In words: the bucket that a person chose, or else the one that is proposed."""
        return name_of_bucket(self.label_bucket if self.label else self.proposed_bucket)

    @property
    def tokens(self) -> int | None:
        """In and out together; None when neither is known."""
        known = [count for count in (self.tokens_in, self.tokens_out) if count is not None]
        return sum(known) if known else None

    @property
    def cluster(self) -> str:
        """The unit that is split and resampled: the session, or the trajectory alone when it names none."""
        return self.session_id or self.trace_id


class Step(models.Model):
    """One span or message of a trajectory, in the shape of `core.traces.Step`."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    trajectory = models.ForeignKey(Trajectory, on_delete=models.CASCADE, related_name="steps")
    trace_id = models.CharField(max_length=64)
    span_id = models.CharField(max_length=64)
    parent_id = models.CharField(max_length=64, blank=True)
    position = models.PositiveIntegerField()
    """Order within the trajectory, from 0; set anew when late steps arrive."""
    place = models.PositiveIntegerField(default=0)
    """Where it stood in what was sent; orders steps that the clock does not."""
    kind = models.CharField(max_length=16)
    name = models.CharField(max_length=300, blank=True)
    status = models.CharField(max_length=8, default="unset")
    error = models.TextField(blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    model = models.CharField(max_length=200, blank=True)
    input = models.JSONField(default=list, blank=True)
    """Messages that a model call was given, as `core.traces.Message.to_json`."""
    output = models.JSONField(default=list, blank=True)
    tool_name = models.CharField(max_length=200, blank=True)
    tool_call_id = models.CharField(max_length=200, blank=True)
    arguments = models.JSONField(null=True, blank=True)
    result = models.JSONField(null=True, blank=True)
    finish_reason = models.CharField(max_length=64, blank=True)
    tokens_in = models.PositiveIntegerField(null=True, blank=True)
    tokens_out = models.PositiveIntegerField(null=True, blank=True)
    tokens_cached = models.PositiveIntegerField(null=True, blank=True)
    cost_usd = models.FloatField(null=True, blank=True)
    raw = models.JSONField(default=dict, blank=True)
    size = models.PositiveIntegerField(default=0)
    digest = models.CharField(max_length=64, blank=True)
    """Length and SHA-256 of the canonical content: what `store.py` compares when a span comes again."""
    received_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering: ClassVar[list[str]] = ["trajectory", "position"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["project", "trace_id", "span_id"], name="step_once")
        ]
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["trajectory", "position"], name="step_in_order")]

    def __str__(self) -> str:
        return f"step {self.span_id} of {self.trace_id[:12]}"

    @property
    def duration_ms(self) -> float | None:
        if self.started_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.started_at).total_seconds() * 1000


class Batch(models.Model):
    """The ledger: one row a request or import. What arrived is inserted, updated, a duplicate, or rejected; no more."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="batches")
    key = models.ForeignKey(ApiKey, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    format = models.CharField(max_length=32)
    sha256 = models.CharField(max_length=64)
    """Of the body, after decompression."""
    received_at = models.DateTimeField(default=timezone.now)
    trajectories = models.PositiveIntegerField(default=0)
    """How many trajectories the steps belong to."""
    received = models.PositiveIntegerField()
    """Steps; a line of a file or a span that cannot be read counts as one."""
    inserted = models.PositiveIntegerField()
    updated = models.PositiveIntegerField()
    duplicate = models.PositiveIntegerField()
    rejected = models.PositiveIntegerField()
    problems = models.JSONField(default=list, blank=True)
    """`{"at": line or span, "reason": text}`, at most 100."""

    class Meta:
        verbose_name_plural = "batches"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                condition=models.Q(
                    received=models.F("inserted") + models.F("updated") + models.F("duplicate") + models.F("rejected")
                ),
                name="batch_adds_up",
            )
        ]
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["project", "-id"], name="batch_newest")]

    def __str__(self) -> str:
        return f"batch {self.pk} of {self.received}"
