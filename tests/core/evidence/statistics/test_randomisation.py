"""Randomisation of whole clusters: the test is the enumeration of flips, and the interval is the test turned round."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.core.evidence.statistics.randomisation import DRAWS, subset_ratios

CLUSTERS = st.lists(st.tuples(st.integers(-8, 8), st.integers(1, 6)), min_size=1, max_size=7)


def flipped(sums: np.ndarray, sizes: np.ndarray, null: float) -> tuple[float, float]:
    """One-sided p of both sides, over every way to flip the clusters' signs."""
    left = sums - null * sizes
    every = [float(np.dot(signs, left)) for signs in itertools.product((1, -1), repeat=len(left))]
    slack = 1e-9
    greater = sum(value >= left.sum() - slack for value in every) / len(every)
    return greater, sum(value <= left.sum() + slack for value in every) / len(every)


@given(CLUSTERS, st.sampled_from([0.0, 0.25, -1.0, 2.0]))
def test_the_ratios_of_subsets_give_the_p_of_every_flip(rows: list[tuple[int, int]], null: float) -> None:
    sums, sizes = (np.array([row[place] for row in rows], float) for place in (0, 1))
    found = subset_ratios(sums, sizes, seed=0)
    assert (found.p_greater(null), found.p_less(null)) == pytest.approx(flipped(sums, sizes, null))


@given(CLUSTERS)
def test_the_interval_holds_what_the_test_does_not_refuse(rows: list[tuple[int, int]]) -> None:
    sums, sizes = (np.array([row[place] for row in rows], float) for place in (0, 1))
    found = subset_ratios(sums, sizes, seed=0)
    for level in (0.5, 0.9, 0.95):
        ends = found.interval(level)
        if ends is None:
            assert 2 / found.count > 1 - level
            continue
        assert found.p(ends[0]) > 1 - level or ends[0] == ends[1]
        assert found.p(ends[0] - 1e-6) <= 1 - level + 1e-12
        assert found.p(ends[1] + 1e-6) <= 1 - level + 1e-12


def test_beyond_enumeration_it_is_drawn_near_it_the_same_for_a_seed_and_never_zero() -> None:
    rng = np.random.default_rng(0)
    sums, sizes = rng.normal(0.4, 1, 16), rng.integers(1, 5, 16).astype(float)
    found = subset_ratios(sums, sizes, seed=1)
    assert found.count == DRAWS + 1
    signs = 1 - 2 * ((np.arange(2**16)[:, None] >> np.arange(16)) & 1)
    exact = float(np.mean(signs @ sums >= sums.sum() - 1e-9))
    assert found.p_greater(0.0) == pytest.approx(exact, abs=4 * (exact / DRAWS) ** 0.5)
    again = subset_ratios(sums, sizes, seed=1)
    assert (found.ratios == again.ratios).all()
    assert subset_ratios(np.ones(40), np.ones(40), seed=0).p_greater(0.0) == 1 / (DRAWS + 1)


def test_rounding_makes_no_difference_between_values_that_are_equal() -> None:
    thirds = np.array([0.1 + 0.2, 0.3, -0.3, -(0.1 + 0.2), 0.3, -0.3])
    found = subset_ratios(thirds, np.ones(6), seed=0)
    assert found.p_greater(0.0) == found.p_less(0.0)
