"""Contents of the page of a run's rollouts: the selection as far as a page may compute it, its histogram, its list."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any, Final

from flywheel.edge.numbers import number
from flywheel.edge.paging import Page
from flywheel.edge.refusals import Refused
from flywheel.evals.models import EvalRun
from flywheel.training.datasets import contamination_checks
from flywheel.training.datasets.dataset_files import Draft
from flywheel.training.rollouts.rollout_choice import Choice, read
from flywheel.training.rollouts.rollout_datasets import choose, draft, too_long
from flywheel.training.rollouts.rollout_selection import DROPPED, LOOKED_AT, UNSCORED, Rollout, Selection, rollouts_of

LISTED: Final = 50
SHOW: Final = {"kept": "kept", "left": "left out", "unscored": "unscored", "dropped": "dropped by hand", "all": "all"}


@dataclass(slots=True)
class Shown:
    """A run's rollouts under a choice."""

    choice: Choice
    errors: dict[str, str]
    rollouts: list[Rollout]
    selection: Selection
    draft: Draft | None
    problem: str
    """Why the choice gives no rows."""
    blocked: str
    """Why these rows may not be trained on."""
    verdict: str
    """Of contamination; empty where there are no rows, or too many to look while a page waits."""

    @property
    def parts(self) -> list[str]:
        """Names that conditions can have."""
        return sorted({name for rollout in self.rollouts[:200] for name in rollout.parts})

    def row(self, rollout: Rollout) -> SimpleNamespace:
        """A rollout as a list shows it: with the step at which it was left out, and the one that it nearly repeats."""
        left_out = self.selection.left.get(rollout.pk, "")
        why = next((step.words for step in self.selection.steps if step.name == left_out), "")
        pk, likeness = self.selection.alike.get(rollout.pk, (None, None))
        twin = next((each for each in self.rollouts if each.pk == pk), None)
        like = twin.trace_id if twin else ""
        return SimpleNamespace(rollout=rollout, left_out=left_out, why=why, twin=twin, likeness=likeness, like=like)


def shown(run: EvalRun, given: Mapping[str, str]) -> Shown:
    """The rollouts under what the address says. A choice that is wrong is told, and the default shown instead.

    Raises NotForTraining.
    """
    names = {field.name for field in fields(Choice)}
    errors = {}
    try:
        choice = read({name: value for name, value in given.items() if name in names})
    except Refused as error:
        choice, errors = Choice(), {error.field: error.problem}
    rollouts = rollouts_of(run)
    found = choose(rollouts, choice, most=LOOKED_AT)
    made, problem, verdict, blocked = None, too_long(found, choice), "", ""
    if not problem and found.is_compared and len(rollouts) <= LOOKED_AT:
        try:
            made, _ = draft(run, choice, found)
        except Refused as error:
            problem = error.problem
    reports = contamination_checks.preview(made.rows, run.task_set) if made else None
    if reports:
        own = reports[run.task_set]
        verdict, blocked = own.verdict, contamination_checks.refusal(own, run.task_set)
    return Shown(choice, errors, rollouts, found, made, problem, blocked, verdict)


def listed(found: Shown, show: str, cursor: str, limit: int = LISTED) -> Page[Any]:
    """A page of those that are wanted, by task and sample; a cursor is the place in that order where it begins."""
    left = found.selection.left
    wanted: dict[str, Callable[[Rollout], bool]] = {
        "kept": lambda rollout: rollout.pk not in left,
        "left": lambda rollout: left.get(rollout.pk) not in (None, UNSCORED, DROPPED),
        "unscored": lambda rollout: rollout.score is None,
        "dropped": lambda rollout: bool(rollout.why_dropped),
        "all": lambda _: True,
    }
    rows = [rollout for rollout in found.rollouts if wanted.get(show, wanted["kept"])(rollout)]
    after = _place(cursor)
    start = next((at for at, rollout in enumerate(rows) if (rollout.number, rollout.sample) > after), len(rows))
    before = rows[max(0, start - limit - 1)] if start > limit else None
    items = rows[start : start + limit]
    return Page(
        [found.row(rollout) for rollout in items],
        before=start,
        next_cursor=_cursor(items[-1]) if start + limit < len(rows) else "",
        previous_cursor="" if not start else _cursor(before) if before else "0.0",
        total=len(rows),
    )


def histogram(rollouts: list[Rollout], choice: Choice, run: EvalRun) -> dict[str, Any] | None:
    """Rewards of those that have one."""
    scored = [rollout.score for rollout in rollouts if rollout.score is not None]
    if not scored:
        return None
    chart: dict[str, Any] = {
        "kind": "histogram",
        "title": "Reward",
        "key": f"rewards-{run.pk}",
        "note": f"{len(scored)} scored rollouts",
        "x": {"title": "reward"},
        "y": {"title": "rollouts"},
        "series": [{"name": "rollouts", "role": "plain", "x": scored}],
        "height": "short",
    }
    if choice.form != "tasks" and choice.reward is not None:
        chart["marks"] = [{"x": choice.reward, "label": f"≥ {choice.reward:g}"}]
    return chart


def suggested(run: EvalRun, form: str) -> str:
    """A name for the dataset, as launching would give it."""
    return f"{run.task_set.name}-{form}"[:100]


def _cursor(rollout: Rollout) -> str:
    return f"{rollout.number}.{rollout.sample}"


def _place(cursor: str) -> tuple[int, int]:
    first, _, second = cursor.partition(".")
    task, sample = number(first), number(second)
    return (-1, -1) if task is None or sample is None else (task, sample)
