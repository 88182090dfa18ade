"""Metrics of an eval: one ``Row`` per attempt in, one ``Estimate`` per metric out.

A task's samples are averaged first and tasks are then averaged, so a task with more scored samples weighs no
more than another; intervals respect clusters (``estimates``). Latency quantiles are taken over attempts.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from flywheel.core.evidence.statistics.estimates import Estimate, clustered_mean, clustered_rate, quantile


@dataclass(frozen=True, slots=True)
class Row:
    """One attempt at one task by one policy."""

    task_id: str
    cluster: str
    """What tasks share that makes them dependent: the source trajectory, template or customer."""
    sample: int
    """Which of the k attempts this is, from 0."""
    score: float | None
    """The verifier's score; None = not scored."""
    success: bool | None
    """Whether the score reached the task's pass mark; None = not scored."""
    parts: Mapping[str, float | None] = field(default_factory=dict)
    """The verifier's parts, each 0 to 1: valid_json, tool, arguments, executes, unsafe."""
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost_usd: float | None = None
    latency_ms: float | None = None
    error: str = ""
    """What broke, and where, when the attempt could not be scored."""


Value = Callable[[Row], float | None]


@dataclass(frozen=True)
class Metric:
    label: str
    unit: Literal["rate", "score", "tokens", "usd", "ms"]
    """A rate lies between 0 and 1 and is shown in percent; its differences are points."""
    higher_is_better: bool
    description: str
    value: Value
    """Reads the metric off one attempt; None = not measured."""
    quantile: float | None = None
    """Set where the metric is a quantile over attempts instead of a mean over tasks."""


def _success(row: Row) -> float | None:
    return None if row.success is None else float(row.success)


def _part(name: str) -> Value:
    return lambda row: row.parts.get(name)


def _tokens(row: Row) -> float | None:
    return None if row.tokens_in is None or row.tokens_out is None else float(row.tokens_in + row.tokens_out)


def _latency(row: Row) -> float | None:
    # No attempt takes 0 ms: such a clock measured nothing.
    return row.latency_ms if row.latency_ms is not None and row.latency_ms > 0 else None


METRICS: dict[str, Metric] = {
    "success": Metric(
        "Success", "rate", True, "Attempts that passed the task's verifier, averaged per task.", _success
    ),
    "score": Metric("Score", "score", True, "The verifier's score, averaged per task.", lambda row: row.score),
    "valid_output": Metric("Valid output", "rate", True, "Attempts whose output could be parsed.", _part("valid_json")),
    "right_form": Metric(
        "Right form",
        "rate",
        True,
        "Attempts whose calls were written as the agent's program reads them.",
        _part("form"),
    ),
    "right_tool": Metric("Right tool", "rate", True, "Attempts that called the expected tool.", _part("tool")),
    "right_arguments": Metric(
        "Right arguments", "rate", True, "Attempts whose arguments matched the target.", _part("arguments")
    ),
    "executed": Metric(
        "Executed", "rate", True, "Attempts whose call ran in the environment without an error.", _part("executes")
    ),
    "unsafe": Metric("Side effects", "rate", False, "Attempts that did harm which nobody asked for.", _part("unsafe")),
    "tokens": Metric("Tokens", "tokens", False, "Prompt and completion tokens per attempt.", _tokens),
    "cost_usd": Metric("Cost", "usd", False, "Dollars per attempt.", lambda row: row.cost_usd),
    "latency_p50_ms": Metric("Latency, median", "ms", False, "Half of all attempts were faster.", _latency, 0.50),
    "latency_p95_ms": Metric("Latency, p95", "ms", False, "95% of attempts were faster.", _latency, 0.95),
}


def summarise(rows: Sequence[Row]) -> dict[str, Estimate]:
    """Estimate every metric for one arm, keyed as ``METRICS``.

    ``n`` counts tasks (attempts for latency), ``unscored`` always counts attempts.
    Raises ValueError when a task appears in two clusters, or a rate leaves [0, 1].
    """
    return {key: _estimate(metric, rows) for key, metric in METRICS.items()}


