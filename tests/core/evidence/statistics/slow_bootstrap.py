"""A bootstrap that gathers the rows of each resample: what the fast one of the house is held against."""

from collections.abc import Callable, Sequence

import numpy as np

from flywheel.core.evidence.statistics import estimates
from flywheel.core.evidence.statistics.estimates import Array, Draws, Estimate


def paired_bootstrap(
    baseline: Sequence[Array],
    candidate: Sequence[Array],
    statistic: Callable[[Array, Array], float],
    *,
    seed: int,
    level: float = 0.95,
    resamples: int = 4000,
    unscored: int = 0,
) -> Estimate:
    """Estimate any statistic of both arms, such as a ratio of costs or a difference of 95th percentiles.

    ``baseline[c]`` and ``candidate[c]`` hold the rows of cluster c, shape (rows,) or (rows, columns); each
    resample draws whole clusters with replacement, the same ones for both arms, and calls
    ``statistic(baseline, candidate)`` on the stacked rows. Percentile interval (Efron & Tibshirani 1993;
    Field & Welsh 2007 for clusters). A statistic that is not finite is undefined; where that befalls more
    than 1 % of resamples there is no interval.
    Raises ValueError on unequal numbers of clusters.
    """
    n = estimates._rows_of_pairs(baseline, candidate)

    def value(drawn: Sequence[int]) -> float:
        return float(statistic(*(np.concatenate([arm[c] for c in drawn]) for arm in (baseline, candidate))))

    def resampled(draws: Draws) -> Array:
        return np.array([value(row) for row in draws.tolist()])

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        point = value(range(len(baseline))) if n else None
        return estimates._bootstrap(point, resampled, len(baseline), n, unscored, seed, level, resamples)
