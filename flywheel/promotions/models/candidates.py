"""Candidates with their evidence."""

from django.db import models
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.agents.models import Agent, Version
from flywheel.evals.models import EvalRun, Result
from flywheel.promotions.models.policies import Policy
from flywheel.training.models import TrainingRun


class Candidate(models.Model):
    """A version put forward against the one that was live, with the evidence and the gate's verdict."""

    class State(models.TextChoices):
        WAITING = "waiting", "waiting for an approver"
        RAMPING = "ramping", "being released by steps"
        PROMOTED = "promoted"
        REJECTED = "rejected"
        TAKEN_BACK = "taken_back", "taken back"
        """Its ramp found harm. Only an approval that names that ramp lets it out again."""
        STOPPED = "stopped", "ramp stopped"
        """A person stopped its ramp, or the live version moved meanwhile."""
        VOID = "void"
        """The evidence no longer fits: another version went live meanwhile."""

    UNDECIDED = (State.WAITING, State.TAKEN_BACK, State.STOPPED)
    """An approver can let it out: one whose ramp was taken back or stopped by naming that ramp."""

    class Verdict(models.TextChoices):
        ELIGIBLE = "eligible"
        NOT_SHOWN = "not_shown", "not shown to be better"
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
    """`{"comparison", "decision"}` as `core.evidence.statistics.arm_comparison` and `core.evidence.gate` made them."""
    report_digest = models.CharField(max_length=64)
    verdict = models.CharField(max_length=16, choices=Verdict)
    state = models.CharField(max_length=16, choices=State, default=State.WAITING)
    proposed_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    """Who launched what made it."""
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["version_eval", "baseline_eval", "policy"], name="candidate_once")
        ]

    def __str__(self) -> str:
        return f"candidate {self.pk}"


class Harmless(models.Model):
    """A person looked at an attempt's never event and saw no harm in it: the verifier was wrong, or nobody minds."""

    result = models.OneToOneField(Result, on_delete=models.CASCADE, related_name="harmless")
    reason = models.TextField()
    by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name_plural = "harmless"

    def __str__(self) -> str:
        return f"no harm in {self.result}"
