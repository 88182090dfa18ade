"""The kept attempts of a run, from which its policy learnt, by step and reward."""

from itertools import groupby
from typing import Any

from django.db.models import F, Q, QuerySet

from flywheel.core.verifiers import PASS
from flywheel.training.models import TrainingAttempt, TrainingRun
from flywheel.trajectories.models import Label

STEPS_SHOWN = 12
OUT_OF_TURNS = "out of turns"
"""As the metadata of a trajectory has it under `ended`, where it says otherwise why an episode was broken off."""
ORDERS = {
    "step": ("step", "place"),
    "reward": ("reward", "id"),
    "worst": ("loss", "id"),
    "longest": ("tokens", "id"),
}
"""Keys of the orders that a list has: the newest step first and the best of each; or the best, the worst or the longest
of all."""
_KEYS: dict[str, dict[str, Any]] = {"worst": {"loss": -F("reward")}, "longest": {"tokens": F("trajectory__tokens_out")}}
PASSED = Q(score__gte=PASS - 1e-9)
"""As `Verdict.success`."""
ONLY = {
    "unsafe": Q(parts__unsafe__gt=0),
    "invalid": (Q(parts__valid_json=0) | Q(parts__form=0)) & (Q(parts__unsafe__isnull=True) | Q(parts__unsafe=0)),
    "unscored": Q(reward=None),
    "broken_off": Q(trajectory__metadata__has_key="ended") & ~Q(trajectory__metadata__ended=OUT_OF_TURNS),
    "out_of_turns": Q(trajectory__metadata__ended=OUT_OF_TURNS),
    "overruled": PASSED & Q(trajectory__label=Label.FAILURE),
}
"""Kinds of attempts that a list can be narrowed to: those that did harm, are in no form that is read, have no score,
ended for another reason than the policy's own, or are failures by people's word that the verifier passed."""


def attempts_of(
    run: TrainingRun, *, order: str = "step", only: str = "", first: int | None = None, last: int | None = None
) -> QuerySet[TrainingAttempt]:
    """The run's kept attempts of a kind, of the steps from `first` to `last`; but for the order `step`, those that have
    what they are ordered by."""
    rows = run.tried.select_related("trajectory").defer("trajectory__metadata", "trajectory__tools")
    if first is not None:
        rows = rows.filter(step__gte=first)
    if last is not None:
        rows = rows.filter(step__lte=last)
    if only:
        rows = rows.filter(ONLY[only])
    key = ORDERS[order][0]
    return rows.annotate(**_KEYS.get(order, {})).filter(**{f"{key}__isnull": False})


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
