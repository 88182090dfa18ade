"""Which sessions of an agent a candidate answers, beside its live version."""

from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from flywheel.agents.models.agents import Agent
from flywheel.agents.models.versions import Version
from flywheel.core.evidence.ramp.ramp_plan import WHOLE


class Split(models.Model):
    """A share of an agent's sessions that its candidate answers while the lease holds.

    Only `promotions.ramps` moves it, by compare-and-set on `generation`. Whoever cannot see that the lease holds sends
    everybody to the live version.
    """

    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="splits")
    live = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="+")
    """The agent's live version when it was made; where that has moved, but to the candidate, the split is over."""
    candidate = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="splits")
    share = models.PositiveIntegerField(default=0)
    """Of `WHOLE` sessions, those that meet the candidate; who has met an arm keeps it while this is above 0."""
    salt = models.CharField(max_length=64)
    """Key of the hash by which a session falls to an arm."""
    generation = models.PositiveIntegerField(default=1)
    served = models.JSONField(default=dict, blank=True)
    """`{version's pk: name}`, under which the vLLM server of this installation answers for either."""
    lease_until = models.DateTimeField()
    created_at = models.DateTimeField(default=timezone.now)
    closed_at = models.DateTimeField(null=True, blank=True)
    is_holdback = models.BooleanField(default=False)
    """Whether the candidate is the agent's live version by now, and the rest of the sessions are held back with the one
    before (`live`). Where the share is 0 then, the version before answers everybody."""

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["agent"], condition=Q(closed_at=None), name="split_one_open"),
            models.CheckConstraint(condition=Q(share__lte=WHOLE), name="split_share_of_whole"),
            models.CheckConstraint(condition=~Q(live=F("candidate")), name="split_two_versions"),
        ]

    def __str__(self) -> str:
        return f"split {self.pk} of {self.agent}"


class SplitUnit(models.Model):
    """A session that met an arm of a split: what the coin said, and once that is final, how it went.

    `name` is the session's id, the trace's, or for a conversation without either a digest of its beginning.
    """

    class Kind(models.TextChoices):
        SESSION = "session"
        TRACE = "trace"
        BEGINNING = "beginning"

    class Mixed(models.TextChoices):
        """Reasons to judge it in neither arm."""

        TWO_VERSIONS = "two_versions", "answered by both versions"
        NOT_GIVEN = "not_given", "answered by another version than that of its arm"
        CLAIMED = "claimed", "its traces do not carry the token of its assignment"
        EARLIER = "earlier", "begun before the ramp"

    split = models.ForeignKey(Split, on_delete=models.CASCADE, related_name="units", db_index=False)
    kind = models.CharField(max_length=16, choices=Kind)
    name = models.CharField(max_length=200)
    trace_id = models.CharField(max_length=64, blank=True)
    """Of its first call."""
    is_candidate = models.BooleanField()
    share = models.PositiveIntegerField()
    """The split's when the coin fell: what the judgement takes for the coin's chance."""
    is_assigned = models.BooleanField(default=False)
    """Whether its agent asked for its arm, and calls its model itself."""
    met_at = models.DateTimeField(default=timezone.now)
    number = models.PositiveIntegerField(null=True, blank=True)
    """In the order in which units became final, from 1; empty while the result is awaited, and for mixed ones."""
    frozen_at = models.DateTimeField(null=True, blank=True)
    """When its result became final, or that it is mixed."""
    look_at = models.DateTimeField(default=timezone.now)
    """When the judge looks at it again while its result is awaited."""
    mixed = models.CharField(max_length=16, choices=Mixed, blank=True)
    parts = models.JSONField(default=dict, blank=True)
    """By signal the part that went wrong, as `ramp_judge.Session.parts`."""
    wealth = models.JSONField(default=dict, blank=True)
    """Of each signal after it."""
    trajectories = models.PositiveIntegerField(default=0)
    """Of its judged part. While its result is awaited 0, unless it goes on for long or has very many: then those that
    were read."""
    overriding_calls = models.PositiveIntegerField(default=0)
    """Calls of its judged part in which the caller said something otherwise than the version."""
    overrides = models.JSONField(default=dict, blank=True)
    """By name, such as `temperature`, how many of those calls said that otherwise."""

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["split", "kind", "name"], name="split_unit_once"),
            models.UniqueConstraint(fields=["split", "number"], name="split_unit_number_once"),
        ]
        indexes = [
            models.Index(fields=["split", "look_at"], name="split_unit_awaited", condition=Q(frozen_at=None)),
            models.Index(fields=["trace_id"], name="split_unit_trace", condition=~Q(trace_id="")),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class NamedAnswer(models.Model):
    """An answer that a further call may name instead of repeating the conversation, and the unit that it was given to.

    Of the Responses API, where the caller names no session; kept while the split is open.
    """

    split = models.ForeignKey(Split, on_delete=models.CASCADE, related_name="+", db_index=False)
    name = models.CharField(max_length=64)
    """SHA-256 of the answer's name, in hex."""
    unit = models.ForeignKey(SplitUnit, on_delete=models.CASCADE, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["split", "name"], name="named_answer_once")]

    def __str__(self) -> str:
        return f"answer {self.name[:12]} of {self.split_id}"
