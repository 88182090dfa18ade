"""Exact tests beside scipy's and statsmodels', and beside a sum over every way in which it could have come."""

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as reference
from statsmodels.stats.contingency_tables import mcnemar

from flywheel.core.evidence.statistics import exact_tests
from flywheel.core.evidence.statistics.exact_tests import PRIOR, Tried, anytime_upper, more_often


def exactly(expected: Any) -> Any:
    return pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("b", "c"), [(0, 0), (0, 1), (5, 5), (9, 2), (2, 9), (40, 21), (0, 200)])
def test_mcnemar(b: int, c: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = mcnemar([[7, b], [c, 3]], exact=True).pvalue if b + c else 1.0
    assert exact_tests.mcnemar_exact(b, c) == exactly(expected)
    if b + c:
        assert exact_tests.mcnemar_exact(b, c) == exactly(reference.binomtest(b, b + c).pvalue)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        exact_tests.mcnemar_exact(-1, 2)


@pytest.mark.parametrize(("old", "new"), [((4, 0), (4, 4)), ((16, 2), (16, 9)), ((64, 1), (32, 5)), ((5, 5), (5, 5))])
def test_more_bad_attempts_of_one_task_are_fishers_exact_test(old: tuple[int, int], new: tuple[int, int]) -> None:
    table = [[new[1], new[0] - new[1]], [old[1], old[0] - old[1]]]
    expected = reference.fisher_exact(table, alternative="greater").pvalue
    assert more_often([(Tried(*old), Tried(*new))]) == exactly(expected)


def test_what_was_never_bad_and_what_was_not_scored_tells_nothing() -> None:
    pair = (Tried(8, 1), Tried(8, 6))
    beside = [(Tried(50), Tried(50)), (Tried(4, unknown=4), Tried(4, unknown=4))]
    assert more_often([pair, *beside]) == exactly(more_often([pair]))
    assert more_often([]) == more_often(beside) == 1.0


@pytest.mark.parametrize(("events", "n"), [(0, 36), (1, 61), (4, 40), (30, 60), (7, 900)])
def test_the_bound_is_where_the_mixed_likelihood_is_so_many_times_the_rates_own(events: int, n: int) -> None:
    rate = anytime_upper(events, n)
    mixed = reference.betabinom(n, *PRIOR).pmf(events)
    assert mixed / reference.binom(n, rate).pmf(events) == pytest.approx(20, rel=1e-6)
    assert rate > events / n


@given(st.integers(0, 400), st.integers(0, 400))
def test_one_more_that_is_well_never_raises_the_bound_and_an_event_never_lowers_it(events: int, well: int) -> None:
    bound = anytime_upper(events, events + well)
    assert anytime_upper(events, events + well + 1) <= bound + 1e-9
    assert anytime_upper(events + 1, events + well + 1) >= bound - 1e-9
    assert 0 < bound <= 1


def test_whoever_looks_after_every_trial_is_misled_in_one_of_twenty_at_most() -> None:
    limit, few, fewest = 0.1, -1, []
    for n in range(1, 251):
        while anytime_upper(few + 1, n) < limit:
            few += 1
        fewest.append(few)  # so many events, or fewer, of n bound the rate below the limit
    events = (np.random.default_rng(7).random((5000, 250)) < limit).cumsum(axis=1)
    misled = (events <= np.array(fewest)).any(axis=1).mean()
    assert 0.01 < misled < 0.05


def test_no_trials_bound_nothing_and_impossible_counts_are_refused() -> None:
    assert anytime_upper(0, 0) == anytime_upper(3, 3) == 1.0
    for events, n in ((-1, 3), (4, 3)):
        with pytest.raises(ValueError, match="no bound"):
            anytime_upper(events, n)
