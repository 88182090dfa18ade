"""Changes between two arms that attempted the same tasks; a difference is candidate minus baseline.

A task is *fixed* when its mean success rises from below 0.5 to 0.5 or more, *broken* when it falls from 0.5
or more to below, else *same*; the size of the move is always beside the word, because with few samples a task
can cross by luck.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flywheel.core.evidence.statistics.estimates import (
    Array,
    Estimate,
    holm,
    latency_ratio,
    mcnemar_exact,
    paired_bootstrap,
    paired_difference,
    paired_quantiles,
)
from flywheel.core.evidence.statistics.eval_metrics import (
    METRICS,
    Row,
    Value,
    clusters_of,
    slices,
    solve_rates,
    summarise,
    task_means,
)

SLICE_MIN_TASKS = 20
"""A slice with fewer paired tasks is shown but not tested: too few to tell."""


@dataclass(frozen=True)
class TaskChange:
    task_id: str
    cluster: str
    baseline: float
    candidate: float
    """Mean success of each arm over its scored samples."""
    change: Literal["fixed", "broken", "same"]

    @property
    def difference(self) -> float:
        return self.candidate - self.baseline


@dataclass(frozen=True)
class SliceChange:
    name: str
    difference: Estimate
    """Paired difference of success within the slice."""
    p_holm: float | None
    """Its p-value, corrected for the number of slices tested; None = not tested."""
    verdict: Literal["better", "worse", "no difference shown", "too few to tell"]


@dataclass(frozen=True)
class Comparison:
    baseline: dict[str, Estimate]
    candidate: dict[str, Estimate]
    """Each arm by itself, over the matched tasks, keyed as ``METRICS``."""
    differences: dict[str, Estimate]
    """Paired difference of every metric, in the metric's unit, keyed as ``METRICS``."""
    ratios: dict[str, Estimate]
    """Candidate over baseline, 1 = same: cost_usd (per attempt), cost_per_success, latency, latency_p95."""
    tasks: list[TaskChange]
    """Matched tasks with success scored in both arms, the worst change first."""
    mcnemar_p: float
    """Exact McNemar on fixed against broken; it ignores clusters, so read it beside the interval."""
    slices: list[SliceChange]
    unscored_tasks: list[str]
    """Matched tasks in which an arm has no scored attempt."""
    only_baseline: list[str]
    only_candidate: list[str]
    """Tasks that one arm alone attempted; left out of everything above."""

    def changed(self, change: Literal["fixed", "broken", "same"]) -> list[TaskChange]:
        return [task for task in self.tasks if task.change == change]


