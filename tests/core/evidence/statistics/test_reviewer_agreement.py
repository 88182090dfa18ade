"""Krippendorff's alpha against his own worked examples, and against Fleiss' kappa; kappa of pairs; coverage."""

import numpy as np
import pytest
from statsmodels.stats.inter_rater import cohens_kappa, fleiss_kappa

from flywheel.core.evidence.statistics.reviewer_agreement import by_value, cohen_kappa, krippendorff_alpha, pairs

# Krippendorff (2011), Computing Krippendorff's Alpha-Reliability: a string an observer, `.` where they said nothing.
TWO_OBSERVERS_BINARY = ["0100000010", "1110010000"]
TWO_OBSERVERS_NOMINAL = ["aabbdcccedda", "babbbccceddd"]
FOUR_OBSERVERS_MISSING = ["123321412...", "1233224125.3", ".3332342251.", "12332441251."]


def units(observers: list[str]) -> list[list[str]]:
    return [[said for said in column if said != "."] for column in zip(*observers, strict=True)]


@pytest.mark.parametrize(
    ("observers", "alpha"),
    [(TWO_OBSERVERS_BINARY, 0.095), (TWO_OBSERVERS_NOMINAL, 0.692), (FOUR_OBSERVERS_MISSING, 0.743)],
)
def test_alpha_is_that_of_the_published_examples(observers: list[str], alpha: float) -> None:
    found = krippendorff_alpha(units(observers))
    assert found.mean == pytest.approx(alpha, abs=0.0005)
    assert found.low is not None
    assert found.high is not None
    assert found.low < alpha < found.high


def test_what_only_one_said_something_of_is_left_out_and_counted() -> None:
    found = krippendorff_alpha(units(FOUR_OBSERVERS_MISSING))
    assert (found.n, found.unscored) == (11, 1)


def test_alpha_is_fleiss_kappa_corrected_for_the_size_of_the_sample() -> None:
    """For m reviewers of each of N items: alpha = 1 - (1 - kappa) (N m - 1) / (N m)."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        n, m = int(rng.integers(5, 40)), int(rng.integers(2, 6))
        truth = rng.integers(0, 4, n)
        said = np.where(rng.random((n, m)) < 0.6, truth[:, None], rng.integers(0, 4, (n, m)))
        counts = np.stack([(said == value).sum(axis=1) for value in range(4)], axis=1)
        kappa = fleiss_kappa(counts[:, counts.sum(axis=0) > 0])
        found = krippendorff_alpha(said.tolist(), resamples=10)
        assert found.mean == pytest.approx(1 - (1 - kappa) * (n * m - 1) / (n * m), abs=1e-9)


def test_the_interval_holds_what_it_says() -> None:
    """Two reviewers who see the truth three times in four: of 200 draws of 60 items, about 95 % hold the true alpha."""
    rng = np.random.default_rng(1)

    def draw(n: int) -> list[list[int]]:
        truth = rng.integers(0, 3, n)
        return np.where(rng.random((n, 2)) < 0.75, truth[:, None], rng.integers(0, 3, (n, 2))).tolist()  # type: ignore[no-any-return]

    true = krippendorff_alpha(draw(200_000), resamples=10).mean
    assert true is not None
    held = 0
    for seed in range(200):
        found = krippendorff_alpha(draw(60), resamples=400, seed=seed)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= true <= found.high
    assert 0.90 <= held / 200 <= 0.99


@pytest.mark.parametrize(
    ("items", "mean", "reason"),
    [
        ([], None, "nothing was said twice"),
        ([["a"], ["b"]], None, "nothing was said twice"),
        ([["a", "a"]] * 9, None, "everybody always said the same"),
        ([["a", "a"], ["b", "b"]], 1.0, "2 items; at least 5 are needed"),
        ([["a", "a"], ["b", "b"]] * 9, 1.0, "no variance"),
    ],
)
def test_no_interval_is_better_than_a_false_one(items: list[list[str]], mean: float | None, reason: str) -> None:
    found = krippendorff_alpha(items)
    assert (found.mean, found.low, found.reason) == (mean, None, reason)


def test_each_bucket_is_told_from_all_the_others() -> None:
    """All agree on `a`; `b` and `c` are a coin's throw."""
    items = [{"x": "a", "y": "a"}] * 20 + [{"x": "b", "y": "b"}, {"x": "b", "y": "c"}, {"x": "c", "y": "b"}] * 5
    found = by_value(items, ["a", "b", "never"])
    assert found["a"].mean == 1
    assert found["b"].mean is not None
    assert found["b"].mean < 0.6
    assert found["never"].mean is None


