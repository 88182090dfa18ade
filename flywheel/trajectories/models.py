"""What agents did: trajectories and their steps, one row a step, and the ledger of what arrived.

A trajectory is identified by (project, trace id), a step by (trajectory, span id); both arrive again by design (OTLP
clients resend) and out of order. Columns on `Trajectory` that other rooms fill (`proposed_bucket`, `label`) are
here so that the list never joins.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import BrinIndex, GinIndex
from django.db import models
from django.db.models.functions import MD5, Coalesce, Upper
from django.utils import timezone
from psycopg.types.json import Json as Psycopg

from flywheel.accounts.models import ApiKey, Project, User
from flywheel.agents.models import Agent, Version
from flywheel.jobs import Job, JobEvent
from flywheel.trajectories.formats.judgments import OUTCOME, outcome_of


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


class Trajectory(models.Model):
    """A complete agent episode."""

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
    metadata = models.JSONField(default=dict, blank=True)
    said = models.JSONField(default=dict, blank=True)
    """Which step said what about the whole, and when: `facts.py` merges late parts with it, in any order."""
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
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["project", "trace_id"], name="trajectory_once")
        ]
        indexes: ClassVar[list[models.Index]] = [
            # What lists filter by lies in the index of their order: a filter that few rows pass walks it, never the
            # rows, which are twenty times as wide. The words in it are bounded so that it holds them in any script.
            models.Index(
                fields=["project", "-started_at", "-id"],
                name="trajectory_listed",
                include=[
                    "source",
                    "outcome",
                    "version",
                    "agent",
                    "agent_name",
                    "version_label",
                    "environment",
                    "proposed_bucket",
                    "proposed_score",
                    "label",
                    "label_bucket",
                    "latency_ms",
                    "cost_usd",
                    "tokens_in",
                    "tokens_out",
                    "step_count",
                    "error_count",
                    "feedback_count",
                ],
            ),
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
                condition=models.Q(label="") & ~models.Q(proposed_bucket="") & ~models.Q(source=Source.ROLLOUT),
            ),
            models.Index(
                fields=["project", "-proposed_score", "-id"],
                name="trajectory_surest",
                condition=models.Q(label="") & ~models.Q(proposed_bucket="") & ~models.Q(source=Source.ROLLOUT),
            ),
            models.Index(
                fields=["project", "label_bucket", "-started_at"],
                name="trajectory_failed",
                condition=models.Q(label=Label.FAILURE) & ~models.Q(source=Source.ROLLOUT),
            ),
            models.Index(
                fields=["version", "-started_at"], name="trajectory_by_version", condition=~models.Q(version=None)
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
            BrinIndex(fields=["received_at"], name="trajectory_oldest"),
        ]

    def __str__(self) -> str:
        return f"trajectory {self.trace_id[:12]}"

    @property
    def bucket(self) -> str:
        """The one that a person chose, or else the one that is proposed."""
        return self.label_bucket if self.label else self.proposed_bucket

    @property
    def tokens(self) -> int | None:
        """In and out together; None when neither is known."""
        known = [count for count in (self.tokens_in, self.tokens_out) if count is not None]
        return sum(known) if known else None

    @property
    def cluster(self) -> str:
        """The unit that is split and resampled: the session, or the trajectory alone when it names none."""
        return self.session_id or self.trace_id


class Json(models.Field):  # type: ignore[type-arg]
    """JSON as text, PostgreSQL's `json`: numbers and the order of keys stay as they were written.

    Token ids and log-probabilities survive in it to the last bit, which `jsonb` does not promise.
    """

    def db_type(self, connection: Any) -> str:
        return "json"

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        return None if value is None else Psycopg(value)


class Step(models.Model):
    """One span or message of a trajectory. `load.step_of` reads it as `core.traces.Step`.

    The columns are what lists, orders and sums; `body` is all of it.
    """

    trajectory = models.ForeignKey(
        Trajectory, on_delete=models.CASCADE, related_name="steps", db_constraint=False, db_index=False
    )
    """Without a constraint, which would look the trajectory up for every step. Whoever writes steps holds their
    trajectory locked, and a trigger (migration 0011) deletes them with it, however it is deleted."""
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
    tool_name = models.CharField(max_length=200, blank=True)
    tool_call_id = models.CharField(max_length=200, blank=True)
    finish_reason = models.CharField(max_length=64, blank=True)
    tokens_in = models.PositiveIntegerField(null=True, blank=True)
    tokens_out = models.PositiveIntegerField(null=True, blank=True)
    tokens_cached = models.PositiveIntegerField(null=True, blank=True)
    cost_usd = models.FloatField(null=True, blank=True)
    is_span = models.BooleanField(default=False)
    body = Json(default=dict)
    """A span as it came (`otlp.to_json`), or the content of a step that another format has mapped (`step_json`)."""
    blobs = ArrayField(models.CharField(max_length=64), null=True, blank=True)
    """Digests of the values that `blobs.py` has taken out of the body."""
    size = models.PositiveIntegerField(default=0)
    digest = models.BinaryField(default=bytes)
    """Length and SHA-256 of the content: what `store.py` compares when a span comes again."""
    received_at = models.DateTimeField(default=timezone.now)
    log_events: Sequence[Any] = ()
    """What came for it as logs (`formats.logs.LogEvent`), once `events.complete` has looked."""

    class Meta:
        ordering: ClassVar[list[str]] = ["trajectory", "position"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["trajectory", "span_id"], name="step_once")
        ]
        indexes: ClassVar[list[models.Index]] = [
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
    def raw(self) -> dict[str, Any]:
        """The step as it arrived."""
        arrived: dict[str, Any] = self.body if self.is_span else self.body.get("raw", {})
        return arrived


class Event(models.Model):
    """A log record that carries content of a span, or judges one. It may come before its span, or without one."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_index=False)
    trace_id = models.CharField(max_length=64)
    span_id = models.CharField(max_length=64, blank=True)
    name = models.CharField(max_length=64)
    at = models.DateTimeField(null=True, blank=True)
    body = Json(default=dict)
    """`{"time_ns", "attributes", "body"}`, as `events.py` writes it."""
    digest = models.BinaryField()
    """SHA-256 of name and body: what an exporter sends again is there already."""
    received_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["project", "trace_id", "span_id", "digest"], name="event_once")
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.trace_id[:12]}"


