"""Attempts that a team's own program makes, while they wait and are under way."""

from django.db import models
from django.utils import timezone

from flywheel.agents.models import AttemptKey
from flywheel.environments.models import Task
from flywheel.evals.models.runs import EvalRun


class ProgramAttempt(models.Model):
    """One attempt at one task by a version's program, a turn at a time. Its result is an `evals.Result` like any other.

    waiting ──claim──▶ claimed ──result──▶ answered ──judged──▶ ended
       ▲                  │                    │
       ├── its lease ran out                   │
       └── the environment goes on ────────────┘
    """

    class State(models.TextChoices):
        WAITING = "waiting"
        CLAIMED = "claimed"
        ANSWERED = "answered"
        ENDED = "ended"

    run = models.ForeignKey(EvalRun, on_delete=models.CASCADE, related_name="attempts")
    task = models.ForeignKey(Task, on_delete=models.CASCADE, related_name="+")
    sample = models.PositiveSmallIntegerField()
    seed = models.PositiveBigIntegerField()
    state = models.CharField(max_length=16, choices=State, default=State.WAITING)
    key = models.OneToOneField(AttemptKey, on_delete=models.SET_NULL, null=True, related_name="attempt")
    """Of who has it; another one for who gets it next."""
    goes = models.PositiveSmallIntegerField(default=0)
    """How often it was given to a program."""
    messages = models.JSONField(default=list)
    """What the program is given: the environment's opening, and after a turn all that was said so far."""
    taken = models.JSONField(default=list)
    """What the answers among these messages took, as `core.envs.ChatResponse` has it."""
    uses = models.JSONField(default=list)
    """Calls of the world's tools, in their order: `{"name", "arguments", "result", "at"}`."""
    open_call = models.JSONField(null=True)
    """A call that only a worker can carry out, until it has: `{"number", "name", "arguments"}`, with `begun` once one
    is at it; in its place `{"problem"}` where it could not, by which the attempt is unscored."""
    output = models.JSONField(null=True)
    """The text that the program returned for this turn; null where it returned none."""
    error = models.TextField(blank=True)
    """Why there is no output."""
    is_away = models.BooleanField(default=False)
    """That is the infrastructure's for certain."""
    code = models.CharField(max_length=300, blank=True)
    """The code that the program says it runs, where it says so."""
    claimed_at = models.DateTimeField(null=True)
    lease_s = models.FloatField(null=True)
    """For how long whoever pulled it may be silent; null where a worker of ours has it."""
    lease_until = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["run", "task", "sample"], name="program_attempt_once")]
        indexes = [models.Index(fields=["run", "state"], name="program_attempt_state")]

    def __str__(self) -> str:
        return f"{self.task} #{self.sample} of {self.run}"
