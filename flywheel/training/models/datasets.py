"""Datasets: what a run learns from."""

from typing import Any

from django.db import models
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.environments.models import TaskSet


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
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["project", "name", "version"], name="dataset_version_once")]

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def mix(self) -> list[dict[str, Any]]:
        """Parts of a mix as `dataset_mix` writes them; empty for a dataset of one environment."""
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
