"""Honest statistics for evals: intervals that know tasks come in families and say when they cannot tell.

Four rules hold in every function here:

1. ``None`` is *unscored*. It is left out and counted in ``Estimate.unscored``; it is never 0. NaN is refused.
2. Tasks of one *cluster* (a source trajectory, a template, a customer) are not independent. Standard errors
   sum over clusters first (CR1), and degrees of freedom count clusters, not rows.
3. No interval is better than a false one. One value, one cluster, fewer than ``MIN_CLUSTERS`` clusters in a
   difference or a bootstrap, or no variance at all give the estimate alone, with ``reason`` saying why.
4. Whatever draws at random takes a seed, so a number on a screen can be computed again.

A one-sided bound at 95 % is the end of a two-sided interval at 90 %: ask with ``level=0.90`` and read ``low``
or ``high``.

Only scipy.special is imported (not scipy.stats, which costs a web process half a second and tens of
megabytes); tests hold every formula against scipy.stats, statsmodels or an exact enumeration.

Not covered: sequential looks (fix n up front), judge error (PPI), the ledger of hold-out openings.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from flywheel.core.text.number_words import percent

Scores = Sequence[float | None]
Clusters = Sequence[Hashable]
Array = NDArray[np.float64]
Draws = NDArray[np.int64]
"""Which clusters each resample drew, shape resamples × clusters."""

MIN_CLUSTERS = 5
"""Fewer independent clusters than this give no verdict on a difference."""
PERMUTE_BELOW = 10
"""With fewer clusters than this the p-value comes from sign flips, not from the t distribution."""
EXACT_CLUSTERS = 16
"""Up to this many clusters all 2^C sign flips are enumerated."""
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


@dataclass(frozen=True)
class Variance:
    """Components of the spread of a paired eval; the input to power calculations."""

    omega2: float
    """Variance of the true difference between tasks."""
    sigma2_baseline: float
    sigma2_candidate: float
    """Mean variance of one sample within a task."""
    k_baseline: float
    k_candidate: float
    """Samples per task."""
    design_effect: float = 1.0
    """By how much clustering inflates the variance: 1 + (m - 1) * ICC."""

    @property
    def per_task(self) -> float:
        """Variance that one task contributes to the mean difference (Miller 2024, arXiv 2411.00640)."""
        within = self.sigma2_baseline / self.k_baseline + self.sigma2_candidate / self.k_candidate
        return self.design_effect * (self.omega2 + within)


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
    """Estimate a mean of ``values``, one per task (shape n), in the values' own unit.

    ``SE = (1/n) sqrt( C/(C-1) * sum_c (sum_{i in c} (v_i - mean))^2 )``, t with C-1 degrees of freedom: the
    CR1 sandwich of an intercept-only regression (Liang & Zeger 1986; Miller 2024, App. A).
    Raises ValueError on unequal lengths or values that are not finite.
    """
    (scored,), codes, unscored = _complete([values], clusters)
    return _t_interval(scored, codes, unscored, level, min_clusters=2)


def clustered_rate(values: Scores, clusters: Clusters, *, level: float = 0.95) -> Estimate:
    """Estimate a mean of ``values`` in [0, 1], one per task: a rate, near 0 and 1 too.

    Wilson's interval on the effective sample size ``mean (1-mean) / SE_CR1^2`` with the t quantile of C-1
    degrees of freedom (Dean & Pagano 2015): unlike ``mean +- t SE`` it stays inside [0, 1] and keeps its
    coverage near the ends. Where all values are 0, or all 1, the bound is Clopper-Pearson's with one trial
    per cluster.
    Raises ValueError as ``clustered_mean`` does, and on a value outside [0, 1].
    """
    (scored,), codes, unscored = _complete([values], clusters)
    if scored.size and (scored.min() < 0 or scored.max() > 1):
        raise ValueError("A rate is made of values between 0 and 1.")
    plain = _t_interval(scored, codes, unscored, level, min_clusters=2)
    mean, count = plain.mean, plain.clusters
    if mean is None or count is None or count < 2:
        return plain
    if mean in (0.0, 1.0):
        edge = proportion(round(mean) * count, count, level=level)
        method = f"{edge.method}, per cluster"
        return Estimate(mean, edge.low, edge.high, plain.n, unscored, count, method, level)
    if plain.low is None:
        return plain
    effective = mean * (1 - mean) / _cr1(scored, codes)[1] ** 2
    low, high = _wilson(mean, effective, _t(level, count - 1))
    return Estimate(mean, low, high, plain.n, unscored, count, "Wilson, cluster-robust", level)


def quantile(
    values: Scores, clusters: Clusters, q: float, *, seed: int, level: float = 0.95, resamples: int = 4000
) -> Estimate:
    """Estimate the ``q`` quantile of ``values``, one per row (shape n), in their own unit.

    Point by linear interpolation (Hyndman & Fan type 7); interval by resampling whole clusters, percentile
    method (Efron & Tibshirani 1993).
    Raises ValueError as ``clustered_mean`` does, and unless ``0 <= q <= 1``.
    """
    if not 0 <= q <= 1:
        raise ValueError(f"{q} is not a quantile; it lies between 0 and 1.")
    (scored,), codes, unscored = _complete([values], clusters)
    point = sample_quantile(scored, q) if scored.size else None
    resampled = _resampled_quantile(scored, codes, q)
    return _bootstrap(point, resampled, _count(codes), scored.size, unscored, seed, level, resamples)


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
    CR1 cluster-robust interval with t on C-1 degrees of freedom (see ``clustered_mean``). ``p`` is from that
    t, or from cluster sign flips when C < ``PERMUTE_BELOW`` or when there is no variance. Below
    ``MIN_CLUSTERS`` clusters there is neither interval nor p. Raises ValueError as ``clustered_mean`` does.
    """
    (before, after), codes, unscored = _complete([baseline, candidate], clusters)
    return _difference(after - before, codes, unscored, level, seed)


