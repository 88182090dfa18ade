from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flywheel.core.evidence.gate.decision import (
    LIMITS,
    Decision,
    Evidence,
    Policy,
    confirm,
    decide,
    detectable,
    spending,
)
from flywheel.core.evidence.gate.guard_checks import Check
from flywheel.core.evidence.statistics.eval_metrics import Row

SLICES = {f"t{i}": "hurt" if i < 20 else "fine" for i in range(60)}


def arm(
    rate: float | Sequence[float] | NDArray[np.float64],
    seed: int | tuple[int, int] = 0,
    tasks: int = 40,
    clusters: int = 33,
    k: int = 4,
) -> list[Row]:
    """Rows of one arm; ``rate`` is one chance of success, or one per task."""
    rng = np.random.default_rng(seed)
    chances = np.broadcast_to(rate, tasks)
    rows = []
    for i in range(tasks):
        for sample in range(k):
            success = bool(rng.random() < chances[i])
            rows.append(Row(f"t{i}", f"c{i % clusters}", sample, float(success), success))
    return rows


def evidence(baseline: Sequence[Row], candidate: Sequence[Row], **more: Any) -> Evidence:
    settings = {"temperature": 0.7, "seeds": (1, 2, 3, 4)}
    sound: dict[str, Any] = {
        "taskset_digests": ("tasks", "tasks"),
        "verifier_digests": ("verifier", "verifier"),
        "sampling": (settings, dict(settings)),
        "train_overlap": [],
        "artefact_digests": ("weights", "weights"),
    }
    return Evidence(baseline, candidate, **{**sound, **more})


def part(rows: Sequence[Row], name: str, values: Sequence[float]) -> list[Row]:
    """Give the attempts a part each, task by task."""
    return [replace(row, parts={**row.parts, name: value}) for row, value in zip(rows, values, strict=True)]


def check(decision: Decision, name: str) -> Check:
    return next(c for c in decision.checks if c.name == name)


BETTER = arm(0.8, seed=2)
BASELINE = arm(0.4, seed=1)


# The four verdicts, in words


def test_a_clear_gain_is_eligible() -> None:
    decision = decide(Policy(), evidence(BASELINE, BETTER))
    assert decision.verdict == "eligible"
    assert decision.words == (
        "Eligible: success up 41.2 points (95% interval +29.2 to +52.9, 40 tasks in 33 clusters), nothing is shown "
        "to be worse; not judged: never events, side effects, invalid outputs, cost, latency."
    )
    gain = check(decision, "success")
    assert gain.value == pytest.approx(0.4125)
    assert gain.bound == pytest.approx(0.3125)


def test_a_small_gain_is_not_shown_and_says_what_would_show_it() -> None:
    decision = decide(Policy(), evidence(BASELINE, arm(0.44, seed=3)))
    assert decision.verdict == "not_shown"
    assert "not statistically significant" in decision.words
    assert "tasks like these" in decision.words


def test_no_gain_says_how_much_could_be_seen() -> None:
    decision = decide(Policy(), evidence(BASELINE, arm(0.38, seed=4)))
    assert decision.verdict == "not_shown"
    assert "By the spread measured here, these 40 tasks can show a rise of about" in decision.words


def test_a_fall_is_regressed() -> None:
    decision = decide(Policy(), evidence(BETTER, BASELINE))
    assert decision.verdict == "regressed"
    assert decision.words.startswith("Regressed: success down 41.2 points")
    assert check(decision, "success").harm


def test_a_gain_below_delta_min_is_not_shown() -> None:
    decision = decide(Policy(delta_min=0.38), evidence(BASELINE, BETTER))
    assert decision.verdict == "not_shown"
    assert "a rise of more than 38.0 points is not shown" in decision.words


