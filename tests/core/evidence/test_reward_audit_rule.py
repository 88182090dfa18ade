"""The rule that opens a launch: what it asks for, and that no better evidence ever closes it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.core.evidence.reward_audit_rule import (
    LEAST,
    RULE,
    Finding,
    Judgement,
    clean_passes,
    draw,
    examine,
    share_of_passes,
    spread,
)


def said(passes: int, failures: int, false_passes: int = 0, false_failures: int = 0) -> list[Judgement]:
    """So many outputs that the verifier passed and failed, each of a source of its own, some of them wrongly."""
    right = [Judgement(True, n >= false_passes, n) for n in range(passes)]
    return right + [Judgement(False, n < false_failures, passes + n) for n in range(failures)]


@st.composite
def mostly_agreeing(draw: st.DrawFn) -> list[Judgement]:
    """Near the border of green, on either side of it, several outputs of a source among them."""
    judgements = said(*(draw(st.integers(*bounds)) for bounds in ((25, 90), (8, 60), (0, 3), (0, 12))))
    sources = draw(st.integers(5, 120))
    return [replace(each, source=n % sources) for n, each in enumerate(judgements)]


def found(judgements: list[Judgement], unscored: int = 0, attempts: int = 200) -> Finding:
    return examine(judgements, unscored=unscored, attempts=attempts)


def test_people_and_verifier_agreeing_is_green() -> None:
    finding = found(said(40, 20))
    assert finding.is_green
    assert (finding.judged, finding.agreement.mean) == (60, 1.0)
    assert finding.false_passes.low == 0
    assert finding.false_passes.high == pytest.approx(0.0761, abs=1e-4)
    assert finding.kappa.mean == pytest.approx(1.0)
    assert finding.agreement.low is not None
    assert finding.agreement.low > RULE.agreement


@pytest.mark.parametrize(
    ("judgements", "unscored", "fault"),
    [
        (said(31, 18), 0, "49 outputs were judged; at least 50 are needed"),
        (said(29, 31), 0, "by 1 more that people pass too"),
        (said(0, 60), 0, "by 30 more that people pass too"),
        (said(51, 9), 0, "the verifier failed 9 of the judged outputs; at least 10 are needed"),
        (
            said(40, 20, false_passes=1),
            0,
            "people failed 1 of 40 outputs that the verifier passed, so that up to 16.4%",
        ),
        (said(40, 20, false_failures=8), 0, "agreement is 87%, but may be as low as 7"),
        (said(40, 20), 21, "21 of 200 answered attempts have no score"),
        ([replace(each, source=n % 9) for n, each in enumerate(said(40, 20))], 0, "come from 9 sources"),
    ],
)
def test_what_it_lacks_is_said(judgements: list[Judgement], unscored: int, fault: str) -> None:
    finding = found(judgements, unscored)
    assert not finding.is_green
    assert any(fault in each for each in finding.faults), finding.faults


def test_a_false_pass_and_a_false_failure_are_told_apart() -> None:
    finding = found(said(65, 40, false_passes=1, false_failures=4))
    assert finding.false_passes.mean == pytest.approx(1 / 65)
    assert finding.false_failures.mean == pytest.approx(4 / 40)
    assert finding.agreement.mean == pytest.approx(100 / 105)
    assert finding.is_green


def test_kappa_says_when_it_is_undefined() -> None:
    finding = found(said(60, 0))
    assert finding.kappa.mean is None
    assert finding.kappa.reason == "both raters used one label only"


def test_what_nobody_could_tell_is_counted_and_agrees_with_nothing() -> None:
    unknown = [Judgement(True, None, f"u{n}") for n in range(10)]
    finding = found([*said(40, 20), *unknown])
    assert (finding.judged, finding.cannot_tell, finding.agreement.mean) == (60, 10, 1.0)
    assert not found([*said(29, 20), *unknown, *unknown]).is_green


@settings(max_examples=150)
@given(mostly_agreeing(), st.integers(0, 30), st.data())
def test_the_order_does_not_matter_and_an_agreement_more_never_closes_it(
    judgements: list[Judgement], unscored: int, data: st.DataObject
) -> None:
    finding = found(judgements, unscored)
    assert found(data.draw(st.permutations(judgements)), unscored).is_green is finding.is_green
    if finding.is_green:
        assert finding.judged >= LEAST
        assert (finding.agreement.low or 0) >= RULE.agreement
        mended = [replace(each, person=each.verdict) if each.person is not None else each for each in judgements]
        assert found(mended, unscored).is_green
        assert found([*judgements, Judgement(True, True, "new")], unscored).is_green
    worse = found([*judgements, *(Judgement(True, False, f"w{n}") for n in range(len(judgements) + 1))], unscored)
    assert not worse.is_green


@given(st.integers(0, 30), st.integers(0, 300))
def test_so_many_clean_passes_more_are_just_enough(wrong: int, right: int) -> None:
    more = clean_passes(wrong, wrong + right, RULE.false_passes)

    def bound(passes: int) -> float:
        return found(said(passes, 20, wrong)).false_passes.high or 1.0

    assert bound(wrong + right + more) <= RULE.false_passes
    assert not more or bound(wrong + right + more - 1) > RULE.false_passes


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), max_size=60), st.integers(0, 30), st.integers(0, 3))
def test_a_draw_takes_both_kinds_and_each_task_before_any_comes_twice(
    attempts: list[tuple[int, bool]], size: int, seed: int
) -> None:
    rows = [(number, task, passed) for number, (task, passed) in enumerate(attempts)]
    groups = [[row for row in rows if row[2] is kind] for kind in (True, False)]
    passed, failed = groups

    def drawn() -> list[tuple[int, int, bool]]:
        first, second = (spread(group, lambda row: row[1], seed) for group in groups)
        return draw(first, second, size, seed)

    chosen = drawn()
    assert len(chosen) == len(set(chosen)) == min(size, len(rows))
    assert chosen == drawn()
    for group, share in ((passed, share_of_passes(size)), (failed, size - share_of_passes(size) - 1)):
        mine = [row[1] for row in chosen if row in group]
        assert len(mine) >= min(len(group), share)
        counts = {task: mine.count(task) for task in mine}
        most = max(counts.values(), default=0)
        for task in {row[1] for row in group}:
            there = sum(row[1] == task for row in group)
            assert counts.get(task, 0) >= min(there, most - 1)
