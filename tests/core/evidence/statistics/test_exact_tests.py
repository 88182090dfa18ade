"""Exact tests beside scipy's and statsmodels', and beside a sum over every way in which it could have come."""

import warnings
from typing import Any

import pytest
from scipy import stats as reference
from statsmodels.stats.contingency_tables import mcnemar

from flywheel.core.evidence.statistics import exact_tests
from flywheel.core.evidence.statistics.exact_tests import Tried, more_often


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
