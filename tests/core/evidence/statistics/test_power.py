"""What a paired eval can show is what Miller's formulas and a simulation say."""

import math

import numpy as np
import pytest
from scipy import stats as reference

from flywheel.core.evidence.statistics import estimates, power
from flywheel.core.evidence.statistics.power import Variance


@pytest.mark.parametrize(("k", "n5", "n10"), [(1, 1099, 275), (2, 628, 157), (4, 393, 99), (8, 275, 69)])
def test_required_n_is_millers(k: int, n5: int, n10: int) -> None:
    variance = Variance(0.05, 0.15, 0.15, k, k)
    assert (power.required_n(0.05, variance), power.required_n(-0.10, variance)) == (n5, n10)
    assert power.minimum_detectable(n5, variance) <= 0.05 < power.minimum_detectable(n5 - 1, variance)


def test_clustering_asks_for_more_tasks() -> None:
    variance = Variance(0.05, 0.15, 0.15, 4, 4)
    assert power.required_n(0.05, Variance(0.05, 0.15, 0.15, 4, 4, design_effect=2.0)) == pytest.approx(
        2 * power.required_n(0.05, variance), abs=1
    )


def test_variance_components_are_found_again() -> None:
    rng = np.random.default_rng(5)
    n, size, k = 3000, 3, 4
    shared = np.repeat(rng.normal(0, 0.1, n // size), size)
    own = rng.normal(0, 0.1, n)
    before = rng.normal(0.5, 0.3, (n, k))
    after = rng.normal(0.6, 0.4, (n, k)) + (shared + own)[:, None]
    found = power.variance_components(before.tolist(), after.tolist(), np.repeat(np.arange(n // size), size).tolist())
    assert found is not None
    assert found.sigma2_baseline == pytest.approx(0.09, rel=0.05)
    assert found.sigma2_candidate == pytest.approx(0.16, rel=0.05)
    assert found.omega2 == pytest.approx(0.02, rel=0.15)
    icc = 0.01 / (0.02 + 0.09 / 4 + 0.16 / 4)
    assert found.design_effect == pytest.approx(1 + 2 * icc, abs=0.07)
    assert (found.k_baseline, found.k_candidate) == (k, k)


def test_variance_components_agree_with_the_standard_error_they_plan() -> None:
    rng = np.random.default_rng(6)
    before, after = (rng.random((80, 4)) < 0.4).astype(float), (rng.random((80, 4)) < 0.6).astype(float)
    found = power.variance_components(before.tolist(), after.tolist(), range(80))
    assert found is not None
    se = np.std(after.mean(1) - before.mean(1), ddof=1) / math.sqrt(80)
    z = reference.norm.ppf(0.975) + reference.norm.ppf(0.8)
    assert power.minimum_detectable(80, found) >= z * se - 1e-9
    assert power.variance_components([[1.0]], [[0.0]], ["a"]) is None
    assert power.variance_components([[1.0], [None]], [[0.0], [1.0]], ["a", "b"]) is None


def test_power_is_what_the_formula_promises() -> None:
    rng = np.random.default_rng(14)
    n, k = 100, 4
    variance = Variance(0.02, 0.16, 0.16, k, k)
    delta = power.minimum_detectable(n, variance)
    draws = rng.normal(delta, math.sqrt(variance.per_task), (1000, n))
    found = [estimates.paired_difference([0.0] * n, row, range(n)).p for row in draws.tolist()]
    assert sum(p is not None and p < 0.05 for p in found) / 1000 == pytest.approx(0.79, abs=0.04)


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(ValueError, match="can show nothing"):
        power.minimum_detectable(0, Variance(1, 0, 0, 1, 1))
    with pytest.raises(ValueError, match="difference of 0"):
        power.required_n(0, Variance(1, 0, 0, 1, 1))
