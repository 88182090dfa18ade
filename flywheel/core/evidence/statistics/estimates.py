"""Honest statistics for evals: intervals that know tasks come in families and say when they cannot tell.

Four rules hold in every function here:

1. ``None`` is *unscored*. It is left out and counted in ``Estimate.unscored``; it is never 0. NaN is refused.
2. Tasks of one *cluster* (a source trajectory, a template, a customer) are not independent. Differences are
   tested by flipping whole clusters and their intervals are that test turned round (``randomisation``); one
   arm's standard errors sum over clusters first (CR2), with as many degrees of freedom as the clusters' sizes
   leave (Bell and McCaffrey 2002), which is few where one of them has most of the tasks.
3. No interval is better than a false one. One value, one cluster, fewer than ``MIN_CLUSTERS`` clusters in a
   difference or a bootstrap, or no variance at all give the estimate alone, with ``reason`` saying why.
4. Whatever draws at random takes a seed, so a number on a screen can be computed again.

A one-sided bound at 95% is the end of a two-sided interval at 90%: ask with ``level=0.90`` and read ``low``
or ``high``.

Only scipy.special is imported (not scipy.stats, which costs a web process half a second and tens of
megabytes); tests hold every formula against scipy.stats, statsmodels or an exact enumeration.

Not covered: sequential looks (fix n up front), judge error (PPI), the ledger of hold-out openings. What a set can
show is in ``power``, how far people agree in ``reviewer_agreement``.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from flywheel.core.evidence.statistics.randomisation import subset_ratios
from flywheel.core.text.number_words import percent

Scores = Sequence[float | None]
Clusters = Sequence[Hashable]
Array = NDArray[np.float64]
Codes = NDArray[np.intp]
"""Clusters as numbers from 0, one for each value."""
Draws = NDArray[np.int64]
"""Which clusters each resample drew, shape resamples × clusters."""

MIN_CLUSTERS = 5
"""Fewer independent clusters than this give no verdict on a difference."""
LARGEST = 1e100
"""Of a value: beyond it sums of squares are no numbers."""
NO_VARIANCE = "no variance"
"""The ``reason`` of an estimate whose observations are all alike: direction may be plain, spread is unknown."""


@dataclass(frozen=True)
class Estimate:
    """A number with its interval and what it rests on."""

    mean: float | None
    """The point estimate; None where nothing was scored."""
    low: float | None
    high: float | None
    """Ends of the two-sided interval at ``level``; both None when there is no honest one (see ``reason``)."""
    n: int
    """Scored observations: tasks for means and differences, rows for quantiles, pairs for agreement."""
    unscored: int
    """Observations left out because they, or their partner in the pair, were not scored."""
    clusters: int | None
    """Independent clusters among the scored observations; None where clustering was not considered."""
    method: str
    """How the interval was made, in words for a tooltip."""
    level: float = 0.95
    p: float | None = None
    """Two-sided p-value against "no difference", where one was computed."""
    reason: str = ""
    """Why there is no interval; empty when there is one."""
    effective: float | None = None
    """How many clusters of equal size would tell as much (Kish 1965); None where clustering was not considered."""
    largest: float | None = None
    """The share of the observations that the largest cluster has."""


# One arm


def proportion(successes: int, n: int, *, level: float = 0.95, unscored: int = 0) -> Estimate:
    """Estimate a rate from independent yes/no observations.

    Wilson's score interval (Wilson 1927). With no successes, or nothing but successes, the open end is the
    *one-sided* Clopper-Pearson bound at ``level``: 0 of n gives ``1 - (1-level)^(1/n)``.
    Raises ValueError unless ``0 <= successes <= n``.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} is not a proportion.")
    if n == 0:
        return no_interval(None, 0, unscored, None, level, "nothing was scored")
    if successes in (0, n):
        open_end = proportion_upper(0, n, level=level)
        low, high = (0.0, open_end) if successes == 0 else (1.0 - open_end, 1.0)
        return Estimate(successes / n, low, high, n, unscored, None, "Clopper-Pearson, one-sided", level)
    low, high = _wilson(successes / n, n, _z(level))
    return Estimate(successes / n, low, high, n, unscored, None, "Wilson", level)


