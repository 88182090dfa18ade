"""Agreement of reviewers beyond chance, when any number of them said something of each item.

Cohen's kappa, for two who both said something of the same items, is in `estimates`. Krippendorff's alpha also holds for
three and more, of whom not everyone saw everything; for two who saw the same it is close to kappa.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from flywheel.core.evidence.statistics.estimates import (
    MIN_CLUSTERS,
    NO_VARIANCE,
    Array,
    Estimate,
    cohen_kappa,
    no_interval,
    sample_quantile,
)
from flywheel.core.text.number_words import percent

Said = Mapping[str, Hashable]
"""What each reviewer said of one item."""


@dataclass(frozen=True, slots=True)
class Pair:
    first: str
    second: str
    kappa: Estimate


def krippendorff_alpha(
    items: Sequence[Sequence[Hashable]], *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Estimate:
    """Krippendorff's alpha for nominal values (Krippendorff 2011): 1 = always alike, 0 = as by chance.

    Each item is what was said of it, in any order. One of which fewer than two said something is left out and counted.
    Interval by a bootstrap over the items. No mean when everybody always said the same.
    """
    pairable = [Counter(item) for item in items if len(item) > 1]
    n, unscored = len(pairable), len(items) - len(pairable)
    if n == 0:
        return no_interval(None, n, unscored, None, level, "nothing was said twice")
    values = {value: place for place, value in enumerate(dict.fromkeys(value for item in pairable for value in item))}
    if len(values) == 1:
        return no_interval(None, n, unscored, None, level, "everybody always said the same")
    # Items of which the same was said, equally often, are alike: drawing among the kinds is drawing among the items.
    kinds = Counter(frozenset(item.items()) for item in pairable)
    counts = np.zeros((len(kinds), len(values)))
    for place, kind in enumerate(kinds):
        for value, times in kind:
            counts[place, values[value]] = times
    weights = np.array(list(kinds.values()), dtype=np.float64)
    alpha = float(_alpha(counts, weights[None, :])[0])
    if n < MIN_CLUSTERS:
        return no_interval(alpha, n, unscored, None, level, f"{n} items; at least {MIN_CLUSTERS} are needed")
    drawn = np.random.default_rng(seed).multinomial(n, weights / n, size=resamples).astype(np.float64)
    found = _alpha(counts, drawn)
    defined = found[np.isfinite(found)]
    if defined.size < 0.99 * resamples:
        share = 1 - defined.size / resamples
        return no_interval(alpha, n, unscored, None, level, f"undefined in {percent(share)} of resamples")
    if np.ptp(defined) < 1e-12:
        return no_interval(alpha, n, unscored, None, level, NO_VARIANCE)
    low, high = (sample_quantile(defined, q) for q in ((1 - level) / 2, (1 + level) / 2))
    return Estimate(alpha, low, high, n, unscored, None, f"bootstrap over items, {resamples} resamples", level)


def by_value(items: Sequence[Said], values: Sequence[Hashable]) -> dict[Hashable, Estimate]:
    """For each value the alpha of "this one or another": how far reviewers agree on when it applies."""
    return {
        value: krippendorff_alpha([[said == value for said in item.values()] for item in items]) for value in values
    }


def pairs(items: Sequence[Said]) -> list[Pair]:
    """Cohen's kappa of every two reviewers who said something of the same items, those with the most first."""
    names = sorted({name for item in items for name in item})
    found = []
    for first, second in combinations(names, 2):
        both = [item for item in items if first in item and second in item]
        if both:
            kappa = cohen_kappa([item[first] for item in both], [item[second] for item in both])
            found.append(Pair(first, second, kappa))
    return sorted(found, key=lambda pair: -pair.kappa.n)


def _alpha(counts: Array, weights: Array) -> Array:
    """Alpha for each row of weights: how often each kind of item is there. NaN where only one value is.

    With n_uc reviewers who say c of item u, m_u of them in all, and n and n_c the totals over the items:
    1 - (n - 1) * sum_u (m_u^2 - sum_c n_uc^2) / (m_u - 1) / (n^2 - sum_c n_c^2).
    """
    said = counts.sum(axis=1)
    unlike = (said**2 - (counts**2).sum(axis=1)) / (said - 1)
    totals = weights @ counts
    n = totals.sum(axis=1)
    expected = n**2 - (totals**2).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        observed: Array = np.where(expected > 0, (n - 1) * (weights @ unlike) / expected, np.nan)
    return 1 - observed