def compare(
    baseline_rows: Sequence[Row],
    candidate_rows: Sequence[Row],
    slice_of: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Comparison:
    """Compare two arms over the tasks both attempted.

    ``slice_of`` maps task ids to a slice such as the failure bucket; tasks it lacks are in none.
    Raises ValueError when a task is in two clusters, also across arms.
    """
    clusters_of([*baseline_rows, *candidate_rows])
    before_ids, after_ids = ({row.task_id for row in rows} for rows in (baseline_rows, candidate_rows))
    matched = before_ids & after_ids
    before = [row for row in baseline_rows if row.task_id in matched]
    after = [row for row in candidate_rows if row.task_id in matched]
    tasks = task_changes(before, after)
    fixed, broken = (sum(task.change == change for task in tasks) for change in ("fixed", "broken"))
    return Comparison(
        baseline=summarise(before, seed),
        candidate=summarise(after, seed),
        differences={key: difference(key, before, after, seed=seed) for key in METRICS},
        ratios={
            "cost_usd": cost_ratio(before, after, seed=seed),
            "cost_per_success": _cost_per_success_ratio(before, after, seed),
            "latency": latency_ratio(*pair(before, after, METRICS["latency_p50_ms"].value), seed=seed),
            "latency_p95": _latency_bootstrap(before, after, 0.95, lambda a, b: b / a, seed),
        },
        tasks=tasks,
        mcnemar_p=mcnemar_exact(fixed, broken),
        slices=slice_changes(before, after, slice_of or {}, seed=seed),
        unscored_tasks=sorted(matched - {task.task_id for task in tasks}),
        only_baseline=sorted(before_ids - matched),
        only_candidate=sorted(after_ids - matched),
    )


def task_changes(before: Sequence[Row], after: Sequence[Row]) -> list[TaskChange]:
    """List the tasks with success scored in both arms, the worst change first."""
    cluster, rate_before, rate_after = clusters_of(before), solve_rates(before), solve_rates(after)
    changes = []
    for task_id, old in rate_before.items():
        new = rate_after.get(task_id)
        if old is None or new is None:
            continue
        change: Literal["fixed", "broken", "same"] = "same"
        if (old < 0.5) != (new < 0.5):
            change = "fixed" if new > old else "broken"
        changes.append(TaskChange(task_id, cluster[task_id], old, new, change))
    return sorted(changes, key=lambda task: (task.difference, task.task_id))


def difference(
    key: str, before: Sequence[Row], after: Sequence[Row], *, level: float = 0.95, seed: int = 0
) -> Estimate:
    """Estimate the paired difference of the metric ``key`` in its unit: of task means, or of quantiles."""
    metric = METRICS[key]
    if metric.quantile is not None:
        return _latency_bootstrap(before, after, metric.quantile, lambda a, b: b - a, seed, level)
    a, b, clusters = pair(before, after, metric.value)
    return paired_difference(a, b, clusters, level=level, seed=seed)


def cost_ratio(before: Sequence[Row], after: Sequence[Row], *, level: float = 0.95, seed: int = 0) -> Estimate:
    """Estimate how many times as much an attempt costs with the candidate, over tasks priced in both arms."""
    a, b, clusters = pair(before, after, METRICS["cost_usd"].value)
    costs = zip(clusters, a, b, strict=True)
    priced = [(cluster, (x, y)) for cluster, x, y in costs if x is not None and y is not None]
    groups = _grouped(priced)
    return paired_bootstrap(
        [group[:, 0] for group in groups],
        [group[:, 1] for group in groups],
        lambda old, new: new.sum() / old.sum(),
        seed=seed,
        level=level,
        unscored=len(clusters) - len(priced),
    )


def slice_changes(
    before: Sequence[Row],
    after: Sequence[Row],
    slice_of: Mapping[str, str],
    *,
    min_tasks: int = SLICE_MIN_TASKS,
    alpha: float = 0.05,
    seed: int = 0,
) -> list[SliceChange]:
    """Estimate each slice's difference of success; test those of ``min_tasks`` or more, Holm-corrected."""
    old, new = (slices(rows, lambda row: slice_of.get(row.task_id)) for rows in (before, after))
    found = {name: difference("success", old[name], new.get(name, []), seed=seed) for name in old}
    p_values = {name: e.p for name, e in found.items() if e.p is not None and e.n >= min_tasks}
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    return [_slice_change(name, e, corrected.get(name), alpha) for name, e in found.items()]


def pair(
    before: Sequence[Row], after: Sequence[Row], value: Value
) -> tuple[list[float | None], list[float | None], list[str]]:
    """Line up both arms' task means with each task's cluster, over the tasks that either arm attempted."""
    cluster = clusters_of([*before, *after])
    a, b = task_means(before, value), task_means(after, value)
    return [a.get(task) for task in cluster], [b.get(task) for task in cluster], list(cluster.values())


def _slice_change(name: str, estimate: Estimate, p_holm: float | None, alpha: float) -> SliceChange:
    if p_holm is None or estimate.mean is None:
        return SliceChange(name, estimate, None, "too few to tell")
    if p_holm >= alpha:
        return SliceChange(name, estimate, p_holm, "no difference shown")
    return SliceChange(name, estimate, p_holm, "better" if estimate.mean > 0 else "worse")


def _cost_per_success_ratio(before: Sequence[Row], after: Sequence[Row], seed: int) -> Estimate:
    def priced(row: Row) -> tuple[float, ...] | None:
        return None if row.cost_usd is None or row.success is None else (row.cost_usd, float(row.success))

    def ratio(old: Array, new: Array) -> float:
        if not old[:, 1].any() or not new[:, 1].any():
            return math.nan
        per_success_old, per_success_new = (arm[:, 0].sum() / arm[:, 1].sum() for arm in (old, new))
        return float(per_success_new / per_success_old)

    old, new, unscored = _read_in_both(before, after, priced)
    return paired_bootstrap(old, new, ratio, seed=seed, unscored=unscored)


def _latency_bootstrap(
    before: Sequence[Row],
    after: Sequence[Row],
    q: float,
    combine: Callable[[Array, Array], Array],
    seed: int,
    level: float = 0.95,
) -> Estimate:
    def timed(row: Row) -> tuple[float, ...] | None:
        latency = METRICS["latency_p50_ms"].value(row)
        return None if latency is None else (latency,)

    old, new, unscored = _read_in_both(before, after, timed)
    times = [[group[:, 0] for group in arm] for arm in (old, new)]
    return paired_quantiles(times[0], times[1], q, combine, seed=seed, level=level, unscored=unscored)


def _read_in_both(
    before: Sequence[Row], after: Sequence[Row], read: Callable[[Row], tuple[float, ...] | None]
) -> tuple[list[Array], list[Array], int]:
    """Group the attempts at the tasks that have a reading in both arms; and how many of the second have none there."""
    arms = [[(row, values) for row in rows if (values := read(row)) is not None] for rows in (before, after)]
    both = {row.task_id for row, _ in arms[0]} & {row.task_id for row, _ in arms[1]}
    old, new = (_grouped([(row.cluster, values) for row, values in arm if row.task_id in both]) for arm in arms)
    return old, new, len(after) - sum(len(group) for group in new)


def _grouped(readings: Sequence[tuple[str, tuple[float, ...]]]) -> list[Array]:
    """Stack readings by cluster, clusters sorted by name so that both arms line up."""
    groups: dict[str, list[tuple[float, ...]]] = {}
    for cluster, values in readings:
        groups.setdefault(cluster, []).append(values)
    return [np.array(groups[name], dtype=np.float64) for name in sorted(groups)]