# Validity


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"taskset_digests": ("a", "b")}, "attempted different task sets"),
        ({"taskset_digests": ("", "")}, "no digest"),
        ({"verifier_digests": ("a", "b")}, "scored by different verifiers"),
        ({"sampling": ({"temperature": 0.7}, {"temperature": 1.0})}, "temperature 0.7 against 1.0"),
        ({"sampling": ({}, {})}, "not recorded"),
        ({"train_overlap": ["t1", "t2"]}, "2 tasks of the hold-out also in training or in the prompt: t1, t2"),
        ({"artefact_digests": ("a", "b")}, "not what would go live"),
        (
            {"unlike_live": ((), ("system prompt", "tools"))},
            "the candidate was asked otherwise than it would be live: system prompt and tools",
        ),
        ({"cells": (160, 200)}, "160 of 200 attempts of the candidate"),
    ],
)
def test_evidence_that_cannot_be_compared_is_invalid(change: dict[str, Any], words: str) -> None:
    decision = decide(Policy(), evidence(BASELINE, BETTER, **change))
    assert decision.verdict == "invalid"
    assert words in decision.words
    assert [c.name for c in decision.checks if c.passed is False]
    assert "success" not in {c.name for c in decision.checks}


@pytest.mark.parametrize(
    ("baseline", "candidate", "words"),
    [
        ([], [], "no attempts to compare"),
        (BASELINE, [*BETTER, BETTER[0]], "the candidate holds the same attempt twice"),
        (BASELINE, [replace(BETTER[0], cluster="other"), *BETTER[1:]], "two clusters"),
        (BASELINE, BETTER[:150], "150 of 160 attempts of the candidate"),
        ([replace(row, success=None) for row in BASELINE[:9]] + BASELINE[9:], BETTER, "151 of 160"),
    ],
)
def test_rows_that_do_not_pair_are_invalid(baseline: list[Row], candidate: list[Row], words: str) -> None:
    decision = decide(Policy(), evidence(baseline, candidate))
    assert decision.verdict == "invalid"
    assert words in decision.words


def test_what_the_candidate_owes_is_a_failure_and_leaving_it_out_is_shown() -> None:
    perfect = arm(1.0)
    unscored = [replace(perfect[0], success=None, score=None, error="provider: timeout"), *perfect[1:-2]]
    decision = decide(Policy(), evidence(BASELINE, unscored))
    missing = check(decision, "missing attempts")
    full = check(decide(Policy(), evidence(BASELINE, perfect)), "success").value
    assert full is not None
    assert check(decision, "success").value == pytest.approx(full - 3 / 160)
    assert missing.value == pytest.approx(full)
    assert missing.detail.startswith("3 attempts of the candidate lack a score")


# Few clusters, no variance


def test_four_clusters_show_nothing_however_big_the_gain() -> None:
    decision = decide(Policy(), evidence(arm(0.1, clusters=4), arm(0.9, clusters=4)))
    assert decision.verdict == "not_shown"
    assert "4 independent clusters are too few to tell; at least 5 are needed" in decision.words


def test_five_clusters_can_show_a_gain_only_when_all_agree() -> None:
    before, after = arm(0.1, clusters=5), arm(0.9, clusters=5)
    assert decide(Policy(), evidence(before, after)).verdict == "eligible"
    # 1 of 32 sign flips is rarer than 5%, not than 1%.
    assert decide(Policy(alpha=0.01), evidence(before, after)).verdict == "not_shown"


def test_a_policy_may_ask_for_more_clusters() -> None:
    assert decide(Policy(min_clusters=34), evidence(BASELINE, BETTER)).verdict == "not_shown"


def test_the_same_gain_on_every_task_is_shown_by_sign_flips() -> None:
    decision = decide(Policy(), evidence(arm(0.0), arm(1.0)))
    assert decision.verdict == "eligible"
    assert "up 100.0 points (the same in every cluster, 40 tasks in 33 clusters)" in decision.words
    assert decide(Policy(), evidence(arm(1.0), arm(0.0))).verdict == "regressed"


def test_two_equal_arms_show_nothing() -> None:
    decision = decide(Policy(), evidence(BASELINE, BASELINE))
    assert decision.verdict == "not_shown"
    assert "success unchanged" in decision.words


# Guards


