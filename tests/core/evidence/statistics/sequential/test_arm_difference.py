"""The difference of two arms at any time: exact over all coins, and an interval that is the test turned round."""

import itertools
import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.core.evidence.statistics.sequential.arm_difference import difference, not_worse

SHARES = st.floats(0.02, 0.98)
RESULTS = st.tuples(SHARES, st.floats(0, 1), st.floats(0, 1))


def drawn(
    count: int, live: float, candidate: float, share: float, seed: int = 1
) -> tuple[list[bool], list[float], list[bool]]:
    chance = Random(seed)
    arms = [chance.random() < share for _ in range(count)]
    return arms, [share] * count, [chance.random() < (candidate if arm else live) for arm in arms]


@settings(max_examples=10)
@given(st.lists(RESULTS, min_size=8, max_size=8))
def test_over_all_coins_the_wealth_against_the_true_difference_is_at_most_one(
    sessions: list[tuple[float, float, float]],
) -> None:
    """Each session fails by one part if it is live and by another if it is the candidate's; the margin is the least
    difference of them, so that the hypothesis holds."""
    shares, live, candidate = (np.array(values) for values in zip(*sessions, strict=True))
    margin = float((candidate - live).min())
    parts = []
    for coins in itertools.product((0, 1), repeat=8):
        chance = math.prod(r if coin else 1 - r for coin, r in zip(coins, shares, strict=True))
        parts.append(chance * not_worse(coins, shares, np.where(coins, candidate, live), margin=margin)[-1])
    assert math.fsum(parts) <= 1 + 1e-9


@given(st.lists(st.tuples(st.booleans(), SHARES, st.floats(0, 1)), min_size=1, max_size=60))
def test_the_interval_holds_what_is_not_refused(sessions: list[tuple[bool, float, float]]) -> None:
    columns = [np.array(values, float) for values in zip(*sessions, strict=True)]
    found = difference(*columns, alpha=0.2)
    assert -1 <= found.low <= found.high <= 1
    if found.high < 1:
        assert not_worse(*columns, margin=found.high + 1e-6)[-1] >= 10
        assert not_worse(*columns, margin=found.high - 1e-6)[-1] < 10 + 1e-3
    arms, shares, parts = columns
    turned = difference(1 - arms, 1 - shares, parts, alpha=0.2)
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low), abs=1e-8)


def test_it_closes_in_on_the_truth() -> None:
    sessions = drawn(4000, 0.3, 0.4, 0.5)
    found = difference(*sessions)
    assert found.low < 0.1 < found.high
    assert found.high - found.low < 0.12
    assert (found.live, found.candidate) == (4000 - sum(sessions[0]), sum(sessions[0]))
    assert found.mean == pytest.approx(0.1, abs=0.04)


def test_a_better_candidate_is_shown_to_be_not_worse_and_a_worse_one_is_not() -> None:
    assert not_worse(*drawn(300, 0.63, 0.29, 0.5), margin=0.05)[-1] > 20
    assert not_worse(*drawn(3000, 0.3, 0.4, 0.5), margin=0.05).max() < 20


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_candidate_at_the_margin_is_seldom_let_through(share: float) -> None:
    passed = sum(
        bool((not_worse(*drawn(1500, 0.3, 0.35, share, seed), margin=0.05) >= 20).any()) for seed in range(200)
    )
    assert passed <= 15  # 5% of 200, and 1.6 standard errors


def test_without_sessions_nothing_is_known() -> None:
    found = difference([], [], [])
    assert (found.low, found.mean, found.high, found.live, found.candidate) == (-1, None, 1, 0, 0)
    assert difference([1], [0.5], [1]).mean is None
