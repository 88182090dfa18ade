"""Exact tests of yes and no: of pairs (McNemar), of bad attempts before and after, task by task (Fisher), and a bound
of a rate that holds however often one looks (Robbins)."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import comb
from typing import Final

import numpy as np
from scipy import special

PRIOR: Final = (0.5, 100.0)
"""Beta weights over rates by which ``anytime_upper`` bets: mostly below one in a hundred. They make its bound narrow
for such rates, and it holds whatever the rate is. 30 trials without an event bound the rate at 10% (29 would be the
fewest for any such bound), as 65 do with one and 93 with two."""
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


def anytime_upper(events: int, n: int, *, level: float = 0.95) -> float:
    """Bound the rate of ``events`` in ``n`` independent trials from above, at every n at once.

    Whoever looks after each trial, and stops or goes on by what was seen, finds the rate above any of the bounds with
    a chance of at most ``1 - level``. The largest rate p with ``B(a+x, b+n-x) / (B(a, b) p^x (1-p)^(n-x)) < 1 /
    (1-level)``, a martingale at the true p (Robbins 1970, with Ville's inequality; Howard et al. 2021,
    arXiv 1810.08240); a and b are ``PRIOR``. Raises ValueError unless ``0 <= events <= n``.
    """
    if not 0 <= events <= n:
        raise ValueError(f"{events} events in {n} trials have no bound.")
    a, b = PRIOR
    bet = float(special.betaln(a + events, b + n - events) - special.betaln(a, b)) + float(np.log1p(-level))
    low, high = events / n if n else 1.0, 1.0
    while high - low > 1e-12:  # what was bet falls behind from the share on, with every rate that is further from it
        middle = (low + high) / 2
        inside = bet < float(special.xlogy(events, middle) + special.xlog1py(n - events, -middle))
        low, high = (middle, high) if inside else (low, middle)
    return high
