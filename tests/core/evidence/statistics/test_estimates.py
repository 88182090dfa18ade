"""Every formula against scipy, statsmodels or an exact enumeration; then coverage, which no formula shows."""

import itertools
import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats as reference
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.proportion import proportion_confint

from flywheel.core.evidence.statistics import estimates
from flywheel.core.evidence.statistics.estimates import NO_VARIANCE, Array, Estimate
from tests.core.evidence.statistics.slow_bootstrap import paired_bootstrap


def exactly(expected: Any) -> Any:
    return pytest.approx(expected, rel=1e-9, abs=1e-9)


def interval(found: Estimate) -> tuple[float, float, float]:
    assert found.mean is not None
    assert found.low is not None
    assert found.high is not None
    return found.mean, found.low, found.high


def p_value(found: Estimate) -> float:
    assert found.p is not None
    return found.p


def generators(count: int = 200) -> Iterator[np.random.Generator]:
    return (np.random.default_rng(seed) for seed in range(count))


def table(rng: np.random.Generator) -> tuple[list[float], list[float], list[int]]:
    """Two arms of task means in fifths and a cluster for each task."""
    n = int(rng.integers(12, 60))
    clusters = [*range(10), *rng.integers(0, 30, n - 10).tolist()]
    return (rng.integers(0, 6, n) / 5).tolist(), (rng.integers(0, 6, n) / 5).tolist(), clusters


def robust(values: Sequence[float] | NDArray[np.float64], clusters: Sequence[int]) -> tuple[float, float]:
    fit = OLS(np.asarray(values, float), np.ones(len(values))).fit(
        cov_type="cluster", cov_kwds={"groups": np.unique(clusters, return_inverse=True)[1], "use_correction": True}
    )
    return fit.params[0], fit.bse[0]


# Against references


def test_proportion_is_wilson_with_one_sided_ends() -> None:
    for rng in generators(50):
        n = int(rng.integers(1, 300))
        for successes in {0, n, int(rng.integers(0, n + 1))}:
            found = estimates.proportion(successes, n)
            if successes in (0, n):
                end = 1 - 0.05 ** (1 / n)
                expected = (0.0, end) if successes == 0 else (1 - end, 1.0)
            else:
                expected = proportion_confint(successes, n, method="wilson")
            assert (found.low, found.high) == exactly(expected)
            bound = reference.binomtest(successes, n, alternative="less").proportion_ci(0.95, "exact").high
            assert estimates.proportion_upper(successes, n) == exactly(bound)


def cr2(values: Sequence[float], clusters: Sequence[int]) -> tuple[float, float, float]:
    """Mean, CR2 error and Bell and McCaffrey's degrees of freedom by their definition, with matrices."""
    y, codes = np.asarray(values, float), np.unique(clusters, return_inverse=True)[1]
    n = len(y)
    x = np.ones((n, 1))
    residual_maker = np.eye(n) - x @ x.T / n
    residuals = residual_maker @ y
    rows, meat = [], 0.0
    for code in range(codes.max() + 1):
        own = codes == code
        block = residual_maker[np.ix_(own, own)]
        vectors, ends, _ = np.linalg.svd(block)
        root = vectors @ np.diag(ends**-0.5) @ vectors.T
        meat += float((x[own].T @ root @ residuals[own]).item() ** 2)
        rows.append((x[own].T @ root @ residual_maker[own]).ravel() / n)
    gram = np.array(rows) @ np.array(rows).T
    return float(y.mean()), math.sqrt(meat) / n, float(np.trace(gram) ** 2 / (gram**2).sum())


def test_a_mean_is_that_of_the_bias_reduced_sandwich() -> None:
    for rng in generators(60):
        values, _, clusters = table(rng)
        mean, se, df = cr2(values, clusters)
        half = reference.t.ppf(0.95, df) * se
        found = estimates.clustered_mean(values, clusters, level=0.90)
        assert (found.mean, found.low, found.high) == exactly((mean, mean - half, mean + half))
        sizes = np.unique(clusters, return_counts=True)[1]
        assert (found.effective, found.largest) == exactly(
            (sizes.sum() ** 2 / (sizes**2).sum(), sizes.max() / sizes.sum())
        )


