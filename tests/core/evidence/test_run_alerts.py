"""What a run's measurements show: each alert on a series that deserves it, and on none that only looks like it."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.core.evidence.run_alerts import Alert, Measurements, alerts

Curve = Callable[[int], float]
FLAT_SCORES = [(0, 0.4), (20, 0.42), (40, 0.39), (60, 0.4)]
RISING_SCORES = [(0, 0.4), (20, 0.5), (40, 0.55), (60, 0.6)]


def steps(count: int = 60, /, **curves: Curve) -> list[tuple[int, dict[str, float]]]:
    return [
        (step, {name.replace("__", "/"): curve(step) for name, curve in curves.items()}) for step in range(1, count + 1)
    ]


def ramp(start: float, end: float, over: int = 60, noise: float = 0.0) -> Curve:
    return lambda step: start + (end - start) * step / over + noise * random.Random(step * 7919).gauss(0, 1)


def kinds(**measured: Any) -> list[str]:
    return [alert.kind for alert in alerts(Measurements(**measured))]


RISING = {"reward_mean": ramp(0.2, 0.7, noise=0.05)}
RAISED: list[tuple[str, dict[str, Any]]] = [
    ("reward_hacking", {"steps": steps(**RISING), "held_out": FLAT_SCORES}),
    ("reward_hacking", {"steps": steps(**RISING), "validation": FLAT_SCORES, "held_out": RISING_SCORES}),
    ("reward_hacking", {"steps": steps(reward__tone=ramp(0.4, 0.4, noise=0.1), **RISING), "watched": ["tone"]}),
    ("reward_hacking", {"steps": steps(reward__tone=ramp(0.6, 0.3), **RISING), "watched": ["tone"],
                        "validation": RISING_SCORES}),
    ("overruled", {"labelled": 8, "overruled": [3, 3, 17]}),
    ("overfitting", {"held_out": [(0, 0.2), (20, 0.6), (40, 0.4)]}),
    ("no_better", {"validation": [(0, 0.4), (20, 0.4), (40, 0.1)], "is_finished": True}),
    ("unsafe", {"steps": steps(reward__unsafe=ramp(0.0, 0.2, noise=0.02))}),
    ("invalid", {"steps": steps(invalid_fraction=ramp(0.1, 0.5, noise=0.05))}),
    ("unscored", {"steps": steps(unscored=ramp(0.0, 0.3))}),
    ("entropy_collapse", {"steps": steps(entropy=lambda step: 2.0 if step < 40 else 0.1, **RISING)}),
    ("no_variance", {"steps": steps(zero_variance_groups=lambda step: 0.2 if step < 45 else 0.9)}),
    ("length", {"steps": steps(completion_length_mean=ramp(80, 240, noise=10), reward_mean=ramp(0.5, 0.4))}),
    ("length", {"steps": steps(30, completion_length_mean=ramp(80, 240, 30), reward_mean=ramp(0.5, 0.58, 30)),
                "validation": FLAT_SCORES}),
    ("truncated", {"steps": steps(truncated_fraction=ramp(0.0, 0.5, noise=0.02))}),
    ("repetition", {"steps": steps(repetition=ramp(0.02, 0.5, noise=0.03))}),
    ("plateau", {"steps": steps(400, reward_mean=lambda step: ramp(0.3, 0.5, 100, noise=0.05)(min(step, 100)))}),
    ("unlearning", {"steps": steps(chosen_logp=ramp(-10, -14))}),
    ("broken_off", {"steps": steps(12, broken_off_fraction=lambda step: 0.1 if step < 3 else 0.5)}),
    ("sampler_mismatch", {"steps": steps(sync_proof=ramp(0.001, 0.02, noise=0.001), sync_limit=lambda _: 0.05)}),
    ("sampler_mismatch", {"steps": steps(12, sync_proof=lambda _: 0.03, sync_limit=lambda _: 0.05)}),
    ("sampler_weight", {"steps": steps(sampler_weight_min=ramp(0.8, 0.02))}),
    ("out_of_turns", {"steps": steps(12, out_of_turns_fraction=lambda _: 0.3)}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "measured"), RAISED, ids=[kind for kind, _ in RAISED])
def test_a_series_that_deserves_an_alert_gets_that_one(kind: str, measured: dict[str, Any]) -> None:
    (alert,) = alerts(Measurements(**measured))
    assert alert.kind == kind
    assert any(digit in alert.saw for digit in "123456789")
    assert alert.act


QUIET: list[tuple[str, dict[str, Any]]] = [
    ("reward and held-out success rise", {"steps": steps(**RISING), "held_out": RISING_SCORES}),
    ("validation rises late", {"steps": steps(**RISING), "validation": [(0, 0.4), (20, 0.4), (40, 0.4), (60, 0.55)]}),
    ("too few evaluations", {"steps": steps(**RISING), "held_out": FLAT_SCORES[:2]}),
    ("the reward is noise", {"steps": steps(20, reward_mean=ramp(0.4, 0.5, 20, noise=0.3)), "held_out": FLAT_SCORES}),
    ("what is watched rises too", {"steps": steps(reward__tone=ramp(0.4, 0.6), **RISING), "watched": ["tone"]}),
    ("a sample is too small to tell",
     {"steps": steps(reward__tone=ramp(0.5, 0.5, noise=0.9), **RISING), "watched": ["tone"]}),
    ("it was judged in few steps",
     {"steps": [*steps(9, reward__tone=lambda _: 0.4, **RISING), *steps(60, **RISING)[9:]], "watched": ["tone"]}),
    ("a part that is learnt from", {"steps": steps(reward__tone=ramp(0.4, 0.4), **RISING)}),
    ("a label or two", {"labelled": 2, "overruled": [3, 5]}),
    ("one label may be a slip", {"labelled": 40, "overruled": [3]}),
    ("people agree", {"labelled": 40}),
    ("success falls by chance", {"held_out": [(0, 0.5), (20, 0.53), (40, 0.49)]}),
    ("validation may still rise", {"validation": [(0, 0.4), (20, 0.4), (40, 0.1)]}),
    ("harm is rare and does not grow", {"steps": steps(reward__unsafe=ramp(0.03, 0.03, noise=0.02))}),
    ("harm falls", {"steps": steps(reward__unsafe=ramp(0.4, 0.1))}),
    ("entropy falls by half", {"steps": steps(entropy=ramp(2.0, 1.0))}),
    ("entropy came back", {"steps": steps(entropy=lambda step: 0.1 if 20 < step < 40 else 2.0)}),
    ("nothing is left to try", {"steps": steps(entropy=lambda step: 2.0 / step**2, reward_mean=lambda _: 0.98)}),
    ("groups are dull now and then", {"steps": steps(zero_variance_groups=lambda step: 0.9 if step % 5 else 0.5)}),
    ("length pays", {"steps": steps(completion_length_mean=ramp(80, 240), **RISING), "held_out": RISING_SCORES}),
    ("length grows a little", {"steps": steps(completion_length_mean=ramp(80, 100))}),
    ("answers were always cut off", {"steps": steps(truncated_fraction=lambda _: 0.4)}),
    ("calls have the same form", {"steps": steps(repetition=lambda _: 0.35)}),
    ("the reward rises slowly", {"steps": steps(400, reward_mean=ramp(0.3, 0.6, 400, noise=0.05))}),
    ("noise may hide a rise", {"steps": steps(48, reward_mean=ramp(0.4, 0.4, noise=0.2))}),
    ("there is no more to earn", {"steps": steps(400, reward_mean=ramp(0.97, 0.97, noise=0.01))}),
    ("the run is over", {"steps": steps(400, reward_mean=lambda _: 0.5), "is_finished": True}),
    ("the sampler is a little off", {"steps": steps(sync_proof=ramp(2e-3, 5e-3), sync_limit=lambda _: 0.05)}),
    ("the sampler's noise", {"steps": steps(sync_proof=ramp(0.01, 0.012, noise=0.005), sync_limit=lambda _: 0.05)}),
    ("tokens always weighed little", {"steps": steps(sampler_weight_min=ramp(0.06, 0.05))}),
    ("it has only begun", {"steps": steps(9, entropy=ramp(2.0, 0.0, 9), unscored=ramp(0, 1, 9), **RISING)}),
    ("nothing was measured", {}),
]  # fmt: skip


@pytest.mark.parametrize(("why", "measured"), QUIET, ids=[why for why, _ in QUIET])
def test_a_series_that_only_looks_like_it_gets_none(why: str, measured: dict[str, Any]) -> None:
    assert kinds(**measured) == []


def test_an_alert_says_what_it_saw_and_in_which_steps() -> None:
    (alert,) = alerts(
        Measurements(steps(50, reward_mean=lambda step: step / 50), held_out=[(0, 0.4), (20, 0.4), (40, 0.4)])
    )
    assert alert == Alert(
        "reward_hacking",
        "reward rose by 0.80 (from 0.11 to 0.91) and held-out success did not: 40% at step 0, 40% at step 40",
        "look at the attempts with the best rewards: if they are no good, cancel the run and fix the verifier",
        41,
        50,
    )


def test_a_watched_part_that_stays_flat_is_told_with_its_numbers_beside_a_flat_validation() -> None:
    """It was judged in every other step."""
    rows = steps(60, reward_mean=lambda step: step / 60)
    for step, metrics in rows[::2]:
        metrics["reward/tone"] = 0.5 if step < 30 else 0.45
    (alert,) = alerts(Measurements(rows, validation=FLAT_SCORES, watched=["tone", "never_judged"]))
    assert alert.saw.endswith(
        "the validation score did not: 40% at step 0, 40% at step 60; "
        "the watched part tone did not: 0.50, then 0.45 (judged in 30 steps)"
    )
    assert (alert.first, alert.last) == (49, 60), "and it leads to their attempts"


def test_the_share_that_people_overrule_has_its_count_and_its_interval() -> None:
    (alert,) = alerts(Measurements(labelled=8, overruled=[3, 3, 17]))
    assert "3 of 8 labelled attempts" in alert.saw
    assert "38%, in all probably 14% to 69%" in alert.saw
    assert (alert.first, alert.last, alert.only) == (3, 17, "overruled")


def test_attempts_that_grow_with_a_reward_that_nothing_else_shows_are_two_alerts() -> None:
    longer = steps(completion_length_mean=ramp(80, 240), **RISING)
    found = alerts(Measurements(longer, validation=FLAT_SCORES))
    assert [alert.kind for alert in found] == ["reward_hacking", "length"]
    assert found[1].saw.endswith("; the validation score did not: 40% at step 0, 40% at step 60")
    assert kinds(steps=longer, validation=RISING_SCORES) == []


def test_groups_that_all_succeed_are_told_from_those_that_all_fail() -> None:
    acts = []
    for reward in (0.0, 1.0):
        measured = Measurements(steps(zero_variance_groups=lambda _: 1.0, reward_mean=ramp(reward, reward)))
        (alert,) = [each for each in alerts(measured) if each.kind == "no_variance"]
        acts.append(alert.act)
    assert "easier tasks" in acts[0]
    assert "harder ones" in acts[1]


def test_a_run_of_few_steps_whose_groups_all_scored_alike_is_told_so_at_its_end() -> None:
    few = steps(3, zero_variance_groups=lambda _: 1.0, reward_mean=ramp(0.0, 0.0))
    (alert,) = alerts(Measurements(few, is_finished=True))
    assert (alert.kind, alert.first, alert.last) == ("no_variance", 1, 3)
    assert "from step 1 to 3, the last" in alert.saw
    assert "learnt nothing from it" in alert.saw
    assert kinds(steps=few) == [], "the next step may teach something"
    taught = steps(3, zero_variance_groups=lambda step: 0.75 if step == 2 else 1.0)
    assert kinds(steps=taught, is_finished=True) == []


def test_an_alert_leads_to_its_culprits_and_not_to_the_best() -> None:
    found = {kind: (alert.order, alert.only) for kind, measured in RAISED for alert in alerts(Measurements(**measured))}
    assert found["reward_hacking"] == ("reward", "")
    assert {found[kind] for kind in ("length", "truncated", "repetition")} == {("longest", "")}
    for kind in ("unsafe", "invalid", "unscored", "broken_off", "out_of_turns"):
        assert found[kind] == ("step", kind)


NAMES = ["reward_mean", "entropy", "zero_variance_groups", "repetition", "completion_length_mean", "unscored", "kl"]


@given(
    st.lists(st.dictionaries(st.sampled_from(NAMES), st.floats(-1e6, 1e6)), max_size=60),
    st.lists(st.floats(0, 1), max_size=6),
)
def test_whatever_was_measured_alerts_name_steps_that_there_were(
    rows: list[dict[str, float]], scores: list[float]
) -> None:
    series = list(enumerate(scores))
    for alert in alerts(Measurements(list(enumerate(rows, 1)), series, series)):
        assert alert.first is None or 1 <= alert.first <= (alert.last or 0) <= max(len(rows), len(scores))


def test_a_fall_that_few_tasks_may_show_by_chance_is_none() -> None:
    scores = [(0, 0.5), (10, 0.6), (20, 0.5)]
    assert not alerts(Measurements(held_out=scores, tasks=10))
    (alert,) = alerts(Measurements(held_out=scores, tasks=400))
    assert (alert.kind, "(of 400 tasks)" in alert.saw) == ("overfitting", True)
