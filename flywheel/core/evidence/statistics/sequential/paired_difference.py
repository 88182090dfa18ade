"""By how much does the candidate do worse at the same calls, at any time: an interval, and whether it is worse at all.

Each session is a pair: the mean over its calls of something from 0 to 1, of the candidate's answers less of the live
version's. D lies between -1 and 1, so that bets on it are exact from the first session on. Against "the mean is at most
m"

    wealth *= 1 + c (D - m) / (1 + m)

with the mean over several fractions c of the largest bet (Waudby-Smith and Ramdas 2020, arXiv 2010.09686, section 4).
The order of the sessions changes nothing. The lower end of the interval is the largest m that is refuted, the upper end
that of the arms exchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flywheel.core.evidence.statistics.sequential.arm_bets import mean_wealth

FRACTIONS = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 0.95])
"""Of the largest bet that cannot lose everything."""
_HALVINGS = 20


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """From -1 to 1, above 0 where the candidate has more of it."""

    low: float
    mean: float | None
    """None without a session."""
    high: float
    n: int
    """Sessions."""


def more_wealth(differences: Sequence[float], *, margin: float = 0.0) -> float:
    """Return the wealth against "the mean is at most `margin`", which is refuted at alpha where it reaches 1/alpha.

    Raises ValueError for a difference that is not from -1 to 1.
    """
    return _wealth(_checked(differences), margin)


def paired_interval(differences: Sequence[float], *, alpha: float = 0.05) -> PairedDifference:
    """Return the mean with an interval that holds however often one looks. Raises ValueError as `more_wealth` does."""
    found = _checked(differences)
    mean = float(found.mean()) if found.size else None
    return PairedDifference(_end(found, alpha / 2), mean, -_end(-found, alpha / 2), found.size)


def _checked(differences: Sequence[float]) -> NDArray[np.float64]:
    found = np.asarray(differences, dtype=float)
    if not np.all(np.abs(found) <= 1):
        raise ValueError("a difference of two parts of a session is from -1 to 1")
    return found


def _wealth(differences: NDArray[np.float64], margin: float) -> float:
    room = max(1 + margin, 1e-9)
    steps = np.log1p(FRACTIONS * ((differences - margin) / room)[:, None])
    return float(mean_wealth(steps.sum(axis=0)))


def _end(differences: NDArray[np.float64], alpha: float) -> float:
    """The largest mean that is refuted, at least -1."""
    low, high = -1.0, 1.0
    for _ in range(_HALVINGS if differences.size else 0):
        middle = (low + high) / 2
        if _wealth(differences, middle) >= 1 / alpha:
            low = middle
        else:
            high = middle
    return low
