"""Agreement of reviewers beyond chance, when any number of them said something of each item.

Cohen's kappa is for two who both said something of the same items. Krippendorff's alpha also holds for three and more,
of whom not everyone saw everything; for two who saw the same it is close to kappa.
"""

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import special

from flywheel.core.evidence.statistics.estimates import (
    MIN_CLUSTERS,
    NO_VARIANCE,
    Array,
    Estimate,
    no_interval,
    proportion_upper,
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


def cohen_kappa(
    first: Sequence[Hashable | None], second: Sequence[Hashable | None], *, level: float = 0.95
) -> Estimate:
    """Estimate how far two raters agree beyond chance: 1 = always, 0 = as by chance (Cohen 1960).

    Labels of the same n items; an item that either left unlabelled (None) is left out and counted. Interval
    from the large-sample variance of Fleiss, Cohen & Everitt 1969 on the scale of log(1 - kappa), one pseudo-item
    spread over the table's cells (Agresti 2013, 3.1.1): near 1 the plain one covers 50 to 90 in 100, this one 90 to 96.
    No mean when both used one and the same label only.
    Raises ValueError on unequal lengths.
    """
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    unscored, n = len(first) - len(pairs), len(pairs)
    if n == 0:
        return no_interval(None, 0, unscored, None, level, "nothing was scored")
    labels = {label: i for i, label in enumerate(dict.fromkeys(x for pair in pairs for x in pair))}
    table = np.zeros((len(labels), len(labels)))
    for a, b in pairs:
        table[labels[a], labels[b]] += 1 / n
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    agreed, by_chance = float(np.trace(table)), float(rows @ columns)
    if len(labels) == 1:
        return no_interval(None, n, unscored, None, level, "both raters used one label only")
    kappa = (agreed - by_chance) / (1 - by_chance)
    if not n - np.rint(np.trace(table) * n):  # how often they may still differ is bounded as any count of none
        low = 1 - proportion_upper(0, n, level=level) / (1 - by_chance)
        return Estimate(kappa, low, 1.0, n, unscored, None, "Clopper-Pearson bound of disagreements", level)
    cells = len(labels) ** 2
    spread, variance = _kappa_and_variance((table * n + 1 / cells) / (n + 1), n)
    half = float(special.ndtri((1 + level) / 2)) * math.sqrt(variance) / (1 - spread)
    ends = [1 - (1 - spread) * math.exp(sign * half) for sign in (1, -1)]
    low, high = max(-1.0, min(ends[0], kappa)), max(ends[1], kappa)
    return Estimate(kappa, low, high, n, unscored, None, "Fleiss-Cohen-Everitt, log scale", level)


def _kappa_and_variance(table: Array, n: int) -> tuple[float, float]:
    """Kappa of a table of shares, labels × labels, and its variance from n items."""
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    by_chance = float(rows @ columns)
    kappa = (float(np.trace(table)) - by_chance) / (1 - by_chance)
    diagonal = np.diag(table) @ (1 - (rows + columns) * (1 - kappa)) ** 2
    crossed = table * (columns[:, None] + rows[None, :]) ** 2
    off_diagonal = (1 - kappa) ** 2 * (crossed.sum() - np.trace(crossed))
    variance = diagonal + off_diagonal - (kappa - by_chance * (1 - kappa)) ** 2
    return kappa, max(0.0, float(variance)) / n / (1 - by_chance) ** 2


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
