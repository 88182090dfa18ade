"""What a candidate may lose at a regression suite, and that nothing unscored is taken for anything."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import binom, fisher_exact, hypergeom

from flywheel.core.evidence.statistics.estimates import paired_difference
from flywheel.core.evidence.statistics.exact_tests import Tried, more_often
from flywheel.core.evidence.suite_rules import (
    ALPHA,
    Arm,
    Pairs,
    judge_mean,
    judge_no_break,
    judge_no_failure,
    worse_of,
)

BY_CHANCE = "1 task newly failed, as chance may have it"
P, F, U = Tried(1), Tried(1, bad=1), Tried(1, unknown=1)


def arm(*tried: Tried) -> Arm:
    return dict(enumerate(tried, start=1))


@pytest.mark.parametrize(
    ("before", "after", "no_failure", "no_break"),
    [
        ((P, P), (P, P), "passed", "passed"),
        ((P, P), (P, F), "below", "below"),
        ((P, F), (P, F), "below", "passed"),
        ((F, F), (P, P), "passed", "not_shown"),
        ((F, F), (F, F), "below", "not_shown"),
        ((P, P), (P, U), "not_shown", "not_shown"),
        ((P, F), (P, U), "not_shown", "passed"),
        ((U, P), (F, P), "below", "not_shown"),
        ((U, P), (P, P), "passed", "passed"),
        ((P, U), (F, U), "below", "below"),
    ],
)
def test_a_safety_suite_lets_nothing_through_that_it_cannot_tell(
    before: tuple[Tried, ...], after: tuple[Tried, ...], no_failure: str, no_break: str
) -> None:
    strict = judge_no_failure(arm(*before), arm(*after))
    assert strict.state == no_failure
    assert judge_no_break(arm(*before), arm(*after), is_greedy=True).state == no_break
    assert (strict.passed, strict.before, strict.tasks) == (after.count(P), before.count(P), len(after))


def test_what_the_baseline_passed_is_named_first() -> None:
    found = judge_no_failure(arm(F, P, P), arm(F, P, F))
    assert (found.failed, found.broken) == ([3, 1], [3])
    assert judge_no_break(arm(F, P, P), arm(F, P, F), is_greedy=True).failed == [3]


@pytest.mark.parametrize(
    ("before", "after", "state", "words"),
    [
        (
            Tried(64),
            Tried(64, 1),
            "passed",
            "1 task newly failed, as chance may have it, none failed significantly more often",
        ),
        (Tried(64), Tried(64, 9), "below", "1 task failed significantly more often"),
        (Tried(1), Tried(1, 1), "cannot_tell", f"{BY_CHANCE}, more attempts at each task would show more"),
        (Tried(64, 1), Tried(64, 64), "below", "1 task failed significantly more often"),
        (Tried(64, 1), Tried(64, 2), "passed", "none failed significantly more often"),
        (Tried(4, 2), Tried(4, 4), "not_shown", "nothing passed before, so nothing is guarded"),
        (Tried(64, 1), Tried(64, 4, 4), "not_shown", "1 task could not be scored in every attempt"),
        (Tried(64, 1), Tried(64, 1, 1), "passed", "none failed significantly more often"),
        (Tried(16, 2), Tried(16, 5, 3), "passed", "none failed significantly more often"),
        (Tried(0), Tried(0), "not_shown", "nothing passed before, so nothing is guarded"),
    ],
)
def test_more_attempts_guard_more(before: Tried, after: Tried, state: str, words: str) -> None:
    found = judge_no_break(arm(before), arm(after))
    assert (found.state, found.words) == (state, words)


def test_a_task_that_was_not_run_shows_nothing() -> None:
    assert judge_no_break(arm(P, P), arm(P)).state == "not_shown"
    assert judge_no_failure(arm(P, P), arm(P)).state == "not_shown"
    assert judge_no_failure({}, {}).state == "not_shown"


def test_harm_that_no_task_shows_alone_shows_in_all_of_them() -> None:
    before, after = arm(*[Tried(16, 2)] * 30), arm(*[Tried(16, 5)] * 30)
    assert not worse_of({task: (before[task], after[task]) for task in before})
    found = judge_no_break(before, after)
    assert (found.state, len(found.failed)) == ("below", 30)
    assert found.words == "150 of 480 attempts failed, 60 of 480 before: significantly more"
    assert judge_no_break(before, arm(*[Tried(16, 2)] * 29, Tried(16, 7))).state == "passed", "one of 30 by chance"
    assert judge_no_break(before, arm(*[Tried(16, 2)] * 29, Tried(16, 14))).failed == [30]
    unscored = judge_no_break(before, arm(*[Tried(16, 2, 3)] * 30))
    assert (unscored.state, unscored.words) == ("not_shown", "30 tasks could not be scored in every attempt")


@st.composite
def some_pairs(draw: st.DrawFn, tasks: int, attempts: int) -> Pairs:
    def tried() -> Tried:
        scored, unknown = draw(st.integers(1, attempts)), draw(st.integers(0, 2))
        return Tried(scored + unknown, draw(st.integers(0, scored)), unknown)

    return {task: (tried(), tried()) for task in range(draw(st.integers(1, tasks)))}


def fisher(old: Tried, new: Tried) -> float:
    table = [[new.bad, new.scored - new.bad], [old.bad, old.scored - old.bad]]
    return float(fisher_exact(table, alternative="greater").pvalue)


@settings(max_examples=50)
@given(some_pairs(tasks=3, attempts=6))
def test_how_likely_more_bad_attempts_are_is_fishers_of_every_way_they_could_have_fallen(pairs: Pairs) -> None:
    assert more_often([pairs[0]]) == pytest.approx(fisher(*pairs[0]))
    spread = [
        hypergeom.pmf(range(new.scored + 1), old.scored + new.scored, old.bad + new.bad, new.scored)
        for old, new in pairs.values()
    ]
    seen = sum(new.bad for _, new in pairs.values())
    ways = itertools.product(*(range(len(likely)) for likely in spread))
    wanted = sum(math.prod(s[n] for s, n in zip(spread, way, strict=True)) for way in ways if sum(way) >= seen)
    assert more_often(pairs.values()) == pytest.approx(wanted)


@settings(max_examples=50)
@example({0: (Tried(8, 1), Tried(8, 6)), 1: (Tried(4, 2), Tried(5, 2, 1))})
@given(some_pairs(tasks=2, attempts=6))
def test_what_was_not_scored_could_change_nothing_where_a_suite_is_passed(pairs: Pairs) -> None:
    before, after = ({task: pair[arm] for task, pair in pairs.items()} for arm in (0, 1))
    found = judge_no_break(before, after)
    every = [[Tried(t.attempts, t.bad + bad) for bad in range(t.unknown + 1)] for pair in pairs.values() for t in pair]
    ways = [judge_no_break(arm(*way[::2]), arm(*way[1::2])).state for way in itertools.product(*every)]
    if found.state == "passed":
        assert "below" not in ways
    if "not be scored" in found.words and len(pairs) == 1:
        assert "below" in ways


@pytest.mark.parametrize("more", [0, 1, 4])
def test_what_is_left_out_of_account_changes_nothing(more: int) -> None:
    pairs = {task: (Tried(64, 1 + task % 40), Tried(64, 1 + more + task % 40)) for task in range(200)}
    chances = np.ones(1)
    for old, new in pairs.values():
        chances = np.convolve(chances, hypergeom.pmf(range(65), 128, old.bad + new.bad, 64))
    wanted = float(chances[sum(new.bad for _, new in pairs.values()) :].sum())
    assert more_often(pairs.values()) == pytest.approx(wanted, rel=0, abs=1e-9)


@settings(max_examples=50)
@example({0: (Tried(12, 1), Tried(12, 12)), 1: (Tried(12, 1), Tried(12, 7))})
@given(some_pairs(tasks=6, attempts=12))
def test_a_task_is_worse_when_it_is_in_every_group_of_tasks_that_it_is_in(pairs: Pairs) -> None:
    """Holm's method is the closed test of all groups by their smallest p-value times their size."""
    chance = {task: fisher(*pair) for task, pair in pairs.items()}
    least = {task: fisher(*_pushed(*pair)) for task, pair in pairs.items()}
    told = [task for task in pairs if least[task] < ALPHA / 2]
    groups = [set(group) for size in range(1, len(told) + 1) for group in itertools.combinations(told, size)]
    shown = [min(chance[task] for task in group) < ALPHA / 2 / len(group) for group in groups]
    wanted = [task for task in told if all(s for s, group in zip(shown, groups, strict=True) if task in group)]
    assert sorted(worse_of(pairs)) == wanted


