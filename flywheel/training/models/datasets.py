"""Datasets: what a run learns from."""

from typing import Any

from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models.fields.json import KeyTransform
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.environments.models import TaskSet


class Dataset(models.Model):
    """Immutable training rows, named by their content. A trigger refuses every change."""

    class Kind(models.TextChoices):
        SFT = "sft", "demonstrations"
        PAIRS = "pairs", "preference pairs"
        TASKS = "tasks", "tasks to practise"
        THUMBS = "thumbs", "answers with a thumb"
        PROMPTS = "prompts", "prompts"
        SCORED = "scored", "scored attempts"

    class Origin(models.TextChoices):
        TASK_SET = "task_set", "a task set"
        TRAJECTORIES = "trajectories", "trajectories"
        UPLOAD = "upload", "an upload"

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="datasets")
    name = models.SlugField(max_length=100)
    version = models.PositiveIntegerField()
    kind = models.CharField(max_length=8, choices=Kind)
    origin = models.CharField(max_length=16, choices=Origin, default=Origin.TASK_SET)
    task_set = models.ForeignKey(TaskSet, on_delete=models.PROTECT, null=True, blank=True, related_name="datasets")
    """Its rows come from the train split of this set, and from nowhere else; None where they come from elsewhere: then
    any set may measure what learns from them."""
    card = models.JSONField(default=dict, blank=True)
    """What people say of it: `{"description", "licence", "source", "language"}`, texts."""
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
        indexes = [
            # Recipes can be long: who looks for what one names reads none of the others.
            GinIndex(KeyTransform("from_traces", "recipe"), name="dataset_by_trace"),
            models.Index(KeyTransform("eval_run", "recipe"), models.F("project"), name="dataset_by_eval"),
            models.Index(fields=["project"], name="dataset_mixed", condition=models.Q(recipe__has_key="mix")),
        ]
        constraints = [
            models.UniqueConstraint(fields=["project", "name", "version"], name="dataset_version_once"),
            models.CheckConstraint(
                condition=models.Q(origin="task_set", task_set__isnull=False)
                | (~models.Q(origin="task_set") & models.Q(task_set=None)),
                name="dataset_has_a_set_or_another_origin",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def mix(self) -> list[dict[str, Any]]:
        """Parts of a mix as `dataset_mix` writes them; empty for a dataset of one environment."""
        found: list[dict[str, Any]] = self.recipe.get("mix", [])
        return found

    @property
    def task_sets(self) -> list[TaskSet]:
        """The sets whose train splits its rows come from, its own first; none where they come from elsewhere."""
        if self.task_set is None:
            return []
        keys = [part["task_set"] for part in self.mix if part["task_set"] not in (None, self.task_set_id)]
        others = TaskSet.objects.select_related("environment_version__environment").in_bulk(keys)
        return [self.task_set, *(others[key] for key in keys)]

    @property
    def is_placed(self) -> bool:
        """Whether its rows name the environment that they belong to: those of a mix that has rows of tasks."""
        return bool(self.mix) and self.task_set_id is not None

    @property
    def place(self) -> str:
        """Where its rows come from, in words."""
        return str(self.task_set) if self.task_set else self.get_origin_display()

    @property
    def is_chosen_by_reward(self) -> bool:
        """Whether scores of a verifier decided which rows are in it: then it teaches what that verifier likes."""
        return bool(self.recipe.get("chosen_by_reward", self.recipe.get("from_rollouts")))
