"""Does a claim still hold: "this fails in at most p0 of the sessions"? An e-detector, for traffic without another arm.

A failure that was trained away may come back at any time, so that bets begin anew with every session, and their wealth
is added up (Shiryaev and Roberts; as an e-detector Shin, Ramdas and Rinaldo 2022, arXiv 2203.03532):

    M_n = (1 + M_{n-1}) (1 + l (Z_n - p0)),    l = (p - p0) / (p0 (1 - p0))

with the mean over several rates p that it may have come back at. While the claim holds, M_n - n does not grow on
average, so that it takes at least c sessions on average until M reaches c. Of k claims that are watched at once each
has the bound k c: then it is c for all together.

It is not causal: the traffic may have changed, and not the version.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from flywheel.core.evidence.statistics.sequential.arm_bets import Array

RUN_LENGTH = 20_000.0
"""Sessions until a false alarm, at least, on average, of all claims of a version together."""
ODDS = (2.0, 3.0, 5.0)
"""Of the rates that are bet on, beside the claim's."""


@dataclass(frozen=True, slots=True)
class ClaimWatch:
    """The evidence against a claim after some sessions, and all that is needed to go on from there."""

    claim: float
    """The largest rate that is promised, between 0 and 1."""
    sums: tuple[float, ...] = (0.0,) * len(ODDS)
    """M of each rate that is bet on."""

    def __post_init__(self) -> None:
        if not 0 < self.claim < 1:
            raise ValueError(f"a claim is a rate between 0 and 1, not {self.claim}")

    @property
    def evidence(self) -> float:
        """To be compared with `bound`."""
        return math.fsum(self.sums) / len(self.sums)

    def follow(self, failed: ArrayLike) -> tuple[Array, "ClaimWatch"]:
        """Return the evidence after each of these further sessions, and the state after the last.

        `failed` is the part of each that failed, from 0 to 1. Raises ValueError for another.
        """
        parts = np.asarray(failed, dtype=float)
        if not np.all((parts >= 0) & (parts <= 1)):
            raise ValueError("the part of a session that failed is from 0 to 1")
        sums, path = np.asarray(self.sums), []
        for factors in bet_factors(self.claim, parts):
            sums = add_session(sums, factors)
            path.append(math.fsum(sums) / len(sums))
        return np.asarray(path), ClaimWatch(self.claim, tuple(map(float, sums)))


def bound(claims: int, run_length: float = RUN_LENGTH) -> float:
    """Return what the evidence against one of so many claims must reach for an alarm."""
    return claims * run_length


def bet_factors(claim: float, failed: Array) -> Array:
    """Return by what each session multiplies the evidence of each rate that is bet on: (sessions, rates)."""
    odds = claim / (1 - claim) * np.asarray(ODDS)
    rates = odds / (1 + odds)
    bets = (rates - claim) / (claim * (1 - claim))
    found: Array = 1 + bets * (failed[:, None] - claim)
    return found


def add_session(sums: Array, factors: Array) -> Array:
    """Return M after one more session, of whatever shape; no sum overflows."""
    found: Array = np.minimum((1 + sums) * factors, 1e300)
    return found
