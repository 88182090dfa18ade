"""The labels are whole and honest about how they were drawn; weighted shares; the page and the numbers in step."""

import dataclasses
import json
from collections import Counter

import numpy as np
import pytest

from flywheel.core.detectors.standard_buckets import BUCKETS
from flywheel.core.evidence.statistics.estimates import Estimate, clustered_rate
from tests.workbench import report
from tests.workbench.report import Label, Read

needs_recorded_runs = pytest.mark.skipif(not report.RUNS.is_dir(), reason="the recorded runs are not here")


def read(template: str, *, fails: bool, weight: int = 1) -> Read:
    verdict, bucket = ("fail", "wrong_tool") if fails else ("pass", "")
    return Read(Label("r", "f", "s", (1, weight), "tune", verdict, bucket, (), 2, 2, True, ""), template, [])


def share(rows: list[Read]) -> Estimate:
    return report.share(rows, [row.label.fails for row in rows])


def test_every_label_says_what_a_label_says() -> None:
    labels = report.labels()
    assert len({label.run for label in labels}) == len(labels) >= 100
    for label in labels:
        assert set(label.also) <= set(BUCKETS)
        assert label.bucket not in label.also
        assert label.half in report.HALVES
        assert 0 < len(label.why) <= 120
        if label.fails:
            assert label.bucket in BUCKETS
            assert label.step is not None
            assert label.until is not None
            assert 2 <= label.step <= label.until
        else:
            assert (label.verdict, label.bucket, label.step, label.until) == ("pass", "", None, None)


def test_the_strata_add_up_to_all_runs() -> None:
    labels = report.labels()
    counted, drawn = Counter(label.stratum for label in labels), {label.stratum: label.drawn for label in labels}
    assert {stratum: n for stratum, (n, _) in drawn.items()} == counted
    assert sum(of for _, of in drawn.values()) == 280
    assert sum(label.weight for label in labels) == pytest.approx(280)


def test_a_second_reading_is_of_labelled_runs() -> None:
    assert len(report.second_reading()) == 25
    assert set(report.second_reading()) <= {label.run for label in report.labels()}
    verdict, bucket = report.own_agreement()
    assert verdict.mean == pytest.approx(1)
    assert f"κ {bucket.mean:.2f} [{bucket.low:.2f}, {bucket.high:.2f}]" in report.PAGE.read_text()


def test_where_all_weigh_the_same_a_share_is_that_of_the_house() -> None:
    rng = np.random.default_rng(3)
    rows = [read(f"t{number % 12}", fails=bool(rng.random() < 0.7)) for number in range(60)]
    ours, theirs = share(rows), clustered_rate([float(r.label.fails) for r in rows], [r.template for r in rows])
    assert (ours.mean, ours.low, ours.high) == pytest.approx((theirs.mean, theirs.low, theirs.high))


def test_a_run_counts_for_as_many_as_it_stands_for() -> None:
    rows = [read("a", fails=True, weight=9), read("b", fails=False), read("c", fails=True), read("d", fails=False)]
    assert share(rows).mean == pytest.approx(10 / 12)
    # Weights alone do not narrow an interval: ten times as many each say no more.
    heavier = [
        dataclasses.replace(row, label=dataclasses.replace(row.label, drawn=(1, 10 * row.label.drawn[1])))
        for row in rows
    ]
    one, ten = share(rows), share(heavier)
    assert (ten.mean, ten.low, ten.high) == pytest.approx((one.mean, one.low, one.high))


def test_an_interval_covers_what_it_says() -> None:
    """Two strata, one of which is drawn at a third; runs of a template fail alike, more or less."""
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(300):
        rates = rng.beta(6, 2, size=24)
        rows = [
            read(str(template), fails=bool(rng.random() < rate), weight=weight)
            for template, rate in enumerate(rates)
            for weight in (1, 1, 3, 3)
        ]
        found = share(rows)
        covered += found.low is not None and found.high is not None and found.low <= 0.75 <= found.high
    assert 0.92 <= covered / 300 <= 0.99


def test_a_share_without_anything_to_tell_has_no_interval() -> None:
    assert share([]).mean is None
    one = share([read("a", fails=True), read("a", fails=False)])
    assert (one.mean, one.low) == (0.5, None)
    always = share([read(t, fails=True) for t in "abcdef"])
    assert (always.mean, always.high) == (1, 1)
    assert always.low == pytest.approx(0.05 ** (1 / 6))


@needs_recorded_runs
def test_no_template_is_in_both_halves() -> None:
    halves: dict[str, set[str]] = {half: set() for half in report.HALVES}
    for row in report.sample():
        halves[row.label.half].add(row.template)
    assert not halves["tune"] & halves["report"]


@needs_recorded_runs
def test_a_label_repeats_nothing_of_its_run() -> None:
    """Ids and our own words: no five words in a row, no address."""
    for label in report.labels():
        trace = report.runs()[label.run][2]
        told = " ".join(json.dumps([dataclasses.asdict(step) for step in trace.steps], default=str).lower().split())
        words = label.why.lower().split()
        assert not [five for at in range(len(words) - 4) if (five := f" {' '.join(words[at : at + 5])} ") in told]
        assert "@" not in label.why


@needs_recorded_runs
def test_the_page_holds_the_numbers_that_are_measured() -> None:
    assert report.PAGE.read_text() == report.written(), "run python -m tests.workbench.report"
