"""Several runs at once that differ in named settings: a grid, each combination of its values a run like any other.

    launch_sweep(request, {"learning_rate": [1e-4, 3e-4], "seed": [1, 2]}, actor)     # four runs

A name is one of the algorithm's settings or of the libraries' (`trl.adam_beta2`), `seed`, or the adapter's `rank` or
`alpha`. All combinations are checked before any run is made, and all are made or none.
"""

import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.core import recipes
from flywheel.edge.refusals import Refused, Stale
from flywheel.training.launch import run_control
from flywheel.training.launch.run_control import LORA, LaunchRequest
from flywheel.training.models import TrainingRun

MOST = 16
"""Runs of one sweep."""
Grid = Mapping[str, Sequence[Any]]


def launch_sweep(request: LaunchRequest, grid: Grid, actor: Actor) -> tuple[list[TrainingRun], bool]:
    """Launch a run for each combination, and return them in order and whether they are new: the request's key is the
    sweep's, and gives the same runs again.

    Raises Refused as a launch does, with the combination; of a value of the grid the field is `grid.<name>`.
    """
    project = request.task_set.project
    if launched := list(TrainingRun.objects.filter(project=project, sweep=request.key).order_by("pk")):
        return launched, False
    _check_size(grid)
    checked: list[tuple[LaunchRequest, dict[str, Any]]] = []
    for at, values in enumerate(_rows(grid)):
        one = _combined(request, values, at)
        if checked:  # the ladder says the same of each
            one = replace(one, recommendation=checked[0][1]["recommendation"])
        checked.append((one, _checked(one, values)))
    dataset = run_control.find_data(request, recipes.ALGORITHMS[request.algorithm], actor)
    with transaction.atomic():
        runs = [run_control.submit(each, chosen, dataset, actor, request.key)[0] for each, chosen in checked]
    return runs, True


def cancel_rest(runs: Iterable[TrainingRun], actor: Actor) -> int:
    """Cancel those that have not finished, and return how many."""
    cancelled = 0
    for run in runs:
        if run.is_finished or run.is_cancelling:
            continue
        try:
            run.cancel(actor)
        except Stale:  # it has finished meanwhile
            continue
        cancelled += 1
    return cancelled


def _check_size(grid: Grid) -> None:
    for name, values in grid.items():
        if not values:
            raise Refused("has no values; give at least one", field=f"grid.{name}")
    if (count := math.prod(map(len, grid.values()))) > MOST:
        raise Refused(f"makes {count} runs; at most {MOST} are launched at once", field="grid")
    for name, values in grid.items():
        for at, value in enumerate(values):
            if value in values[:at]:
                raise Refused(f"{value!r} is given twice", field=f"grid.{name}")


def _rows(grid: Grid) -> Iterator[dict[str, Any]]:
    return (dict(zip(grid, values, strict=True)) for values in product(*grid.values()))


def _combined(request: LaunchRequest, values: Mapping[str, Any], at: int) -> LaunchRequest:
    given = dict(values)
    seed, own = given.pop("seed", request.seed), {name: given.pop(name) for name in LORA if name in given}
    tuning = request.tuning or {"mode": run_control.usual_mode(request.base)}
    return replace(
        request,
        key=uuid.uuid5(request.key, str(at)),
        settings={**request.settings, **given},
        tuning={**tuning, **own},
        seed=seed,
    )


def _checked(request: LaunchRequest, values: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of one combination. Raises Refused."""
    try:
        return run_control.check_choices(request)
    except Refused as error:
        name = error.field.removeprefix("settings.").removeprefix("tuning.")
        field = f"grid.{name}" if name in values else error.field
        words = ", ".join(f"{name} = {value}" for name, value in values.items())
        raise Refused(f"{error.problem} ({words})", field=field) from error
