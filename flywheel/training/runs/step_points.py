"""The metrics of a run's steps, at most 500 of them, as its pictures and its alerts take them."""

from collections.abc import Mapping, Sequence

from django.db.models import F, Max
from django.db.models.functions import Mod

from flywheel.training.models import Point, TrainingRun

MOST_POINTS = 500

Steps = Sequence[tuple[int, Mapping[str, float]]]


def step_points(run: TrainingRun) -> tuple[Steps, int]:
    """Every n-th step's metrics and the last one's, and n."""
    points = run.points.filter(kind=Point.Kind.STEP)
    last = points.aggregate(last=Max("step"))["last"] or 0
    stride = -(-last // MOST_POINTS) or 1
    rows = list(
        points.annotate(left=Mod(F("step"), stride)).filter(left=0).order_by("step").values_list("step", "values")
    )
    if last and (not rows or rows[-1][0] != last):
        rows += points.filter(step=last).values_list("step", "values")
    return rows[-MOST_POINTS:], stride