def proportion_upper(events: int, n: int, *, level: float = 0.95) -> float:
    """Bound the rate of ``events`` in ``n`` independent trials from above (Clopper & Pearson 1934, one-sided).

    Raises ValueError unless ``0 <= events <= n`` and ``n > 0``.
    """
    if n <= 0 or not 0 <= events <= n:
        raise ValueError(f"{events} events in {n} trials have no bound.")
    return 1.0 if events == n else float(special.betaincinv(events + 1, n - events, level))


def clustered_mean(values: Scores, clusters: Clusters, *, level: float = 0.95) -> Estimate:
    """Estimate a mean of ``values``, one per task, whose ``clusters`` are independent.

    Both have shape n. CR2 sandwich of an intercept-only regression, t with Bell and McCaffrey's degrees of freedom
    (2002; Pustejovsky and Tipton 2018): with clusters of equal size the CR1 error and C-1.
    Raises ValueError on unequal lengths or values that are not finite.
    """
    (scored,), codes, unscored = complete([values], clusters)
    found = _of_clusters(scored, codes, unscored, level, min_clusters=2)
    if found.reason or found.mean is None:
        return found
    se, df = _cr2(scored, codes)
    half = _t(level, df) * se
    method = "t, cluster-robust (CR2)"
    return replace(found, low=found.mean - half, high=found.mean + half, method=method)


def clustered_rate(values: Scores, clusters: Clusters, *, level: float = 0.95) -> Estimate:
    """Estimate a mean of ``values`` in [0, 1], one per task: a rate, near 0 and 1 too.

    Clopper and Pearson's interval on the effective sample size ``mean (1-mean) / SE_CR2^2``, which is made smaller by
    the degrees of freedom (Korn and Graubard 1998): it stays inside [0, 1] and covers near the ends, at the price of
    covering more than it says where few clusters differ. Where all values are 0, or all 1, the one-sided bound with one
    trial per effective cluster.
    Raises ValueError as ``clustered_mean`` does, and on a value outside [0, 1].
    """
    (scored,), codes, unscored = complete([values], clusters)
    if scored.size and (scored.min() < 0 or scored.max() > 1):
        raise ValueError("A rate is made of values between 0 and 1.")
    found = _of_clusters(scored, codes, unscored, level, min_clusters=2)
    if found.mean is None or (found.reason and found.mean not in (0.0, 1.0)) or (found.clusters or 0) < 2:
        return found
    low, high = _rate_ends(scored, codes, level)
    return replace(found, low=low, high=high, method="Korn-Graubard, cluster-robust", reason="")


def quantile(values: Scores, clusters: Clusters, q: float, *, level: float = 0.95) -> Estimate:
    """Estimate the ``q`` quantile of ``values``, one per row (shape n), in their own unit.

    Point by linear interpolation (Hyndman & Fan type 7). Interval by Woodruff (1952): the quantiles at the ends of the
    interval for the share of values below the point, which is that of ``clustered_rate``; none where that share's end
    is beyond the sample.
    Raises ValueError as ``clustered_mean`` does, and unless ``0 <= q <= 1``.
    """
    if not 0 <= q <= 1:
        raise ValueError(f"{q} is not a quantile; it lies between 0 and 1.")
    (scored,), codes, unscored = complete([values], clusters)
    found = _of_clusters(scored, codes, unscored, level, min_clusters=MIN_CLUSTERS)
    if not scored.size:
        return found
    found = replace(found, mean=sample_quantile(scored, q))
    if found.reason:
        return found
    assert found.mean is not None
    low, high = _rate_ends((scored <= found.mean).astype(float), codes, level)
    if low * scored.size < 0.5 or (1 - high) * scored.size < 0.5:
        return replace(found, reason="too few values lie beyond it")
    ends = [sample_quantile(scored, share) for share in (low, high)]
    low, high = min(ends[0], found.mean), max(ends[1], found.mean)
    return replace(found, low=low, high=high, method="Woodruff, cluster-robust")


