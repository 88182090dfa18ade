"""How it changes: datasets, recommendations, training runs and what they measured on the way."""

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.agents.models import Version
from flywheel.core.recipes import ALGORITHMS
from flywheel.environments.models import TaskSet
from flywheel.evals.models import EvalRun
from flywheel.jobs import Job, JobEvent, State


class Dataset(models.Model):
    """Immutable training rows, named by their content. A trigger refuses every change."""

    class Kind(models.TextChoices):
        SFT = "sft", "demonstrations"
        PAIRS = "pairs", "preference pairs"
        TASKS = "tasks", "tasks to practise"

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="datasets")
    name = models.SlugField(max_length=100)
    version = models.PositiveIntegerField()
    kind = models.CharField(max_length=8, choices=Kind)
    task_set = models.ForeignKey(TaskSet, on_delete=models.PROTECT, related_name="datasets")
    """Its rows come from the train split of this set, and from nowhere else."""
    digest = models.CharField(max_length=64)
    """SHA-256 of the JSONL file."""
    rows = models.PositiveIntegerField()
    recipe = models.JSONField(default=dict)
    """What it was built from: `{"corrected": n, "passing_rollouts": n, "eval_run": id, …}`"""
    file = models.CharField(max_length=300)
    """Name in Django's storage."""
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering: ClassVar[list[str]] = ["-id"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["project", "name", "version"], name="dataset_version_once")
        ]

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


class Recommendation(models.Model):
    """What the fix ladder said of a baseline, and what it said it from."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="recommendations")
    version = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="recommendations")
    task_set = models.ForeignKey(TaskSet, on_delete=models.PROTECT, related_name="recommendations")
    eval_run = models.ForeignKey(EvalRun, on_delete=models.PROTECT, null=True, related_name="recommendations")
    evidence = models.JSONField()
    ladder = models.JSONField()
    """Every fix in order, the recommended first: as `core.fixes.Recommendation`."""
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering: ClassVar[list[str]] = ["-id"]

    def __str__(self) -> str:
        return f"recommendation {self.pk}"


class TrainingRun(Job):
    """One training, in its own run directory, of one frozen spec."""

    base = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="training_runs")
    dataset = models.ForeignKey(Dataset, on_delete=models.PROTECT, related_name="training_runs")
    task_set = models.ForeignKey(TaskSet, on_delete=models.PROTECT, related_name="training_runs")
    baseline = models.ForeignKey(EvalRun, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    """The base version's eval on the held-out split: the dashed line, and later the other arm of the comparison."""
    algorithm = models.CharField(max_length=16)
    """A key of `core.recipes.ALGORITHMS`."""
    tuning = models.JSONField()
    """`{"mode": "full"}` or `{"mode": "lora", "rank", "alpha"}`"""
    settings = models.JSONField()
    seed = models.PositiveIntegerField(default=1)
    slot = models.CharField(max_length=32, default="local-0")
    """The device it trains on; one run at a time holds it."""
    spec_digest = models.CharField(max_length=64)
    recommendation = models.ForeignKey(
        Recommendation, on_delete=models.SET_NULL, null=True, blank=True, related_name="training_runs"
    )
    override_reason = models.TextField(blank=True)
    """Why not what was recommended; required then."""
    events_read = models.PositiveBigIntegerField(default=0)
    """Bytes of `events.jsonl` that are in the database."""
    checkpoint_step = models.PositiveIntegerField(null=True, blank=True)
    produced = models.ForeignKey(Version, on_delete=models.PROTECT, null=True, blank=True, related_name="produced_by")
    evaluation = models.ForeignKey(EvalRun, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    """The produced version's eval, started when the run succeeds."""

    class Meta(Job.Meta):
        ordering: ClassVar[list[str]] = ["-id"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            *Job.Meta.constraints,
            models.UniqueConstraint(fields=["slot"], condition=Q(state=State.RUNNING), name="trainingrun_one_per_slot"),
        ]

    def __str__(self) -> str:
        return f"r-{self.pk}"

    @property
    def algorithm_label(self) -> str:
        known = ALGORITHMS.get(self.algorithm)
        return known.label if known else self.algorithm


class TrainingEvent(JobEvent):
    job = models.ForeignKey(TrainingRun, on_delete=models.CASCADE, related_name="events")

    def __str__(self) -> str:
        return self.text[:80]


class Point(models.Model):
    """What was measured at one step: training metrics, or the held-out evaluation. A resumed step replaces its own."""

    class Kind(models.TextChoices):
        STEP = "step"
        EVAL = "eval"
        SAMPLES = "samples"

    run = models.ForeignKey(TrainingRun, on_delete=models.CASCADE, related_name="points")
    kind = models.CharField(max_length=8, choices=Kind)
    step = models.PositiveIntegerField()
    at = models.DateTimeField()
    values = models.JSONField()
    """`{metric: number}`; for `eval` `{"success", "n", "unscored", "seconds"}`; for `samples` a list."""

    class Meta:
        ordering: ClassVar[list[str]] = ["run", "kind", "step"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["run", "kind", "step"], name="point_once")
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.step} of {self.run}"
