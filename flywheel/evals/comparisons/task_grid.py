"""Tasks × versions: how each of several versions did at each task of a set, by the newest eval of each."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from django.db.models import Count, F, Q
from django.http import QueryDict

from flywheel.edge.jobs import State
from flywheel.edge.paging import Page, keyset
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Split, Task, TaskSet
from flywheel.evals.models import EvalRun, Result
from flywheel.evals.verifier_agreement import disputed

MOST: Final = 10
"""Versions side by side."""
ROWS: Final = 50
SHOW: Final = {
    "all": "All tasks",
    "failures": "With a failure",
    "differ": "Versions differ",
    "disputed": "Reviewers disagree with the verifier",
}
SPLITS: Final = {split.value: str(split.label) for split in (Split.HELD_OUT, Split.TRAIN)}
_LARGE: Final = ("summary", "judges", "isolation", "version__system_prompt", "version__tools")


@dataclass(frozen=True, slots=True)
class Cell:
    """One version's attempts at one task."""

    run: EvalRun
    attempts: int = 0
    scored: int = 0
    passed: int = 0
    is_disputed: bool = False
    """People's word on one of them is another than the verifier's."""

    @property
    def is_solved(self) -> bool | None:
        """Whether half of the scored attempts or more passed, as a comparison counts it; None where none was scored."""
        return 2 * self.passed >= self.scored if self.scored else None


@dataclass(frozen=True, slots=True)
class Grid:
    counts: dict[str, int]
    """Tasks behind each choice of `SHOW`."""
    page: Page[Task]
    lines: list[tuple[Task, list[Cell]]]
    """The page's tasks, with a cell for each column."""


def measured(task_set: TaskSet, split: str) -> list[EvalRun]:
    """The newest eval of each version that has succeeded at this split, the newest first; each says its `success`."""
    rows = EvalRun.objects.filter(task_set=task_set, split=split, state=State.SUCCEEDED)
    rows = rows.order_by("version_id", "-pk").distinct("version_id").annotate(success=F("summary__metrics__success"))
    found = rows.select_related("version__agent", "task_set").defer(*_LARGE)
    return sorted(found, key=lambda run: run.pk, reverse=True)


def choose(runs: Sequence[EvalRun], wanted: Sequence[str]) -> list[EvalRun]:
    """Those of the versions named, else the newest few; the oldest version first. Raises Refused."""
    by_name = {str(run.version): run for run in runs}
    if unknown := [name for name in wanted if name not in by_name]:
        known = f"these have: {', '.join(list(by_name)[:MOST])}" if by_name else "no version has"
        raise Refused(f"{unknown[0][:100]!r} has no eval here that succeeded; {known}", field="version")
    names = dict.fromkeys(wanted)
    if len(names) > MOST:
        raise Refused(f"{len(names)} are too many; at most {MOST} fit side by side", field="version")
    chosen = [by_name[name] for name in names] or list(runs[:MOST])
    return sorted(chosen, key=lambda run: run.version_id)


def grid(
    columns: Sequence[EvalRun], *, task_set: TaskSet, split: str, show: str, cursor: str, limit: int, query: QueryDict
) -> Grid:
    """A page of the split's tasks, the newest first, of those that `show` leaves. Raises paging.BadCursor."""
    cells = _cells(columns)
    tasks = Task.objects.filter(pk__in=task_set.members.filter(split=split).values("task"))
    chosen = {name: {task for task, row in cells.items() if fits(row.values())} for name, fits in _FITS.items()}
    counts = {"all": tasks.count(), **{name: len(found) for name, found in chosen.items()}}
    if show in chosen:
        tasks = tasks.filter(pk__in=chosen[show])
    tasks = tasks.select_related("environment").defer("state", "target")
    page = keyset(tasks, cursor=cursor, limit=limit, keys=("number",), query=query)
    page.total = counts[show]
    lines = [(task, [cells.get(task.pk, {}).get(run.pk, Cell(run)) for run in columns]) for task in page.items]
    return Grid(counts, page, lines)


def _cells(runs: Sequence[EvalRun]) -> dict[int, dict[int, Cell]]:
    """By task and run, where there is an attempt."""
    by_key, apart = {run.pk: run for run in runs}, disputed(runs)
    rows = (
        Result.objects.filter(run__in=runs)
        .order_by()
        .values_list("task", "run")
        .annotate(
            attempts=Count("pk"),
            scored=Count("pk", filter=Q(success__isnull=False)),
            passed=Count("pk", filter=Q(success=True)),
        )
    )
    found: dict[int, dict[int, Cell]] = {}
    for task, run, attempts, scored, passed in rows:
        found.setdefault(task, {})[run] = Cell(by_key[run], attempts, scored, passed, (task, run) in apart)
    return found


_FITS: Final[Mapping[str, Callable[[Collection[Cell]], bool]]] = {
    "failures": lambda row: any(cell.passed < cell.scored for cell in row),
    "differ": lambda row: {True, False} <= {cell.is_solved for cell in row},
    "disputed": lambda row: any(cell.is_disputed for cell in row),
}