def latency_ratio(
    baseline_ms: Scores, candidate_ms: Scores, clusters: Clusters, *, level: float = 0.95, seed: int = 0
) -> Estimate:
    """Estimate how many times as long the candidate takes; 1 = same.

    ``exp(mean log(candidate / baseline))``, no unit. Inputs as in ``paired_difference`` (one latency per task
    and arm, > 0); the interval is that of the mean log ratio, exponentiated. Raises ValueError as
    ``clustered_mean`` does, and on a latency that is not positive.
    """
    (before, after), codes, unscored = _complete([baseline_ms, candidate_ms], clusters)
    if (before <= 0).any() or (after <= 0).any():
        raise ValueError("A latency must be above 0 ms.")
    logs = _difference(np.log(after / before), codes, unscored, level, seed)
    mean, low, high = (None if x is None else math.exp(x) for x in (logs.mean, logs.low, logs.high))
    return replace(logs, mean=mean, low=low, high=high, method=f"geometric mean ratio; {logs.method}")


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
    n = _rows_of_pairs(baseline, candidate)

    def value(drawn: Sequence[int]) -> float:
        return float(statistic(*(np.concatenate([arm[c] for c in drawn]) for arm in (baseline, candidate))))

    def resampled(draws: Draws) -> Array:
        return np.array([value(row) for row in draws.tolist()])

    with np.errstate(divide="ignore", invalid="ignore"):
        point = value(range(len(baseline))) if n else None
        return _bootstrap(point, resampled, len(baseline), n, unscored, seed, level, resamples)


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

    As ``paired_bootstrap``, with one value a row, shape (rows,), in every cluster of each arm; ``combine`` gets the
    quantiles of many resamples at once. Raises ValueError on unequal numbers of clusters.
    """
    n = _rows_of_pairs(baseline, candidate)
    if not n:
        return _bootstrap(None, lambda _: np.empty(0), 0, 0, unscored, seed, level, resamples)
    arms = [np.concatenate(arm) for arm in (baseline, candidate)]
    owners = (np.repeat(np.arange(len(arm)), [len(rows) for rows in arm]) for arm in (baseline, candidate))
    old, new = (_resampled_quantile(values, codes, q) for values, codes in zip(arms, owners, strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        point = float(combine(*(np.array([sample_quantile(values, q)]) for values in arms))[0])
        return _bootstrap(
            point, lambda draws: combine(old(draws), new(draws)), len(baseline), n, unscored, seed, level, resamples
        )


def _rows_of_pairs(baseline: Sequence[Array], candidate: Sequence[Array]) -> int:
    """Count the candidate's rows. Raises ValueError where the arms have not the same clusters."""
    if len(baseline) != len(candidate):
        raise ValueError(f"{len(baseline)} clusters in the baseline, {len(candidate)} in the candidate.")
    return sum(len(rows) for rows in candidate)


