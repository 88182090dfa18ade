"""The table of a run: a row a task, a cell a sample, each leading to its rollout. Pages of tasks, by their number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Q
from django.http import QueryDict

from flywheel.edge.numbers import number
from flywheel.environments.models import Task
from flywheel.environments.task_sets.set_power import GUARDS
from flywheel.evals.models import EvalRun, Result
from flywheel.evals.pages.run_facts import bucket_label

ROWS = 50
SHOW = {"all": "All tasks", "failures": "With a failure", "unscored": "With an unscored attempt"}


@dataclass(slots=True)
class Line:
    task: Task
    cells: list[Result | None]
    """One a sample, None where there is no result yet."""
    bucket: str
    """As people say it."""

    @property
    def passed(self) -> int:
        return sum(bool(cell and cell.success) for cell in self.cells)

    @property
    def scored(self) -> int:
        return sum(bool(cell and cell.success is not None) for cell in self.cells)


def matrix(run: EvalRun, query: QueryDict) -> dict[str, Any]:
    """The part of the run's table that the address asks for: `show`, `bucket`, `slice`, `task` (where to begin); with
    what the pager shows. `counts` are the tasks behind each choice of `SHOW`."""
    show = query.get("show", "all")
    show = show if show in SHOW else "all"
    bucket, slice_ = query.get("bucket", ""), query.get("slice", "")
    members = run.task_set.members.filter(split=run.split)
    if bucket:
        members = members.filter(task__bucket="" if bucket == GUARDS else bucket)
    if slice_:
        members = members.filter(task__slice=slice_)
    every: dict[int, int] = dict(members.order_by("task__number").values_list("task__number", "task_id"))
    chosen = {name: [n for n, pk in every.items() if pk in among] for name, among in _among(run, every).items()}
    numbers = chosen[show]
    first = number(query.get("task", "")) or 0
    start = next((index for index, each in enumerate(numbers) if each >= first), 0)
    shown = numbers[start : start + ROWS]
    return {
        "lines": _lines(run, [every[each] for each in shown]),
        "samples": range(run.samples),
        "show": show,
        "counts": {name: len(found) for name, found in chosen.items()},
        "bucket": bucket,
        "slice": slice_,
        "first": start + 1,
        "last": start + len(shown),
        "total": len(numbers),
        "previous": _address(query, numbers[max(0, start - ROWS)]) if start else "",
        "next": _address(query, numbers[start + ROWS]) if len(numbers) > start + ROWS else "",
    }


def _among(run: EvalRun, every: Mapping[int, int]) -> dict[str, set[int]]:
    """The tasks behind each choice, by primary key."""
    missed = run.results.filter(Q(success=False) | Q(score=None)).order_by()
    rows = list(missed.values_list("task_id", "success").distinct())
    return {
        "all": set(every.values()),
        "failures": {task for task, success in rows if success is False},
        "unscored": {task for task, success in rows if success is None},
    }


def _address(query: QueryDict, number: int) -> str:
    parameters = query.copy()
    parameters["task"] = str(number)
    return f"?{parameters.urlencode()}#matrix"


def _lines(run: EvalRun, tasks: Sequence[int]) -> list[Line]:
    results: dict[tuple[int, int], Result] = {
        (result.task_id, result.sample): result
        for result in run.results.filter(task__in=tasks)
        .select_related("trajectory")
        .only("run", "task", "sample", "score", "success", "reason", "error", "trajectory__trace_id")
        .order_by()
    }
    found: dict[int, Any] = Task.objects.select_related("environment").in_bulk(list(tasks))
    return [
        Line(
            found[pk],
            [results.get((pk, sample)) for sample in range(run.samples)],
            bucket_label(run.project, found[pk].bucket),
        )
        for pk in tasks
    ]