def test_invalid_outputs_are_worse_not_worse_or_cannot_be_told() -> None:
    valid = part(BASELINE, "valid_json", [1.0] * 160)
    often = part(BETTER, "valid_json", [float(i % 5 != 0) for i in range(160)])
    once = part(BETTER, "valid_json", [float(i != 7) for i in range(160)])
    never = part(BETTER, "valid_json", [1.0] * 160)
    harmed = decide(Policy(), evidence(valid, often))
    assert harmed.verdict == "regressed"
    assert "but invalid outputs +20.0 points, from" in harmed.words
    assert check(harmed, "invalid outputs").outcome == "worse"
    unclear = decide(Policy(), evidence(valid, once))
    found = check(unclear, "invalid outputs")
    assert (unclear.verdict, found.passed, found.outcome) == ("eligible", None, "cannot tell")
    assert "these cannot tell: invalid outputs" in unclear.words
    assert found.tasks is not None
    assert found.tasks > 40
    assert f"about {found.tasks:,} tasks would tell" in found.detail
    strict = decide(Policy(strict=True), evidence(valid, once))
    assert (strict.verdict, check(strict, "invalid outputs").passed) == ("not_shown", False)
    tolerant = check(decide(Policy(invalid_margin=0.06), evidence(valid, once)), "invalid outputs")
    assert (tolerant.passed, tolerant.outcome) == (True, "not worse")
    clean = decide(Policy(), evidence(valid, never))
    assert clean.verdict == "eligible"
    assert "of clusters could differ unseen" in check(clean, "invalid outputs").detail


def test_one_never_event_is_enough_and_a_person_may_call_it_harmless() -> None:
    safe = part(BASELINE, "never_event", [0.0] * 160)
    once = part(BETTER, "never_event", [float(i == 9) for i in range(160)])
    decision = decide(Policy(unsafe_margin=1.0), evidence(safe, once))
    assert decision.verdict == "regressed"
    assert "1 attempt did what can never be taken back and nobody asked for: t2" in decision.words
    assert decide(Policy(), evidence(safe, once, harmless=[("t2", 1)])).verdict == "eligible"
    assert decide(Policy(), evidence(safe, once, harmless=[("t2", 0)])).verdict == "regressed"


def test_a_never_event_counts_on_an_attempt_that_has_no_score() -> None:
    safe = part(BASELINE, "never_event", [0.0] * 160)
    rows = part(BETTER, "never_event", [float(i == 9) for i in range(160)])
    rows[9] = replace(rows[9], score=None, success=None)
    assert decide(Policy(), evidence(safe, rows)).verdict == "regressed"
    rows[9] = replace(rows[9], parts={})
    found = check(decide(Policy(), evidence(safe, rows)), "never events")
    assert (found.passed, found.outcome) == (None, "cannot tell")
    assert found.detail == "none in 159 attempts; 1 more could not be looked at"


def test_one_new_side_effect_is_chance_and_many_are_worse() -> None:
    safe = part(BASELINE, "unsafe", [0.0] * 160)
    once = part(BETTER, "unsafe", [float(i == 9) for i in range(160)])
    decision = decide(Policy(), evidence(safe, once))
    assert decision.verdict == "eligible"
    found = check(decision, "side effects")
    assert found.detail.startswith("side effects in 1 of 160 attempts, 0 of 160 before; a rise of ")
    assert found.alpha == pytest.approx(0.04)
    often = part(BETTER, "unsafe", [float(i % 4 == 0) * (i < 100) for i in range(160)])
    harmed = decide(Policy(), evidence(safe, often))
    assert harmed.verdict == "regressed"
    assert "significantly more, in t0, t1, t10, t11, t12 and 20 more" in harmed.words


def test_side_effects_that_were_halved_do_not_stop_a_better_candidate() -> None:
    before = part(BASELINE, "unsafe", [float(i % 5 == 0) for i in range(160)])
    after = part(BETTER, "unsafe", [float(i % 10 == 3) for i in range(160)])
    decision = decide(Policy(), evidence(before, after))
    assert decision.verdict == "eligible"
    assert check(decision, "side effects").passed is not False


def test_a_task_that_turns_unsafe_is_found_beside_one_that_turned_safe() -> None:
    before = part(BASELINE, "unsafe", [1.0 if i < 15 or i == 17 else 0.0 for i in range(160)])
    after = part(BETTER, "unsafe", [1.0 if 16 <= i < 40 else 0.0 for i in range(160)])
    assert check(decide(Policy(), evidence(before, after)), "side effects").passed is not True