def sign_flip_p(
    diffs: Sequence[float] | Array,
    clusters: Clusters,
    *,
    seed: int = 0,
    alternative: Literal["two-sided", "greater"] = "two-sided",
    resamples: int = 9999,
) -> float:
    """Test "the differences are symmetric about 0" by flipping the sign of whole clusters.

    ``diffs``: one paired difference per task, shape n, none unscored. Exact over all 2^C flips when C <= 16,
    else ``(1 + hits) / (resamples + 1)`` (Phipson & Smyth 2010); never 0. Raises ValueError when empty.
    """
    (values,), codes, _ = _complete([list(diffs)], clusters)
    count = _count(codes)
    if count == 0:
        raise ValueError("A permutation test needs at least one difference.")
    sums = np.bincount(codes, values)
    exact = count <= EXACT_CLUSTERS
    if exact:
        flips = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
    else:
        flips = np.random.default_rng(seed).integers(0, 2, size=(resamples, count))
    flipped = (1 - 2 * flips) @ sums
    observed = sums.sum()
    if alternative == "two-sided":
        flipped, observed = np.abs(flipped), abs(observed)
    # Ties are hits; without the slack, rounding would make p depend on the order of the tasks.
    hits = int(np.count_nonzero(flipped >= observed - 1e-12 * np.abs(sums).sum()))
    return hits / len(flipped) if exact else (1 + hits) / (resamples + 1)


def mcnemar_exact(b: int, c: int) -> float:
    """Test paired yes/no outcomes: ``b`` tasks fixed, ``c`` broken.

    McNemar 1947 in its exact form, ``min(1, 2 BinomCDF(min(b, c); b + c, 1/2))``. It holds each task for
    independent, so show it beside a clustered interval, not instead. Raises ValueError on a negative count.
    """
    if b < 0 or c < 0:
        raise ValueError(f"{b} fixed and {c} broken: a count is negative.")
    return min(1.0, 2.0 * float(special.bdtr(min(b, c), b + c, 0.5)))


def non_inferior(harm: Estimate, margin: float) -> bool | None:
    """Say whether the upper end of ``harm``'s interval stays below ``margin``; None when it has no interval.

    ``harm``: a difference where more is worse, or a ratio, in the margin's unit. Give it ``level=0.90`` for a
    one-sided test at 5 % (two one-sided tests, Schuirmann 1987).
    """
    return None if harm.high is None else harm.high < margin


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for having tested all of them (Holm 1979), in the given order."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


# Planning


