"""How it changes: datasets, recommendations, training runs and what they measured on the way."""

from typing import Any, ClassVar

from django.db import models
from django.db.models import Q
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.agents.models import Version
from flywheel.core.recipes import ALGORITHMS
from flywheel.environments.models import TaskSet
from flywheel.evals.models import AuditOverride, EvalRun, RewardAudit
from flywheel.jobs import Job, JobEvent, State
from flywheel.training.check_models import ContaminationCheck
from flywheel.training.rollout_models import Dropped

__all__ = ["ContaminationCheck", "Dataset", "Dropped", "Point", "Recommendation", "TrainingEvent", "TrainingRun"]


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
    """What it was built from: `{"tasks": n, "from_failures": n, "eval_run": id, "duplicates": n, …}`"""
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

    @property
    def mix(self) -> list[dict[str, Any]]:
        """Of a mix, its parts as `mix.py` writes them; empty for a dataset of one environment."""
        found: list[dict[str, Any]] = self.recipe.get("mix", [])
        return found

    @property
    def task_sets(self) -> list[TaskSet]:
        """The sets whose train splits its rows come from, its own first."""
        keys = [part["task_set"] for part in self.mix]
        others = TaskSet.objects.select_related("environment_version__environment").in_bulk(keys)
        return [self.task_set, *(others[key] for key in keys if key != self.task_set_id)]

    @property
    def is_chosen_by_reward(self) -> bool:
        """Whether scores of a verifier decided which rows are in it: then it teaches what that verifier likes."""
        return bool(self.recipe.get("chosen_by_reward", self.recipe.get("from_rollouts")))


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
    reward_audit = models.ForeignKey(
        RewardAudit, on_delete=models.PROTECT, null=True, blank=True, related_name="training_runs"
    )
    """The newest finished audit of the reward that it learns from; None where it learns from none (`reward.py`)."""
    audit_override = models.ForeignKey(
        AuditOverride, on_delete=models.PROTECT, null=True, blank=True, related_name="training_runs"
    )
    """What let it be launched although that audit was not green."""
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
