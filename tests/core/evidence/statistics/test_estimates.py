"""Every formula against scipy, statsmodels or an exact enumeration; then coverage, which no formula shows."""

import itertools
import math
import warnings
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
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.inter_rater import cohens_kappa
from statsmodels.stats.proportion import proportion_confint

from flywheel.core.evidence.statistics import estimates
from flywheel.core.evidence.statistics.estimates import NO_VARIANCE, Array, Estimate, Variance


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


def test_paired_difference_is_the_cluster_robust_regression() -> None:
    for rng in generators():
        baseline, candidate, clusters = table(rng)
        found = estimates.paired_difference(baseline, candidate, clusters)
        mean, se = robust(np.subtract(candidate, baseline), clusters)
        df = len(set(clusters)) - 1
        half = reference.t.ppf(0.975, df) * se
        assert (found.mean, found.low, found.high) == exactly((mean, mean - half, mean + half))
        assert found.p == exactly(2 * reference.t.sf(abs(mean) / se, df))
        assert (found.n, found.clusters, found.unscored) == (len(baseline), df + 1, 0)


def test_paired_difference_of_singletons_is_the_paired_t_test() -> None:
    for rng in generators():
        baseline, candidate, _ = table(rng)
        found = estimates.paired_difference(baseline, candidate, range(len(baseline)))
        test = reference.ttest_rel(candidate, baseline)
        assert found.p == exactly(test.pvalue)
        assert (found.low, found.high) == exactly(tuple(test.confidence_interval()))


def test_clustered_mean_and_latency_ratio() -> None:
    for rng in generators(50):
        baseline, candidate, clusters = table(rng)
        mean, se = robust(baseline, clusters)
        half = reference.t.ppf(0.95, len(set(clusters)) - 1) * se
        found = estimates.clustered_mean(baseline, clusters, level=0.90)
        assert (found.mean, found.low, found.high) == exactly((mean, mean - half, mean + half))

        before, after = np.add(baseline, 0.5), np.add(candidate, 0.5)
        ratio = estimates.latency_ratio(before.tolist(), after.tolist(), clusters)
        mean, se = robust(np.log(after / before), clusters)
        half = reference.t.ppf(0.975, len(set(clusters)) - 1) * se
        expected = np.exp([mean, mean - half, mean + half])
        assert [ratio.mean, ratio.low, ratio.high] == exactly(expected)


def test_clustered_rate_is_wilson_on_the_effective_sample() -> None:
    for rng in generators(50):
        baseline, _, clusters = table(rng)
        found = estimates.clustered_rate(baseline, clusters)
        mean, se = robust(baseline, clusters)
        t, effective = reference.t.ppf(0.975, len(set(clusters)) - 1), mean * (1 - mean) / se**2
        # Wilson's ends are the roots of |mean - p| = t sqrt(p (1-p) / n).
        for end in interval(found)[1:]:
            assert abs(mean - end) == exactly(t * math.sqrt(end * (1 - end) / effective))


def test_sign_flip_is_the_enumeration() -> None:
    for rng in generators():
        count = int(rng.integers(1, 8))
        diffs = (rng.integers(-4, 5, 12) / 4).tolist()
        clusters = [i % count for i in range(12)]
        sums = [sum(d for d, c in zip(diffs, clusters, strict=True) if c == k) for k in range(count)]
        flipped = [
            sum(s * x for s, x in zip(signs, sums, strict=True)) for signs in itertools.product((1, -1), repeat=count)
        ]
        two = sum(abs(x) >= abs(sum(sums)) - 1e-9 for x in flipped) / len(flipped)
        one = sum(x >= sum(sums) - 1e-9 for x in flipped) / len(flipped)
        assert estimates.sign_flip_p(diffs, clusters) == exactly(two)
        assert estimates.sign_flip_p(diffs, clusters, alternative="greater") == exactly(one)


def test_sign_flip_beyond_enumeration_is_sampled_and_never_zero() -> None:
    diffs = np.random.default_rng(0).normal(0.2, 1, 17).tolist()
    sampled = estimates.sign_flip_p(diffs, range(17), seed=1)
    signs = 1 - 2 * ((np.arange(2**17)[:, None] >> np.arange(17)) & 1)
    exact = np.mean(np.abs(signs @ np.array(diffs)) >= abs(sum(diffs)) - 1e-9)
    assert sampled == pytest.approx(exact, abs=4 * math.sqrt(exact / 9999))
    assert sampled == estimates.sign_flip_p(diffs, range(17), seed=1)
    assert estimates.sign_flip_p([1.0] * 40, range(40)) == 1 / 10_000