class Feedback(models.Model):
    """What somebody or something thinks of a trajectory, or of one step. It may come before its trajectory.

    Rows are never changed but for `current`: the newest of one giver about one thing holds, the others are its history.
    """

    class Source(models.TextChoices):
        HUMAN = "human", "a person of the team"
        END_USER = "end_user", "an end user"
        MODEL = "model", "a model"
        CODE = "code", "code"

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_index=False)
    trace_id = models.CharField(max_length=64)
    span_id = models.CharField(max_length=64, blank=True)
    """Empty when it is about the whole trajectory."""
    key = models.CharField(max_length=100)
    """What is judged: `outcome`, `helpful`, `relevance`."""
    value = models.JSONField(null=True)
    """A number, a boolean or a string; None where only words were given."""
    score = models.FloatField(null=True, blank=True)
    """The number, also where the value is a label."""
    comment = models.TextField(blank=True)
    source = models.CharField(max_length=16, choices=Source)
    by = models.CharField(max_length=200, blank=True)
    at = models.DateTimeField()
    identity = models.CharField(max_length=64)
    """Digest of what makes it this one: the sender's own id, or else its content."""
    digest = models.CharField(max_length=64)
    """Of its content."""
    current = models.BooleanField(default=True)
    received_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name_plural = "feedback"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["project", "identity"], name="feedback_once")
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["project", "trace_id", "key"], name="feedback_of"),
            # Of all of it: what a partial index knows of the keys, the planner does not use. It does not begin with
            # the project, or it would be taken for what is looked up by trace while the table is empty.
            models.Index(Upper("key"), "project", "score", name="feedback_said"),
        ]

    def __str__(self) -> str:
        return f"{self.key} of {self.trace_id[:12]}"

    @property
    def is_person(self) -> bool:
        return self.source in (self.Source.HUMAN, self.Source.END_USER)

    @property
    def outcome(self) -> str | None:
        """The outcome that it says the trajectory has."""
        return outcome_of(self.value) if self.key == OUTCOME else None

    @property
    def shown(self) -> str:
        """The value in words."""
        if isinstance(self.value, bool):
            return "yes" if self.value else "no"
        return f"{self.value:.4g}" if isinstance(self.value, float) else str(self.value)

    @property
    def has_both(self) -> bool:
        """A label and a number."""
        return self.score is not None and isinstance(self.value, str)


