"""Reward audits: what people say of outputs that a verifier or a reward recipe judged, before anything is trained on
its verdicts."""

from django.db import models
from django.db.models import Q
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.agents.models import Version
from flywheel.environments.models import EnvironmentVersion, RewardRecipe
from flywheel.evals.models.rescores import Rescore, Rescored
from flywheel.evals.models.runs import Result


class RewardAudit(models.Model):
    """Outputs of one eval on train tasks, judged by people who do not see the verdicts until it is finished.

    A trigger refuses every change after that.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="reward_audits")
    run = models.ForeignKey("evals.EvalRun", on_delete=models.PROTECT, related_name="reward_audits")
    """Says whose outputs they are, and by its verifier digest who judged them."""
    rescore = models.ForeignKey(Rescore, on_delete=models.PROTECT, null=True, blank=True, related_name="reward_audits")
    """In which a reward recipe judged them; None for an audit of the verifier."""
    seed = models.PositiveIntegerField()
    """The items were drawn with it."""
    renews = models.ForeignKey("self", on_delete=models.PROTECT, null=True, blank=True, related_name="renewals")
    """The green audit of the version that this one's was trained from; None for an audit that stands by itself."""
    result = models.JSONField(default=dict, blank=True)
    """`core.evidence.reward_audit_rule.Finding` as a dict, written once at the end."""
    is_green = models.BooleanField(null=True)
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    finished_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(finished_at=None, is_green=None) | Q(finished_at__isnull=False, is_green__isnull=False),
                name="reward_audit_has_a_verdict_once_finished",
            )
        ]

    def __str__(self) -> str:
        return f"reward audit {self.pk}"

    @property
    def recipe(self) -> RewardRecipe | None:
        """Whose verdicts are audited, where they are not the verifier's."""
        return self.rescore.recipe if self.rescore else None

    @property
    def verifier_digest(self) -> str:
        return self.rescore.verifier_digest if self.rescore else self.run.verifier_digest


class RewardAuditItem(models.Model):
    """One output of an audit and what a person said of it."""

    class Answer(models.TextChoices):
        PASS = "pass", "pass"
        FAIL = "fail", "fail"
        CANNOT_TELL = "cannot_tell", "cannot tell"

    audit = models.ForeignKey(RewardAudit, on_delete=models.CASCADE, related_name="items")
    place = models.PositiveSmallIntegerField()
    """In the order in which people see them, from 1."""
    result = models.ForeignKey(Result, on_delete=models.CASCADE, related_name="audit_items")
    rescored = models.ForeignKey(Rescored, on_delete=models.CASCADE, null=True, blank=True, related_name="audit_items")
    """The verdict of the recipe, in an audit of one."""
    answer = models.CharField(max_length=16, choices=Answer, blank=True)
    note = models.TextField(blank=True)
    judged_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    judged_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["audit", "place"]
        constraints = [
            models.UniqueConstraint(fields=["audit", "place"], name="reward_audit_place_once"),
            models.UniqueConstraint(fields=["audit", "result"], name="reward_audit_result_once"),
            models.CheckConstraint(
                condition=Q(answer="", judged_at=None) | (~Q(answer="") & Q(judged_at__isnull=False)),
                name="reward_audit_item_judged_at",
            ),
        ]

    def __str__(self) -> str:
        return f"item {self.place} of {self.audit}"

    @property
    def verdict(self) -> Result | Rescored:
        """The verdict that is audited."""
        return self.rescored or self.result


class AuditOverride(models.Model):
    """Leave to train on a reward whose audit is not green; a trigger refuses every change."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="audit_overrides")
    version = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="+")
    environment_version = models.ForeignKey(EnvironmentVersion, on_delete=models.PROTECT, related_name="+")
    verifier_digest = models.CharField(max_length=64)
    """It holds for exactly these three, as a green audit does."""
    reason = models.TextField()
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"override {self.pk}"