@pytest.mark.parametrize(("b", "c"), [(0, 0), (0, 1), (5, 5), (9, 2), (2, 9), (40, 21), (0, 200)])
def test_mcnemar(b: int, c: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = mcnemar([[7, b], [c, 3]], exact=True).pvalue if b + c else 1.0
    assert estimates.mcnemar_exact(b, c) == exactly(expected)
    if b + c:
        assert estimates.mcnemar_exact(b, c) == exactly(reference.binomtest(b, b + c).pvalue)


def test_cohen_kappa() -> None:
    for rng in generators():
        n, k = int(rng.integers(20, 80)), int(rng.integers(2, 5))
        first = rng.integers(0, k, n)
        second = np.where(rng.random(n) < 0.7, first, rng.integers(0, k, n))
        counts = np.zeros((k, k))
        np.add.at(counts, (first, second), 1)
        expected = cohens_kappa(counts)
        found = estimates.cohen_kappa([*first.tolist(), None], [*second.tolist(), 1])
        assert found.mean == exactly(expected.kappa)
        assert found.low == exactly(max(-1.0, expected.kappa_low))
        assert found.high == exactly(min(1.0, expected.kappa_upp))
        assert (found.n, found.unscored) == (n, 1)


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


@pytest.mark.parametrize(("k", "n5", "n10"), [(1, 1099, 275), (2, 628, 157), (4, 393, 99), (8, 275, 69)])
def test_required_n_is_millers(k: int, n5: int, n10: int) -> None:
    variance = Variance(0.05, 0.15, 0.15, k, k)
    assert (estimates.required_n(0.05, variance), estimates.required_n(-0.10, variance)) == (n5, n10)
    assert estimates.minimum_detectable(n5, variance) <= 0.05 < estimates.minimum_detectable(n5 - 1, variance)


def test_clustering_asks_for_more_tasks() -> None:
    variance = Variance(0.05, 0.15, 0.15, 4, 4)
    assert estimates.required_n(0.05, Variance(0.05, 0.15, 0.15, 4, 4, design_effect=2.0)) == pytest.approx(
        2 * estimates.required_n(0.05, variance), abs=1
    )


def test_variance_components_are_found_again() -> None:
    rng = np.random.default_rng(5)
    n, size, k = 3000, 3, 4
    shared = np.repeat(rng.normal(0, 0.1, n // size), size)
    own = rng.normal(0, 0.1, n)
    before = rng.normal(0.5, 0.3, (n, k))
    after = rng.normal(0.6, 0.4, (n, k)) + (shared + own)[:, None]
    found = estimates.variance_components(
        before.tolist(), after.tolist(), np.repeat(np.arange(n // size), size).tolist()
    )
    assert found is not None
    assert found.sigma2_baseline == pytest.approx(0.09, rel=0.05)
    assert found.sigma2_candidate == pytest.approx(0.16, rel=0.05)
    assert found.omega2 == pytest.approx(0.02, rel=0.15)
    icc = 0.01 / (0.02 + 0.09 / 4 + 0.16 / 4)
    assert found.design_effect == pytest.approx(1 + 2 * icc, abs=0.07)
    assert (found.k_baseline, found.k_candidate) == (k, k)


def test_variance_components_agree_with_the_standard_error_they_plan() -> None:
    rng = np.random.default_rng(6)
    before, after = (rng.random((80, 4)) < 0.4).astype(float), (rng.random((80, 4)) < 0.6).astype(float)
    found = estimates.variance_components(before.tolist(), after.tolist(), range(80))
    assert found is not None
    se = np.std(after.mean(1) - before.mean(1), ddof=1) / math.sqrt(80)
    z = reference.norm.ppf(0.975) + reference.norm.ppf(0.8)
    assert estimates.minimum_detectable(80, found) >= z * se - 1e-9
    assert estimates.variance_components([[1.0]], [[0.0]], ["a"]) is None
    assert estimates.variance_components([[1.0], [None]], [[0.0], [1.0]], ["a", "b"]) is None


# Edges: no verdict rather than a false one


def test_nothing_scored() -> None:
    for found in (
        estimates.proportion(0, 0),
        estimates.clustered_mean([None], ["a"]),
        estimates.clustered_rate([], []),
        estimates.quantile([None], ["a"], 0.5, seed=0),
        estimates.paired_difference([None, 1.0], [0.5, None], ["a", "b"]),
        estimates.cohen_kappa([None], ["x"]),
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
    assert five.low is not None
    assert five.p == 2 / 2**5  # all up: only the two extreme of 32 flips reach it
    assert "sign flips" in five.method


@pytest.mark.parametrize("shift", [0.0, 0.1, 1.0])
def test_no_variance_is_no_interval_and_no_zero_p(shift: float) -> None:
    baseline = [i / 20 for i in range(20)]
    found = estimates.paired_difference(baseline, [b + shift for b in baseline], range(20))
    assert (found.low, found.high, found.reason) == (None, None, NO_VARIANCE)
    assert found.p == (1.0 if shift == 0 else 1 / 10_000)


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
    assert estimates.clustered_rate([0.5] * 40, range(40)).reason == NO_VARIANCE


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="3 successes of 2"):
        estimates.proportion(3, 2)
    with pytest.raises(ValueError, match="finite; use None"):
        estimates.clustered_mean([float("nan")], ["a"])
    with pytest.raises(ValueError, match="2 values but 1 clusters"):
        estimates.clustered_mean([0.1, 0.2], ["a"])
    with pytest.raises(ValueError, match="between 0 and 1"):
        estimates.clustered_rate([1.5, 0.0], ["a", "b"])
    with pytest.raises(ValueError, match="above 0 ms"):
        estimates.latency_ratio([0.0], [1.0], ["a"])
    with pytest.raises(ValueError, match="not a quantile"):
        estimates.quantile([1.0], ["a"], 95, seed=0)
    with pytest.raises(ValueError, match="at least one difference"):
        estimates.sign_flip_p([], [])
    with pytest.raises(ValueError, match="negative"):
        estimates.mcnemar_exact(-1, 2)
    with pytest.raises(ValueError, match="no bound"):
        estimates.proportion_upper(0, 0)
    with pytest.raises(ValueError, match="can show nothing"):
        estimates.minimum_detectable(0, Variance(1, 0, 0, 1, 1))
    with pytest.raises(ValueError, match="difference of 0"):
        estimates.required_n(0, Variance(1, 0, 0, 1, 1))
    with pytest.raises(ValueError, match="1 clusters in the baseline, 0 in the candidate"):
        estimates.paired_bootstrap([np.ones(1)], [], lambda a, b: b.sum() / a.sum(), seed=0)


def test_kappa_edges() -> None:
    assert estimates.cohen_kappa(["a"] * 5, ["a"] * 5).mean is None
    perfect = estimates.cohen_kappa(["a", "b"] * 5, ["a", "b"] * 5)
    assert (perfect.mean, perfect.low, perfect.reason) == (1.0, None, NO_VARIANCE)


def test_non_inferior() -> None:
    harm = estimates.paired_difference([0.0, 0.2] * 10, [0.1, 0.15] * 10, range(20), level=0.90)
    assert harm.high is not None
    assert estimates.non_inferior(harm, harm.high + 1e-9) is True
    assert estimates.non_inferior(harm, harm.high) is False
    assert estimates.non_inferior(estimates.clustered_mean([1.0], ["a"]), 1.0) is None


# Bootstraps


def test_bootstrap_of_a_mean_agrees_with_the_formula() -> None:
    rng = np.random.default_rng(8)
    groups = [rng.normal(shift, 1, 4) for shift in rng.normal(0, 1, 60)]
    zeros = [np.zeros(4) for _ in groups]
    found = estimates.paired_bootstrap(zeros, groups, lambda a, b: b.mean() - a.mean(), seed=1)
    exact = estimates.clustered_mean(np.concatenate(groups).tolist(), np.repeat(np.arange(60), 4).tolist())
    assert found.mean == exactly(exact.mean)
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=0.05)
    assert (found.n, found.clusters) == (240, 60)
    assert found == estimates.paired_bootstrap(zeros, groups, lambda a, b: b.mean() - a.mean(), seed=1)


def test_bootstrap_says_when_it_is_undefined() -> None:
    def ratio(a: Array, b: Array) -> float:
        return float(b.sum() / a.sum())

    zeros, ones = [np.zeros(1)] * 9, [np.ones(1)] * 9
    assert estimates.paired_bootstrap(zeros, ones, ratio, seed=0).reason == "undefined on these rows"
    rarely = [np.ones(1), *zeros[1:]]
    assert "undefined in 3" in estimates.paired_bootstrap(rarely, ones, ratio, seed=0).reason
    assert estimates.paired_bootstrap(ones, ones, ratio, seed=0).reason == NO_VARIANCE
    assert "at least 5" in estimates.paired_bootstrap(ones[:4], ones[:4], ratio, seed=0).reason


@settings(max_examples=30)
@given(
    values=st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 7)), min_size=8, max_size=40),
    q=st.sampled_from([0.0, 0.05, 0.5, 0.95, 1.0]),
)
def test_quantile_bootstrap_is_that_of_the_gathered_rows(values: list[tuple[float, int]], q: float) -> None:
    numbers, owners = [value for value, _ in values], [owner for _, owner in values]
    found = estimates.quantile(numbers, owners, q, seed=3, resamples=50)
    rows = [np.array([v for v, o in values if o == owner]) for owner in dict.fromkeys(owners)]
    by_rows = estimates.paired_bootstrap(rows, rows, lambda _, v: estimates.sample_quantile(v, q), seed=3, resamples=50)
    assert found == by_rows


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
    assert estimates.paired_quantiles(old, new, q, combine, **asked) == estimates.paired_bootstrap(
        old, new, of_rows, **asked
    )


def test_quantiles_of_arms_with_unequal_clusters_or_without_rows_are_told() -> None:
    def minus(a: Array, b: Array) -> Array:
        return b - a

    with pytest.raises(ValueError, match="1 clusters in the baseline, 0 in the candidate"):
        estimates.paired_quantiles([np.ones(1)], [], 0.5, minus, seed=0)
    assert estimates.paired_quantiles([], [], 0.5, minus, seed=0).reason == "nothing was scored"


def test_quantile_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(9)
    hits = 0
    for _ in range(100):
        found = estimates.quantile(rng.exponential(size=120).tolist(), range(120), 0.5, seed=1, resamples=400)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= math.log(2) <= found.high
    assert 88 <= hits <= 100


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


def null_campaign(rng: np.random.Generator, n: int = 120, count: int = 24) -> tuple[list[float], list[int]]:
    """Two arms without a true difference; what they share by chance is shared by cluster."""
    clusters = np.repeat(np.arange(count), n // count)
    return (rng.normal(0, 0.10, count)[clusters] + rng.normal(0, 0.15, n)).tolist(), clusters.tolist()


def test_cluster_robust_coverage_where_iid_fails() -> None:
    rng = np.random.default_rng(11)
    robust_hits = iid_hits = 0
    for _ in range(2000):
        diffs, clusters = null_campaign(rng)
        zeros = [0.0] * len(diffs)
        robust_hits += p_value(estimates.paired_difference(zeros, diffs, clusters)) >= 0.05
        iid_hits += p_value(estimates.paired_difference(zeros, diffs, range(len(diffs)))) >= 0.05
    assert 0.94 <= robust_hits / 2000 <= 0.965  # type-I error at most 6 %
    assert iid_hits / 2000 < 0.85


def test_few_clusters_keep_their_type_one_error() -> None:
    rng = np.random.default_rng(12)
    campaigns = (null_campaign(rng, n=32, count=8) for _ in range(1000))
    assert sum(estimates.sign_flip_p(diffs, clusters) < 0.05 for diffs, clusters in campaigns) <= 60


def test_rates_near_one_keep_their_coverage() -> None:
    rng = np.random.default_rng(13)
    hits = plain = 0
    for _ in range(1000):
        values, clusters = (rng.binomial(4, 0.97, 60) / 4).tolist(), [i // 2 for i in range(60)]
        _, low, high = interval(estimates.clustered_rate(values, clusters))
        hits += low <= 0.97 <= high
        mean = estimates.clustered_mean(values, clusters)
        plain += mean.low is not None and mean.high is not None and mean.low <= 0.97 <= mean.high
    assert hits >= 930
    assert plain < hits


def test_power_is_what_the_formula_promises() -> None:
    rng = np.random.default_rng(14)
    n, k = 100, 4
    variance = Variance(0.02, 0.16, 0.16, k, k)
    delta = estimates.minimum_detectable(n, variance)
    draws = rng.normal(delta, math.sqrt(variance.per_task), (2000, n))
    found = sum(p_value(estimates.paired_difference([0.0] * n, row, range(n))) < 0.05 for row in draws.tolist())
    assert found / 2000 == pytest.approx(0.80, abs=0.03)