class Batch(models.Model):
    """The ledger: one row a request or import. What arrived is inserted, updated, a duplicate, or rejected; no more."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="batches", db_index=False)
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
    warnings = models.JSONField(default=list, blank=True)
    """What was kept but not understood, or not kept as it came: sentences."""
    redactions = models.JSONField(default=dict, blank=True)
    """How many values were redacted, by kind."""
    redactor = models.CharField(max_length=64, blank=True)
    """Version of the rules that read it."""

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


class Body(models.Model):
    """A request as it came, once however often it was sent; kept for as long as the project says.

    A request in which anything was redacted is not kept.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_index=False)
    sha256 = models.CharField(max_length=64)
    """As in `Batch`."""
    media_type = models.CharField(max_length=64)
    encoding = models.CharField(max_length=16)
    """`gzip`, `deflate`, or empty."""
    content = models.BinaryField()
    trace_ids = ArrayField(models.CharField(max_length=64), default=list)
    """Whose spans it holds, so that deleting a trajectory deletes them here too."""
    received_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name_plural = "bodies"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["project", "sha256"], name="body_once")
        ]
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["project", "received_at"], name="body_oldest")]

    def __str__(self) -> str:
        return f"body {self.sha256[:12]}"


class Quarantined(models.Model):
    """A span or line that was rejected, as it came, until a person has looked at it. Of equal ones one is open."""

    class State(models.TextChoices):
        OPEN = "open"
        REPLAYED = "replayed"
        DISMISSED = "dismissed"

    VALUES = r'"([^"\\]|\\.)*("|…|$)|[0-9]+'
    """In a reason, what differs from one rejected span to the next: quoted values and numbers."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="quarantined")
    batch = models.ForeignKey(Batch, on_delete=models.CASCADE, related_name="quarantined")
    at = models.CharField(max_length=64)
    """Where it stood in what was sent: `span 3`, `line 17`."""
    reason = models.CharField(max_length=500)
    kind = models.GeneratedField(
        expression=models.Func(
            models.F("reason"),
            models.Value(VALUES),
            models.Value("…"),
            models.Value("g"),
            function="regexp_replace",
            output_field=models.TextField(),
        ),
        output_field=models.TextField(),
        db_persist=True,
    )
    """The reason without its values: what has one cause is one group."""
    format = models.CharField(max_length=32)
    media_type = models.CharField(max_length=64)
    """Empty for a part of an imported file."""
    content = models.BinaryField()
    """A request of its own: what `media_type` says, holding this span or line alone."""
    state = models.CharField(max_length=16, choices=State, default=State.OPEN)
    decided_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    decided_at = models.DateTimeField(null=True, blank=True)
    trace_id = models.CharField(max_length=64, blank=True)
    """The trajectory that it went into when it was replayed."""
    received_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name_plural = "quarantined"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                "project", MD5("content"), condition=models.Q(state="open"), name="quarantined_once"
            )
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["project", "state", "-id"], name="quarantined_newest")
        ]

    def __str__(self) -> str:
        return f"{self.at} of batch {self.batch_id}"


class Blob(models.Model):
    """A value too large for its step, once however many steps hold it."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    sha256 = models.CharField(max_length=64)
    content = models.TextField()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["project", "sha256"], name="blob_once")
        ]

    def __str__(self) -> str:
        return f"blob {self.sha256[:12]}"


