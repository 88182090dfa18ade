"""Tasks, their splits, and the jobs that generate them.

A task's split is drawn once, from its source cluster, when the task is made (`task_splits.py`); siblings never
straddle.
"""

from django.db import models
from django.db.models import Q
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.edge.jobs import Job, JobEvent
from flywheel.environments.models.environments import Environment
from flywheel.failures.models import Failure
from flywheel.trajectories.models import Trajectory


class Split(models.TextChoices):
    TRAIN = "train"
    HELD_OUT = "held_out", "held-out"
    SEALED = "sealed", "sealed"
    """Held out, and not opened: only a candidate's final comparison asks it."""
    SET_ASIDE = "set_aside", "set aside"
    """Used for neither: its slice is reserved for measuring, but its cluster is trained on."""


MEASURED = (Split.HELD_OUT, Split.SEALED)
"""What nobody trains on."""


class Generation(Job):
    """Tasks that are made out of a seed, for an environment whose kind can (`seeded_tasks.py`). Its `done` are
    tasks."""

    environment = models.ForeignKey(Environment, on_delete=models.CASCADE, related_name="generations")
    count = models.PositiveIntegerField()
    seed = models.PositiveIntegerField()
    options = models.JSONField(default=dict, blank=True)
    """As the kind's `generate` takes them; for variants, `core.envs.task_variants.Spec` as JSON."""
    origin = models.ForeignKey("Task", on_delete=models.RESTRICT, null=True, blank=True, related_name="variations")
    """The task whose variants these are; None for tasks that the kind itself makes."""
    made = models.PositiveIntegerField(default=0)
    """Of those that are done; the others already exist."""

    cancel_entry = "environments.stop_generation"
    resume_entry = "environments.resume_generation"


class GenerationEvent(JobEvent):
    job = models.ForeignKey(Generation, on_delete=models.CASCADE, related_name="events")


class Task(models.Model):
    """Prompt, initial state and target: a failure that can be practised, a success that must stay one, or generated."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="tasks")
    environment = models.ForeignKey(Environment, on_delete=models.CASCADE, related_name="tasks")
    number = models.PositiveIntegerField()
    prompt = models.TextField()
    state = models.JSONField(default=dict)
    target = models.JSONField()
    cluster = models.CharField(max_length=200)
    slice = models.CharField(max_length=100, blank=True)
    split = models.CharField(max_length=16, choices=Split)
    failure = models.ForeignKey(Failure, on_delete=models.SET_NULL, null=True, blank=True, related_name="tasks")
    """The decision that it was born of; its bucket is the task's."""
    bucket = models.CharField(max_length=64, blank=True)
    """Empty for a task that guards a success."""
    source = models.ForeignKey(Trajectory, on_delete=models.SET_NULL, null=True, blank=True, related_name="tasks")
    generation = models.ForeignKey(Generation, on_delete=models.RESTRICT, null=True, blank=True, related_name="tasks")
    """What made it, here. Never changes; a trigger refuses."""
    is_synthetic = models.BooleanField(default=False)
    """Nothing that happened stands behind it: it was generated, here or where it was exported, or it is a rollout of
    such a one. Never changes either."""
    also = models.ManyToManyField(Failure, related_name="also_tasks", blank=True)
    """Other failures that ask the very same and want the same."""
    digest = models.CharField(max_length=64)
    proof = models.JSONField(default=dict)
    """The red-green proof: `{"checks": [{"name", "wanted", "score", "passed", "reason"}], "missing": {name: reason},
    "warnings": [check], "environment_version", "solved", "recording"}`; a warning is a check that a green proof may
    lack, `solved` the faultless episode in a world that only a worker plays, `recording` how far its answers are those
    that were recorded (`worlds.recorded_runs.compare`)."""
    is_proved = models.BooleanField(default=False)
    """Only proved tasks enter a task set."""
    retired_at = models.DateTimeField(null=True, blank=True)
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["environment", "number"], name="task_number_once"),
            models.UniqueConstraint(fields=["environment", "digest"], name="task_content_once"),
            models.CheckConstraint(condition=Q(split__in=Split.values), name="task_split_is_known"),
            models.CheckConstraint(condition=Q(generation=None) | Q(is_synthetic=True), name="task_made_up"),
        ]
        indexes = [
            models.Index(fields=["environment", "cluster"], name="task_by_cluster"),
            models.Index(fields=["project"], name="task_unproved", condition=Q(is_proved=False, retired_at=None)),
        ]

    def __str__(self) -> str:
        return f"t-{self.number}"

    @property
    def awaits_proof(self) -> bool:
        """A worker has yet to make its proof, so that nothing is said against it."""
        return "recorded" in self.proof and not self.proof.get("checks")
