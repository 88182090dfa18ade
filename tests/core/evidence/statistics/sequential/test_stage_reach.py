"""What a stage would have caught, beside stages that are played."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.core.evidence.statistics.sequential.arm_bets import ArmBets
from flywheel.core.evidence.statistics.sequential.stage_reach import chance_of_catching, least_harm


@pytest.mark.parametrize(("rate", "share", "sessions"), [(0.02, 0.1, 1000), (0.3, 0.5, 300), (0.3, 0.05, 1000)])
def test_the_least_harm_is_caught_in_about_four_of_five_stages(rate: float, share: float, sessions: int) -> None:
    harm = least_harm(share=share, sessions=sessions, rate=rate, alpha=0.05)
    assert harm is not None
    caught = 0
    rng = np.random.default_rng(4)
    for _ in range(200):
        arm = (rng.random(sessions) < share).astype(float)
        path, _ = ArmBets().follow(arm, np.full(sessions, share), (rng.random(sessions) < rate + harm * arm) * 1.0)
        caught += bool((path >= 20).any())
    assert 0.65 <= caught / 200 <= 0.9


@given(st.floats(0.01, 0.7), st.floats(0.02, 0.5), st.integers(1, 3000), st.floats(0.001, 0.2))
def test_more_sessions_and_a_larger_alpha_catch_less_harm(
    rate: float, share: float, sessions: int, alpha: float
) -> None:
    found = least_harm(share=share, sessions=sessions, rate=rate, alpha=alpha)
    more = [
        least_harm(share=share, sessions=2 * sessions, rate=rate, alpha=alpha),
        least_harm(share=share, sessions=sessions, rate=rate, alpha=2 * alpha),
    ]
    if found is not None:
        assert all(each is not None and each <= found + 1e-6 for each in more)
        assert chance_of_catching(found, share=share, sessions=sessions, rate=rate, alpha=alpha) >= 0.8


def test_a_stage_that_is_too_short_catches_nothing() -> None:
    assert least_harm(share=0.05, sessions=10, rate=0.3, alpha=0.05) is None
    assert chance_of_catching(0.0, share=0.5, sessions=1000, rate=0.3, alpha=0.05) == 0


@pytest.mark.parametrize(
    ("harm", "share", "rate", "alpha"), [(0.8, 0.5, 0.3, 0.05), (0.1, 1.0, 0.3, 0.05), (0.1, 0.5, 0.3, 0.0)]
)
def test_what_cannot_be_is_refused(harm: float, share: float, rate: float, alpha: float) -> None:
    with pytest.raises(ValueError, match=r"cannot be|between 0 and 1"):
        chance_of_catching(harm, share=share, sessions=100, rate=rate, alpha=alpha)
