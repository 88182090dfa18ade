"""Pipelines: stages of training one after the other, each from the version that the one before it made."""

import uuid

from django.db import models
from django.db.models import Q
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.agents.models import Version
from flywheel.core.recipes import ALGORITHMS
from flywheel.environments.models import RewardRecipe, TaskSet
from flywheel.evals.models import EvalRun
from flywheel.training.models.datasets import Dataset

PROMPT = "prompt"
"""What stands for the algorithm of a stage that tries a new prompt and trains nothing."""


class Pipeline(models.Model):
    """Stages that follow each other by themselves as long as the gates between them are passed.

    running ──▶ finished
       │  ▲
       ▼  └── a person lets it on, retries or resumes
    at_gate | stopped ──▶ ended
    """

    class State(models.TextChoices):
        RUNNING = "running", "running"
        AT_GATE = "at_gate", "stopped at the gate"
        STOPPED = "stopped", "stopped"
        FINISHED = "finished", "finished"
        ENDED = "ended", "ended"

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    base = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="+")
    """The version that its first stage begins with. The audits of its rewards count for all stages (`reward_lock`)."""
    idempotency_key = models.UUIDField(default=uuid.uuid4)
    state = models.CharField(max_length=16, choices=State, default=State.RUNNING)
    at = models.PositiveSmallIntegerField(default=1)
    """The number of the stage that trains, is to begin, or was the last to train."""
    problem = models.TextField(blank=True)
    """Why it stands still, with the numbers; empty while it goes on."""
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    taken_over_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    """Who resumed it last, retried a stage or let it on; None while nobody has."""
    created_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["project", "idempotency_key"], name="pipeline_one_per_key"),
            models.CheckConstraint(
                condition=Q(state__in=["running", "at_gate", "stopped", "finished", "ended"]),
                name="pipeline_state_is_known",
            ),
        ]
        indexes = [models.Index(fields=["id"], name="pipeline_open", condition=Q(state="running"))]

    def __str__(self) -> str:
        return f"p-{self.pk}"

    @property
    def led_by(self) -> User:
        """In whose name its stages are launched."""
        return self.taken_over_by or self.created_by

    @property
    def is_over(self) -> bool:
        return self.state in (self.State.FINISHED, self.State.ENDED)


class PipelineStage(models.Model):
    """A stage's choices, frozen when the pipeline was launched: those of a run, but for its base; or a draft, a version
    with a new prompt, which is evaluated in place of a run."""

    pipeline = models.ForeignKey(Pipeline, on_delete=models.CASCADE, related_name="stages")
    number = models.PositiveSmallIntegerField()
    """From 1."""
    algorithm = models.CharField(max_length=16)
    task_set = models.ForeignKey(TaskSet, on_delete=models.PROTECT, related_name="+")
    dataset = models.ForeignKey(Dataset, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    """None for a draft, which learns from nothing."""
    draft = models.ForeignKey(Version, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    """The version with the new prompt; None for a stage that trains."""
    draft_eval = models.ForeignKey(EvalRun, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    """The draft's eval on the train tasks, of the present attempt; None before it was begun."""
    base_eval = models.ForeignKey(EvalRun, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    """The same of the version that the stage starts from."""
    teacher = models.ForeignKey(Version, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    reward_recipe = models.ForeignKey(RewardRecipe, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    replay = models.ForeignKey(Dataset, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    environment_weights = models.JSONField(default=dict, blank=True)
    tuning = models.JSONField()
    settings = models.JSONField()
    seed = models.PositiveIntegerField(default=1)
    """Of its first attempt; each further one takes the next."""
    budget = models.JSONField(default=dict, blank=True)
    """What each run of it may take at most, `launch.run_budgets`."""
    override_reason = models.TextField(blank=True)
    gate = models.JSONField(default=dict, blank=True)
    """What the run of the stage before must have reached: `stage_gates.LIMITS` by name; empty for no limit."""
    entry = models.JSONField(default=dict, blank=True)
    """How the gate was judged: `{"run", "checks"}`, and `"let_on": {"by", "reason", "at"}` where a person decided."""
    attempt = models.PositiveSmallIntegerField(default=1)

    class Meta:
        ordering = ["pipeline", "number"]
        constraints = [
            models.UniqueConstraint(fields=["pipeline", "number"], name="stage_once"),
            models.CheckConstraint(
                condition=Q(dataset=None, draft__isnull=False) | Q(dataset__isnull=False, draft=None),
                name="stage_trains_or_has_a_draft",
            ),
        ]

    def __str__(self) -> str:
        return f"stage {self.number} of {self.pipeline}"

    @property
    def algorithm_label(self) -> str:
        return label_of(self.algorithm)

    @property
    def task_sets(self) -> list[TaskSet]:
        """The sets that it validates on."""
        return (self.dataset.task_sets if self.dataset else []) or [self.task_set]

    @property
    def seed_now(self) -> int:
        """The seed of the present attempt."""
        return self.seed + self.attempt - 1

    @property
    def run_key(self) -> uuid.UUID:
        """The key of the run of this attempt, so that there is one however often it is launched."""
        return uuid.uuid5(self.pipeline.idempotency_key, f"stage {self.number}, attempt {self.attempt}")


def label_of(algorithm: str) -> str:
    """Name a stage by its algorithm, or by what stands for one."""
    known = ALGORITHMS.get(algorithm)
    return "New prompt" if algorithm == PROMPT else known.label if known else algorithm