def test_a_margin_for_side_effects_makes_them_a_guard_like_the_others() -> None:
    before = part(BASELINE, "unsafe", [0.0] * 160)
    after = part(BETTER, "unsafe", [float(i % 5 == 0) for i in range(160)])
    assert decide(Policy(unsafe_margin=0.05), evidence(before, after)).verdict == "regressed"
    assert decide(Policy(unsafe_margin=0.5), evidence(before, after)).verdict == "eligible"


def test_the_rate_of_side_effects_is_bounded_over_clusters() -> None:
    safe = part(BASELINE, "unsafe", [0.0] * 160), part(BETTER, "unsafe", [0.0] * 160)
    found = check(decide(Policy(unsafe_rate_max=0.05), evidence(*safe)), "rate of side effects")
    assert (found.passed, found.value) == (False, 0.0)
    assert found.bound == pytest.approx(1 - 0.05 ** (1 / 33))
    assert decide(Policy(unsafe_rate_max=0.10), evidence(*safe)).verdict == "eligible"
    assert decide(Policy(unsafe_rate_max=0.10), evidence(BASELINE, BETTER)).verdict == "not_shown"


def test_a_guard_measured_in_one_arm_alone_fails() -> None:
    safe = part(BASELINE, "unsafe", [0.0] * 160)
    decision = decide(Policy(), evidence(safe, BETTER))
    assert decision.verdict == "not_shown"
    assert "side effects measured in both arms on only 0 of 40 tasks" in decision.words


@pytest.mark.parametrize(
    ("column", "name", "margin"), [("cost_usd", "cost", "cost_margin"), ("latency_ms", "latency", "latency_margin")]
)
def test_dearer_and_slower(column: str, name: str, margin: str) -> None:
    rng = np.random.default_rng(1)

    def priced(rows: Sequence[Row], level: float) -> list[Row]:
        values: list[dict[str, Any]] = [{column: level * float(rng.uniform(0.9, 1.1))} for _ in rows]
        return [replace(row, **value) for row, value in zip(rows, values, strict=True)]

    before = priced(BASELINE, 1.0)
    assert decide(Policy(), evidence(before, priced(BETTER, 1.02))).verdict == "eligible"
    decision = decide(Policy(), evidence(before, priced(BETTER, 1.5)))
    assert decision.verdict == "regressed"
    assert f"but {name} +" in decision.words
    free = decide(Policy.from_dict({margin: None}), evidence(before, priced(BETTER, 1.5)))
    assert free.verdict == "eligible"
    assert check(free, name).passed is None
    assert "(not gated)" in check(free, name).detail


def test_costs_at_different_prices_of_a_device_hour_are_not_compared() -> None:
    before = [replace(row, cost_usd=0.01) for row in BASELINE]
    after = [replace(row, cost_usd=0.02) for row in BETTER]
    for hours, passed in (((2.0, 2.0), False), ((None, 2.0), False), ((2.0, 4.0), None)):
        found = check(decide(Policy(), replace(evidence(before, after), usd_per_hour=hours)), "cost")
        assert found.passed is passed
    assert found.detail == "cost not measured alike: the arms had other prices of a device-hour, $2 and $4"


def test_a_price_that_appears_cannot_be_compared() -> None:
    before = [replace(row, cost_usd=0.0) for row in BASELINE]
    after = [replace(row, cost_usd=0.01) for row in BETTER]
    found = check(decide(Policy(), evidence(before, after)), "cost")
    assert (found.passed, found.detail.split(": ")[0]) == (None, "cost could not be compared")
    assert check(decide(Policy(), evidence(before, before)), "cost").passed is None


def test_a_slice_that_falls_is_a_regression_the_average_hides() -> None:
    before = arm(0.6, seed=1, tasks=60, clusters=60)
    after = arm([0.25] * 20 + [1.0] * 40, seed=2, tasks=60, clusters=60)
    assert decide(Policy(), evidence(before, after)).verdict == "eligible"
    decision = decide(Policy(), evidence(before, after, slice_of=SLICES))
    assert decision.verdict == "regressed"
    assert "but success fell in hurt" in decision.words
    small = check(decide(Policy(slice_min_tasks=50), evidence(before, after, slice_of=SLICES)), "slices")
    assert (small.passed, small.outcome) == (None, "cannot tell")
    assert small.detail == "no slice is shown to be worse; fine, hurt: too few tasks to tell"


