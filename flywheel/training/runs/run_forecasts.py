"""Forecasts of runs before they are launched, and beside them what a run took."""

from datetime import timedelta
from typing import Any

from django.db.models import Count, Max, Min

from flywheel.core import recipes
from flywheel.edge.refusals import check_choice
from flywheel.training.datasets import dataset_builder
from flywheel.training.launch import launch_estimate, memory_estimate, run_control
from flywheel.training.launch.fix_recommendation import baseline_of
from flywheel.training.launch.run_control import LaunchRequest
from flywheel.training.models import Point, TrainingRun


def before(request: LaunchRequest) -> dict[str, Any]:
    """Forecast a run without launching it: `{"forecast", "problem", "fits", "proposal", "lengths"}`. Nothing is
    stored. Raises
    Refused."""
    check_choice(request.algorithm, recipes.ALGORITHMS, field="algorithm")
    base, algorithm = request.base, recipes.ALGORITHMS[request.algorithm]
    tuning = run_control.check_tuning(request.tuning or {"mode": run_control.usual_mode(base)})
    settings = run_control.check_settings(algorithm, base, tuning, request.settings)
    rows = [] if request.dataset else _rows(request, algorithm)
    memory, problem = memory_estimate.expected_memory(
        base=base,
        algorithm=algorithm.name,
        settings=settings,
        tuning=tuning,
        dataset=request.dataset,
        task_set=request.task_set,
        teacher=request.teacher,
        rows=rows,
    )
    baseline = baseline_of(base, request.task_set)
    lengths = launch_estimate.proposed_lengths(algorithm.name, settings, request.task_set, baseline, memory)
    if memory is None:
        return {"forecast": None, "problem": problem, "fits": None, "proposal": None, "lengths": lengths}
    duration = launch_estimate.expected_duration(base, settings, algorithm.name, memory.forecast.operations)
    found = memory.proposal
    return {
        "forecast": memory.to_json() | launch_estimate.step_time(duration),
        "problem": "",
        "fits": not memory.is_too_large if memory.machine else None,
        "proposal": {"settings": found.settings, "mode": found.mode or tuning["mode"], "total": found.total}
        if found
        else None,
        "lengths": lengths,
    }


def _rows(request: LaunchRequest, algorithm: recipes.Algorithm) -> list[dict[str, Any]]:
    return dataset_builder.draft(
        kind=algorithm.data,
        task_set=request.task_set,
        version=request.base,
        rollouts=request.rollouts,
        leave_out=request.leave_out,
    ).rows


def usage(run: TrainingRun) -> dict[str, Any]:
    """Compare what it took with its forecast: `{"peak", "peak_ratio", "step", "forecast_step", "step_ratio"}`, in bytes
    and times, None where it was not measured or not forecast; and what it has cost, `{"device_hours", "usd"}`. A ratio
    is forecast over measured.

    A step's time is, as in the forecast, with its share of evaluations and checkpoints.
    """
    steps = run.points.filter(kind=Point.Kind.STEP)
    ends = steps.aggregate(first=Min("at"), last=Max("at"), count=Count("pk"))
    newest = steps.order_by("-step").values_list("values", flat=True).first() or {}
    peak, step, told = newest.get("peak_memory"), None, run.forecast
    if ends["count"] > 1 and run.fence <= 1:  # whoever took it over came after a pause
        step = (ends["last"] - ends["first"]) / (ends["count"] - 1)
    wanted = timedelta(seconds=told["step_seconds"]) if told.get("step_seconds") else None
    return {
        "peak": peak,
        "peak_ratio": told["total"] / peak if told and peak else None,
        "step": step,
        "forecast_step": wanted,
        "step_ratio": wanted / step if wanted and step else None,
        "device_hours": run.device_hours(),
        "usd": run.usd(),
    }
