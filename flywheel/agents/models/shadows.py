"""Copies of the live version's calls that a candidate answers before anybody gets its answers."""

from django.db import models
from django.utils import timezone

from flywheel.agents.models.splits import Split, SplitUnit


class Shadow(models.Model):
    """The budget of a split's copies, what is used of it, and whether copies are made now.

    Only `promotions.ramps` switches it; the gateway counts. No copy is made where the split's lease does not hold.
    """

    split = models.OneToOneField(Split, on_delete=models.CASCADE, related_name="shadow")
    is_on = models.BooleanField(default=False)
    calls = models.PositiveIntegerField()
    """The most copies."""
    tokens = models.PositiveBigIntegerField(null=True, blank=True)
    dollars = models.FloatField(null=True, blank=True)
    """The most that copies may use and cost together; None where nobody minds."""
    copies = models.PositiveIntegerField(default=0)
    """That were sent."""
    skipped = models.PositiveIntegerField(default=0)
    """Calls of which no copy was made: the process or the gateway had too much to do, or the server would have carried
    something out."""
    tokens_used = models.PositiveBigIntegerField(default=0)
    dollars_used = models.FloatField(default=0.0)

    def __str__(self) -> str:
        return f"shadow of {self.split}"

    @property
    def is_spent(self) -> bool:
        """Whether the budget is used up. A limit in tokens or dollars may be passed by the copies under way."""
        return (
            self.copies >= self.calls
            or (self.tokens is not None and self.tokens_used >= self.tokens)
            or (self.dollars is not None and self.dollars_used >= self.dollars)
        )


class ShadowCopy(models.Model):
    """A call of the live version, and the candidate's answer to a copy of it."""

    class State(models.TextChoices):
        SENT = "sent", "on its way"
        COMPARED = "compared", "compared"
        LOST = "lost", "lost"
        """One of the two answers was never stored: its process ended, or it was not kept."""

    split = models.ForeignKey(Split, on_delete=models.CASCADE, related_name="copies", db_index=False)
    kind = models.CharField(max_length=16, choices=SplitUnit.Kind)
    name = models.CharField(max_length=200)
    """The session, as of a `SplitUnit`: what is counted."""
    trace_id = models.CharField(max_length=64)
    span_id = models.CharField(max_length=64)
    """Of the live version's call."""
    copy_trace_id = models.CharField(max_length=64)
    """Of the candidate's answer, a trajectory with the source `shadow`."""
    at = models.DateTimeField(default=timezone.now)
    state = models.CharField(max_length=16, choices=State, default=State.SENT)
    differs = models.BooleanField(default=False)
    """Whether the two ask for different things, or only one of the two is in order."""
    pair = models.JSONField(default=dict, blank=True)
    """As `promotions.ramps.shadow_pairs.Pair`, once both answers are there."""

    class Meta:
        verbose_name_plural = "shadow copies"
        indexes = [
            models.Index(fields=["split", "state", "-id"], name="shadow_copy_listed"),
            models.Index(fields=["split", "name"], name="shadow_copy_named"),
            models.Index(fields=["trace_id"], name="shadow_copy_trace"),
            models.Index(fields=["split", "-id"], name="shadow_copy_differs", condition=models.Q(differs=True)),
        ]

    def __str__(self) -> str:
        return f"copy {self.pk}"
