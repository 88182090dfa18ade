"""Eval runs, a version at a task set (n tasks × k samples), and their results."""

from django.db import models
from django.db.models import Q

from flywheel.accounts.models import NoticeEvent
from flywheel.accounts.notices import notify
from flywheel.agents.models import Version
from flywheel.edge.jobs import Job, JobEvent, State
from flywheel.environments.models import Split, Task, TaskSet
from flywheel.trajectories.models import Trajectory


class Engine(models.TextChoices):
    """The server through which the version is asked."""

    ENDPOINT = "", "what its endpoint names"
    VLLM = "vllm", "this installation's vLLM"


class EvalRun(Job):
    """One version's attempts at one split of one task set. Everything that decides a score is frozen at submission."""

    version = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="eval_runs")
    task_set = models.ForeignKey(TaskSet, on_delete=models.PROTECT, related_name="eval_runs")
    split = models.CharField(max_length=16, choices=Split, default=Split.HELD_OUT)
    samples = models.PositiveSmallIntegerField(default=4)
    """k, attempts per task."""
    sampling = models.JSONField(default=dict)
    """`{"temperature", "top_p", "max_tokens"}`"""
    seed = models.PositiveIntegerField(default=1)
    verifier_digest = models.CharField(max_length=64)
    engine = models.CharField(max_length=16, choices=Engine, blank=True, default=Engine.ENDPOINT)
    isolation = models.JSONField(default=dict, blank=True)
    """What the self-test of the vLLM server found before the attempts, as `workers.engines.isolation` made it; of one
    that is not over its `arms` alone. Empty for any other engine."""
    judges = models.JSONField(default=dict, blank=True)
    """By part: what its judge was asked, who answered, and whether a canary made its scores void
    (`judge_endpoints.py`)."""
    simulator = models.JSONField(default=dict, blank=True)
    """Of the model that stands in for tools: who answered, and what it took; empty where none was asked."""
    budget = models.JSONField(default=dict, blank=True)
    """What it may take at most, `run_budget.check`; empty for as much as it needs."""
    first_request = models.JSONField(default=dict, blank=True)
    """Digests of what was sent first, `core.envs.agent_config.first_request`, with the key of its `task`; empty for
    runs from before the version's own prompt was sent."""
    summary = models.JSONField(default=dict, blank=True)
    """`{metric: Estimate}` plus `slices`, and for own weights the device's `usd_per_hour`; written once at the end,
    empty until then."""

    cancel_entry = "evals.cancel"

    class Meta(Job.Meta):
        constraints = [
            *Job.Meta.constraints,
            models.CheckConstraint(condition=Q(samples__gte=1), name="evalrun_samples"),
        ]

    def __str__(self) -> str:
        return f"eval {self.pk}"

    def when_over(self, state: State) -> None:
        """Whoever started it is told of a failure. Most evals belong to something that tells of its own end."""
        if state == State.FAILED:
            notify(
                project=self.project,
                event=NoticeEvent.RUN_FAILED,
                subject=f"{self}",
                title=f"Eval {self.pk} failed",
                text=f"{self.version} at {self.task_set}",
                url=f"/p/{self.project.slug}/evals/{self.pk}/",
                to=[self.created_by],
            )

    @property
    def task_count(self) -> int:
        return (self.total or 0) // self.samples


BUDGET_CHUNK = 16
"""Attempts under way at once where a run has a budget: the most that it is exceeded by."""


class EvalEvent(JobEvent):
    job = models.ForeignKey(EvalRun, on_delete=models.CASCADE, related_name="events")


class Result(models.Model):
    """One attempt at one task and what the verifier said of it. `score` None means unscored; `error` says why."""

    run = models.ForeignKey(EvalRun, on_delete=models.CASCADE, related_name="results")
    task = models.ForeignKey(Task, on_delete=models.PROTECT, related_name="results")
    sample = models.PositiveSmallIntegerField()
    seed = models.PositiveBigIntegerField()
    trajectory = models.OneToOneField(Trajectory, on_delete=models.PROTECT, null=True, related_name="result")
    score = models.FloatField(null=True)
    success = models.BooleanField(null=True)
    parts = models.JSONField(default=dict)
    reason = models.TextField(blank=True)
    error = models.TextField(blank=True)
    cause = models.CharField(max_length=16, blank=True)
    """Why it is unscored, as `core.verifiers.CAUSES` has it; empty for results from before there were causes."""
    tokens_in = models.PositiveIntegerField(null=True)
    tokens_out = models.PositiveIntegerField(null=True)
    cost_usd = models.FloatField(null=True)
    latency_ms = models.FloatField(null=True)

    class Meta:
        ordering = ["run", "task", "sample"]
        constraints = [models.UniqueConstraint(fields=["run", "task", "sample"], name="result_once")]

    def __str__(self) -> str:
        return f"{self.task} #{self.sample} of {self.run}"
