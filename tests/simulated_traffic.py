"""Sessions of a ramp whose truth is known, and the naive practice: a one-sided 95% interval of the difference of two
shares, looked at every 50 sessions."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flywheel.core.evidence.statistics.sequential.arm_bets import Array

LONGEST, LOOKS = 4000, 50
STAGES = (0.05, 0.1, 0.25, 0.5)
LEAST_OF_ARM = 5
"""Sessions of each arm, before which the naive practice finds nothing."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """A design of sessions, by what differs from 4,000 independent ones whose live version fails at `rate`."""

    rate: float = 0.3
    harm: float = 0.0
    """How much more often the candidate fails."""
    share: float = 0.5
    """Of the candidate; 0 for the four stages, a quarter of the sessions each."""
    drift: float = 0.0
    """How far the rate of both goes up and down."""
    trajectories: int = 1
    """Of a session, at most, and then as alike as an intra-cluster correlation of 0.4 makes them."""
    missing: float = 0.0
    """Share of failed sessions of whose result nothing is ever known, in both arms."""
    late: float = 0.0
    """After how many other sessions a failure becomes known, on average."""

    def arms(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """Return arm and share of so many sessions."""
        stage = np.asarray(STAGES)[4 * np.arange(count) // count]
        share = np.full(count, self.share) if self.share else stage
        return (rng.random(count) < share).astype(float), share


def sessions(of: Traffic, seed: int, count: int = LONGEST) -> tuple[Array, Array, Array]:
    """Arms, shares and parts that failed, in the order in which they became final."""
    rng = np.random.default_rng([seed, 110])
    at = np.arange(count) / count
    arm, share = of.arms(rng, count)
    rate = np.clip(of.rate + of.drift * np.sin(12 * at) + of.harm * arm, 0, 1)
    if of.trajectories > 1:
        rate = rng.beta(np.maximum(rate, 1e-6) * 1.5, np.maximum(1 - rate, 1e-6) * 1.5)
    tries = rng.integers(1, of.trajectories + 1, count)
    failed = rng.binomial(tries, rate) / tries
    final = np.argsort(np.arange(count) + of.late * np.where(failed > 0, rng.exponential(1, count), 0), kind="stable")
    final = final[~((failed[final] > 0) & (rng.random(count) < of.missing))]
    return arm[final], share[final], failed[final]


def naively(arm: Array, failed: Array, least: float = 0.0) -> bool:
    """Whether any look shows the candidate to be worse; with a `least` below 0, to be not worse by that."""
    mean, error = spreads(arm, failed, np.arange(LOOKS, arm.size + 1, LOOKS))
    return bool(((mean - 1.645 * error > 0) if least == 0 else (mean + 1.645 * error < -least)).any())


def spreads(arm: Array, failed: Array, looks: NDArray[np.int_]) -> tuple[Array, Array]:
    """Return the difference of the arms after so many sessions, and its standard error; NaN where an arm is too
    small."""
    means, errors = [], []
    for is_of_arm in (arm == 0, arm == 1):
        count, total, square = (np.cumsum(is_of_arm * part)[looks - 1] for part in (1.0, failed, failed**2))
        count = np.where(count < LEAST_OF_ARM, np.nan, count)
        means.append(total / count)
        errors.append(np.maximum(square / count - means[-1] ** 2, 0) / count)
    return means[1] - means[0], np.sqrt(errors[0] + errors[1])