def variance_components(baseline: Sequence[Scores], candidate: Sequence[Scores], clusters: Clusters) -> Variance | None:
    """Split the spread of a paired eval into tasks, samples and clusters; None below two paired tasks.

    ``baseline[i]`` and ``candidate[i]`` are the sample scores of task i. ``sigma^2``: mean within-task
    variance (for yes/no scores ``K/(K-1) s (1-s)``); ``omega^2 = max(0, Var(d) - sigma_A^2/K_A -
    sigma_B^2/K_B)`` (Miller 2024); K the harmonic mean. Where K = 1 a sample's own noise cannot be told apart
    and stays in ``omega^2``. Design effect from the one-way ANOVA intraclass correlation of d, clipped at 0.
    """
    before = [[s for s in samples if s is not None] for samples in baseline]
    after = [[s for s in samples if s is not None] for samples in candidate]
    means = [[math.fsum(s) / len(s) if s else None for s in arm] for arm in (before, after)]
    (mean_before, mean_after), codes, _ = _complete(means, clusters)
    if codes.size < 2:
        return None
    differences = mean_after - mean_before
    both = [i for i in range(len(before)) if before[i] and after[i]]
    sigma2_baseline, k_baseline = _within([before[i] for i in both])
    sigma2_candidate, k_candidate = _within([after[i] for i in both])
    between = float(differences.var(ddof=1)) - sigma2_baseline / k_baseline - sigma2_candidate / k_candidate
    effect = _design_effect(differences, codes)
    return Variance(max(0.0, between), sigma2_baseline, sigma2_candidate, k_baseline, k_candidate, effect)


def minimum_detectable(n: int, variance: Variance, *, alpha: float = 0.05, power: float = 0.8) -> float:
    """Give the smallest true difference that ``n`` tasks would show with this ``power``, in the scores' unit.

    ``(z_{1-alpha/2} + z_power) sqrt(variance per task / n)`` (Miller 2024).
    Raises ValueError unless ``n >= 1``.
    """
    if n < 1:
        raise ValueError(f"{n} tasks can show nothing.")
    return _z_sum(alpha, power) * math.sqrt(variance.per_task / n)


def required_n(delta: float, variance: Variance, *, alpha: float = 0.05, power: float = 0.8) -> int:
    """Give the number of tasks needed to show a true difference ``delta``, rounded up (Miller 2024).

    Raises ValueError when ``delta`` is 0.
    """
    if delta == 0:
        raise ValueError("No number of tasks shows a difference of 0.")
    return max(1, math.ceil(_z_sum(alpha, power) ** 2 * variance.per_task / delta**2))


# Agreement