def test_pairs_have_the_kappa_of_what_both_saw() -> None:
    rng = np.random.default_rng(3)
    said = [
        {name: int(value) for name, value in zip("xyz", row, strict=True)}
        for row in rng.integers(0, 3, (40, 3)).tolist()
    ]
    for item in said[:30]:
        del item["z"]
    found = pairs(said)
    assert [(pair.first, pair.second, pair.kappa.n) for pair in found] == [
        ("x", "y", 40),
        ("x", "z", 10),
        ("y", "z", 10),
    ]
    table = np.zeros((3, 3))
    for item in said:
        table[item["x"], item["y"]] += 1
    assert found[0].kappa.mean == pytest.approx(cohens_kappa(table).kappa)


def test_kappa_is_the_reference_and_its_interval_holds_it() -> None:
    for seed in range(200):
        rng = np.random.default_rng(seed)
        n, k = int(rng.integers(20, 80)), int(rng.integers(2, 5))
        first = rng.integers(0, k, n)
        second = np.where(rng.random(n) < 0.7, first, rng.integers(0, k, n))
        counts = np.zeros((k, k))
        np.add.at(counts, (first, second), 1)
        found = cohen_kappa([*first.tolist(), None], [*second.tolist(), 1])
        assert found.mean == pytest.approx(cohens_kappa(counts).kappa)
        assert None not in (found.mean, found.low, found.high)
        assert sorted([found.low, found.mean, found.high, 1.0]) == [found.low, found.mean, found.high, 1.0]  # type: ignore[type-var]
        assert (found.n, found.unscored) == (n, 1)


def test_the_interval_of_a_large_sample_is_the_references() -> None:
    rng = np.random.default_rng(4)
    first = rng.integers(0, 2, 4000)
    second = np.where(rng.random(4000) < 0.7, first, rng.integers(0, 2, 4000))
    counts = np.zeros((2, 2))
    np.add.at(counts, (first, second), 1)
    found, expected = cohen_kappa(first.tolist(), second.tolist()), cohens_kappa(counts)
    assert (found.low, found.high) == pytest.approx((expected.kappa_low, expected.kappa_upp), abs=2e-3)


@pytest.mark.parametrize(("kappa", "n"), [(0.9, 100), (0.95, 100), (0.7, 60)])
def test_kappa_near_one_keeps_its_coverage(kappa: float, n: int) -> None:
    rng = np.random.default_rng(6)
    hits = 0
    for _ in range(600):
        first = rng.integers(0, 2, n)
        second = np.where(rng.random(n) < kappa, first, rng.integers(0, 2, n))
        found = cohen_kappa(first.tolist(), second.tolist())
        hits += found.low is not None and found.high is not None and found.low <= kappa <= found.high
    assert hits / 600 >= 0.925


def test_kappa_edges() -> None:
    assert cohen_kappa(["a"] * 5, ["a"] * 5).mean is None
    assert cohen_kappa([None], ["x"]).reason == "nothing was scored"
    perfect = cohen_kappa(["a", "b"] * 5, ["a", "b"] * 5)
    assert (perfect.mean, perfect.high) == (1.0, 1.0)
    assert perfect.low is not None
    assert 0.3 < perfect.low < 0.8, "ten items that agree are not proof of perfection"