class Retention(models.Model):
    """How long a project keeps what arrives, in days; None is for ever. A project without one has these defaults."""

    project = models.OneToOneField(Project, on_delete=models.CASCADE, related_name="retention")
    bodies_days = models.PositiveSmallIntegerField(default=7)
    """Raw requests; with 0 they are not even written."""
    quarantine_days = models.PositiveSmallIntegerField(default=30)
    ledger_days = models.PositiveSmallIntegerField(null=True, blank=True)
    production_days = models.PositiveSmallIntegerField(null=True, blank=True)
    import_days = models.PositiveSmallIntegerField(null=True, blank=True)
    rollout_days = models.PositiveSmallIntegerField(null=True, blank=True)
    takes_used = models.BooleanField(default=False)
    """Whether age also takes what people have decided about, made tasks of, or measured with."""
    set_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, related_name="+")

    def __str__(self) -> str:
        return f"retention of {self.project}"


class Reread(Job):
    """A reading of every stored span by today's dialects, for its columns (`reread.py`)."""

    at = models.PositiveBigIntegerField(default=0)
    """Key of the last trajectory that was read; a takeover goes on from there."""
    changed = models.PositiveIntegerField(default=0)
    """Trajectories of which something reads differently now."""

    class Meta(Job.Meta):
        ordering: ClassVar[list[str]] = ["-id"]

    def __str__(self) -> str:
        return f"reread {self.pk}"


class RereadEvent(JobEvent):
    job = models.ForeignKey(Reread, on_delete=models.CASCADE, related_name="events")

    def __str__(self) -> str:
        return self.text[:80]


class Import(Job):
    """A file too large to wait for, on its way in (`importing.py`). Its `done` of `total` are bytes."""

    name = models.CharField(max_length=300)
    """As the person's machine calls the file; only ever shown."""
    upload = models.CharField(max_length=32)
    """The file's token in `uploads`."""
    format = models.CharField(max_length=32, default="auto")
    mapping = models.JSONField(null=True, blank=True)
    """Of a table: what its columns mean."""
    at = models.PositiveBigIntegerField(default=0)
    """Parts of the file that are in the store; whoever goes on leaves them out."""
    batches = ArrayField(models.BigIntegerField(), default=list, blank=True)
    """Keys of its rows in the ledger, written with them, so that no part is counted twice."""
    report = models.JSONField(default=dict, blank=True)
    """What became of the file as a whole, once it is over: `{"trajectories", "formats", "notes"}`."""

    class Meta(Job.Meta):
        ordering: ClassVar[list[str]] = ["-id"]

    def __str__(self) -> str:
        return f"import {self.pk}"


class ImportEvent(JobEvent):
    job = models.ForeignKey(Import, on_delete=models.CASCADE, related_name="events")

    def __str__(self) -> str:
        return self.text[:80]


class Attempt(models.Model):
    """A kind of request that was refused lately: one row however often it came. `attempts.py` keeps them few.

    Without a project it came with no key that this server knows; such a row holds nothing that its sender wrote.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, null=True, blank=True, related_name="+")
    key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, null=True, blank=True, related_name="+")
    status = models.PositiveSmallIntegerField()
    """As in HTTP, whichever way it came."""
    reason = models.CharField(max_length=300)
    at = models.DateTimeField(default=timezone.now)
    """The last time."""
    count = models.PositiveIntegerField(default=1)
    """At least so often."""

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["project", "key", "status", "reason"], name="attempt_once", nulls_distinct=False
            )
        ]
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["project", "-at"], name="attempt_newest")]

    def __str__(self) -> str:
        return f"{self.status} at {self.at:%H:%M:%S}"


# Models that live beside their code.
from flywheel.trajectories.comment_models import Comment as Comment  # noqa: E402
from flywheel.trajectories.comment_models import Mention as Mention  # noqa: E402
from flywheel.trajectories.list_models import Bulk as Bulk  # noqa: E402
from flywheel.trajectories.list_models import BulkEvent as BulkEvent  # noqa: E402
from flywheel.trajectories.list_models import BulkKeys as BulkKeys  # noqa: E402
from flywheel.trajectories.list_models import Item as Item  # noqa: E402
from flywheel.trajectories.list_models import Taste as Taste  # noqa: E402
from flywheel.trajectories.list_models import View as View  # noqa: E402
from flywheel.trajectories.metrics_models import MetricsDay as MetricsDay  # noqa: E402
from flywheel.trajectories.metrics_models import MetricsStale as MetricsStale  # noqa: E402
from flywheel.trajectories.search import Words as Words  # noqa: E402