def cohen_kappa(
    first: Sequence[Hashable | None], second: Sequence[Hashable | None], *, level: float = 0.95
) -> Estimate:
    """Estimate how far two raters agree beyond chance: 1 = always, 0 = as by chance (Cohen 1960).

    Labels of the same n items; an item that either left unlabelled (None) is left out and counted. Interval
    from the large-sample variance of Fleiss, Cohen & Everitt 1969. No mean when both used one and the same
    label only.
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
    diagonal = np.diag(table) @ (1 - (rows + columns) * (1 - kappa)) ** 2
    crossed = table * (columns[:, None] + rows[None, :]) ** 2
    off_diagonal = (1 - kappa) ** 2 * (crossed.sum() - np.trace(crossed))
    variance = diagonal + off_diagonal - (kappa - by_chance * (1 - kappa)) ** 2
    se = math.sqrt(max(0.0, variance) / n) / (1 - by_chance)
    if se < 1e-9:
        return no_interval(kappa, n, unscored, None, level, NO_VARIANCE)
    half = _z(level) * se
    low, high = max(-1.0, kappa - half), min(1.0, kappa + half)
    return Estimate(kappa, low, high, n, unscored, None, "Fleiss-Cohen-Everitt", level)


# The pieces


def _complete(columns: Sequence[Scores], clusters: Clusters) -> tuple[list[Array], NDArray[np.intp], int]:
    """Keep what every column scored: the columns, cluster codes 0..C-1, and how many were left out."""
    if any(len(column) != len(clusters) for column in columns):
        lengths = ", ".join(str(len(column)) for column in columns)
        raise ValueError(f"{lengths} values but {len(clusters)} clusters; each value needs its cluster.")
    kept = [i for i in range(len(clusters)) if all(column[i] is not None for column in columns)]
    arrays = [np.array([column[i] for i in kept], dtype=np.float64) for column in columns]
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError("A score must be finite; use None for unscored.")
    known: dict[Hashable, int] = {}
    codes = np.array([known.setdefault(clusters[i], len(known)) for i in kept], dtype=np.intp)
    return arrays, codes, len(clusters) - len(kept)


def _count(codes: NDArray[np.intp]) -> int:
    return int(codes.max()) + 1 if codes.size else 0


def _cr1(values: Array, codes: NDArray[np.intp]) -> tuple[float, float]:
    """Mean and CR1 standard error; the error is exactly 0 where only rounding is left. Needs C >= 2."""
    count, mean = _count(codes), float(values.mean())
    sums = np.bincount(codes, values - mean)
    se = math.sqrt(count / (count - 1) * float(sums @ sums)) / values.size
    return mean, se if se > 1e-12 * float(np.abs(values).max()) else 0.0


def _t_interval(values: Array, codes: NDArray[np.intp], unscored: int, level: float, min_clusters: int) -> Estimate:
    n, count = values.size, _count(codes)
    if n == 0:
        return no_interval(None, 0, unscored, 0, level, "nothing was scored")
    if count < min_clusters:
        few = _too_few(count, min_clusters)
        return no_interval(float(values.mean()), n, unscored, count, level, few)
    mean, se = _cr1(values, codes)
    if se == 0:
        return no_interval(mean, n, unscored, count, level, NO_VARIANCE)
    half = _t(level, count - 1) * se
    return Estimate(mean, mean - half, mean + half, n, unscored, count, "t, cluster-robust (CR1)", level)


def _difference(diffs: Array, codes: NDArray[np.intp], unscored: int, level: float, seed: int) -> Estimate:
    plain = _t_interval(diffs, codes, unscored, level, MIN_CLUSTERS)
    count = _count(codes)
    if count < MIN_CLUSTERS:
        return plain
    if count < PERMUTE_BELOW or plain.low is None:
        p = sign_flip_p(diffs, codes.tolist(), seed=seed)
        return replace(plain, p=p, method=f"{plain.method}; p by cluster sign flips")
    mean, se = _cr1(diffs, codes)
    return replace(plain, p=2 * float(special.stdtr(count - 1, -abs(mean) / se)))


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


def _within(samples: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Mean within-task variance over the tasks with two samples or more, and the harmonic mean of K."""
    variances = [float(np.var(s, ddof=1)) for s in samples if len(s) > 1]
    k = len(samples) / math.fsum(1 / len(s) for s in samples)
    return (math.fsum(variances) / len(variances) if variances else 0.0), k


def _design_effect(values: Array, codes: NDArray[np.intp]) -> float:
    sizes = np.bincount(codes).astype(np.float64)
    n, count = values.size, sizes.size
    if count < 2 or count == n:
        return 1.0
    means = np.bincount(codes, values) / sizes
    between = float(sizes @ (means - values.mean()) ** 2) / (count - 1)
    within = float(((values - means[codes]) ** 2).sum()) / (n - count)
    m0 = (n - float(sizes @ sizes) / n) / (count - 1)
    spread = between + (m0 - 1) * within
    icc = max(0.0, (between - within) / spread) if spread > 0 else 0.0
    return 1 + (float(sizes @ sizes) / n - 1) * icc


def _z(level: float) -> float:
    return float(special.ndtri((1 + level) / 2))


def _t(level: float, df: int) -> float:
    return float(special.stdtrit(df, (1 + level) / 2))


def _z_sum(alpha: float, power: float) -> float:
    return float(special.ndtri(1 - alpha / 2) + special.ndtri(power))
