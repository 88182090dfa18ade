"""A plan says what the gate then does: it is held against evals that are played through `decide` and `confirm`."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.core.evidence.gate.decision import Evidence, Policy, confirm, decide
from flywheel.core.evidence.gate.gate_power import (
    LEAST_CHANCE,
    MODEST,
    More,
    eligible,
    guards_of,
    objection,
    power_of,
    with_planned_margins,
)
from flywheel.core.evidence.statistics.eval_scope import Part, Rates, Scope
from tests.simulate import PLAIN, chances, eval_of
from tests.simulate import sizes as sizes_of

PLAYED = Rates(success=0.5, icc=0.18, kept=1.0, invalid=0.03, unsafe=0.005, latency=0.3 / math.sqrt(3), cost=None)
"""What `eval_of` draws: both arms succeed at the same tasks, the candidate more often."""
HARM: dict[str, Any] = {"invalid": (0.03, 0.03), "unsafe": (0.005, 0.005), "latency": 0.3}


def scope(tasks: int, sealed: int = 0, samples: tuple[int, int] = (4, 4), **more: Any) -> Scope:
    return Scope(Part.of([1] * tasks), samples, Part.of([1] * sealed), **more)


def played(policy: Policy, tasks: int, gain: float, samples: tuple[int, int], runs: int) -> float:
    """The share of candidates that are eligible, of so many that are truly better."""
    passed, cells = 0, (tasks * samples[0], tasks * samples[1])
    for seed in range(runs):
        arms = eval_of(np.random.default_rng([seed, tasks, 99]), [1] * tasks, gain=gain, k=samples, **HARM)
        passed += decide(policy, Evidence(*arms, **PLAIN, cells=cells)).verdict == "eligible"
    return passed / runs


def true_gain(gain: float) -> float:
    """What is left of it where it ends at 100%."""
    before = chances(np.random.default_rng(1), [1] * 20_000)
    return float((np.clip(before + gain, 0, 1) - before).mean())


@pytest.mark.parametrize(
    ("policy", "tasks", "gain", "samples"),
    [
        (Policy(), 60, 0.05, (4, 4)),
        (Policy(), 60, 0.05, (16, 4)),
        (Policy(), 120, 0.1, (4, 4)),
        (Policy(strict=True, invalid_margin=0.05, latency_margin=0.08), 60, 0.2, (4, 4)),
    ],
)
def test_a_plan_is_what_the_gate_then_does(policy: Policy, tasks: int, gain: float, samples: tuple[int, int]) -> None:
    runs = 100
    planned = eligible(policy, scope(tasks, sealed=20, samples=samples, rates=PLAYED), true_gain(gain))
    found = played(policy, tasks, gain, samples, runs)
    assert found == pytest.approx(planned, abs=0.05 + 2 * math.sqrt(0.25 / runs))


@pytest.mark.parametrize(("design", "tasks", "sources"), [("zipf", 120, 20), ("one:80", 120, 41)])
def test_it_is_so_also_where_sources_are_of_unequal_size(design: str, tasks: int, sources: int) -> None:
    runs, spread = 80, 0.08
    of = sizes_of(design, tasks, sources)
    passed = 0
    for seed in range(runs):
        arms = eval_of(np.random.default_rng([seed, tasks, 97]), of, gain=0.1, spread=spread)
        passed += decide(Policy(), Evidence(*arms, **PLAIN)).verdict == "eligible"
    alone = PLAYED.variance(0.1, (4, 4), Part.of([1])).per_task
    told = replace(PLAYED, shared=spread**2 / (spread**2 + alone))
    planned = eligible(Policy(), Scope(Part.of(of), (4, 4), Part.of([1] * 20), rates=told), true_gain(0.1))
    assert passed / runs == pytest.approx(planned, abs=0.05 + 2 * math.sqrt(0.25 / runs))


def test_the_sealed_part_confirms_as_often_as_planned() -> None:
    runs, sealed = 150, 33
    one = scope(1000, sealed=sealed, rates=PLAYED)
    planned = power_of(Policy(), one).outlooks[1]
    confirmed = 0
    for seed in range(runs):
        arms = eval_of(np.random.default_rng([seed, 98]), [1] * sealed, gain=0.205, **HARM)
        confirmed += confirm(Policy(), Evidence(*arms, **PLAIN), 1).verdict == "eligible"
    assert planned.is_shown == pytest.approx(1.0, abs=1e-6)
    assert confirmed / runs == pytest.approx(planned.passes, abs=0.1)


sizes = st.lists(st.integers(1, 9), min_size=5, max_size=80)
rates = st.builds(
    Rates,
    success=st.floats(0, 1),
    icc=st.floats(0, 1),
    shared=st.floats(0, 1),
    kept=st.floats(0, 1),
    invalid=st.none() | st.floats(0, 1),
    unsafe=st.none() | st.floats(0, 1),
    latency=st.none() | st.floats(0, 30),
    cost=st.none() | st.floats(0, 30),
)
policies = st.builds(
    Policy,
    delta_min=st.floats(0, 1),
    invalid_margin=st.none() | st.floats(0, 1),
    unsafe_margin=st.floats(0, 1),
    unsafe_rate_max=st.none() | st.floats(0, 1),
    cost_margin=st.none() | st.floats(0, 100),
    latency_margin=st.none() | st.floats(0, 100),
    strict=st.booleans(),
)
parts = st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(1, 9), min_size=1, max_size=40).map(Part.of))


@settings(max_examples=40, deadline=None)
@given(
    held_out=sizes,
    sealed=sizes | st.just([]),
    slices=parts,
    told=rates,
    policy=policies,
    samples=st.tuples(st.integers(1, 16), st.integers(1, 16)),
)
def test_chances_are_chances_whatever_is_planned_for(
    held_out: list[int],
    sealed: list[int],
    slices: dict[str, Part],
    told: Rates,
    policy: Policy,
    samples: tuple[int, int],
) -> None:
    one = Scope(Part.of(held_out), samples, Part.of(sealed), slices, told)
    found = power_of(policy, one)
    told_chances = [each.passes for each in found.guards]
    for outlook in found.outlooks:
        told_chances += [outlook.is_shown, outlook.is_eligible, outlook.passes]
        assert outlook.is_shown >= outlook.is_eligible >= outlook.passes
    assert all(0 <= chance <= 1 for chance in told_chances)
    known = [found.least_gain, found.least_confirmed, *found.falls.values(), *(each.margin for each in found.guards)]
    assert all(math.isfinite(number) and number >= 0 for number in known if number is not None)
    refusal = objection(policy, one)
    assert (refusal is not None) == (policy.strict and found.outlooks[1].is_eligible < LEAST_CHANCE)


def test_a_spread_too_small_for_a_float_is_none() -> None:
    nearly = Rates(success=5e-324, icc=0.0, shared=0.0, kept=0.0, invalid=None, unsafe=None, latency=None, cost=None)
    power = power_of(Policy(), scope(60, 20, rates=nearly, samples=(1, 1)))
    assert 0 <= power.outlooks[1].is_shown <= 1


@settings(max_examples=60, deadline=None)
@given(tasks=st.integers(10, 400), success=st.floats(0, 0.75), gain=st.floats(0.01, 0.2))
def test_more_tasks_and_a_larger_gain_are_shown_more_often(tasks: int, success: float, gain: float) -> None:
    policy, told = Policy(), Rates(success=success, unsafe=None)
    less = eligible(policy, scope(tasks, 10, rates=told), gain)
    assert eligible(policy, scope(tasks + 10, 10, rates=told), gain) >= less - 1e-9
    assert eligible(policy, scope(tasks, 10, rates=told), gain + 0.02) >= less - 1e-9


def test_so_many_tasks_more_bring_it_to_four_of_five_cases() -> None:
    policy = Policy()
    found = power_of(policy, scope(60, 20))
    for outlook in found.outlooks:
        assert outlook.more is not None
        enough = power_of(policy, scope(60 + outlook.more.held_out, 20 + outlook.more.sealed))
        passes = next(each.passes for each in enough.outlooks if each.gain == outlook.gain)
        assert passes == pytest.approx(0.8, abs=0.02)
    assert power_of(policy, scope(600, 200)).outlooks[1].more == More(0, 0)
    never = power_of(Policy(delta_min=0.3), scope(60, 20)).outlooks[1]
    assert (never.passes < 0.01, never.more) == (True, None)


def test_the_least_gain_is_shown_in_four_of_five_cases() -> None:
    one = scope(60, 20)
    found = power_of(Policy(), one)
    assert found.least_gain is not None
    assert found.least_confirmed is not None
    assert found.least_gain < found.least_confirmed
    assert eligible(Policy(), replace(one, rates=replace(one.rates, unsafe=None)), found.least_gain) == pytest.approx(
        0.8, abs=0.02
    )
    assert power_of(Policy(), scope(4)).least_gain is None, "fewer sources than the policy asks for"
    assert power_of(Policy(), scope(60)).least_confirmed is None
    assert power_of(Policy(), scope(60, 5)).least_confirmed is None, "five flips cannot reach a first opening's error"
    assert power_of(Policy(), scope(60, rates=Rates(success=1.0))).least_gain is None, "there is no room"


def test_each_opening_of_the_sealed_part_shows_less() -> None:
    first, third = (power_of(Policy(), scope(100, 33, opening=opening)).outlooks[1] for opening in (1, 3))
    assert third.passes < first.passes
    assert third.is_eligible == first.is_eligible


def test_slices_are_named_in_which_a_fall_goes_unseen() -> None:
    slices = {"large": Part.of([1] * 5000), "middle": Part.of([1] * 60), "small": Part.of([1] * 5)}
    found = power_of(Policy(), scope(5065, 50, slices=slices))
    assert [name for name, _ in found.unseen] == ["small", "middle"]
    assert found.falls["small"] is None
    assert found.falls["middle"] is not None
    assert 0.1 < found.falls["middle"] < 0.3


def test_guards_stop_few_unchanged_candidates_unless_the_policy_is_strict() -> None:
    one = scope(60, 20, slices={"billing": Part.of([1] * 60)})
    assert min(guard.passes for guard in guards_of(Policy(), one, MODEST)) > 0.95
    strict = {guard.name: guard for guard in guards_of(Policy(strict=True), one, MODEST)}
    assert strict["invalid outputs"].passes < 0.1
    assert strict["slices"].passes < 0.01
    rare = guards_of(Policy(unsafe_rate_max=0.01), one, MODEST)
    assert next(each for each in rare if each.name == "rate of side effects").passes == 0.0


def test_a_strict_policy_that_the_set_cannot_satisfy_is_objected_to_with_what_would_do() -> None:
    strict = Policy(strict=True)
    assert objection(Policy(), scope(60, 20)) is None
    found = objection(strict, scope(60, 20))
    assert found is not None
    assert found.field == "invalid_margin"
    assert "only 0% of candidates that are 20 points better" in found.words
    assert "by 60 held-out tasks × 4" in found.words
    assert "with a margin of 1 point; 6.7 points would do" in found.words
    planned = with_planned_margins(strict, scope(60, 20))
    assert planned.invalid_margin == 0.067
    assert planned.strict
    assert with_planned_margins(Policy(), scope(60, 20)) == Policy()
    assert objection(planned, scope(60, 20)) is None
    enough = int(found.words.split("About ")[1].split()[0].replace(",", ""))
    assert objection(strict, scope(enough, 20)) is None
    assert objection(strict, scope(int(0.9 * enough), 20)) is not None


def test_where_slices_or_the_gain_stop_it_the_strictness_is_objected_to() -> None:
    small = scope(60, 20, slices={"billing": Part.of([1] * 60)}, rates=Rates(invalid=0.0, latency=None, cost=None))
    found = objection(Policy(strict=True), small)
    assert found is not None
    assert found.field == "strict"
    assert "slices (0% pass)" in found.words
    tiny = scope(12, 10, rates=Rates(invalid=None, unsafe=None, latency=None, cost=None))
    found = objection(Policy(strict=True), tiny)
    assert found is not None
    assert (found.field, "What stops" in found.words) == ("strict", False)
