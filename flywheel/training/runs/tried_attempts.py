"""The kept attempts of a run, from which its policy learnt, by step and reward."""

from itertools import groupby
from typing import Any

from django.db.models import QuerySet

from flywheel.training.models import TrainingAttempt, TrainingRun

STEPS_SHOWN = 12
ORDERS = {"step": ("step", "place"), "reward": ("reward", "id")}
"""Keys of the orders that a list has: the newest step first and the best of each, or the best of all."""


def attempts_of(
    run: TrainingRun, *, order: str = "step", first: int | None = None, last: int | None = None
) -> QuerySet[TrainingAttempt]:
    """The run's kept attempts, of the steps from `first` to `last`; in the order `reward` those that have one."""
    rows = run.tried.select_related("trajectory").defer("trajectory__metadata", "trajectory__tools")
    if first is not None:
        rows = rows.filter(step__gte=first)
    if last is not None:
        rows = rows.filter(step__lte=last)
    return rows.filter(reward__isnull=False) if order == "reward" else rows


def overview(run: TrainingRun) -> dict[str, Any]:
    """Count the kept attempts, and give those of a few steps, the first and the last too:
    `{count, steps: [(step, attempts)]}`."""
    known = list(run.tried.values("step").order_by("step").distinct().values_list("step", flat=True))
    if not known:
        return {"count": 0, "steps": []}
    places = {number * (len(known) - 1) // (STEPS_SHOWN - 1) for number in range(STEPS_SHOWN)}
    rows = attempts_of(run).filter(step__in=[known[place] for place in places]).order_by("step", "-place")
    return {
        "count": run.tried.count(),
        "steps": [(step, list(own)) for step, own in groupby(rows, key=lambda row: row.step)],
    }
