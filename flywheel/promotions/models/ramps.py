"""Releases by steps, and every change of one."""

from functools import cached_property

from django.db import models
from django.db.models import Q
from django.utils import timezone

from flywheel.accounts.models import User
from flywheel.agents.models import Agent, ShadowCopy, Split
from flywheel.core.evidence.ramp import ramp_plan
from flywheel.promotions.models.candidates import Candidate
from flywheel.promotions.models.promotions import Promotion


class Ramp(models.Model):
    """An approved candidate on its way to all sessions. Only `promotions.ramps` moves it, by compare-and-set on
    `generation`, each time with a `RampChange`."""

    class State(models.TextChoices):
        WAITING = "waiting", "about to begin"
        """Until the judge has seen it: without a judge the candidate answers nobody."""
        SHADOW = "shadow", "in the shadow"
        """The candidate answers copies of calls, and nobody gets its answers."""
        RUNNING = "running", "running"
        HOLDING = "holding", "on hold"
        FINISHED = "finished", "finished"
        TAKEN_BACK = "taken_back", "taken back"
        STOPPED = "stopped", "stopped"

    OPEN = (State.WAITING, State.SHADOW, State.RUNNING, State.HOLDING)
    SHADOWED = -1
    """The stage before the first one, where the plan has a shadow."""

    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="ramps")
    candidate = models.ForeignKey(Candidate, on_delete=models.PROTECT, related_name="ramps")
    split = models.OneToOneField(Split, on_delete=models.PROTECT, related_name="ramp")
    after = models.ForeignKey("self", on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    """The earlier ramp of the same version that its approval names."""
    plan = models.JSONField()
    """As `core.evidence.ramp.ramp_plan.Plan`; part of what was approved."""
    state = models.CharField(max_length=16, choices=State, default=State.WAITING)
    stage = models.IntegerField(default=0)
    """Index of the present one of the plan's steps; `SHADOWED` in the shadow and while it is held there."""
    stage_since = models.DateTimeField(default=timezone.now)
    generation = models.PositiveIntegerField(default=1)
    agent_generation = models.PositiveIntegerField()
    """The agent's when it was approved: where that has moved, the ramp stops."""
    override = models.BooleanField(default=False)
    """Whether it was approved against the gate."""
    reason = models.TextField()
    approved_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    judgement = models.JSONField(default=dict, blank=True)
    """As `core.evidence.ramp.ramp_judge.Judgement`, after all units that are final."""
    finding = models.JSONField(default=dict, blank=True)
    """Why it is held, was taken back or stopped: `{"words", "signals", "doubts", "unit"}`, the last the
    number of the unit after which it was found; and the doubts that a person has `accepted`."""
    test_wanted_at = models.DateTimeField(null=True, blank=True)
    """Since when the judge waits for a self-test before it goes on; empty where it waits for none."""
    probes = models.JSONField(default=list, blank=True)
    """Questions of its self-tests, each with what both versions' own weights say: `{"messages", "answers": {version's
    pk: {"text", "calls", "tokens"}}}`. Computed once, for weights never change."""
    promotion = models.OneToOneField(Promotion, on_delete=models.PROTECT, null=True, blank=True, related_name="ramp")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["agent"],
                condition=Q(state__in=["waiting", "shadow", "running", "holding"]),
                name="ramp_one_open",
            )
        ]

    def __str__(self) -> str:
        return f"ramp {self.pk}"

    @cached_property
    def rules(self) -> ramp_plan.Plan:
        """The plan."""
        return ramp_plan.Plan.from_json(self.plan)

    @property
    def is_open(self) -> bool:
        return self.state in self.OPEN

    @property
    def place(self) -> str:
        """Where it is in its plan: `stage 2 of 3`."""
        if self.stage == self.SHADOWED:
            return "before the first stage"
        count = len(self.rules.stages)
        return "holdback" if self.stage >= count else f"stage {self.stage + 1} of {count}"

    @property
    def is_held_back(self) -> bool:
        """Whether the candidate is live, and the ramp goes on with the sessions that are held back."""
        return self.is_open and self.promotion_id is not None


class RampChange(models.Model):
    """One change of a ramp, append-only: a trigger refuses every update and delete."""

    ramp = models.ForeignKey(Ramp, on_delete=models.PROTECT, related_name="changes")
    generation = models.PositiveIntegerField()
    """The ramp's after it."""
    state = models.CharField(max_length=16, choices=Ramp.State)
    stage = models.IntegerField()
    share = models.PositiveIntegerField()
    """The split's after it."""
    by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    """Empty where the judge made it."""
    reason = models.TextField()
    data = models.JSONField(default=dict, blank=True)
    """`Ramp.finding` after it: why it is held, was taken back or stopped."""
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["ramp", "generation"], name="ramp_change_once")]

    def __str__(self) -> str:
        return f"{self.ramp}: {self.reason}"


class SelfTest(models.Model):
    """Whether the servers of both arms answer with the weights of their versions, as they were asked at one time."""

    class Verdict(models.TextChoices):
        PASSED = "passed"
        FAILED = "failed"
        NOT_TESTED = "not_tested", "not tested"
        """Of one arm at least nothing can be said, and the other shows nothing wrong."""

    ramp = models.ForeignKey(Ramp, on_delete=models.CASCADE, related_name="self_tests")
    at = models.DateTimeField(default=timezone.now)
    """When it began."""
    stage = models.IntegerField()
    """Index of the stage in which it was made."""
    verdict = models.CharField(max_length=16, choices=Verdict)
    arms = models.JSONField()
    """By arm, live first: `{"arm", "version", "verdict", "words", "evidence"}`, the last the wrong answers as
    `{"question", "own", "server"}`."""

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["ramp", "-at"], name="self_test_newest")]

    def __str__(self) -> str:
        return f"self-test of {self.ramp}: {self.get_verdict_display()}"

    @property
    def words(self) -> str:
        """The findings in words, beginning with what went wrong."""
        order = {self.Verdict.FAILED: 0, self.Verdict.NOT_TESTED: 1}
        rows = sorted(self.arms, key=lambda row: order.get(row["verdict"], 2))
        return "; ".join(f"{row['version']}: {row['words']}" for row in rows)


class ShadowVerdict(models.Model):
    """A person's word on two answers to one call; the newest of a copy is what counts."""

    class Verdict(models.TextChoices):
        CANDIDATE = "candidate", "the candidate's is better"
        LIVE = "live", "the live version's is better"
        BOTH = "both", "both are fine"
        WRONG = "wrong", "the candidate's is wrong"

    copy = models.ForeignKey(ShadowCopy, on_delete=models.CASCADE, related_name="verdicts")
    verdict = models.CharField(max_length=16, choices=Verdict)
    note = models.TextField(blank=True)
    by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.copy}: {self.verdict}"