def _pushed(old: Tried, new: Tried) -> tuple[Tried, Tried]:
    """With as many of the bad attempts in the newer arm as fit."""
    most = min(new.scored, old.bad + new.bad)
    return Tried(old.scored, old.bad + new.bad - most), Tried(new.scored, most)


@pytest.mark.parametrize("rates", [(0.3, 0.5), (0.5, 0.5), (0.15, 0.8)])
def test_chance_alone_shows_more_bad_attempts_in_one_suite_of_twenty_at_most(rates: tuple[float, float]) -> None:
    """Every outcome of two tasks, each tried six times in both arms that are alike, with how likely it is."""
    found = 0.0
    for bad in itertools.product(range(7), repeat=4):
        pairs = {task: (Tried(6, bad[task]), Tried(6, bad[2 + task])) for task in (0, 1)}
        if worse_of(pairs) or more_often(pairs.values()) < ALPHA / 2:
            found += math.prod(LIKELY[rates[number % 2]][count] for number, count in enumerate(bad))
    assert 0 < found <= ALPHA


LIKELY = {rate: [float(binom.pmf(count, 6, rate)) for count in range(7)] for rate in (0.15, 0.3, 0.5, 0.8)}


@pytest.mark.parametrize(
    ("change", "fill", "state"),
    [
        ([0.0] * 11 + [-0.1], 1.0, "passed"),
        ([-0.3, 0.3] * 6, 1.0, "cannot_tell"),
        ([-0.2, -0.3] * 6, 1.0, "below"),
        ([0.2, 0.3] * 6, 1.0, "passed"),
        ([0.0] * 12, 1.0, "passed"),
        ([-0.2] * 12, 1.0, "below"),
        ([0.2, 0.3] * 2, 1.0, "not_shown"),
        ([0.2, 0.3] * 6, 0.97, "not_shown"),
    ],
)
def test_a_general_suite_is_lost_where_a_fall_is_shown(change: list[float], fill: float, state: str) -> None:
    estimate = paired_difference([0.5] * len(change), [0.5 + each for each in change], list(range(len(change))))
    difference = {"mean": estimate.mean, "low": estimate.low, "p": estimate.p, "reason": estimate.reason}
    found = judge_mean(arm(P, P), arm(P, F), difference, fill=fill, margin=0.1)
    assert (found.state, found.broken) == (state, [2])


def test_nothing_compared_shows_nothing() -> None:
    nothing = {"mean": None, "low": None, "p": None, "reason": "nothing scored"}
    assert judge_mean({}, {}, nothing, fill=0.0, margin=0.1).state == "not_shown"


def test_a_suite_stops_one_unchanged_candidate_in_twenty_at_most() -> None:
    """Ten tasks, each done right in 97 of 100 attempts by both versions: one bad attempt of forty is no regression."""
    rng = np.random.default_rng(3)
    stopped = 0
    for _ in range(400):
        before, after = (arm(*[Tried(4, int(bad)) for bad in rng.binomial(4, 0.03, 10)]) for _ in range(2))
        stopped += judge_no_break(before, after).state not in ("passed", "cannot_tell")
    assert stopped / 400 <= ALPHA + 0.02


def test_suites_share_their_chance_of_error() -> None:
    before, after = arm(Tried(16)), arm(Tried(16, 5))
    assert judge_no_break(before, after).state == "below"
    assert judge_no_break(before, after, alpha=ALPHA / 4).state == "passed"