def test_with_clusters_of_one_size_it_is_the_plain_cluster_robust_regression() -> None:
    for rng in generators(50):
        values, clusters = rng.random(40).tolist(), [i % 8 for i in range(40)]
        mean, se = robust(values, clusters)
        half = reference.t.ppf(0.975, 7) * se * math.sqrt(39 / 40)  # statsmodels adds (n-1)/(n-k) for the rows, too
        found = estimates.clustered_mean(values, clusters)
        assert found.mean == exactly(mean)
        assert found.high is not None
        assert found.high - mean == pytest.approx(half, rel=0.02)


def test_a_rate_is_clopper_and_pearsons_on_the_effective_sample() -> None:
    for rng in generators(50):
        values, _, clusters = table(rng)
        found = estimates.clustered_rate(values, clusters)
        mean, se, df = cr2(values, clusters)
        n = len(values)
        shrunk = mean * (1 - mean) / se**2 * (reference.t.ppf(0.975, n - 1) / reference.t.ppf(0.975, df)) ** 2
        trials = max(1.0, min(n, shrunk))
        expected = proportion_confint(mean * trials, trials, method="beta")
        assert (found.low, found.high) == exactly(expected)


def test_a_latency_ratio_is_a_difference_of_logarithms() -> None:
    for rng in generators(20):
        baseline, candidate, clusters = table(rng)
        before, after = np.add(baseline, 0.5), np.add(candidate, 0.5)
        ratio = estimates.latency_ratio(before.tolist(), after.tolist(), clusters)
        logs = estimates.paired_difference(np.log(before).tolist(), np.log(after).tolist(), clusters)
        assert [ratio.mean, ratio.low, ratio.high] == exactly(np.exp(interval(logs)))
        assert ratio.p == logs.p


def test_a_ratio_of_sums_holds_whatever_is_made_twice_as_dear() -> None:
    for rng in generators(20):
        _, _, clusters = table(rng)
        n = len(clusters)
        before, after = rng.lognormal(0, 1, n), rng.lognormal(0, 1, n)
        once = estimates.ratio_of_sums(before.tolist(), after.tolist(), clusters)
        twice = estimates.ratio_of_sums(before.tolist(), (2 * after).tolist(), clusters)
        assert once.mean == exactly(after.sum() / before.sum())
        assert interval(twice) == pytest.approx([2 * each for each in interval(once)], abs=1e-10)
        back = estimates.ratio_of_sums(after.tolist(), before.tolist(), clusters)
        assert back.p == once.p
    assert estimates.ratio_of_sums([0.0] * 9, [1.0] * 9, range(9)).reason.startswith("undefined")
    assert estimates.ratio_of_sums([1.0] * 9, [1.0] * 9, range(9)).reason == NO_VARIANCE


def test_a_quantile_lies_between_the_quantiles_at_the_ends_of_its_share() -> None:
    for rng in generators(30):
        values, clusters = rng.lognormal(size=80).tolist(), [i % 20 for i in range(80)]
        mean, low, high = interval(estimates.quantile(values, clusters, 0.5))
        _, least, most = interval(estimates.clustered_rate([float(value <= mean) for value in values], clusters))
        assert (low, high) == exactly((np.quantile(values, least), np.quantile(values, most)))
    assert estimates.quantile([1.0, 2.0] * 6, range(12), 0.99).reason == "too few values lie beyond it"


def test_holm_is_the_closed_bonferroni_test() -> None:
    for rng in generators(50):
        p_values = (rng.random(int(rng.integers(1, 8))) ** 3).tolist()
        everyone = range(len(p_values))
        sets = [s for size in everyone for s in itertools.combinations(everyone, size + 1)]
        closed = [max(min(1.0, len(s) * min(p_values[j] for j in s)) for s in sets if i in s) for i in everyone]
        assert estimates.holm(p_values) == exactly(closed)
    assert estimates.holm([]) == []
    assert estimates.holm([0.01, 0.04, 0.03]) == exactly([0.03, 0.06, 0.06])


