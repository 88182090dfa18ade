"""The append-only log of promotions."""

from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from flywheel.accounts.models import User
from flywheel.agents.models import Agent, Version
from flywheel.promotions.models.candidates import Candidate


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
    candidate = models.ForeignKey(Candidate, on_delete=models.PROTECT, null=True, blank=True, related_name="promotions")
    again = models.ForeignKey("promotions.Ramp", on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    """The last ramp of the version, which is over and which the approval names: so a candidate that was taken back
    after it had gone live has another promotion."""
    proposed_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    approved_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    against_the_gate = models.BooleanField(default=False)
    suites = models.JSONField(default=list, blank=True)
    """What the agent's regression suites said when it was approved, `suite_standings.snapshot`."""
    sealed = models.JSONField(default=dict, blank=True)
    """How it stood at the sealed part of its set then, `sealed_comparison.Comparison.snapshot`; empty where that has
    none."""
    claims = models.JSONField(default=dict, blank=True)
    """By signal the share of the sessions that goes wrong at most while its version is live, `promotion_claims`:
    `{"unsafe": 0.01, "bucket:wrong_tool": 0.02}`. Empty for a rollback and a first version, which claim nothing."""
    reason = models.TextField()
    """Empty for a rollback of which it was not said at once; then `late_reason` may follow."""
    created_at = models.DateTimeField(default=timezone.now)
    unserved = ""
    """Why no server answers with it, told to whoever just made the move; the audit log keeps it."""

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["agent", "generation"], name="promotion_one_per_generation"),
            models.UniqueConstraint(
                fields=["candidate", "again"],
                condition=Q(candidate__isnull=False),
                nulls_distinct=False,
                name="promotion_once_per_approval",
            ),
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

    @property
    def why(self) -> str:
        """The reason, at once or later; empty while nobody has said it."""
        return self.reason or (self.late_reason.text if hasattr(self, "late_reason") else "")


class LateReason(models.Model):
    """Why a version was rolled back, said once the emergency was over; append-only as the promotion."""

    promotion = models.OneToOneField(Promotion, on_delete=models.PROTECT, related_name="late_reason")
    text = models.TextField()
    by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"reason of {self.promotion}"
