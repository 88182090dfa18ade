"""Training runs side by side: their curves over one another, what differs between them, what came of each."""

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge.numbers import key
from flywheel.edge.refusals import Missing
from flywheel.training.launch import run_sweeps
from flywheel.training.launch.run_sweeps import MOST
from flywheel.training.models import TrainingRun
from flywheel.training.pages.comparisons import comparison_charts
from flywheel.training.runs import compared_runs
from flywheel.training.runs.compared_runs import CHARTED, Measure, Side
from flywheel.training.runs.step_points import step_points

SUGGESTED = 50
"""Newest runs that can be added."""
WORDS = {
    "algorithm": "Algorithm",
    "base": "Base",
    "task_set": "Task set",
    "dataset": "Dataset",
    "replay": "Replayed rows",
    "environment_weights": "Environments' weights",
    "teacher": "Teacher",
    "reward": "Reward recipe",
    "tuning": "Tuning",
    "seed": "Seed",
}
"""What a run is launched with beside its settings."""


@require_GET
@requires(Permission.VIEW)
def compare(request: PageRequest) -> HttpResponse:
    """The runs of the address, in its order; `success` is the percentage of held-out tasks that they are timed to, and
    `picture` a picture of the run page that is drawn of all of them too."""
    runs = _runs(request)
    sides = [compared_runs.side_of(run) for run in runs]
    threshold, is_readable = _threshold(request.GET.get("success", ""))
    if not is_readable:
        messages.warning(request, "The success to reach is a percentage from 0 to 100, such as 60.")
    groups = compared_runs.measures(sides, threshold)
    chosen = [run.pk for run in runs]
    others = TrainingRun.objects.filter(project=request.project).exclude(pk__in=chosen).select_related("base__agent")
    differing, equal = compared_runs.given_rows(sides) if sides else ({}, {})
    by_run = list(zip(*differing.values(), strict=True)) or [()] * len(sides)
    charted = sides if len(runs) <= CHARTED else []
    measured = {side.run.pk: step_points(side.run)[0] for side in charted}
    picture = request.GET.get("picture", "")
    context = {
        "columns": [
            _column(side, groups, chosen, request.GET.get("success", "")) | {"values": _words(values)}
            for side, values in zip(sides, by_run, strict=True)
        ],
        "names": [(name, WORDS.get(name, "")) for name in differing],
        "is_table": len(runs) > CHARTED,
        "charted": CHARTED,
        "open": sum(not run.is_finished for run in runs),
        "measures": [(group, comparison_charts.threshold_words(group)) for group in groups],
        "held_out": [comparison_charts.held_out(group) for group in groups if len(runs) <= CHARTED],
        "validation": comparison_charts.validation(charted),
        "curves": comparison_charts.curves(charted, measured, picture),
        "pictures": comparison_charts.choices(measured),
        "picture": picture,
        "differing": _shown({name: values for name, values in differing.items() if None not in values}),
        "partial": _shown({name: values for name, values in differing.items() if None in values}),
        "equal": _shown(equal),
        "others": others[:SUGGESTED] if len(runs) < MOST else [],
        "success": request.GET.get("success", ""),
        "most": MOST,
    }
    return render(request, "training/compare.html", context)


@require_POST
@requires(Permission.TRAIN)
def cancel_rest(request: PageRequest) -> HttpResponse:
    """Cancel those of the runs that have not finished."""
    chosen = list(filter(None, map(key, request.POST.getlist("run"))))[:MOST]
    rows = TrainingRun.objects.filter(project=request.project, pk__in=chosen).select_related("project")
    cancelled = run_sweeps.cancel_rest(rows, request.actor)
    messages.info(request, f"{cancelled} run{'' if cancelled == 1 else 's'} cancelled.")
    address = reverse("training:compare", args=[request.project.slug])
    return redirect(f"{address}?{urlencode({'run': chosen}, doseq=True)}")


def _runs(request: PageRequest) -> list[TrainingRun]:
    """The runs that the address names, each once. Raises Missing for one that is not the project's."""
    wanted = list(dict.fromkeys(key(text) for text in request.GET.getlist("run")))
    if len(wanted) > MOST:
        messages.warning(request, f"{len(wanted)} runs were selected; the first {MOST} are compared.")
    found = compared_runs.rows(request.project).in_bulk([pk for pk in wanted[:MOST] if pk])
    if missing := [pk for pk in wanted[:MOST] if pk not in found]:
        raise Missing(f"there is no run r-{missing[0]}" if missing[0] else "run is the number of a training run")
    return [found[pk] for pk in wanted[:MOST] if pk]


def _threshold(text: str) -> tuple[float | None, bool]:
    """The share that a percentage gives, None for none; and whether the text could be read."""
    try:
        value = float(text.removesuffix("%")) / 100 if text else None
    except ValueError:
        return None, False
    is_share = value is None or 0 <= value <= 1
    return (value if is_share else None), is_share


def _column(side: Side, groups: Sequence[Measure], chosen: Sequence[int], success: str) -> dict[str, Any]:
    measure = next((group for group in groups if side in group.sides), None)
    return {
        "side": side,
        "run": side.run,
        "measure": measure,
        "reached": measure.reached(side) if measure else None,
        "without": urlencode(
            {"run": [pk for pk in chosen if pk != side.run.pk], **({"success": success} if success else {})}, doseq=True
        ),
    }


def _shown(rows: dict[str, list[Any]]) -> list[tuple[str, str, list[Any]]]:
    """Name, label for a row that is no setting, and values as pages write them."""
    return [(name, WORDS.get(name, ""), _words(values)) for name, values in rows.items()]


def _words(values: Iterable[Any]) -> list[Any]:
    words = {True: "yes", False: "no"}
    return [words[value] if isinstance(value, bool) else value for value in values]
