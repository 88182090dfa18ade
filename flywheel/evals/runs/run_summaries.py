"""Results of an eval run: its rows as `core.evidence.statistics.eval_metrics` takes them, and its summary with every
metric."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from flywheel.core.evidence.statistics.estimates import Estimate, clustered_rate
from flywheel.core.evidence.statistics.eval_metrics import (
    Row,
    clusters_of,
    pass_at_k,
    pass_hat_k,
    slices,
    solve_rates,
    summarise,
)
from flywheel.environments.models import Split, Task
from flywheel.environments.task_sets.set_power import GUARDS
from flywheel.evals.models import EvalRun

TRAINED_ON, NEVER_TRAINED_ON = "wording trained on", "wording never trained on"
REAL, SYNTHETIC = "real", "synthetic"
"""Tasks that come of something that happened, and those that were made."""
_MEASURED = ("score", "success", "parts", "tokens_in", "tokens_out", "cost_usd", "latency_ms", "error")


def rows_of(run: EvalRun) -> list[Row]:
    """Every result as `core.evidence.statistics.eval_metrics` takes it."""
    return _rows(run, _tasks(run))


def summary_of(run: EvalRun) -> dict[str, Any]:
    """Every metric with its interval and n, over all tasks and by slice and bucket; JSON."""
    by_key = _tasks(run)
    rows, tasks = _rows(run, by_key), {str(task): task for task in by_key.values()}
    trained = set(
        run.task_set.members.filter(split=Split.TRAIN).exclude(task__slice="").values_list("task__slice", flat=True)
    )
    slice_of = {name: task.slice for name, task in tasks.items() if task.slice}
    familiar = {name: TRAINED_ON if value in trained else NEVER_TRAINED_ON for name, value in slice_of.items()}
    made = {name: SYNTHETIC if task.is_synthetic else REAL for name, task in tasks.items()}
    return {
        "metrics": {name: asdict(estimate) for name, estimate in summarise(rows).items()},
        "slices": _by(rows, slice_of),
        "familiar": _by(rows, familiar),
        "buckets": _by(rows, _buckets(by_key)),
        "origins": _by(rows, made) if SYNTHETIC in made.values() else {},
        "of_k": {"any": asdict(pass_at_k(rows, run.samples)), "all": asdict(pass_hat_k(rows, run.samples))},
    }


def bucket_of(run: EvalRun) -> dict[str, str]:
    """The bucket of each task of the run's split, by the task's name."""
    return _buckets(_tasks(run))


def _tasks(run: EvalRun) -> dict[int, Task]:
    """Those of the run's split by key, with what is told of them beside their results."""
    wanted = (f"task__{name}" for name in ("number", "cluster", "slice", "is_synthetic", "bucket"))
    members = run.task_set.members.filter(split=run.split).select_related("task")
    return {member.task_id: member.task for member in members.only("task_set_id", "split", *wanted)}


def _rows(run: EvalRun, tasks: Mapping[int, Task]) -> list[Row]:
    found = run.results.order_by("task__number", "sample").values_list("task_id", "sample", *_MEASURED)
    return [Row(str(tasks[key]), tasks[key].cluster, sample, *measured) for key, sample, *measured in found]


def _buckets(tasks: Mapping[int, Task]) -> dict[str, str]:
    return {str(task): task.bucket or GUARDS for task in tasks.values()}


def _by(rows: list[Row], key: dict[str, str]) -> dict[str, Any]:
    groups = slices(rows, lambda row: key.get(row.task_id))
    return {
        name: asdict(_success(group)) | {"tasks": len({r.task_id for r in group})} for name, group in groups.items()
    }


def _success(rows: list[Row]) -> Estimate:
    means, cluster = solve_rates(rows), clusters_of(rows)
    estimate = clustered_rate(list(means.values()), [cluster[task] for task in means])
    return replace(estimate, unscored=sum(row.success is None for row in rows))
