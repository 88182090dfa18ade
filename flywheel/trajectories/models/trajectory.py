"""Trajectories: what agents did.

A trajectory is identified by (project, trace id), a step by (trajectory, span id); both arrive again by design (OTLP
clients resend) and out of order. Columns on `Trajectory` that other rooms fill (`proposed_bucket`, `label`) are
here so that the list never joins.
"""

from enum import nonmember
from typing import NamedTuple

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import BrinIndex, GinIndex
from django.contrib.postgres.search import SearchVectorField
from django.db import models
from django.db.models.fields.json import KeyTransform
from django.db.models.functions import Coalesce
from django.utils import timezone

from flywheel.accounts.models import Project
from flywheel.agents.models import Agent, Version


class Source(models.TextChoices):
    PRODUCTION = "production", "production"
    IMPORT = "import", "import"
    ROLLOUT = "rollout", "rollout"
    TRAINING = "training", "training"
    SHADOW = "shadow", "shadow"
    """Answers of a candidate to copies of calls: nobody got them, and nothing that they ask for was done."""

    ATTEMPTS = nonmember(("rollout", "training", "shadow"))
    """What policies tried here, in evals, as they learnt, and in the shadow of a live version: nothing that happened in
    use."""
    ATTEMPTS_SQL = nonmember("('rollout', 'training', 'shadow')")
    TRAFFIC = nonmember(("production", "import"))
    """What happened in use."""


class Outcome(models.TextChoices):
    SUCCESS = "success"
    FAILED = "failed"


class Label(models.TextChoices):
    """A person's verdict on the whole trajectory."""

    FAILURE = "failure"
    PASS = "pass"  # noqa: S105


class AnsweredBy(NamedTuple):
    """A version that answered model calls through the gateway, which knows it from nobody else."""

    agent: str
    number: str
    digest: str

    @classmethod
    def of(cls, text: str | None) -> "AnsweredBy | None":
        """Read `agent@3:digest`; None where nothing is said."""
        version, _, digest = (text or "").rpartition(":")
        agent, _, number = version.rpartition("@")
        return cls(agent, number, digest) if agent else None

    @property
    def version(self) -> str:
        return f"{self.agent}@{self.number}"


_LISTED = [
    "source", "outcome", "version", "agent", "agent_name", "version_label", "environment", "proposed_bucket",
    "proposed_score", "label", "label_bucket", "latency_ms", "cost_usd", "tokens_in", "tokens_out", "step_count",
    "error_count", "feedback_count",
]  # fmt: skip
"""What lists show and filter by."""


