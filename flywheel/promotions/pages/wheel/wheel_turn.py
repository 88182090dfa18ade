"""The wheel as it stands: what has gone through each of its stages in the open turn, and the one act that turns it
further."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from django.urls import reverse

from flywheel.accounts.models import Permission, Project
from flywheel.edge.jobs import State
from flywheel.environments.models import Task
from flywheel.promotions.lineage.levels import Count
from flywheel.promotions.models import Candidate, Ramp
from flywheel.promotions.pages.ramp_context import open_ramps
from flywheel.promotions.ramps.ramp_words import standing_words
from flywheel.promotions.turns.stations import station_of
from flywheel.promotions.turns.turn_bounds import Turn
from flywheel.training.models import TrainingRun

AROUND: Final = 360
"""Degrees, of which each stage has an equal part of the ring."""
GAP: Final = 6


RAMPS: Final = "It goes on along its plan, and is taken back if it does harm."


@dataclass(frozen=True, slots=True)
class Act:
    """Something that turns the wheel further."""

    stage: str
    words: str
    why: str
    button: str
    url: str
    permission: Permission
    is_yours: bool = False

    @property
    def who(self) -> str:
        return DOERS[self.permission]


@dataclass(frozen=True, slots=True)
class Stage:
    key: str
    label: str
    count: Count
    url: str
    state: str
    """`now` where the next act is, `done` where something has gone through, else `todo`."""
    begin: int
    """Degrees from the top at which its arc begins, clockwise."""

    arc: ClassVar[int] = AROUND // 6 - GAP
    """Degrees of its arc."""


DOERS = {
    Permission.VIEW: "anyone",
    Permission.REVIEW: "reviewers",
    Permission.BUILD: "builders",
    Permission.TRAIN: "trainers",
    Permission.APPROVE: "approvers",
}


def wheel_of(
    project: Project, turn: Turn | None, permissions: Container[str], counts: Mapping[str, int]
) -> tuple[list[Stage], Act]:
    """Return the six stages of the turn, none where there is no agent yet, and the next act, one that the viewer may do
    where there is any. `counts` is what waits, as `overview.waiting_counts` has it."""
    acts = list(_acts(project, counts))
    mine = next((act for act in acts if act.permission in permissions), None)
    act = replace(mine, is_yours=True) if mine else acts[0]
    return [] if turn is None else list(_stages(project, turn, act.stage)), act


STAGES: Final = (
    ("runs", "run", "runs", "trajectories"),
    ("failures", "failure", "failures", "failures"),
    ("tasks", "task", "tasks", "tasks"),
    ("training", "training run", "training runs", "runs"),
    ("candidates", "candidate", "candidates", "comparisons"),
    ("live", "ramp", "ramps", "ramps"),
)
"""Each stage, one and several of what goes through it, and the station of the turn that lists it."""


def _stages(project: Project, turn: Turn, now: str) -> Iterable[Stage]:
    address = reverse("promotions:turn", args=[project.slug, turn.agent.name, turn.number])
    for place, (key, one, many, station) in enumerate(STAGES):
        count = station_of(station).counted(turn)
        yield Stage(
            key,
            one if count.number == 1 else many,
            count,
            f"{address}?station={station}",
            "now" if key == now else "done" if count.number else "todo",
            place * AROUND // len(STAGES) + GAP // 2,
        )


def _acts(project: Project, counts: Mapping[str, int]) -> Iterable[Act]:
    """Yield what could be done, that which is nearest to a better version first; the last can always be done."""

    def at(page: str, *rest: int) -> str:
        return reverse(page, args=[project.slug, *rest])

    ramp = next(iter(open_ramps(project)), None)
    if ramp is not None:
        version = ramp.candidate.version
        held = ramp.state == Ramp.State.HOLDING
        yield Act(
            "live",
            f"Decide on {version}" if held else f"{version}: {standing_words(ramp)}",
            f"Its ramp is on hold: {ramp.finding['words']}." if held and ramp.finding.get("words") else RAMPS,
            "Open the ramp",
            at("promotions:ramp", ramp.pk),
            Permission.APPROVE if held else Permission.VIEW,
        )
    waiting = Candidate.objects.filter(project=project, state=Candidate.State.WAITING).select_related("version__agent")
    if (candidate := waiting.first()) is not None:
        verdict = candidate.get_verdict_display()
        yield Act(
            "candidates",
            f"Decide on {candidate.version}",
            f"The gate says: {verdict}. An approver decides.",
            "Open the candidate",
            at("promotions:candidate", candidate.pk),
            Permission.APPROVE,
        )
    runs = TrainingRun.objects.filter(project=project)
    if (run := runs.filter(state__in=[State.QUEUED, State.RUNNING]).order_by("pk").first()) is not None:
        words = f"{run} is {'training' if run.state == State.RUNNING else 'queued'}"
        why = "It becomes a candidate when it ends."
        yield Act("training", words, why, "Watch it", at("training:run", run.pk), Permission.VIEW)
    if count := counts["proposals"]:
        words = f"Review {count:,} proposed {'failure' if count == 1 else 'failures'}"
        why = "Detectors found them. Each one that you confirm can become a test."
        yield Act("failures", words, why, "Review", at("failures:queue"), Permission.REVIEW)
    if count := counts["failures"]:
        words = f"Turn {count:,} {'failure' if count == 1 else 'failures'} into tests"
        why = "They are labelled, and no task checks them yet."
        yield Act("tasks", words, why, "Choose an environment", at("environments:index"), Permission.BUILD)
    newest = runs.order_by("-pk").first()
    tasks = Task.objects.filter(project=project, retired_at=None, is_proved=True)
    fresh = tasks.filter(created_at__gt=newest.created_at) if newest else tasks
    if count := fresh.count():
        words = f"Learn from {count:,} new {'task' if count == 1 else 'tasks'}"
        why = "Try a change of the prompt first, or train."
        yield Act("training", words, why, "Find the lightest fix", at("training:launch"), Permission.TRAIN)
    yield Act(
        "runs",
        "All caught up",
        "New runs bring new failures.",
        "Look at production",
        at("trajectories:metrics"),
        Permission.VIEW,
    )
