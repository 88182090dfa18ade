"""Does the arm change anything? Bets on which arm a session was in, once it is known how it went.

A session is put into the candidate's arm by a coin of a known chance that nothing else depends on. Where the candidate
does as the live version does, how a session went says nothing about its coin: whatever the traffic, its drift, the
stages of a ramp, and however alike the trajectories of a session are. So this is a martingale under that hypothesis:

    wealth *= 1 + (l_f Z + l_s (1 - Z)) (A - r)

with Z the part of the session that failed, A = 1 for the candidate and r the coin's chance. Where the candidate fails
more often by d than the live version, which fails at the rate f, the bets that grow it fastest are the likelihood
ratios of the coin (betting as in Waudby-Smith and Ramdas 2020, arXiv 2010.09686):

    l_f = d / (f + r d)        l_s = -d / (1 - f - r d)

f is estimated from the live version's sessions before, and the wealth is the mean over several d.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

WORSE = (0.03, 0.06, 0.10, 0.15, 0.25)
"""Differences that are bet on for harm: the candidate fails more often by so much."""
DIFFERENT = (*(-d for d in reversed(WORSE)), *WORSE)
"""The same in both directions."""
FAILED_BEFORE, SESSIONS_BEFORE = 0.5, 5.0
"""The live version's rate starts from half a failure in five sessions, which is soon outweighed."""
_EDGE = 1e-3
"""Rates that are bet on keep this far from 0 and 1, where a bet could lose everything."""


@dataclass(frozen=True, slots=True)
class ArmBets:
    """The wealth after some sessions, and all that is needed to go on from there."""

    differences: tuple[float, ...] = WORSE
    logs: tuple[float, ...] = ()
    """Logarithm of the wealth of each difference; empty for the beginning."""
    failed: float = FAILED_BEFORE
    sessions: float = SESSIONS_BEFORE
    """Of the live version so far."""

    @property
    def wealth(self) -> float:
        return float(mean_wealth(np.asarray(self.logs or (0.0,) * len(self.differences))))

    def follow(self, arm: ArrayLike, share: ArrayLike, failed: ArrayLike) -> tuple[Array, "ArmBets"]:
        """Return the wealth after each of these further sessions, and the state after the last.

        Raises ValueError for a share that is not between 0 and 1, and a part that is not from 0 to 1.
        """
        arms, shares, parts = sessions(arm, share, failed)
        lives = arms == 0
        of_live = np.cumsum(np.concatenate([[self.failed], np.where(lives, parts, 0.0)]))
        live = np.cumsum(np.concatenate([[self.sessions], lives]))
        steps = np.log(bet_factors(arms, shares, parts, of_live[:-1] / live[:-1], self.differences))
        start = np.asarray(self.logs or (0.0,) * len(self.differences))
        logs = np.cumsum(np.concatenate([start[None], steps]), axis=0)
        after = ArmBets(self.differences, tuple(map(float, logs[-1])), float(of_live[-1]), float(live[-1]))
        return mean_wealth(logs[1:]), after


def bet_factors(arm: Array, share: Array, failed: Array, rate: Array, differences: Sequence[float]) -> Array:
    """Return by what each session multiplies the wealth of each difference: (sessions, differences), all above 0.

    `rate` is the live version's as estimated before each session.
    """
    d = np.asarray(differences)
    f = np.clip(rate[:, None], np.maximum(_EDGE, _EDGE - d), np.minimum(1 - _EDGE, 1 - _EDGE - d))
    r, z = share[:, None], failed[:, None]
    chance = f + r * d
    bet = z * d / chance - (1 - z) * d / (1 - chance)
    found: Array = 1 + bet * (arm[:, None] - r)
    return found


def mean_wealth(logs: Array) -> Array:
    """Return the mean over the last axis of what has these logarithms, without overflow of the parts."""
    most = logs.max(axis=-1, keepdims=True)
    found: Array = np.exp(np.minimum(most[..., 0] + np.log(np.exp(logs - most).mean(axis=-1)), math.log(1e300)))
    return found


def sessions(arm: ArrayLike, share: ArrayLike, failed: ArrayLike) -> tuple[Array, Array, Array]:
    """Return the three as arrays of one length. Raises ValueError as `ArmBets.follow` says."""
    arms, shares, parts = (np.asarray(given, dtype=float) for given in (arm, share, failed))
    if not arms.shape == shares.shape == parts.shape:
        raise ValueError(f"{arms.size} arms, {shares.size} shares and {parts.size} results; expected one of each")
    if not np.all((shares > 0) & (shares < 1)):
        raise ValueError("a share lies between 0 and 1: with one arm alone nothing can be compared")
    if not np.all((parts >= 0) & (parts <= 1)):
        raise ValueError("the part of a session that failed is from 0 to 1")
    return arms, shares, parts
