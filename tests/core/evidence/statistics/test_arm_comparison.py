from collections.abc import Sequence

import numpy as np
import pytest

from flywheel.core.evidence.statistics.arm_comparison import compare, slice_changes
from flywheel.core.evidence.statistics.estimates import NO_VARIANCE, paired_difference
from flywheel.core.evidence.statistics.eval_metrics import METRICS, Row
from flywheel.core.evidence.statistics.exact_tests import mcnemar_exact


def arm(
    rates: Sequence[float | None],
    k: int = 4,
    clusters: Sequence[int] | None = None,
    cost: float = 0.01,
    latency: float = 100.0,
    noise: int | None = None,
) -> list[Row]:
    """Rows of one arm: ``rates[i]`` of the k attempts at task i succeed; costs and latencies are jittered."""
    rng = np.random.default_rng(noise)
    rows = []
    for i, rate in enumerate(rates):
        for sample in range(k):
            success = None if rate is None else sample < round(rate * k)
            jitter = 1.0 if noise is None else float(rng.uniform(0.8, 1.25))
            rows.append(
                Row(
                    f"t{i:02}",
                    f"c{clusters[i] if clusters else i:02}",
                    sample,
                    None if success is None else float(success),
                    success,
                    {"valid_json": 1.0, "unsafe": 0.0},
                    10,
                    10,
                    cost * jitter,
                    latency * jitter,
                )
            )
    return rows


def test_fixed_and_broken_cross_one_half() -> None:
    found = compare(arm([0.25, 0.5, 0.75, 0.25, 0.0, 1.0]), arm([0.5, 0.25, 1.0, 0.0, 1.0, 0.0]))
    changes = {task.task_id: task.change for task in found.tasks}
    assert changes == {"t00": "fixed", "t01": "broken", "t02": "same", "t03": "same", "t04": "fixed", "t05": "broken"}
    assert [task.task_id for task in found.changed("broken")] == ["t05", "t01"]  # the worst first
    assert found.tasks[0].difference == -1.0
    assert found.mcnemar_p == mcnemar_exact(2, 2)


def test_difference_is_paired_by_task_and_clustered() -> None:
    before, after, clusters = [0.0, 0.25, 0.5, 0.25] * 5, [0.5, 0.25, 1.0, 0.0] * 5, [i % 12 for i in range(20)]
    found = compare(arm(before, clusters=clusters), arm(after, clusters=clusters)[::-1])
    assert found.differences["success"] == paired_difference(before, after, clusters)
    assert set(found.differences) == set(found.baseline) == set(found.candidate) == set(METRICS)
    assert found.differences["valid_output"].reason == NO_VARIANCE


def test_ratios_find_what_was_planted() -> None:
    before = arm([0.5] * 40, noise=1, cost=0.01, latency=100.0)
    after = arm([0.75] * 40, noise=2, cost=0.03, latency=150.0)
    ratios = compare(before, after).ratios
    for name, planted in {"cost_usd": 3.0, "latency": 1.5, "latency_p95": 1.5, "cost_per_success": 2.0}.items():
        found = ratios[name]
        assert found.low is not None
        assert found.high is not None
        assert found.low < planted < found.high
        assert found.mean == pytest.approx(planted, rel=0.05)


def test_latency_quantiles_are_compared_in_ms() -> None:
    found = compare(arm([0.5] * 20, noise=1, latency=100.0), arm([0.5] * 20, noise=2, latency=200.0))
    p50 = found.differences["latency_p50_ms"]
    assert p50.mean == pytest.approx(100, abs=15)
    assert p50.low is not None
    assert p50.low > 50


def test_cost_per_success_is_undefined_without_a_success() -> None:
    found = compare(arm([0.0] * 10), arm([1.0] * 10)).ratios["cost_per_success"]
    assert (found.mean, found.reason) == (None, "undefined on these rows")


def test_unmatched_and_unscored_tasks_are_named_and_left_out() -> None:
    before, after = arm([0.5, 0.5, None, 0.5]), arm([1.0, 1.0, 1.0, 1.0, 1.0])[4:]
    found = compare(before, after)
    assert (found.only_baseline, found.only_candidate, found.unscored_tasks) == (["t00"], ["t04"], ["t02"])
    assert [task.task_id for task in found.tasks] == ["t01", "t03"]
    assert (found.differences["success"].n, found.differences["success"].unscored) == (2, 1)


def test_slices_are_tested_together_and_small_ones_not_at_all() -> None:
    rng = np.random.default_rng(4)
    before = [0.5] * 70
    after = [*rng.choice([0.0, 0.25], 30), *rng.choice([0.25, 0.5, 0.75], 30), *[1.0] * 10]
    slice_of = {f"t{i:02}": ("wrong_tool", "bad_json", "rare")[(i >= 30) + (i >= 60)] for i in range(70)}
    found = {change.name: change for change in compare(arm(before), arm(after), slice_of).slices}
    assert list(found) == ["bad_json", "rare", "wrong_tool"]
    assert {name: change.verdict for name, change in found.items()} == {
        "wrong_tool": "worse",
        "bad_json": "no difference shown",
        "rare": "too few to tell",
    }
    raw = found["wrong_tool"].difference.p
    assert raw is not None
    assert found["wrong_tool"].p_holm == pytest.approx(2 * raw)
    assert found["rare"].p_holm is None


def test_a_planted_regression_in_a_slice_of_30_is_caught() -> None:
    rng = np.random.default_rng(5)
    slice_of = {f"t{i:02}": "hurt" if i < 30 else "fine" for i in range(60)}
    caught = 0
    for _ in range(25):
        before = rng.binomial(4, 0.7, 60) / 4
        after = rng.binomial(4, [0.45] * 30 + [0.8] * 30) / 4
        found = slice_changes(arm(before.tolist()), arm(after.tolist()), slice_of)
        caught += any(change.verdict == "worse" for change in found)
    assert caught >= 20


def test_arms_that_share_no_task() -> None:
    found = compare(arm([0.5]), [])
    assert found.tasks == []
    assert found.differences["success"].mean is None
    assert found.mcnemar_p == 1.0


def test_arms_must_agree_on_clusters() -> None:
    with pytest.raises(ValueError, match="in two clusters"):
        compare(arm([0.5], clusters=[1]), arm([0.5], clusters=[2]))
