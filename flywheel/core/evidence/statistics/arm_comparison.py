"""Changes between two arms that attempted the same tasks; a difference is candidate minus baseline.

A task is *fixed* when its mean success rises from below 0.5 to 0.5 or more, *broken* when it falls from 0.5
or more to below, else *same*; the size of the move is always beside the word, because with few samples a task
can cross by luck.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import special

from flywheel.core.evidence.statistics.estimates import (
    Array,
    Estimate,
    holm,
    latency_ratio,
    paired_difference,
    paired_quantiles,
    proportion_upper,
    ratio_of_ratios,
    ratio_of_sums,
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
    task_samples,
)
from flywheel.core.evidence.statistics.exact_tests import mcnemar_exact
from flywheel.core.evidence.statistics.power import Variance, minimum_detectable, variance_components

FALL = 0.05
"""Of success in a slice: what ``SliceChange.fell`` asks about."""
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
    unseen: float | None = None
    """The least fall that would have been called worse in four of five cases: any less may have gone unseen. None where
    too few tasks tell even that."""
    shrunk: float | None = None
    """The difference drawn towards that of all slices, the more the fewer tasks it rests on (empirical Bayes)."""
    fell: float | None = None
    """How likely it fell by more than ``FALL``, by the same."""


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
        baseline=summarise(before),
        candidate=summarise(after),
        differences={key: difference(key, before, after, seed=seed) for key in METRICS},
        ratios={
            "cost_usd": cost_ratio(before, after, seed=seed),
            "cost_per_success": _cost_per_success_ratio(before, after),
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
    return ratio_of_sums(*pair(before, after, METRICS["cost_usd"].value), level=level, seed=seed)


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
    changes = [_slice_change(name, e, corrected.get(name), alpha) for name, e in found.items()]
    spread = variance_of(before, after)
    drawn = _shrunk([change.difference for change in changes], spread.per_task if spread else 0.0)
    error = alpha / max(1, len(p_values))
    return [
        replace(
            change, unseen=_unseen(change, old[change.name], new.get(change.name, []), error), shrunk=mean, fell=fell
        )
        for change, (mean, fell) in zip(changes, drawn, strict=True)
    ]


def _unseen(change: SliceChange, before: Sequence[Row], after: Sequence[Row], error: float) -> float | None:
    """The least fall that this slice would have shown in four of five cases, at a two-sided error."""
    if change.p_holm is None:
        return None
    spread, count = variance_of(before, after), change.difference.clusters or 1
    if spread is None or not spread.per_task:  # all alike: what no cluster shows, so many may still do
        return proportion_upper(0, count, level=1 - error / 2)
    return minimum_detectable(change.difference.n, spread, alpha=error)


def variance_of(before: Sequence[Row], after: Sequence[Row]) -> Variance | None:
    """Estimate how success varies over the tasks that both arms attempted; None where nothing can be said."""
    value = METRICS["success"].value
    cluster, old, new = clusters_of(before), task_samples(before, value), task_samples(after, value)
    tasks = [task for task in old if task in new]
    return variance_components([old[t] for t in tasks], [new[t] for t in tasks], [cluster[t] for t in tasks])


def _shrunk(found: Sequence[Estimate], per_task: float) -> list[tuple[float | None, float | None]]:
    """Each slice's difference drawn towards all slices', and how likely it is below -``FALL``.

    A normal model of slices, its spread by moments (DerSimonian and Laird 1986; Efron and Morris 1975 for the
    shrinkage). None for a slice without a difference, and for all where nothing varies.
    """
    rows = [(place, e.mean, e.n) for place, e in enumerate(found) if e.mean is not None and e.n]
    drawn: list[tuple[float | None, float | None]] = [(None, None)] * len(found)
    if not rows or per_task <= 0:
        return drawn
    means, variances = np.array([mean for _, mean, _ in rows]), np.array([per_task / n for *_, n in rows])
    weights = 1 / variances
    centre = float(weights @ means / weights.sum())
    excess = float(weights @ (means - centre) ** 2) - (len(rows) - 1)
    scale = float(weights.sum() - (weights @ weights) / weights.sum())
    between = max(0.0, excess / scale) if scale > 0 else 0.0
    held = between / (between + variances)
    posterior = held * means + (1 - held) * centre
    spread = np.sqrt(held * variances + (1 - held) ** 2 / weights.sum())
    for (place, *_), mean, sd in zip(rows, posterior, spread, strict=True):
        drawn[place] = float(mean), float(special.ndtr((-FALL - mean) / sd))
    return drawn


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


def _cost_per_success_ratio(before: Sequence[Row], after: Sequence[Row]) -> Estimate:
    def priced(row: Row) -> tuple[float, ...] | None:
        return None if row.cost_usd is None or row.success is None else (row.cost_usd, float(row.success))

    old, new, unscored = _read_in_both(before, after, priced)
    return ratio_of_ratios(old, new, unscored=unscored)


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