def _resampled_quantile(values: Array, owners: NDArray[np.intp], q: float) -> Callable[[Draws], Array]:
    """Give what finds the ``q`` quantile of each resample; ``owners`` are the clusters of the values."""
    order = np.argsort(values, kind="stable")
    ordered, owners = values[order], owners[order]

    def resampled(draws: Draws) -> Array:
        parts = np.array_split(draws, 1 + draws.size // 2**17)  # what a processor keeps at hand
        return np.concatenate([_drawn_quantiles(ordered, owners, part, q) for part in parts])

    return resampled


def _drawn_quantiles(ordered: Array, owners: NDArray[np.intp], draws: Draws, q: float) -> Array:
    """Give the ``q`` quantile of each resample, as ``sample_quantile`` of its rows would, without gathering them.

    A row counts as often as its cluster was drawn: the sums of that, in the order of the values, say where each rank
    lies. They are taken over blocks of rows first, and then within the one block that holds the rank. Shapes:
    ``ordered`` and ``owners`` rows, ``draws`` resamples × clusters.
    """
    resamples, clusters = np.arange(len(draws)), draws.shape[1]
    times = _table(resamples[:, None], draws, len(draws), clusters)
    size = max(1, math.isqrt(owners.size))
    blocks = np.arange(owners.size) // size
    members = np.resize(owners, (blocks[-1] + 1, size))  # what fills up the last block is behind every rank
    # A product for each row, since a greater one is shared out to threads, which wait for each other where other work
    # has the cores.
    held = _table(owners, blocks, clusters, len(members)).astype(float)
    upto = (times.astype(float)[:, None] @ held)[:, 0].cumsum(axis=1)
    last = upto[:, -1] - 1
    position = last * q
    below = np.floor(position)

    def at(rank: Array) -> Array:
        block = (upto <= rank[:, None]).sum(axis=1)
        before = np.where(block > 0, upto[resamples, block - 1], 0)
        within = np.take_along_axis(times, members[block], axis=1).cumsum(axis=1)
        found: Array = ordered[block * size + (within <= (rank - before)[:, None]).sum(axis=1)]
        return found

    lower, upper = at(below), at(np.minimum(below + 1, last))
    drawn: Array = lower + (upper - lower) * (position - below)
    return drawn


def _table(row: NDArray[np.intp], column: NDArray[np.intp], rows: int, columns: int) -> NDArray[np.intp]:
    """Count how often each pair occurs; rows × columns."""
    return np.bincount((row * columns + column).ravel(), minlength=rows * columns).reshape(rows, columns)


def sample_quantile(values: Array, q: float) -> float:
    """Give the ``q`` quantile of a non-empty sample, as ``numpy.quantile`` but fast in a bootstrap."""
    ordered = np.sort(values)
    position = (ordered.size - 1) * q
    below = int(position)
    above = min(below + 1, ordered.size - 1)
    return float(ordered[below] + (ordered[above] - ordered[below]) * (position - below))


# Two arms, paired


def paired_difference(
    baseline: Scores, candidate: Scores, clusters: Clusters, *, level: float = 0.95, seed: int = 0
) -> Estimate:
    """Estimate the mean of ``candidate - baseline`` over tasks, in the scores' own unit.

    Inputs: per-task mean scores of each arm and each task's cluster, all of shape n, in the same order. A
    task unscored in either arm is left out and counted.
    ``p`` is from flipping the signs of whole clusters, and the interval is that test turned round (``randomisation``),
    so that the interval holds 0 exactly where ``p > 1 - level``. Below ``MIN_CLUSTERS`` clusters there is neither.
    Raises ValueError as ``clustered_mean`` does.
    """
    (before, after), codes, unscored = complete([baseline, candidate], clusters)
    return _randomised(after - before, np.ones(before.size), codes, unscored, level, seed, null=0.0)


def latency_ratio(
    baseline_ms: Scores, candidate_ms: Scores, clusters: Clusters, *, level: float = 0.95, seed: int = 0
) -> Estimate:
    """Estimate how many times as long the candidate takes; 1 = same.

    ``exp(mean log(candidate / baseline))``, no unit. Inputs as in ``paired_difference`` (one latency per task
    and arm, > 0); the interval is that of the mean log ratio, exponentiated. Raises ValueError as
    ``clustered_mean`` does, and on a latency that is not positive.
    """
    (before, after), codes, unscored = complete([baseline_ms, candidate_ms], clusters)
    if (before <= 0).any() or (after <= 0).any():
        raise ValueError("A latency must be above 0 ms.")
    logs = _randomised(np.log(after / before), np.ones(before.size), codes, unscored, level, seed, null=0.0)
    mean, low, high = (None if x is None else math.exp(x) for x in (logs.mean, logs.low, logs.high))
    return replace(logs, mean=mean, low=low, high=high, method=f"geometric mean ratio; {logs.method}")


def ratio_of_sums(
    baseline: Scores, candidate: Scores, clusters: Clusters, *, level: float = 0.95, seed: int = 0
) -> Estimate:
    """Estimate how many times as much the candidate takes in all, such as what it costs; 1 = same, no unit.

    ``sum(candidate) / sum(baseline)``. Inputs as in ``paired_difference``, none below 0; so are test and interval, for
    a ratio of sums over clusters is what they are made for. Undefined where a cluster of the baseline sums to 0.
    Raises ValueError as ``clustered_mean`` does, and on a value below 0.
    """
    (before, after), codes, unscored = complete([baseline, candidate], clusters)
    if (before < 0).any() or (after < 0).any():
        raise ValueError("What is summed up must not be below 0.")
    return _randomised(after, before, codes, unscored, level, seed, null=1.0)


def ratio_of_ratios(
    baseline: Sequence[Array], candidate: Sequence[Array], *, level: float = 0.95, unscored: int = 0
) -> Estimate:
    """Estimate how many times as large the candidate's ratio of sums is, such as dollars per success; 1 = same.

    ``baseline[c]`` and ``candidate[c]`` hold the rows of cluster c, shape (rows, 2): numerator and denominator.
    Interval of the logarithm: its standard error by leaving out one cluster at a time (the jackknife; Efron and
    Tibshirani 1993, 11), t with one degree of freedom less than the effective number of clusters (Kish 1965).
    Undefined where any of the four sums is 0, or is with one cluster left out.
    Raises ValueError on unequal numbers of clusters.
    """
    n, count = _rows_of_pairs(baseline, candidate), len(candidate)
    if n == 0:
        return no_interval(None, 0, unscored, 0, level, "nothing was scored")
    sums = np.array([[rows.sum(axis=0) for rows in arm] for arm in (baseline, candidate)])
    whole = sums.sum(axis=1)
    if not (whole > 0).all():
        return no_interval(None, n, unscored, count, level, "undefined on these rows")
    mean = float(np.exp(_log_of_ratios(whole)))
    if count < MIN_CLUSTERS:
        return no_interval(mean, n, unscored, count, level, _too_few(count, MIN_CLUSTERS))
    left = whole[:, None] - sums
    if not (left > 1e-12 * whole[:, None]).all():
        return no_interval(mean, n, unscored, count, level, "undefined without one of the clusters")
    effective, largest = _weights(np.repeat(np.arange(count), [len(rows) for rows in candidate]))
    apart = _log_of_ratios(left) - np.log(mean)
    half = _t(level, max(1.0, effective - 1)) * math.sqrt((count - 1) / count * float(apart @ apart))
    found = Estimate(mean, None, None, n, unscored, count, "no interval", level, None, "", effective, largest)
    if half < 1e-12:
        return replace(found, reason=NO_VARIANCE)
    low, high = mean * math.exp(-half), mean * math.exp(half)
    return replace(found, low=low, high=high, method="log ratio, jackknife over clusters")


def _log_of_ratios(sums: Array) -> Array:
    """The logarithm of the candidate's ratio over the baseline's; sums of shape arms × … × (numerator, denominator)."""
    logs: Array = np.log(sums)
    both: Array = (logs[1] - logs[0])[..., 0] - (logs[1] - logs[0])[..., 1]
    return both


def paired_quantiles(
    baseline: Sequence[Array],
    candidate: Sequence[Array],
    q: float,
    combine: Callable[[Array, Array], Array],
    *,
    seed: int,
    level: float = 0.95,
    resamples: int = 4000,
    unscored: int = 0,
) -> Estimate:
    """Estimate what ``combine`` makes of both arms' ``q`` quantiles, such as their difference or ratio.

    ``baseline[c]`` and ``candidate[c]`` hold the values of cluster c, shape (rows,); each resample draws whole clusters
    with replacement, the same ones for both arms, and ``combine`` gets the quantiles of many resamples at once.
    Percentile interval (Efron & Tibshirani 1993; Field & Welsh 2007 for clusters). A statistic that is not finite is
    undefined; where that befalls more than 1% of resamples there is no interval.
    Raises ValueError on unequal numbers of clusters.
    """
    n = _rows_of_pairs(baseline, candidate)
    if not n:
        return _bootstrap(None, lambda _: np.empty(0), 0, 0, unscored, seed, level, resamples)
    arms = [np.concatenate(arm) for arm in (baseline, candidate)]
    owners = (np.repeat(np.arange(len(arm)), [len(rows) for rows in arm]) for arm in (baseline, candidate))
    old, new = (_resampled_quantile(values, codes, q) for values, codes in zip(arms, owners, strict=True))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        point = float(combine(*(np.array([sample_quantile(values, q)]) for values in arms))[0])
        return _bootstrap(
            point, lambda draws: combine(old(draws), new(draws)), len(baseline), n, unscored, seed, level, resamples
        )


def _rows_of_pairs(baseline: Sequence[Array], candidate: Sequence[Array]) -> int:
    """Count the candidate's rows. Raises ValueError where the arms have not the same clusters."""
    if len(baseline) != len(candidate):
        raise ValueError(f"{len(baseline)} clusters in the baseline, {len(candidate)} in the candidate.")
    return sum(len(rows) for rows in candidate)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for having tested all of them (Holm 1979), in the given order."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


# The pieces


def complete(columns: Sequence[Scores], clusters: Clusters) -> tuple[list[Array], NDArray[np.intp], int]:
    """Keep what every column scored: the columns, cluster codes 0..C-1, and how many were left out.

    Raises ValueError on unequal lengths, and on what is no finite number below ``LARGEST``.
    """
    if any(len(column) != len(clusters) for column in columns):
        lengths = ", ".join(str(len(column)) for column in columns)
        raise ValueError(f"{lengths} values but {len(clusters)} clusters; each value needs its cluster.")
    kept = [i for i in range(len(clusters)) if all(column[i] is not None for column in columns)]
    arrays = [np.array([column[i] for i in kept], dtype=np.float64) for column in columns]
    if not all((np.abs(array) < LARGEST).all() for array in arrays):  # nor NaN, which is not below anything
        raise ValueError(f"A score must be a finite number below {LARGEST:g}; use None for unscored.")
    known: dict[Hashable, int] = {}
    codes = np.array([known.setdefault(clusters[i], len(known)) for i in kept], dtype=np.intp)
    return arrays, codes, len(clusters) - len(kept)


def _count(codes: NDArray[np.intp]) -> int:
    return int(codes.max()) + 1 if codes.size else 0


def _of_clusters(values: Array, codes: Codes, unscored: int, level: float, min_clusters: int) -> Estimate:
    """The mean, what it rests on, and why there can be no interval; empty where there can."""
    n, count = values.size, _count(codes)
    if n == 0:
        return no_interval(None, 0, unscored, 0, level, "nothing was scored")
    few = _too_few(count, min_clusters) if count < min_clusters else ""
    reason = few or (NO_VARIANCE if _is_constant(values) else "")
    effective, largest = _weights(codes)
    mean = float(values.mean())
    return replace(no_interval(mean, n, unscored, count, level, reason), effective=effective, largest=largest)


def _is_constant(values: Array) -> bool:
    """Whether only rounding tells the values apart."""
    return bool(np.ptp(values) <= 1e-12 * np.abs(values).max())


def _weights(codes: Codes) -> tuple[float, float]:
    """Kish's effective number of clusters, and the share of the largest one."""
    sizes = np.bincount(codes).astype(np.float64)
    return float(sizes.sum() ** 2 / (sizes @ sizes)), float(sizes.max() / sizes.sum())


def _cr2(values: Array, codes: Codes) -> tuple[float, float]:
    """The CR2 standard error of the mean and Bell and McCaffrey's degrees of freedom, under working independence.

    With r_c a cluster's sum of residuals and h_c its share of the rows, SE^2 = sum r_c^2 / (1 - h_c) / n^2. The degrees
    of freedom are tr(G)^2 / tr(G^2), G = diag(a) - b b' with a_c = n_c / (1 - h_c), b_c = n_c / sqrt((1 - h_c) n).
    Needs two clusters.
    """
    sizes = np.bincount(codes).astype(np.float64)
    n = values.size
    left = 1 - sizes / n
    residuals = np.bincount(codes, values - values.mean()) / np.sqrt(left)
    a, b2 = sizes / left, sizes**2 / left / n
    trace = a.sum() - b2.sum()
    square = a @ a - 2 * (a @ b2) + b2.sum() ** 2
    return math.sqrt(float(residuals @ residuals)) / n, float(trace**2 / square)


def _rate_ends(values: Array, codes: Codes, level: float) -> tuple[float, float]:
    """The ends of ``clustered_rate``'s interval."""
    n, mean = values.size, float(values.mean())
    if mean in (0.0, 1.0):
        bound = 1 - (1 - level) ** (1 / _weights(codes)[0])
        return (1 - bound, 1.0) if mean else (0.0, bound)
    se, df = _cr2(values, codes)
    if se < 1e-12:
        return mean, mean
    shrunk = mean * (1 - mean) / se**2 * (_t(level, n - 1) / _t(level, df)) ** 2
    trials = max(1.0, min(float(n), shrunk))
    passed, tail = mean * trials, (1 - level) / 2
    low = float(special.betaincinv(passed, trials - passed + 1, tail))
    return low, float(special.betaincinv(passed + 1, trials - passed, 1 - tail))


def _randomised(
    numerators: Array, denominators: Array, codes: Codes, unscored: int, level: float, seed: int, *, null: float
) -> Estimate:
    """A ratio of sums over rows, by cluster sign flips; ``null`` is the ratio of two arms that are alike."""
    n, count = numerators.size, _count(codes)
    if n == 0:
        return no_interval(None, 0, unscored, 0, level, "nothing was scored")
    whole = float(denominators.sum())
    mean = float(numerators.sum()) / whole if whole > 0 else None
    effective, largest = _weights(codes)
    found = Estimate(mean, None, None, n, unscored, count, "no interval", level, None, "", effective, largest)
    if count < MIN_CLUSTERS:
        return replace(found, reason=_too_few(count, MIN_CLUSTERS))
    sums, totals = np.bincount(codes, numerators), np.bincount(codes, denominators)
    if not (totals > 0).all():
        return replace(found, reason="undefined: a cluster of the baseline sums to 0")
    subsets = subset_ratios(sums.astype(np.float64), totals.astype(np.float64), seed)
    found = replace(found, p=subsets.p(null))
    if _is_constant(subsets.ratios):
        return replace(found, reason=NO_VARIANCE)
    ends = subsets.interval(level)
    if ends is None:
        return replace(found, reason=f"{count} clusters refuse nothing at {100 * level:.4g}%")
    return replace(found, low=ends[0], high=ends[1], method="cluster sign flips, turned round")


def _bootstrap(
    point: float | None,
    resampled: Callable[[Draws], Array],
    clusters: int,
    n: int,
    unscored: int,
    seed: int,
    level: float,
    resamples: int,
) -> Estimate:
    """``resampled`` gives the statistic for each row of drawn clusters; ``point`` is that of all as they are."""
    if point is None:
        return no_interval(None, 0, unscored, 0, level, "nothing was scored")
    if not math.isfinite(point):
        return no_interval(None, n, unscored, clusters, level, "undefined on these rows")
    if clusters < MIN_CLUSTERS:
        return no_interval(point, n, unscored, clusters, level, _too_few(clusters, MIN_CLUSTERS))
    drawn = resampled(np.random.default_rng(seed).integers(0, clusters, size=(resamples, clusters)))
    defined = drawn[np.isfinite(drawn)]
    if defined.size < 0.99 * resamples:
        share = 1 - defined.size / resamples
        return no_interval(point, n, unscored, clusters, level, f"undefined in {percent(share)} of resamples")
    if np.ptp(defined) <= 1e-12 * abs(point):
        return no_interval(point, n, unscored, clusters, level, NO_VARIANCE)
    low, high = (sample_quantile(defined, q) for q in ((1 - level) / 2, (1 + level) / 2))
    return Estimate(point, low, high, n, unscored, clusters, f"cluster bootstrap, {resamples} resamples", level)


def no_interval(mean: float | None, n: int, unscored: int, clusters: int | None, level: float, reason: str) -> Estimate:
    return Estimate(mean, None, None, n, unscored, clusters, "no interval", level, None, reason)


def _too_few(count: int, needed: int) -> str:
    return f"{count} independent cluster{'s' if count > 1 else ''}; at least {needed} are needed"


def _wilson(mean: float, n: float, z: float) -> tuple[float, float]:
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def _z(level: float) -> float:
    return float(special.ndtri((1 + level) / 2))


def _t(level: float, df: float) -> float:
    return float(special.stdtrit(df, (1 + level) / 2))
