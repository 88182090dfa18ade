"""What a plan takes from a baseline is what the baseline was made with, and nonsense is refused."""

import numpy as np
import pytest

from flywheel.core.evidence.statistics.eval_metrics import Row
from flywheel.core.evidence.statistics.eval_scope import Part, Rates, Scope, rates_of
from tests.simulate import chances, eval_of


def test_sources_of_unequal_size_tell_as_much_as_fewer_equal_ones() -> None:
    assert Part.of([2] * 10) == Part(20, 10, 10.0)
    lopsided = Part.of([11, *[1] * 9])
    assert (lopsided.tasks, lopsided.sources) == (20, 10)
    assert lopsided.effective == pytest.approx(400 / 130)
    assert Part.of([]) == Part(0, 0, 0.0)
    assert Part.of([2] * 10).scaled(1.5) == Part(30, 15, 15.0)


def test_the_rates_of_a_baseline_are_found_again() -> None:
    rng = np.random.default_rng(3)
    rows, _ = eval_of(rng, [1] * 1500, invalid=(0.03, 0.03), unsafe=(0.02, 0.02), latency=0.3)
    found = rates_of(rows)
    truth = chances(np.random.default_rng(4), [1] * 20_000)
    assert found.success == pytest.approx(0.5, abs=0.03)
    assert found.icc == pytest.approx(truth.var() / (truth.mean() * (1 - truth.mean())), abs=0.03)
    assert found.invalid == pytest.approx(0.03, abs=0.006)
    assert found.unsafe == pytest.approx(0.02, abs=0.005)
    assert found.latency == pytest.approx(0.3 / np.sqrt(3), abs=0.01), "uniform noise of ±0.3 on the logarithm"
    assert (found.cost, found.shared) == (None, Rates().shared)


def test_a_source_whose_tasks_are_alike_counts_for_fewer() -> None:
    rows, _ = eval_of(np.random.default_rng(5), [4] * 300)
    own = [Row(row.task_id, f"own {row.task_id}", row.sample, row.score, row.success) for row in rows]
    assert rates_of(rows).shared > 0.2
    assert rates_of(own).shared == Rates().shared


def test_a_baseline_that_always_fails_and_measured_nothing_else_is_planned_for_all_the_same() -> None:
    rows = [Row(f"t{task}", f"c{task}", sample, 0.0, False) for task in range(10) for sample in range(2)]
    found = rates_of(rows)
    assert (found.success, found.icc) == (0.0, Rates().icc)
    assert (found.invalid, found.unsafe, found.cost, found.latency) == (None, None, None, None)
    assert rates_of([Row("t", "c", 0, None, None)]).success == Rates().success


def test_what_is_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="one task at least"):
        Part.of([1, 0])
    with pytest.raises(ValueError, match="0 samples"):
        Scope(Part.of([1]), (4, 0))
    with pytest.raises(ValueError, match="Without held-out tasks"):
        Scope(Part.of([]), (4, 4))
    for name in ("success", "icc", "kept", "invalid", "unsafe"):
        with pytest.raises(ValueError, match=f"{name} must be from 0 to 1"):
            Rates(**{name: 1.5})
    with pytest.raises(ValueError, match="latency must be 0 or more"):
        Rates(latency=float("nan"))
