"""The watch of a claim: what it adds up, how seldom it errs and how soon it sees."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.core.evidence.statistics.sequential.claim_watch import ODDS, ClaimWatch, bound

PARTS = st.lists(st.floats(0, 1), max_size=30)


def slow(claim: float, parts: list[float]) -> float:
    """The sum over all beginnings of the likelihood ratio from there, as it is defined."""
    found = []
    for odds in ODDS:
        against = claim / (1 - claim) * odds
        rate = against / (1 + against)
        of_failed, of_rest = rate / claim, (1 - rate) / (1 - claim)
        factors = [of_failed * part + of_rest * (1 - part) for part in parts]
        found.append(math.fsum(math.prod(factors[start:]) for start in range(len(factors))))
    return math.fsum(found) / len(found)


@given(st.floats(0.001, 0.6), PARTS)
def test_it_is_the_sum_of_the_bets_from_every_beginning(claim: float, parts: list[float]) -> None:
    _, after = ClaimWatch(claim).follow(parts)
    assert after.evidence == pytest.approx(slow(claim, parts), rel=1e-9)


@given(PARTS, st.integers(0, 30))
def test_a_state_that_was_kept_goes_on_to_the_last_bit(parts: list[float], cut: int) -> None:
    whole, after = ClaimWatch(0.02).follow(parts)
    first, kept = ClaimWatch(0.02).follow(parts[:cut])
    rest, again = kept.follow(parts[cut:])
    assert [*first, *rest] == [*whole]
    assert again == after


def test_a_failure_that_comes_back_is_seen_and_one_that_keeps_to_the_claim_is_not() -> None:
    chance = Random(2)
    path, kept = ClaimWatch(0.02).follow([chance.random() < 0.01 for _ in range(5000)])
    assert max(path) < bound(1)
    path, _ = kept.follow([chance.random() < 0.06 for _ in range(600)])
    assert max(path) >= bound(1)
    assert bound(3) == 3 * bound(1)


@pytest.mark.parametrize("claim", [0.0, 1.0, -0.1, math.nan])
def test_a_claim_that_is_no_rate_is_refused(claim: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        ClaimWatch(claim)


def test_parts_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        ClaimWatch(0.1).follow([0.5, math.nan])