def test_sample_quantile_is_numpys() -> None:
    for rng in generators(50):
        values, q = rng.lognormal(size=int(rng.integers(1, 40))), float(rng.random())
        for at in (0.0, q, 0.95, 1.0):
            assert estimates.sample_quantile(values, at) == exactly(np.quantile(values, at))


# Edges: no verdict rather than a false one


def test_nothing_scored() -> None:
    for found in (
        estimates.proportion(0, 0),
        estimates.clustered_mean([None], ["a"]),
        estimates.clustered_rate([], []),
        estimates.quantile([None], ["a"], 0.5),
        estimates.paired_difference([None, 1.0], [0.5, None], ["a", "b"]),
    ):
        assert (found.mean, found.low, found.high, found.n) == (None, None, None, 0)
        assert found.reason == "nothing was scored"


def test_one_task_and_one_cluster_have_no_interval() -> None:
    single = estimates.clustered_mean([0.5], ["a"])
    assert (single.mean, single.low, single.n) == (0.5, None, 1)
    assert "at least 2 are needed" in single.reason
    together = estimates.paired_difference([0.0] * 30, [1.0, 0.0] * 15, ["a"] * 30)
    assert (together.mean, together.low, together.p, together.clusters) == (0.5, None, None, 1)


def test_four_clusters_give_no_verdict_and_five_do() -> None:
    baseline, candidate = [0.0] * 20, [1.0, 0.5, 0.75, 1.0, 0.25] * 4
    four = estimates.paired_difference(baseline, candidate, [i % 4 for i in range(20)])
    assert (four.low, four.p) == (None, None)
    assert four.reason == "4 independent clusters; at least 5 are needed"
    five = estimates.paired_difference(baseline, candidate, [i // 4 for i in range(20)])
    assert five.p == 2 / 2**5  # all up: only the two extreme of 32 flips reach it
    assert (five.low, five.reason) == (None, "5 clusters refuse nothing at 95%")
    at_90 = estimates.paired_difference(baseline, candidate, [i // 4 for i in range(20)], level=0.90)
    assert at_90.low is not None
    assert at_90.low > 0
    assert "sign flips" in at_90.method


@pytest.mark.parametrize("shift", [0.0, 0.1, 1.0])
def test_no_variance_is_no_interval_and_no_zero_p(shift: float) -> None:
    baseline = [i / 20 for i in range(20)]
    found = estimates.paired_difference(baseline, [b + shift for b in baseline], range(20))
    assert (found.low, found.high, found.reason) == (None, None, NO_VARIANCE)
    assert found.p == (1.0 if shift == 0 else 2 / 10_000)


def test_differences_that_cancel_in_every_cluster_are_no_variance() -> None:
    found = estimates.paired_difference([0.5] * 20, [1.0, 0.0] * 10, [i // 2 for i in range(20)])
    assert (found.mean, found.low, found.reason, found.p) == (0.0, None, NO_VARIANCE, 1.0)


def test_unscored_is_left_out_and_counted() -> None:
    rng = np.random.default_rng(3)
    baseline, candidate, clusters = table(rng)
    holes = estimates.paired_difference([None, *baseline, 0.2], [0.4, *candidate, None], ["x", *clusters, "y"])
    whole = estimates.paired_difference(baseline, candidate, clusters)
    assert (holes.mean, holes.low, holes.high, holes.n) == (whole.mean, whole.low, whole.high, whole.n)
    assert holes.unscored == 2


def test_all_or_nothing_rates_are_bounded_by_their_clusters() -> None:
    found = estimates.clustered_rate([1.0] * 40, [i % 20 for i in range(40)])
    assert (found.mean, found.high) == (1.0, 1.0)
    assert found.low == exactly(0.05 ** (1 / 20))
    uneven = estimates.clustered_rate([0.0] * 40, [0] * 21 + [*range(1, 20)])
    assert uneven.effective == exactly(40**2 / (21**2 + 19))
    assert uneven.high == exactly(1 - 0.05 ** (1 / (40**2 / (21**2 + 19))))
    assert estimates.clustered_rate([0.5] * 40, range(40)).reason == NO_VARIANCE


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="3 successes of 2"):
        estimates.proportion(3, 2)
    with pytest.raises(ValueError, match="use None for unscored"):
        estimates.clustered_mean([float("nan")], ["a"])
    with pytest.raises(ValueError, match="2 values but 1 clusters"):
        estimates.clustered_mean([0.1, 0.2], ["a"])
    with pytest.raises(ValueError, match="between 0 and 1"):
        estimates.clustered_rate([1.5, 0.0], ["a", "b"])
    with pytest.raises(ValueError, match="above 0 ms"):
        estimates.latency_ratio([0.0], [1.0], ["a"])
    with pytest.raises(ValueError, match="not a quantile"):
        estimates.quantile([1.0], ["a"], 95)
    with pytest.raises(ValueError, match="must not be below 0"):
        estimates.ratio_of_sums([-1.0], [1.0], ["a"])
    for huge in (1e300, float("inf"), -1e101):
        with pytest.raises(ValueError, match="finite number below 1e"):
            estimates.paired_difference([huge] * 6, [0.0] * 6, range(6))
    with pytest.raises(ValueError, match="no bound"):
        estimates.proportion_upper(0, 0)
    with pytest.raises(ValueError, match="1 clusters in the baseline, 0 in the candidate"):
        estimates.ratio_of_ratios([np.ones((1, 2))], [])


# Bootstraps


def test_bootstrap_of_a_mean_agrees_with_the_formula() -> None:
    rng = np.random.default_rng(8)
    groups = [rng.normal(shift, 1, 4) for shift in rng.normal(0, 1, 60)]
    zeros = [np.zeros(4) for _ in groups]
    found = paired_bootstrap(zeros, groups, lambda a, b: b.mean() - a.mean(), seed=1)
    exact = estimates.clustered_mean(np.concatenate(groups).tolist(), np.repeat(np.arange(60), 4).tolist())
    assert found.mean == exactly(exact.mean)
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=0.05)
    assert (found.n, found.clusters) == (240, 60)
    assert found == paired_bootstrap(zeros, groups, lambda a, b: b.mean() - a.mean(), seed=1)


def test_bootstrap_says_when_it_is_undefined() -> None:
    def ratio(a: Array, b: Array) -> Array:
        return b / a

    zeros, ones = [np.zeros(1)] * 9, [np.ones(1)] * 9
    assert estimates.paired_quantiles(zeros, ones, 0.5, ratio, seed=0).reason == "undefined on these rows"
    rarely = [np.ones(1), *zeros[1:]]
    assert "undefined in 3" in paired_bootstrap(rarely, ones, lambda a, b: float(b.sum() / a.sum()), seed=0).reason
    assert estimates.paired_quantiles(ones, ones, 0.5, ratio, seed=0).reason == NO_VARIANCE
    assert "at least 5" in estimates.paired_quantiles(ones[:4], ones[:4], 0.5, ratio, seed=0).reason


@settings(max_examples=30)
@given(
    arms=st.lists(st.tuples(*[st.lists(st.floats(0.0, 1e6), min_size=1, max_size=6)] * 2), min_size=5, max_size=12),
    q=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    divides=st.booleans(),
)
def test_a_bootstrap_of_both_arms_quantiles_is_that_of_the_gathered_rows(
    arms: list[tuple[list[float], list[float]]], q: float, divides: bool
) -> None:
    old, new = ([np.array(cluster[arm]) for cluster in arms] for arm in (0, 1))

    def combine(a: Any, b: Any) -> Any:
        return b / a if divides else b - a

    def of_rows(a: Array, b: Array) -> float:
        return float(combine(np.float64(estimates.sample_quantile(a, q)), np.float64(estimates.sample_quantile(b, q))))

    asked: dict[str, Any] = {"seed": 3, "resamples": 50, "unscored": 2}
    assert estimates.paired_quantiles(old, new, q, combine, **asked) == paired_bootstrap(old, new, of_rows, **asked)


def test_quantiles_of_arms_with_unequal_clusters_or_without_rows_are_told() -> None:
    def minus(a: Array, b: Array) -> Array:
        return b - a

    with pytest.raises(ValueError, match="1 clusters in the baseline, 0 in the candidate"):
        estimates.paired_quantiles([np.ones(1)], [], 0.5, minus, seed=0)
    assert estimates.paired_quantiles([], [], 0.5, minus, seed=0).reason == "nothing was scored"


# Properties

Score = tuple[float | None, float | None, int]
scores = st.lists(st.tuples(*[st.sampled_from([None, 0.0, 0.25, 0.5, 1.0])] * 2, st.integers(0, 12)), max_size=40)


@given(scores)
def test_swapping_the_arms_flips_the_difference(rows: list[Score]) -> None:
    a, b, clusters = [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows]
    there, back = estimates.paired_difference(a, b, clusters), estimates.paired_difference(b, a, clusters)
    flipped = [None if x is None else -x for x in (back.mean, back.high, back.low)]
    assert [there.mean, there.low, there.high] == pytest.approx(flipped)
    assert there.p == back.p
    assert there.n + there.unscored == len(rows)


@given(scores, st.randoms(use_true_random=False))
def test_the_order_of_tasks_does_not_matter(rows: list[Score], random: Random) -> None:
    first, second = (
        estimates.paired_difference([r[0] for r in order], [r[1] for r in order], [r[2] for r in order])
        for order in (rows, random.sample(rows, len(rows)))
    )
    assert [first.mean, first.low, first.high] == pytest.approx([second.mean, second.low, second.high])
    assert first.p == pytest.approx(second.p)


@given(scores)
def test_no_p_is_zero_and_every_interval_holds_its_mean(rows: list[Score]) -> None:
    a, b, clusters = [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows]
    for found in (estimates.paired_difference(a, b, clusters), estimates.clustered_rate(a, clusters)):
        assert found.p is None or 0 < found.p <= 1
        assert (found.low is None) == (found.high is None) == bool(found.reason)
        if found.low is not None:
            mean, low, high = interval(found)
            assert low <= mean <= high


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_proportion_holds_its_mean_within_0_and_1(case: tuple[int, int]) -> None:
    mean, low, high = interval(estimates.proportion(*case))
    assert 0 <= low <= mean <= high <= 1


# What the house promises: calibration when tasks come in clusters


def rows_of(rng: np.random.Generator, sizes: Sequence[int], sd: float) -> tuple[list[float], list[int]]:
    """Differences of two arms that are alike but for what chance shares out by cluster."""
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    return (rng.normal(0, sd, len(sizes))[clusters] + rng.normal(0, 0.15, clusters.size)).tolist(), clusters.tolist()


@pytest.mark.parametrize("sizes", [[5] * 24, [62, *[4] * 11], [80, *[1] * 40]])
def test_two_arms_that_are_alike_are_told_apart_by_chance_as_often_as_it_says(sizes: list[int]) -> None:
    """Also where one cluster has two thirds of the tasks, by which a t interval is wrong in a quarter of cases."""
    rng = np.random.default_rng(11)
    hits = 0
    for _ in range(600):
        diffs, clusters = rows_of(rng, sizes, 0.1)
        hits += p_value(estimates.paired_difference([0.0] * len(diffs), diffs, clusters)) >= 0.05
    assert 0.93 <= hits / 600 <= 0.985


def test_taking_tasks_for_independent_that_are_not_would_err_far_more_often() -> None:
    rng = np.random.default_rng(11)
    hits = 0
    for _ in range(300):
        diffs, _ = rows_of(rng, [5] * 24, 0.1)
        hits += p_value(estimates.paired_difference([0.0] * len(diffs), diffs, range(len(diffs)))) >= 0.05
    assert hits / 300 < 0.85


@pytest.mark.parametrize(("rate", "sizes"), [(0.97, [2] * 30), (0.9, [3] * 20), (0.5, [40, *[2] * 20])])
def test_rates_near_their_ends_and_with_uneven_clusters_keep_their_coverage(rate: float, sizes: list[int]) -> None:
    rng = np.random.default_rng(13)
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    hits = 0
    for _ in range(600):
        chances = rng.beta(rate * 7 / 3, (1 - rate) * 7 / 3, len(sizes))[clusters]
        _, low, high = interval(estimates.clustered_rate((rng.binomial(4, chances) / 4).tolist(), clusters.tolist()))
        hits += low <= rate <= high
    assert hits / 600 >= 0.925


@given(scores)
def test_an_interval_and_its_p_never_contradict_each_other(rows: list[Score]) -> None:
    a, b, clusters = [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows]
    for level in (0.90, 0.95):
        found = estimates.paired_difference(a, b, clusters, level=level)
        if found.low is not None and found.high is not None and found.p is not None:
            assert (found.low <= 0 <= found.high) == (found.p > 1 - level + 1e-12)


# Ratios of ratios


def priced(seed: int, clusters: int) -> tuple[list[Array], list[Array]]:
    """What each attempt costs and whether it succeeds, by cluster, in two arms that are alike."""
    rng = np.random.default_rng([seed, clusters])
    tasks = list(zip(np.exp(rng.normal(0, 0.8, clusters)), rng.uniform(0.2, 0.9, clusters), strict=True))
    one, other = (
        [np.stack([own * np.exp(rng.normal(0, 0.6, 8)), rng.random(8) < chance], axis=1) for own, chance in tasks]
        for _ in range(2)
    )
    return one, other


def test_a_ratio_of_ratios_is_what_leaving_out_each_cluster_says() -> None:
    old, new = priced(2, 12)

    def ratio(kept: list[int]) -> float:
        (a, b), (c, d) = (np.concatenate([arm[at] for at in kept]).sum(axis=0) for arm in (old, new))
        return float(np.log((c / d) / (a / b)))

    every = [*range(12)]
    pseudo = [ratio([at for at in every if at != out]) for out in every]
    se = float(np.sqrt(11 / 12 * sum((each - ratio(every)) ** 2 for each in pseudo)))
    found = estimates.ratio_of_ratios(old, new, unscored=3)
    reach = float(reference.t.ppf(0.975, 11)) * se
    assert found.mean == pytest.approx(np.exp(ratio(every)))
    assert (found.low, found.high) == pytest.approx((np.exp(ratio(every) - reach), np.exp(ratio(every) + reach)))
    assert (found.n, found.unscored, found.clusters) == (96, 3, 12)


def test_an_interval_of_a_ratio_of_ratios_covers() -> None:
    """Where the percentile bootstrap over ten clusters covers 86 to 92 in 100."""
    covered = 0
    for seed in range(400):
        found = estimates.ratio_of_ratios(*priced(seed, 10))
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1 <= found.high
    assert 0.91 <= covered / 400 <= 0.985


def test_a_ratio_of_ratios_says_when_it_is_undefined() -> None:
    ones, none = [np.ones((1, 2))] * 9, [np.array([[1.0, 0.0]])] * 9
    assert estimates.ratio_of_ratios([], []).reason == "nothing was scored"
    assert estimates.ratio_of_ratios(ones, none).reason == "undefined on these rows"
    assert estimates.ratio_of_ratios(ones, [ones[0], *none[1:]]).reason == "undefined without one of the clusters"
    assert estimates.ratio_of_ratios(ones, ones).reason == NO_VARIANCE
    assert "at least 5" in estimates.ratio_of_ratios(ones[:4], ones[:4]).reason