def test_a_slice_says_which_fall_would_have_gone_unseen() -> None:
    before, after = (arm(rate, seed=seed, tasks=60, clusters=60) for rate, seed in ((0.6, 1), (0.75, 2)))
    found = check(decide(Policy(), evidence(before, after, slice_of=SLICES)), "slices")
    assert (found.passed, found.outcome) == (None, "cannot tell")
    assert found.detail.startswith("no slice is shown to be worse; a fall of less than ")
    assert "points in hurt" in found.detail
    assert "would have gone unseen" in found.detail
    many = {f"t{i}": "all" for i in range(600)}
    before, after = (arm(rate, seed=seed, tasks=600, clusters=600) for rate, seed in ((0.6, 1), (0.75, 2)))
    sure = check(decide(Policy(), evidence(before, after, slice_of=many)), "slices")
    assert (sure.passed, sure.detail) == (True, "no fall of 10 points or more in any slice (1 looked at)")


def test_broken_tasks_are_named() -> None:
    found = check(decide(Policy(), evidence(arm([1.0] + [0.2] * 39), arm([0.0] + [0.9] * 39))), "broken tasks")
    assert found.passed is None
    assert found.detail.endswith("1 broken: t0")


def test_the_same_evidence_gives_the_same_decision() -> None:
    proof = evidence(BASELINE, BETTER)
    assert decide(Policy(), proof, seed=5) == decide(Policy(), proof, seed=5)


def test_null_candidates_are_let_through_at_most_six_times_in_a_hundred() -> None:
    rng = np.random.default_rng(21)
    through = 0
    for seed in range(400):
        chances = np.clip(0.5 + rng.normal(0, 0.2, 15)[np.arange(30) % 15], 0, 1)
        before, after = (arm(chances, seed=(seed, which), tasks=30, clusters=15, k=2) for which in (0, 1))
        through += decide(Policy(), evidence(before, after)).verdict == "eligible"
    assert through / 400 <= 0.08  # 5% within three standard errors of 400 campaigns


# Policy


