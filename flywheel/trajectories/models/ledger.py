"""Records of what arrived, and how long each is kept: the ledger, requests as they came, rejected parts, refusals."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import MD5
from django.utils import timezone

from flywheel.accounts.models import ApiKey, Project, User


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
        constraints = [
            models.CheckConstraint(
                condition=models.Q(
                    received=models.F("inserted") + models.F("updated") + models.F("duplicate") + models.F("rejected")
                ),
                name="batch_adds_up",
            )
        ]
        indexes = [models.Index(fields=["project", "-id"], name="batch_newest")]

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
        constraints = [models.UniqueConstraint(fields=["project", "sha256"], name="body_once")]
        indexes = [models.Index(fields=["project", "received_at"], name="body_oldest")]

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
    """Position in what was sent: `span 3`, `line 17`."""
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
        constraints = [
            models.UniqueConstraint(
                "project", MD5("content"), condition=models.Q(state="open"), name="quarantined_once"
            )
        ]
        indexes = [models.Index(fields=["project", "state", "-id"], name="quarantined_newest")]

    def __str__(self) -> str:
        return f"{self.at} of batch {self.batch_id}"


class Attempt(models.Model):
    """A kind of request that was refused lately: one row however often it came. `refused_requests.py` keeps them few.

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
        constraints = [
            models.UniqueConstraint(
                fields=["project", "key", "status", "reason"], name="attempt_once", nulls_distinct=False
            )
        ]
        indexes = [models.Index(fields=["project", "-at"], name="attempt_newest")]

    def __str__(self) -> str:
        return f"{self.status} at {self.at:%H:%M:%S}"


class Retention(models.Model):
    """The days for which a project keeps what arrives; None is for ever. A project without one has these defaults."""

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
