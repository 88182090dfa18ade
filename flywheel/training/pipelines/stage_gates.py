"""The gate between two stages: what the run before, or the draft, must have reached for the next to begin.

It looks at validation alone, which is of training tasks that the run kept aside: held-out tasks measure the result and
choose nothing, and whether to go on is a choice. Of a run on several environments each must pass. A share is compared
as it was measured, with its number of tasks beside it: the gate saves time that would be wasted, and is no evidence of
a gain, which the comparison at the end gives with its intervals.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.core.envs.kinds import KINDS
from flywheel.core.text.number_words import n_tasks, percent
from flywheel.edge.refusals import Refused
from flywheel.environments.models import TaskSet
from flywheel.training.launch.validation_split import choose_tasks
from flywheel.training.models import Point, TrainingRun

FORMS = ("valid_json", "form")
"""Parts of a verdict that tell whether the agent's program can read an answer."""

Figures = Mapping[str, Any]
"""Of one environment at one validation, as a point has them."""


@dataclass(frozen=True, slots=True)
class Limit:
    label: str
    is_least: bool
    """Whether the share must be at least the limit; else at most."""
    read: Callable[[Figures], float | None]
    """The share, from 0 to 1; None where it was not measured."""

    def holds(self, share: float, limit: float) -> bool:
        return share >= limit - 1e-9 if self.is_least else share <= limit + 1e-9


def _success(figures: Figures) -> float | None:
    return _of_all(figures, figures.get("success"))


def _readable(figures: Figures) -> float | None:
    shares = (figures["parts"][name] for name in FORMS if name in figures.get("parts", {}))
    return _of_all(figures, min(shares, default=None))


def _of_all(figures: Figures, share: float | None) -> float | None:
    """A share of the scored tasks as one of all: nobody knows the others to be right."""
    if share is None or not figures.get("unscored"):
        return share
    scored, unscored = float(figures["n"]), float(figures["unscored"])
    return share * scored / (scored + unscored)


def _unsafe(figures: Figures) -> float | None:
    share: float | None = figures.get("parts", {}).get("unsafe")
    return share


LIMITS = {
    "min_success": Limit("validation success", True, _success),
    "min_format": Limit("readable answers", True, _readable),
    "max_unsafe": Limit("unsafe attempts", False, _unsafe),
}
"""What a gate can ask, by the name that the API and the form give it."""


def check_gate(gate: Mapping[str, Any], *, validation_share: float, task_sets: list[TaskSet]) -> dict[str, float]:
    """The limits that are set, as shares, if the run before them can be measured so. Raises Refused at `gate`."""
    if unknown := sorted(set(gate) - LIMITS.keys()):
        raise Refused(f"is unknown; use {', '.join(LIMITS)}", field=f"gate.{unknown[0]}")
    limits = {name: value for name, value in gate.items() if value is not None}
    for name, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise Refused(f"{value!r} is not a share from 0 to 1", field=f"gate.{name}")
    if not limits:
        return {}
    if not validation_share:
        raise Refused(
            "the stage before keeps no tasks to validate on; set its validation_share above 0, or set no limit",
            field="gate",
        )
    if not any(choose_tasks(task_set, validation_share, seed=1) for task_set in task_sets):
        raise Refused(
            f"the train tasks of {task_sets[0]} come from a single source, so the stage before keeps none to validate "
            "on; set no limit, or choose a set of tasks from more sources",
            field="gate",
        )
    for task_set in task_sets:
        version = task_set.environment_version
        if "max_unsafe" in limits and not KINDS[version.environment.kind].tells_unsafe:
            raise Refused(f"nothing in {version} is ever called unsafe; leave it out", field="gate.max_unsafe")
    return {name: float(value) for name, value in limits.items()}


def judge(gate: Mapping[str, float], run: TrainingRun) -> list[dict[str, Any]]:
    """Each limit beside what the weights that the run kept reached, as `judge_figures` has it."""
    point = _kept_point(run) if gate else None
    return judge_figures(gate, [point.values, *point.values.get("environments", {}).values()] if point else [])


def judge_figures(gate: Mapping[str, float], every: Sequence[Figures]) -> list[dict[str, Any]]:
    """Each limit beside the figures of every environment: `{"name", "label", "is_least", "limit", "share", "n",
    "holds"}`. A share that was not measured is None and does not hold."""
    scored, unscored = (sum(figures.get(name, 0) for figures in every) for name in ("n", "unscored"))
    checks = []
    for check in limits_of(gate):
        found = LIMITS[check["name"]]
        shares = [share for figures in every if (share := found.read(figures)) is not None]
        share = (min if found.is_least else max)(shares) if shares else None
        holds = share is not None and found.holds(share, check["limit"])
        n = scored + unscored if found.is_least else scored
        checks.append({**check, "share": share, "n": n, "holds": holds})
    return checks


def limits_of(gate: Mapping[str, float]) -> list[dict[str, Any]]:
    """The limits that are set, always in the same order: `{"name", "label", "is_least", "limit"}`."""
    return [
        {"name": name, "label": limit.label, "is_least": limit.is_least, "limit": gate[name]}
        for name, limit in LIMITS.items()
        if name in gate
    ]


def sentence(checks: list[dict[str, Any]]) -> str:
    """Every limit that does not hold: "validation success: 43% of 20 tasks, at least 60% is required"."""
    return "; ".join(_fault(check) for check in checks if not check["holds"])


def _fault(check: Mapping[str, Any]) -> str:
    wanted = f"{'at least' if check['is_least'] else 'at most'} {_exact(check['limit'])} is required"
    if check["share"] is None:
        return f"{check['label']}: not measured, {wanted}"
    return f"{check['label']}: {_exact(check['share'])} of {n_tasks(check['n'])}, {wanted}"


def _exact(share: float) -> str:
    """With a place more where the whole number would round it, so that 59.6% never reads as 60%."""
    return percent(share, 0 if abs(100 * share - round(100 * share)) < 1e-6 else 1)


def _kept_point(run: TrainingRun) -> Point | None:
    """The validation of the weights that became the version: of the step that was chosen, else of the last."""
    points = run.points.filter(kind=Point.Kind.VALIDATION).order_by("-step")
    return points.first() if run.chosen_step is None else points.filter(step=run.chosen_step).first()
