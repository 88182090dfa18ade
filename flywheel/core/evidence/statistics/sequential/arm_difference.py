"""By how much does the candidate fail more often, at any time: an interval, and a proof that it is not much.

Weighted by the inverse of its chance, each session is an unbiased look at the difference (Horvitz and Thompson 1952):

    D = (A / r - (1 - A) / (1 - r)) (Z - m)

with m the mean of the sessions before, which changes no expectation and takes spread away. D has known bounds, so bets
on it are exact at any share and from the first session on. Against "the difference is at least d"

    wealth *= 1 + c (d - D) / (D_max - d)

with the mean over several fractions c of the largest bet (Waudby-Smith and Ramdas 2020, arXiv 2010.09686, section 4).
It grows with d, so that the differences that it refuses begin at one value: the interval's upper end. The lower end is
that of the arms exchanged. Where the difference drifts, the hypothesis is that it is never below d.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from flywheel.core.evidence.statistics.sequential.arm_bets import Array, mean_wealth, sessions

FRACTIONS = np.array([0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64])
"""Of the largest bet that cannot lose everything."""
MEAN_BEFORE, SESSIONS_BEFORE = 0.5, 2.0
_HALVINGS = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """The share of sessions by which the candidate fails more often, from -1 to 1."""

    low: float
    mean: float | None
    """None while one arm has no session."""
    high: float
    live: int
    candidate: int
    """Sessions."""


@dataclass(frozen=True, slots=True)
class _Looks:
    weighed: Array
    most: Array
    """D and its bound, of each session."""


def not_worse(arm: ArrayLike, share: ArrayLike, failed: ArrayLike, *, margin: float) -> Array:
    """Return after each session the wealth against "the candidate fails more often by `margin` or more".

    Where it reaches 1/alpha, that is refuted at alpha. Raises ValueError as `arm_bets.sessions` does.
    """
    return _wealth(_looks(*sessions(arm, share, failed)), margin)


def difference(arm: ArrayLike, share: ArrayLike, failed: ArrayLike, *, alpha: float = 0.05) -> Difference:
    """Return the difference after all sessions, with an interval that holds at whatever time one looks.

    Raises ValueError as `arm_bets.sessions` does.
    """
    arms, shares, parts = sessions(arm, share, failed)
    counts = int((arms == 0).sum()), int((arms == 1).sum())
    mean = float(parts[arms == 1].mean() - parts[arms == 0].mean()) if all(counts) else None
    high = _end(_looks(arms, shares, parts), alpha / 2)
    low = -_end(_looks(1 - arms, 1 - shares, parts), alpha / 2)
    return Difference(low, mean, high, *counts)


def _looks(arms: Array, shares: Array, parts: Array) -> _Looks:
    before = np.concatenate([[MEAN_BEFORE * SESSIONS_BEFORE], parts[:-1]])[: parts.size]
    mean = np.cumsum(before) / (SESSIONS_BEFORE + np.arange(parts.size))
    weighed = np.where(arms == 1, 1 / shares, -1 / (1 - shares)) * (parts - mean)
    return _Looks(weighed, np.maximum((1 - mean) / shares, mean / (1 - shares)))


def _wealth(looks: _Looks, least: float) -> Array:
    """After each session, against "the difference is at least `least`"; a difference that cannot be is refuted."""
    room = np.maximum(looks.most - least, 1e-9)
    steps = np.log1p(FRACTIONS * ((least - looks.weighed) / room)[:, None])
    return mean_wealth(np.cumsum(steps, axis=0))


def _end(looks: _Looks, alpha: float) -> float:
    """The least difference that is refuted, at most 1."""
    if not looks.weighed.size:
        return 1.0
    low, high = -1.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _wealth(looks, middle)[-1] >= 1 / alpha:
            high = middle
        else:
            low = middle
    return high