def _estimate(metric: Metric, rows: Sequence[Row]) -> Estimate:
    values = [metric.value(row) for row in rows]
    if metric.quantile is not None:
        return quantile(values, [row.cluster for row in rows], metric.quantile)
    means, cluster = task_means(rows, metric.value), clusters_of(rows)
    estimate = clustered_rate if metric.unit == "rate" else clustered_mean
    return replace(estimate(list(means.values()), [cluster[task] for task in means]), unscored=values.count(None))


def task_samples(rows: Iterable[Row], value: Value) -> dict[str, list[float | None]]:
    """Give each task's values, one per attempt, in the order of the rows."""
    samples: dict[str, list[float | None]] = {}
    for row in rows:
        samples.setdefault(row.task_id, []).append(value(row))
    return samples


def task_means(rows: Iterable[Row], value: Value) -> dict[str, float | None]:
    """Average ``value`` over each task's measured attempts; None for a task without any."""
    return {task: _mean(samples) for task, samples in task_samples(rows, value).items()}


def solve_rates(rows: Iterable[Row]) -> dict[str, float | None]:
    """Give the share of each task's scored attempts that succeeded."""
    return task_means(rows, _success)


def clusters_of(rows: Iterable[Row]) -> dict[str, str]:
    """Map each task to its cluster. Raises ValueError when rows disagree about it."""
    clusters: dict[str, str] = {}
    for row in rows:
        known = clusters.setdefault(row.task_id, row.cluster)
        if known != row.cluster:
            raise ValueError(f"Task {row.task_id} is in two clusters, {known} and {row.cluster}.")
    return clusters


def pass_at_k(rows: Sequence[Row], k: int) -> Estimate:
    """Estimate the chance that at least one of ``k`` attempts succeeds, averaged over tasks.

    Per task ``1 - C(n-c, k) / C(n, k)`` with n scored attempts, c of them successes: unbiased (Chen et al.
    2021, arXiv 2107.03374). A task with fewer than k scored attempts is unscored. Raises ValueError unless
    ``k >= 1``.
    """
    return _of_k(rows, k, lambda n, passed: 1 - math.comb(n - passed, k) / math.comb(n, k))


def pass_hat_k(rows: Sequence[Row], k: int) -> Estimate:
    """Estimate the chance that all of ``k`` attempts succeed (pass^k), averaged over tasks: how far one can rely on it.

    Per task ``C(c, k) / C(n, k)`` (Yao et al. 2024, arXiv 2406.12045); otherwise as ``pass_at_k``.
    """
    return _of_k(rows, k, lambda n, passed: math.comb(passed, k) / math.comb(n, k))


def _of_k(rows: Sequence[Row], k: int, chance: Callable[[int, int], float]) -> Estimate:
    """The mean over tasks of a chance that scored attempts and successes give."""
    if k < 1:
        raise ValueError(f"pass@{k} does not exist; k is at least 1.")
    cluster = clusters_of(rows)
    chances: list[float | None] = []
    for samples in task_samples(rows, _success).values():
        scored = [s for s in samples if s is not None]
        chances.append(None if len(scored) < k else chance(len(scored), scored.count(1.0)))
    return clustered_rate(chances, list(cluster.values()))


def slices(rows: Iterable[Row], key: Callable[[Row], str | None]) -> dict[str, list[Row]]:
    """Group rows by ``key``, sorted by name; rows whose key is None are in no slice."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        name = key(row)
        if name is not None:
            groups.setdefault(name, []).append(row)
    return dict(sorted(groups.items()))


def _mean(samples: Sequence[float | None]) -> float | None:
    scored = [s for s in samples if s is not None]
    return math.fsum(scored) / len(scored) if scored else None
