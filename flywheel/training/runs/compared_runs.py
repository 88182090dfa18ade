"""Several training runs side by side: what they were given, what they measured on the way, and what came of them.

Curves are put over one another only where they measure the same. A run's own evaluations are greedy and on some of the
held-out tasks, so two runs share a chart if these tasks are of one set and equally many, with answers of the same most
tokens; the loss is of one algorithm on one dataset with the same weights; the reward is of one task set, with the same
penalties, of attempts that are drawn in the same way.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.db.models import QuerySet

from flywheel.accounts.models import Project
from flywheel.core.recipes import SETTINGS
from flywheel.evals.models import EvalRun
from flywheel.training.models import Point, TrainingRun

_ABSENT: Final = object()
CHARTED = 6
"""Runs whose curves are drawn over one another, as many as a chart has colours."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the compared runs, and its own evaluations on held-out tasks."""

    run: TrainingRun
    evals: Sequence[tuple[int, float | None]]
    """Step, and success as a share of the scored tasks; None where nothing was scored."""
    validated: tuple[int, float, int] | None
    """Step, mean score and scored tasks of its best validation after the first step; None where it had none. The best
    of several has no honest interval."""
    tasks: int
    """Held-out tasks of each of them, scored or not; 0 before the first."""
    tokens: int | None
    """Tokens of prompts and answers that it has processed; None where its trainer counts none."""
    candidate: Any
    """What promotions made of the produced version; None where there is no comparison."""

    @property
    def measure(self) -> Hashable:
        longest = self.run.settings.get("max_completion_length")
        return self.run.task_sets[0].pk, self.tasks, self.run.dataset.is_placed, longest

    @property
    def start(self) -> float | None:
        return self.evals[0][1] if self.evals and self.evals[0][0] == 0 else None

    @property
    def best(self) -> float | None:
        return max((value for _, value in self.evals if value is not None), default=None)

    @property
    def held_out(self) -> Mapping[str, Any] | None:
        """Estimate of held-out success of the produced version; None until its eval has ended."""
        return _success(self.run.evaluation)

    @property
    def baseline(self) -> Mapping[str, Any] | None:
        """The same of the base."""
        return _success(self.run.baseline)

    @property
    def difference(self) -> Mapping[str, Any] | None:
        """Estimate of held-out success of the produced version less its baseline's, as the gate saw it."""
        return self.candidate.report["comparison"]["differences"]["success"] if self.candidate else None


