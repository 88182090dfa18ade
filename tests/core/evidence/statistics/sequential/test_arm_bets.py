"""Bets on the arm: worth nothing on average where the arm changes nothing, over every way that the coins may fall."""

import itertools
import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.core.evidence.statistics.sequential.arm_bets import DIFFERENT, WORSE, ArmBets

SHARES = st.floats(0.01, 0.99)
PARTS = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))
SESSIONS = st.lists(st.tuples(st.booleans(), SHARES, PARTS), min_size=1, max_size=30)


def slow(sessions: list[tuple[bool, float, float]], differences: tuple[float, ...]) -> float:
    """The formula as it is written, a session and a difference at a time."""
    wealth = []
    for d in differences:
        own, failed, live = 1.0, 0.5, 5.0
        for is_candidate, r, z in sessions:
            f = min(max(failed / live, 1e-3, 1e-3 - d), 1 - 1e-3, 1 - 1e-3 - d)
            of_failed, of_rest = d / (f + r * d), -d / (1 - f - r * d)
            own *= 1 + (of_failed * z + of_rest * (1 - z)) * (is_candidate - r)
            if not is_candidate:
                failed, live = failed + z, live + 1
        wealth.append(own)
    return math.fsum(wealth) / len(wealth)


@pytest.mark.parametrize("differences", [WORSE, DIFFERENT])
@settings(max_examples=10)
@given(st.lists(st.tuples(SHARES, PARTS), min_size=10, max_size=10))
def test_the_mean_wealth_over_all_coins_is_one(
    differences: tuple[float, ...], sessions: list[tuple[float, float]]
) -> None:
    shares, parts = (np.array(values) for values in zip(*sessions, strict=True))
    parts_of_wealth = []
    for coins in itertools.product((0, 1), repeat=10):
        chance = math.prod(r if coin else 1 - r for coin, r in zip(coins, shares, strict=True))
        path, _ = ArmBets(differences).follow(coins, shares, parts)
        parts_of_wealth.append(chance * path[-1])
    assert math.fsum(parts_of_wealth) == pytest.approx(1, abs=1e-12)


@given(SESSIONS, st.sampled_from([WORSE, DIFFERENT]))
def test_the_wealth_is_the_product_of_the_bets(
    sessions: list[tuple[bool, float, float]], differences: tuple[float, ...]
) -> None:
    _, after = ArmBets(differences).follow(*zip(*sessions, strict=True))
    assert after.wealth == pytest.approx(slow(sessions, differences), rel=1e-9)


@given(SESSIONS, st.integers(0, 30))
def test_a_state_that_was_kept_goes_on_to_the_last_bit(sessions: list[tuple[bool, float, float]], cut: int) -> None:
    columns = [np.array(values, float) for values in zip(*sessions, strict=True)]
    whole, after = ArmBets().follow(*columns)
    first, kept = ArmBets().follow(*(column[:cut] for column in columns))
    rest, again = kept.follow(*(column[cut:] for column in columns))
    assert [*first, *rest] == [*whole]
    assert again == after
    assert after.wealth == whole[-1]


def test_a_worse_candidate_makes_the_wealth_grow_and_a_better_one_makes_it_fall() -> None:
    chance = Random(1)
    arms = [chance.random() < 0.5 for _ in range(600)]
    worse, better = ([chance.random() < (rate if arm else 0.3) for arm in arms] for rate in (0.55, 0.05))
    assert ArmBets().follow(arms, [0.5] * 600, worse)[1].wealth > 1e6
    assert ArmBets().follow(arms, [0.5] * 600, better)[1].wealth < 0.01
    assert ArmBets(DIFFERENT).follow(arms, [0.5] * 600, better)[1].wealth > 1e6


def test_wealth_beyond_all_numbers_stays_one() -> None:
    arms = [0, 1] * 40_000
    path, after = ArmBets().follow(arms, [0.5] * 80_000, arms)
    assert np.isfinite(path).all()
    assert after.wealth == pytest.approx(1e300)


@pytest.mark.parametrize(
    ("sessions", "said"),
    [
        (([1], [0.0], [1]), "between 0 and 1"),
        (([1], [1.0], [1]), "between 0 and 1"),
        (([1], [math.nan], [1]), "between 0 and 1"),
        (([1], [0.5], [1.1]), "from 0 to 1"),
        (([1], [0.5], [math.nan]), "from 0 to 1"),
        (([1, 0], [0.5], [1]), "2 arms, 1 shares and 1 results"),
    ],
)
def test_sessions_that_cannot_be_are_refused(sessions: tuple[list[float], ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ArmBets().follow(*sessions)