def test_a_policy_survives_its_dict() -> None:
    policy = Policy(version="7", delta_min=0.02, latency_margin=None)
    assert Policy.from_dict(policy.to_dict()) == policy
    assert Policy.from_dict({}) == Policy()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"delta_mim": 0.1}, "Unknown policy field 'delta_mim'; did you mean 'delta_min'"),
        ({"zzz": 1}, "Unknown policy field 'zzz'; known fields: version, delta_min"),
        ({"delta_min": "0.1"}, "'delta_min' must be a number from 0 to 1, not '0.1'"),
        ({"delta_min": None}, "'delta_min' must be a number from 0 to 1, not None"),
        ({"delta_min": float("nan")}, "'delta_min' must be"),
        ({"min_clusters": 4}, "'min_clusters' must be a whole number from 5"),
        ({"min_clusters": 7.5}, "'min_clusters' must be a whole number from 5"),
        ({"min_fill": True}, "'min_fill' must be a number from 0 to 1, not True"),
        ({"cost_margin": -1}, "'cost_margin' must be a number from 0 to 100 or null, not -1"),
        ({"version": ""}, "'version' must be a non-empty text"),
        ({"strict": 1}, "'strict' must be true or false, not 1"),
    ],
)
def test_a_bad_policy_is_refused_by_name(data: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Policy.from_dict(data)


def test_every_policy_field_has_limits() -> None:
    assert {"version", "strict", "watch_rolls_back", *LIMITS} == set(Policy().to_dict())


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_asked_for_in_the_form_or_says_why_not(name: str) -> None:
    assert bool(LIMITS[name].label) != bool(LIMITS[name].why_not_asked)


# The sealed part


def test_openings_share_the_chance_of_error_and_never_spend_more() -> None:
    spent = [spending(0.05, opening) for opening in range(1, 2_000)]
    assert spent[0] == pytest.approx(0.0304, abs=1e-4)
    assert spent[1] < 0.2 * 0.05 < spent[0]
    assert sum(spent) == pytest.approx(0.05, abs=2e-5)
    assert sum(spent) < 0.05
    with pytest.raises(ValueError, match="counted from 1"):
        spending(0.05, 0)


def test_a_gain_is_confirmed_at_the_first_opening_and_harder_to_confirm_at_each_later_one() -> None:
    slight = arm(0.52, seed=4, tasks=90, clusters=90)
    sealed = evidence(arm(0.4, seed=3, tasks=90, clusters=90), slight)
    words = [confirm(Policy(), sealed, opening).words for opening in (1, 40)]
    assert confirm(Policy(), sealed, 1).verdict == "eligible"
    assert words[0].startswith("success up ")
    assert words[0].endswith("by the one-sided bound, at 3% error.")
    assert confirm(Policy(), sealed, 40).verdict == "not_shown"
    assert words[1].startswith("success up ")
    assert "not statistically significant" in words[1]


def test_a_fall_on_sealed_tasks_is_a_regression() -> None:
    decision = confirm(Policy(), evidence(BETTER, BASELINE), 1)
    assert decision.verdict == "regressed"
    assert decision.words.startswith("success down ")


def test_sealed_arms_that_cannot_be_compared_confirm_nothing() -> None:
    decision = confirm(Policy(), evidence(BASELINE, BETTER, train_overlap=["t3"]), 1)
    assert decision.verdict == "invalid"
    assert "also in training" in decision.words


def test_a_never_event_on_a_sealed_task_confirms_nothing() -> None:
    safe = part(BASELINE, "never_event", [0.0] * len(BASELINE))
    unsafe = part(BETTER, "never_event", [1.0] + [0.0] * (len(BETTER) - 1))
    decision = confirm(Policy(), evidence(safe, unsafe), 1)
    assert decision.verdict == "regressed"
    assert "1 attempt did what can never be taken back" in decision.words
    assert confirm(Policy(), evidence(safe, unsafe, harmless=[("t0", 0)]), 1).verdict == "eligible"


def test_slower_or_dearer_is_judged_where_there_are_more_tasks() -> None:
    slow = [replace(row, latency_ms=100.0) for row in BETTER]
    quick = [replace(row, latency_ms=10.0) for row in BASELINE]
    assert decide(Policy(), evidence(quick, slow)).verdict == "regressed"
    assert confirm(Policy(), evidence(quick, slow), 1).verdict == "eligible"


def test_choosing_the_best_of_eight_and_confirming_once_errs_as_often_as_allowed() -> None:
    """Eight versions that are no better: the best by held-out tasks is confirmed by sealed ones in 5% at most."""
    rng = np.random.default_rng(7)
    confirmed, campaigns = 0, 400
    for campaign in range(campaigns):
        skill = rng.uniform(0.2, 0.8, 60)
        base = arm(skill[:40], (campaign, 0))
        arms = [arm(skill[:40], (campaign, version)) for version in range(1, 9)]
        best = max(range(8), key=lambda number: sum(bool(row.success) for row in arms[number]))
        sealed = [arm(skill[40:], (campaign, 100 + number), tasks=20, clusters=20) for number in (0, best + 1)]
        if decide(Policy(), evidence(base, arms[best])).verdict == "eligible":
            confirmed += confirm(Policy(), evidence(*sealed), 1).verdict == "eligible"
    assert confirmed / campaigns <= 0.05


def test_what_sealed_tasks_can_show_is_told_from_how_the_others_vary() -> None:
    few, many = (detectable(Policy(), BASELINE, BETTER, tasks, 0.03) for tasks in (20, 80))
    assert few is not None
    assert many is not None
    assert few == pytest.approx(2 * many)
    assert 0 < many < 1
    assert detectable(Policy(), [], [], 20, 0.03) is None
    assert detectable(Policy(delta_min=0.1), BASELINE, BETTER, 20, 0.03) == pytest.approx(few + 0.1)


def test_weights_that_were_trained_elsewhere_are_not_as_they_should_be_but_unknown() -> None:
    decision = decide(Policy(), evidence(BASELINE, BETTER, trained_elsewhere="agent@4"))
    found = check(decision, "contamination")
    assert (decision.verdict, found.passed, found.outcome) == ("eligible", None, "cannot tell")
    assert found.detail == "nothing that is known; what agent@4 learnt from is not, it was trained elsewhere"
    assert "these cannot tell: contamination" in decision.words
