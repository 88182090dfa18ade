"""Jobs about an environment's verifier: proving tasks under it, and trying one that is not saved yet."""

from django.db import models
from django.utils import timezone

from flywheel.accounts.models import Project
from flywheel.edge.jobs import Job, JobEvent


class Proving(Job):
    """Proofs of tasks that a worker makes, because the verifier needs its sandbox. `done` are tasks."""

    environment = models.ForeignKey("environments.Environment", on_delete=models.CASCADE, related_name="provings")

    cancel_entry = "environments.stop_proving"


class ProvingEvent(JobEvent):
    job = models.ForeignKey(Proving, on_delete=models.CASCADE, related_name="events")


class Trial(Job):
    """A verifier on examples, before anybody saves it. Kept for a while only: it is a look, not a score."""

    environment = models.ForeignKey("environments.Environment", on_delete=models.CASCADE, related_name="trials")
    verifier = models.JSONField()
    tasks = models.JSONField(default=list)
    """Numbers of the tasks that it is tried on."""
    rollouts = models.PositiveSmallIntegerField(default=0)
    """So many of each task's newest rollouts are judged too."""
    trajectories = models.JSONField(default=list)
    """Ids of those that are judged besides, each at a task of `tasks`."""
    report = models.JSONField(default=dict, blank=True)
    """`{"tasks": [{"number", "prompt", "is_proved", "rows": [{"what", "wanted", "passed", "score", "before", "cause",
    "reason", "parts", "trace_id"}]}], "seconds"}`, grown task by task."""

    cancel_entry = "environments.stop_trial"


class TrialEvent(JobEvent):
    job = models.ForeignKey(Trial, on_delete=models.CASCADE, related_name="events")


class JudgeMemory(models.Model):
    """A judge's verdict on an attempt, so that nobody asks it twice. A memory and no record: scores stand with their
    results, and this may go at any time. It goes when a trajectory of the project is deleted, whose words it may hold.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="judge_memories")
    key = models.CharField(max_length=64)
    """Of the part, the attempt as it was told, the address, and the model that answered there."""
    score = models.FloatField()
    reason = models.TextField()
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "key"], name="judge_memory_once")]
        indexes = [models.Index(fields=["at"], name="judge_memory_by_age")]

    def __str__(self) -> str:
        return self.key[:12]
