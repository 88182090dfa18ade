"""Pairs of answers, session by session: the wealth against "not worse", and an interval that holds at every look."""

from itertools import product

import numpy as np
import pytest

from flywheel.core.evidence.statistics.sequential.paired_difference import more_wealth, paired_interval


def test_the_mean_wealth_over_all_sessions_without_a_difference_is_one() -> None:
    every = [more_wealth(signs) for signs in product((-1.0, 1.0), repeat=8)]
    assert np.mean(every) == pytest.approx(1.0, abs=1e-12)
    halves = product((-0.45, 0.55), repeat=6)
    assert np.mean([more_wealth(signs, margin=0.05) for signs in halves]) == pytest.approx(1.0, abs=1e-12)


def test_what_is_clearly_more_is_found_soon_and_what_is_less_never() -> None:
    assert more_wealth([1.0] * 12) > 60 > more_wealth([1.0] * 3)
    assert more_wealth([-1.0] * 50) < 0.1
    assert more_wealth([]) == 1.0


def test_the_interval_holds_the_mean_at_every_look() -> None:
    draw = np.random.default_rng(7)
    missed = 0
    for _ in range(60):
        differences = draw.choice([-1.0, 0.0, 0.5, 1.0], p=[0.1, 0.5, 0.2, 0.2], size=120).tolist()
        looks = [paired_interval(differences[:n]) for n in (5, 30, 120)]
        missed += any(not look.low <= 0.2 <= look.high for look in looks)
    assert missed <= 3
    empty = paired_interval([])
    assert (empty.low, empty.mean, empty.high, empty.n) == (-1.0, None, 1.0, 0)
    narrow = paired_interval([0.0] * 400)
    assert -0.05 < narrow.low < 0 < narrow.high < 0.05


def test_what_is_no_difference_of_parts_is_refused() -> None:
    with pytest.raises(ValueError, match="from -1 to 1"):
        more_wealth([1.5])
    with pytest.raises(ValueError, match="from -1 to 1"):
        paired_interval([float("nan")])
