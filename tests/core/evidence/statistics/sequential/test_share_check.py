"""Shares as promised: exact over all coins, and what is not as promised is found."""

import itertools
import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.core.evidence.statistics.sequential.share_check import share_log_wealth


@settings(max_examples=10)
@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_the_mean_wealth_over_all_coins_is_one(first: float, second: float) -> None:
    """Over two stages of five sessions."""
    parts = []
    for coins in itertools.product((0, 1), repeat=10):
        counts = [sum(coins[:5]), sum(coins[5:])]
        chance = math.prod(r**n * (1 - r) ** (5 - n) for r, n in zip((first, second), counts, strict=True))
        stages = [(first, counts[0], 5 - counts[0]), (second, counts[1], 5 - counts[1])]
        parts.append(chance * math.exp(share_log_wealth(stages)))
    assert math.fsum(parts) == pytest.approx(1, abs=1e-9)


def test_arms_of_another_size_are_found_and_those_as_promised_are_not() -> None:
    chance = Random(3)
    for told, true, is_found in ((0.5, 0.5, False), (0.1, 0.1, False), (0.5, 0.55, True), (0.1, 0.15, True)):
        candidate = sum(chance.random() < true for _ in range(6000))
        assert (share_log_wealth([(told, candidate, 6000 - candidate)]) > math.log(1000)) == is_found


@pytest.mark.parametrize("share", [0.0, 1.0, math.nan])
def test_a_share_that_cannot_be_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        share_log_wealth([(share, 1, 1)])
