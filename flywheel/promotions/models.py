"""Who let it through: gate policies, candidates with their evidence, and the append-only log of promotions."""

from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.agents.models import Agent, Version
from flywheel.evals.models import EvalRun
from flywheel.training.models import TrainingRun


class Policy(models.Model):
    """What a candidate must show, as `core.gate.Policy`; immutable, a change is a new version."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="policies")
    version = models.PositiveIntegerField()
    rules = models.JSONField()
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name_plural = "policies"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["project", "version"], name="policy_version_once")
        ]

    def __str__(self) -> str:
        return f"policy@{self.version}"


class Candidate(models.Model):
    """A version put forward against the one that was live, with the evidence and the gate's verdict."""

    class State(models.TextChoices):
        WAITING = "waiting", "waiting for an approver"
        PROMOTED = "promoted"
        REJECTED = "rejected"
        VOID = "void"
        """The evidence no longer fits: another version went live meanwhile."""

    class Verdict(models.TextChoices):
        ELIGIBLE = "eligible"
        NOT_SHOWN = "not_shown", "not shown"
        REGRESSED = "regressed"
        INVALID = "invalid"

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="candidates")
    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="candidates")
    version = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="candidates")
    baseline = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="+")
    version_eval = models.ForeignKey(EvalRun, on_delete=models.PROTECT, related_name="+")
    baseline_eval = models.ForeignKey(EvalRun, on_delete=models.PROTECT, related_name="+")
    run = models.ForeignKey(TrainingRun, on_delete=models.PROTECT, null=True, blank=True, related_name="candidates")
    policy = models.ForeignKey(Policy, on_delete=models.PROTECT, related_name="+")
    report = models.JSONField()
    """`{"comparison", "decision"}` as `core.compare` and `core.gate` made them."""
    report_digest = models.CharField(max_length=64)
    verdict = models.CharField(max_length=16, choices=Verdict)
    state = models.CharField(max_length=16, choices=State, default=State.WAITING)
    proposed_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    """Who launched what made it."""
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering: ClassVar[list[str]] = ["-id"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["version_eval", "baseline_eval", "policy"], name="candidate_once")
        ]

    def __str__(self) -> str:
        return f"candidate {self.pk}"


class Promotion(models.Model):
    """One move of `Agent.live`, append-only: a trigger refuses every update and delete."""

    class Kind(models.TextChoices):
        FIRST = "first", "first version"
        PROMOTE = "promote"
        ROLLBACK = "rollback"

    agent = models.ForeignKey(Agent, on_delete=models.PROTECT, related_name="promotions")
    kind = models.CharField(max_length=16, choices=Kind)
    generation = models.PositiveIntegerField()
    """`Agent.generation` after the move."""
    before = models.ForeignKey(Version, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    after = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="promotions")
    candidate = models.OneToOneField(
        Candidate, on_delete=models.PROTECT, null=True, blank=True, related_name="promotion"
    )
    proposed_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    approved_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    against_the_gate = models.BooleanField(default=False)
    suites = models.JSONField(default=list, blank=True)
    """What the agent's regression suites said when it was approved, `suites.told`."""
    sealed = models.JSONField(default=dict, blank=True)
    """How it stood at the sealed part of its set then, `sealed.Comparison.told`; empty where that has none."""
    reason = models.TextField()
    created_at = models.DateTimeField(default=timezone.now)
    unserved = ""
    """Why no server answers with it, told to whoever just made the move; the audit log keeps it."""

    class Meta:
        ordering: ClassVar[list[str]] = ["-id"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["agent", "generation"], name="promotion_one_per_generation"),
            models.CheckConstraint(
                condition=~Q(kind="promote") | (Q(proposed_by__isnull=False) & ~Q(proposed_by=F("approved_by"))),
                name="promotion_needs_four_eyes",
            ),
            models.CheckConstraint(
                condition=~Q(kind="promote") | Q(candidate__isnull=False), name="promotion_needs_evidence"
            ),
        ]

    def __str__(self) -> str:
        return f"promotion {self.pk}"
