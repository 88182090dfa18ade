"""Feedback from people, models and code on trajectories and their steps."""

from django.db import models
from django.db.models.functions import Upper
from django.utils import timezone

from flywheel.accounts.models import Project
from flywheel.trajectories.formats.semantics.judgments import OUTCOME, outcome_of


class Feedback(models.Model):
    """An opinion of somebody or something on a trajectory, or on one step. It may come before its trajectory.

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
        constraints = [models.UniqueConstraint(fields=["project", "identity"], name="feedback_once")]
        indexes = [
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