class Trajectory(models.Model):
    """A complete agent episode."""

    ANSWERED_BY = "answered_by"
    """In `claims`: the versions that answered its model calls, as `core.traces.Step.answered_by` has them, sorted."""

    # Foreign keys on the path of ingest have no index of their own where another one begins with them.
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="trajectories", db_index=False)
    trace_id = models.CharField(max_length=64)
    source = models.CharField(max_length=16, choices=Source, default=Source.PRODUCTION)
    agent = models.ForeignKey(Agent, on_delete=models.SET_NULL, null=True, blank=True, related_name="trajectories")
    version = models.ForeignKey(
        Version, on_delete=models.SET_NULL, null=True, blank=True, related_name="trajectories", db_index=False
    )
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
    """When detectors last read it, or a rollout was made searchable; older than `changed_at` or empty means that they
    still have to."""
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
    attributes = ArrayField(models.CharField(max_length=200), default=list, blank=True)
    """What its resource and its spans said that has no column of its own, as `key=value`, and then the keys alone
    (`sent_attributes.py`)."""
    metadata = models.JSONField(default=dict, blank=True)
    claims = models.JSONField(default=dict, blank=True)
    """Which step said what about the whole, and when: `claims.py` merges late parts with it, in any order."""
    event_count = models.PositiveIntegerField(default=0)
    """Rows of `Event` about it."""
    feedback_count = models.PositiveIntegerField(default=0)
    """Rows of `Feedback` about it that hold now."""
    proposed_bucket = models.CharField(max_length=64, blank=True)
    """The strongest open proposal; `failures` keeps it."""
    proposed_score = models.FloatField(null=True, blank=True)
    label = models.CharField(max_length=16, choices=Label, blank=True)
    """What a person decided; `failures` keeps it."""
    label_bucket = models.CharField(max_length=64, blank=True)

    class Meta:
        verbose_name_plural = "trajectories"
        constraints = [models.UniqueConstraint(fields=["project", "trace_id"], name="trajectory_once")]
        indexes = [
            # What lists filter by lies in the index of their order: a filter that few rows pass walks it, never the
            # rows, which are twenty times as wide. The words in it are bounded so that it holds them in any script.
            models.Index(fields=["project", "-started_at", "-id"], name="trajectory_listed", include=_LISTED),
            # What next to nothing passes is found by an index of its own, else that whole index would be walked for it.
            # None of them serves who knows the project alone: while there are few rows, ingest's look-up by trace id
            # would be planned through the smallest that does.
            # Names of which there are few: equal ones share an entry, so this one is small, and PostgreSQL 18 skips
            # from one value of a leading column to the next where it is asked for a later one. It begins with what lies
            # in no order among the rows, or the planner would take all it leads to for neighbours.
            models.Index(
                fields=[
                    "outcome",
                    "project",
                    "source",
                    "environment",
                    "version",
                    "agent",
                    "version_label",
                    "agent_name",
                ],
                name="trajectory_kinds",
            ),
            models.Index(
                fields=["project", "latency_ms"],
                name="trajectory_by_latency",
                condition=models.Q(latency_ms__isnull=False),
            ),
            models.Index(
                fields=["project", "cost_usd"], name="trajectory_by_cost", condition=models.Q(cost_usd__isnull=False)
            ),
            # Of all: what is known of the values of a partial index, the planner does not use.
            models.Index(
                Coalesce(models.F("tokens_in"), 0) + Coalesce(models.F("tokens_out"), 0),
                models.F("project"),
                name="trajectory_by_tokens",
            ),
            models.Index(
                fields=["project", "proposed_score"],
                name="trajectory_by_score",
                condition=models.Q(proposed_score__isnull=False),
            ),
            models.Index(fields=["step_count", "error_count", "project"], name="trajectory_by_steps"),
            models.Index(fields=["user_id", "project", "-started_at"], name="trajectory_by_user"),
            models.Index(fields=["session_id", "project"], name="trajectory_by_session"),
            # What most rows lack is indexed only where it is there: an index costs every row its write.
            models.Index(
                fields=["project", "source", "-started_at", "-id"],
                name="trajectory_by_source",
                condition=~models.Q(source=Source.PRODUCTION),
            ),
            # Of a bucket, what waits and what people filed there: counting either by day reads the index alone.
            models.Index(
                fields=["project", "proposed_bucket", "-started_at"],
                name="trajectory_waiting",
                condition=models.Q(label="") & ~models.Q(proposed_bucket="") & ~models.Q(source__in=Source.ATTEMPTS),
            ),
            models.Index(
                fields=["project", "-proposed_score", "-id"],
                name="trajectory_surest",
                condition=models.Q(label="") & ~models.Q(proposed_bucket="") & ~models.Q(source__in=Source.ATTEMPTS),
            ),
            models.Index(
                fields=["project", "label_bucket", "-started_at"],
                name="trajectory_failed",
                condition=models.Q(label=Label.FAILURE) & ~models.Q(source__in=Source.ATTEMPTS),
            ),
            models.Index(
                fields=["version", "-started_at"], name="trajectory_by_version", condition=~models.Q(version=None)
            ),
            # The traffic of a version: what the gateway knows it answered, alone or among others (whose names together
            # may be too long for a B-tree), and what is only reported as its. A row is in one of these, or in none.
            models.Index(
                KeyTransform("answered_by", "claims"),
                models.F("project"),
                models.F("started_at").desc(),
                models.F("id").desc(),
                name="trajectory_answered",
                condition=models.Q(
                    claims__has_key="answered_by", claims__answered_by__1__isnull=True, source__in=Source.TRAFFIC
                ),
            ),
            GinIndex(
                KeyTransform("answered_by", "claims"),
                name="trajectory_answered_in_part",
                condition=models.Q(claims__answered_by__1__isnull=False, source__in=Source.TRAFFIC),
            ),
            models.Index(
                fields=["version", "-started_at", "-id"],
                name="trajectory_reported",
                condition=models.Q(source__in=Source.TRAFFIC)
                & ~models.Q(version=None)
                & ~models.Q(claims__has_key="answered_by"),
            ),
            models.Index(
                fields=["project", "label", "-started_at"], name="trajectory_labelled", condition=~models.Q(label="")
            ),
            models.Index(
                fields=["project", "id"],
                name="trajectory_undetected",
                condition=models.Q(detected_at=None) | models.Q(detected_at__lt=models.F("changed_at")),
            ),
            models.Index(
                fields=["project", "-started_at", "-id"],
                name="trajectory_intervened",
                condition=~models.Q(interventions=[]),
            ),
            GinIndex(fields=["tool_names"], name="trajectory_tools"),
            GinIndex(fields=["tags"], name="trajectory_tags"),
            # As words and not as an array, whose index finds no beginnings: `attr.app.release:2026.*`.
            GinIndex(
                models.Func(models.F("attributes"), function="array_to_tsvector", output_field=SearchVectorField()),
                name="trajectory_attributes",
            ),
            BrinIndex(fields=["received_at"], name="trajectory_oldest"),
            # For who follows what changed lately. One that holds each row would cost every update its write.
            BrinIndex(fields=["changed_at"], name="trajectory_changed", autosummarize=True),
        ]

    def __str__(self) -> str:
        return f"trajectory {self.trace_id[:12]}"

    @property
    def is_attempt(self) -> bool:
        """Whether a policy made it here, in an eval or as it learnt."""
        return self.source in Source.ATTEMPTS

    @property
    def bucket(self) -> str:
        """The one that a person chose, or else the one that is proposed."""
        return self.label_bucket if self.label else self.proposed_bucket

    @property
    def answered_by(self) -> list[AnsweredBy]:
        """The versions that answered its calls through the gateway, whatever anybody reports."""
        return [found for text in self.claims.get(self.ANSWERED_BY, ()) if (found := AnsweredBy.of(text))]

    @property
    def tokens(self) -> int | None:
        """In and out together; None when neither is known."""
        known = [count for count in (self.tokens_in, self.tokens_out) if count is not None]
        return sum(known) if known else None

    @property
    def cluster(self) -> str:
        """The unit that is split and resampled: the session, or the trajectory alone when it names none."""
        return self.session_id or self.trace_id
