"""Frozen task sets and their members."""

from django.db import models
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.environments.models.environments import EnvironmentVersion
from flywheel.environments.models.tasks import Split, Task


class TaskSets(models.QuerySet["TaskSet"]):
    def to_train_on(self) -> "TaskSets":
        """Those that hold train tasks: one without was chosen to measure or to guard, such as a regression suite."""
        learnt = TaskSetMember.objects.filter(task_set=OuterRef("pk"), split=Split.TRAIN)
        return self.filter(Exists(learnt))

    def usual(self) -> "TaskSet | None":
        """Return the set most often meant: the newest to train on, else the newest of all."""
        return self.to_train_on().order_by("-pk").first() or self.order_by("-pk").first()


class TaskSet(models.Model):
    """A frozen, versioned choice of tasks, `name@version`. A trigger refuses every change of it and its members."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="task_sets")
    environment_version = models.ForeignKey(EnvironmentVersion, on_delete=models.PROTECT, related_name="task_sets")
    name = models.SlugField(max_length=100)
    version = models.PositiveIntegerField()
    digest = models.CharField(max_length=64)
    """Over the environment version's digest and every member's digest and split."""
    tasks = models.ManyToManyField(Task, related_name="task_sets", through="TaskSetMember")
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    objects = TaskSets.as_manager()

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["project", "name", "version"], name="task_set_version_once")]

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


class TaskSetMember(models.Model):
    task_set = models.ForeignKey(TaskSet, on_delete=models.CASCADE, related_name="members")
    task = models.ForeignKey(Task, on_delete=models.PROTECT, related_name="+")
    split = models.CharField(max_length=16, choices=Split)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["task_set", "task"], name="task_set_member_once"),
            models.CheckConstraint(
                condition=Q(split__in=["train", "held_out", "sealed"]), name="task_set_member_split"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task} in {self.task_set}"