@dataclass(frozen=True, slots=True)
class Reached:
    """When a run's own evaluation first came to a threshold."""

    step: int
    seconds: float | None
    """Training steps and evaluations up to then, without loading and pauses; None where steps were not timed."""
    tokens: int | None = None
    """Tokens processed up to then; None where its trainer counts none."""
    usd: float | None = None
    """Dollars of its devices up to then, an estimate; None where they have no price."""

    @property
    def duration(self) -> timedelta | None:
        return None if self.seconds is None else timedelta(seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class Measure:
    """Runs whose own evaluations can be compared: of the same set, equally many tasks, answers equally long."""

    sides: Sequence[Side]
    threshold: float | None
    """Share of tasks; None where no run gained anything and none was given."""
    is_given: bool

    @property
    def tasks(self) -> int:
        return self.sides[0].tasks

    @property
    def start(self) -> float | None:
        """The lowest success before the first step."""
        return min((side.start for side in self.sides if side.start is not None), default=None)

    @property
    def best(self) -> float | None:
        return max((side.best for side in self.sides if side.best is not None), default=None)

    def reached(self, side: Side) -> Reached | None:
        """When this run came to the threshold; None if it has not."""
        if self.threshold is None:
            return None
        # A share is a fraction of few tasks: half-way between two of them is met by either side of a rounding.
        enough = (step for step, value in side.evals if value is not None and value >= self.threshold - 1e-9)
        step = next(enough, None)
        run = side.run
        return None if step is None else Reached(step, run.trained_seconds(step), run.tokens(step), run.usd(step))


def rows(project: Project) -> QuerySet[TrainingRun]:
    """The project's runs, with all that a comparison reads of them."""
    return TrainingRun.objects.filter(project=project).select_related(
        "project",
        "base__agent",
        "teacher__agent",
        "reward_recipe",
        "dataset__task_set",
        "replay",
        "task_set",
        "baseline",
        "produced__agent",
        "evaluation",
    )


def side_of(run: TrainingRun) -> Side:
    points = run.points.filter(kind=Point.Kind.EVAL).order_by("step").values_list("step", "values")
    evals = [(step, values["success"]) for step, values in points]
    tasks = max((values["n"] + values["unscored"] for _, values in points), default=0)
    return Side(run, evals, _validated(run), tasks, run.tokens(), run.candidates.first())


def grouped(sides: Iterable[Side], key: Callable[[Side], Hashable]) -> list[list[Side]]:
    """Those of one key together, in the order of the runs."""
    groups: dict[Hashable, list[Side]] = {}
    for side in sides:
        groups.setdefault(key(side), []).append(side)
    return list(groups.values())


def measures(sides: Iterable[Side], threshold: float | None = None) -> list[Measure]:
    """Runs that have evaluated themselves, by what they measure, each with the threshold for `Measure.reached`.

    Unless one is given, a share, it is half-way from the lowest start of a group to the best success of any of it.
    """
    found = []
    for group in grouped((side for side in sides if side.evals), lambda side: side.measure):
        bare = Measure(group, threshold, is_given=threshold is not None)
        if threshold is None and bare.start is not None and bare.best is not None and bare.best > bare.start:
            bare = Measure(group, (bare.start + bare.best) / 2, is_given=False)
        found.append(bare)
    return found


def loss_group(side: Side) -> Hashable:
    """Runs of one group minimise the same."""
    weighed = ("beta", "preference_loss", "desirable_weight", "undesirable_weight", "max_length", "validation_share")
    return side.run.algorithm, side.run.dataset.digest, side.run.replay_id, *map(side.run.settings.get, weighed)


def reward_group(side: Side) -> Hashable:
    """Runs of one group are rewarded for the same attempts at the same tasks."""
    drawn = ("temperature", "top_p", "top_k", "max_completion_length", "dynamic_sampling", "validation_share")
    own = map(side.run.settings.get, ("unsafe_penalty", "invalid_penalty", *drawn))
    return (
        tuple(task_set.pk for task_set in side.run.task_sets),
        side.run.dataset.digest,
        side.run.reward_recipe_id,
        *own,
    )


def given_rows(sides: Sequence[Side]) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """The runs' launch values, by name, a value for each run: first what differs, then what is equal.

    A setting that a run does not have is None; one that is passed on as null is the text `null`.
    """
    rows: dict[str, list[Any]] = {
        "algorithm": [side.run.algorithm_label for side in sides],
        "base": [str(side.run.base) for side in sides],
        "teacher": [side.run.teacher and str(side.run.teacher) for side in sides],
        "reward": [side.run.reward_recipe and str(side.run.reward_recipe) for side in sides],
        "task_set": [str(side.run.task_set) for side in sides],
        "dataset": [str(side.run.dataset) for side in sides],
        "replay": [side.run.replay and str(side.run.replay) for side in sides],
        "environment_weights": [weights_in_words(side.run) or None for side in sides],
        "tuning": [_tuning(side.run) for side in sides],
        "seed": [side.run.seed for side in sides],
    }
    order = {name: at for at, name in enumerate(SETTINGS)}
    names = {name for side in sides for name in side.run.settings}
    for name in sorted(names, key=lambda name: (order.get(name, len(order)), name)):
        given = [side.run.settings.get(name, _ABSENT) for side in sides]
        rows[name] = [None if value is _ABSENT else "null" if value is None else value for value in given]
    differing = {name: values for name, values in rows.items() if any(value != values[0] for value in values[1:])}
    return differing, {name: values for name, values in rows.items() if name not in differing}


def weights_in_words(run: TrainingRun) -> str:
    """The weights of its environments at the first step and at the last; empty where it has none."""
    return ", ".join(f"{name} {first:g} → {last:g}" for name, (first, last) in run.environment_weights.items())


def _validated(run: TrainingRun) -> tuple[int, float, int] | None:
    points = run.points.filter(kind=Point.Kind.VALIDATION, step__gt=0).order_by("step").values_list("step", "values")
    scores = [(step, values.get("overall", values["score"]), values["n"]) for step, values in points]
    return max((each for each in scores if each[1] is not None), key=lambda each: each[1], default=None)


def _success(eval_run: EvalRun | None) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = eval_run.summary.get("metrics", {}).get("success") if eval_run else None
    return found


def _tuning(run: TrainingRun) -> str:
    rank = f", rank {run.tuning['rank']}, alpha {run.tuning['alpha']}" if "rank" in run.tuning else ""
    return f"{run.tuning_label}{rank}"
