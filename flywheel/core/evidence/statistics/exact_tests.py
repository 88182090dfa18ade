"""Exact tests of yes and no: of pairs (McNemar), and of bad attempts before and after, task by task (Fisher)."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import comb
from typing import Final

import numpy as np
from scipy import special

NEGLIGIBLE: Final = 1e-18
"""How likely a number of bad attempts is that is left out of account: a suite has some 100,000 attempts at most."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Counts of the attempts at one task, by outcome."""

    attempts: int
    bad: int = 0
    unknown: int = 0
    """Neither good nor bad: not scored."""

    @property
    def passed(self) -> bool | None:
        """Whether every attempt did; None where that cannot be said."""
        return False if self.bad else None if self.unknown or not self.attempts else True

    @property
    def scored(self) -> int:
        return self.attempts - self.unknown


def mcnemar_exact(b: int, c: int) -> float:
    """Test paired yes/no outcomes: ``b`` tasks fixed, ``c`` broken.

    McNemar 1947 in its exact form, ``min(1, 2 BinomCDF(min(b, c); b + c, 1/2))``. It holds each task for
    independent, so show it beside a clustered interval, not instead. Raises ValueError on a negative count.
    """
    if b < 0 or c < 0:
        raise ValueError(f"{b} fixed and {c} broken: a count is negative.")
    return min(1.0, 2.0 * float(special.bdtr(min(b, c), b + c, 0.5)))


def more_often(pairs: Iterable[tuple[Tried, Tried]]) -> float:
    """Return the chance of so many bad attempts after, or more, given how many of each task were bad before and after:
    Fisher's exact test, one-sided, stratified by task. Only what was scored counts; 1 where that tells nothing."""
    likely, seen = np.ones(1), 0
    for old, new in pairs:
        if not old.bad and not new.bad:
            continue
        fewest, each = chances(old, new)
        likely, seen = np.convolve(likely, each), seen + new.bad - fewest
        kept = np.flatnonzero(likely > NEGLIGIBLE)
        likely, seen = likely[kept[0] : kept[-1] + 1], seen - int(kept[0])
    return min(1.0, float(likely[max(0, seen) :].sum()))


def chances(old: Tried, new: Tried) -> tuple[int, list[float]]:
    """The fewest of a task's bad attempts that can be of `new`, and how likely so many and each number above are."""
    bad = old.bad + new.bad
    fewest, most = max(0, bad - old.scored), min(new.scored, bad)
    ways = comb(old.scored + new.scored, bad)
    return fewest, [comb(new.scored, count) * comb(old.scored, bad - count) / ways for count in range(fewest, most + 1)]
