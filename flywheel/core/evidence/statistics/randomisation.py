"""Randomisation inference for two arms that attempted the same tasks: p-values and intervals that need no
distribution and hold for clusters of any sizes.

If neither arm is better, a cluster's difference is as likely to be what it is as to be its negative. The test flips the
signs of whole clusters and asks how often so great a sum comes about (Fisher 1935; clusters are flipped whole as by
Cameron, Gelbach and Miller 2008). The interval is that test turned round: it holds the values that the test does not
refuse, so the two never contradict each other. For a ratio of sums over clusters (a mean difference is one, of
differences to tasks) those values need no search: a value is refused exactly where too few of the ratios of *subsets*
of clusters lie beyond it, so the interval ends at order statistics of these (typical values, Hartigan 1969).

It is exact where each cluster's part is symmetric about its share of the true value, which is so whenever the two arms
could be exchanged. What it costs beside a t interval where that would hold, too: 1 to 3 points of power.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

EXACT_CLUSTERS = 13
"""Up to this many clusters all subsets are looked at."""
DRAWS = 9_999
"""Random subsets beyond that."""
_AT_ONCE = 2**21
"""Numbers of a table that is multiplied at once; smaller ones are kept, as one comparison asks for them many times."""
_DIGITS = 12
"""Decimals to which ratios are told apart: beyond them a difference is one of rounding."""


@dataclass(frozen=True, slots=True)
class Subsets:
    """Ratios of subsets of clusters, in order, shape (subsets,)."""

    ratios: Array
    count: int
    """With the empty subset, or, of drawn ones, with the one that was observed (Phipson and Smyth 2010)."""

    def p_greater(self, null: float) -> float:
        """Test "the ratio is at most `null`", one-sided; never 0."""
        return float(1 + np.searchsorted(self.ratios, round(null, _DIGITS), side="right")) / self.count

    def p_less(self, null: float) -> float:
        """Test "the ratio is at least `null`", one-sided; never 0."""
        below = np.searchsorted(self.ratios, round(null, _DIGITS), side="left")
        return float(1 + self.ratios.size - below) / self.count

    def p(self, null: float) -> float:
        """Test "the ratio is `null`": twice the smaller one-sided p."""
        return min(1.0, 2 * self.p_greater(null), 2 * self.p_less(null))

    def interval(self, level: float) -> tuple[float, float] | None:
        """Give the values that are not refused at `1 - level`, half of it on either side; None where so few clusters
        refuse nothing."""
        place = math.floor((1 - level) / 2 * self.count + 1e-9) - 1
        if place < 0:
            return None
        return float(self.ratios[place]), float(self.ratios[-1 - place])


def subset_ratios(numerators: Array, denominators: Array, seed: int) -> Subsets:
    """Give the ratios of sums over subsets of clusters; both of shape (clusters,), denominators above 0.

    All subsets up to `EXACT_CLUSTERS` clusters, else `DRAWS` random ones, each cluster in or out as a coin falls.
    """
    count = numerators.size
    columns = np.column_stack([numerators, denominators])
    if count <= EXACT_CLUSTERS:
        members = (np.arange(1, 2**count)[:, None] >> np.arange(count)) & 1
        sums = members @ columns
        total = 2**count
    else:
        sums = np.concatenate([members.astype(float) @ columns for members in _drawn(count, seed)])
        sums, total = sums[sums[:, 1] > 0], DRAWS + 1
    return Subsets(np.sort(np.round(sums[:, 0] / sums[:, 1], _DIGITS)), total)


def _drawn(count: int, seed: int) -> Iterable[NDArray[np.int8]]:
    """Give which clusters are in each random subset, draws × clusters, in parts of a bearable size."""
    return _kept(count, seed) if DRAWS * count <= _AT_ONCE else _parts(count, seed)


@lru_cache(maxsize=4)
def _kept(count: int, seed: int) -> tuple[NDArray[np.int8], ...]:
    return tuple(_parts(count, seed))


def _parts(count: int, seed: int) -> Iterator[NDArray[np.int8]]:
    rng = np.random.default_rng(seed)
    rows = max(1, _AT_ONCE // count)
    for start in range(0, DRAWS, rows):
        yield rng.integers(0, 2, (min(rows, DRAWS - start), count), np.int8)
