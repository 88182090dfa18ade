from itertools import combinations
from typing import Any

import numpy as np
import pytest

from flywheel.core.evidence.statistics.eval_metrics import (
    METRICS,
    Row,
    pass_at_k,
    pass_hat_k,
    slices,
    solve_rates,
    summarise,
)


def row(task: str = "t", sample: int = 0, success: bool | None = True, cluster: str = "c", **more: Any) -> Row:
    return Row(task, cluster, sample, score=None if success is None else float(success), success=success, **more)


def test_every_metric_is_summarised_with_its_description() -> None:
    found = summarise([row(f"t{i}", cluster=f"c{i}", success=i % 2 == 0) for i in range(10)])
    assert list(found) == list(METRICS)
    assert found["success"].mean == 0.5
    assert all(metric.label and metric.description.endswith(".") for metric in METRICS.values())
    assert [key for key, metric in METRICS.items() if metric.unit == "rate" and not metric.higher_is_better] == [
        "unsafe"
    ]


def test_tasks_weigh_the_same_however_often_they_were_sampled() -> None:
    rows = [row("a", i, True, "a") for i in range(9)] + [row("b", 0, False, "b")]
    assert summarise(rows)["success"].mean == 0.5


def test_unscored_attempts_are_counted_and_never_zero() -> None:
    rows = [row(f"t{i}", k, True if k else None, f"c{i}", error="provider: timeout") for i in range(6) for k in (0, 1)]
    success = summarise([*rows, row("t6", success=None, cluster="c6")])["success"]
    assert (success.mean, success.n, success.unscored) == (1.0, 6, 7)


def test_parts_tokens_cost_and_latency_are_read() -> None:
    rows = [
        row(
            f"t{i}",
            cluster=f"c{i}",
            parts={"valid_json": 1.0, "tool": i % 2, "arguments": 0.5, "executes": None, "unsafe": 0.0},
            tokens_in=100,
            tokens_out=i,
            cost_usd=0.01 * i,
            latency_ms=float(i),
        )
        for i in range(11)
    ]
    found = {key: estimate.mean for key, estimate in summarise(rows).items()}
    assert found["valid_output"] == 1.0
    assert found["right_tool"] == pytest.approx(5 / 11)
    assert found["right_arguments"] == 0.5
    assert found["executed"] is None
    assert found["unsafe"] == 0.0
    assert found["tokens"] == 105.0
    assert found["cost_usd"] == pytest.approx(0.05)
    # 0 ms is no measurement, so the latencies are 1 to 10.
    assert found["latency_p50_ms"] == 5.5
    assert found["latency_p95_ms"] == pytest.approx(np.quantile(range(1, 11), 0.95))


def test_tokens_need_both_counts() -> None:
    assert METRICS["tokens"].value(row(tokens_in=5)) is None


def test_an_empty_arm_has_no_numbers() -> None:
    assert all(estimate.mean is None and estimate.n == 0 for estimate in summarise([]).values())


def test_the_seed_fixes_the_bootstrap() -> None:
    rng = np.random.default_rng(1)
    rows = [row(f"t{i}", cluster=f"c{i % 8}", latency_ms=float(rng.exponential())) for i in range(40)]
    assert summarise(rows) == summarise(rows)


def test_a_task_is_in_one_cluster() -> None:
    with pytest.raises(ValueError, match="Task t is in two clusters, a and b"):
        summarise([row(cluster="a"), row(cluster="b")])


@pytest.mark.parametrize("n", range(1, 7))
def test_pass_at_k_and_pass_hat_k_are_shares_of_subsets_with_and_of_successes(n: int) -> None:
    for c in range(n + 1):
        rows = [row("t", i, i < c) for i in range(n)]
        for k in range(1, n + 1):
            subsets = list(combinations(range(n), k))
            expected = sum(min(subset) < c for subset in subsets) / len(subsets)
            assert pass_at_k(rows, k).mean == pytest.approx(expected, abs=1e-12)
            every = sum(max(subset) < c for subset in subsets) / len(subsets)
            assert pass_hat_k(rows, k).mean == pytest.approx(every, abs=1e-12)


def test_pass_at_k_leaves_out_tasks_with_too_few_scored_samples() -> None:
    rows = [row("a", 0, True, "a"), row("a", 1, None, "a"), row("b", 0, False, "b"), row("b", 1, False, "b")]
    found = pass_at_k(rows, 2)
    assert (found.mean, found.n, found.unscored) == (0.0, 1, 1)
    with pytest.raises(ValueError, match="pass@0"):
        pass_at_k(rows, 0)


def test_solve_rates() -> None:
    rows = [row("a", 0, True), row("a", 1, False), row("a", 2, None), row("b", 0, None)]
    assert solve_rates(rows) == {"a": 0.5, "b": None}


def test_slices_are_sorted_and_leave_out_the_unnamed() -> None:
    rows = [row("a"), row("b"), row("c"), row("a", 1)]
    found = slices(rows, lambda r: {"a": "z", "b": "y"}.get(r.task_id))
    assert {name: [r.task_id for r in group] for name, group in found.items()} == {"y": ["b"], "z": ["a", "a"]}
    assert list(found) == ["y", "z"]
