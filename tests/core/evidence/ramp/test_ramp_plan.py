from dataclasses import replace

import pytest

from flywheel.core.errors import FieldError
from flywheel.core.evidence.ramp.ramp_plan import (
    ALPHA,
    BUCKETS_ALPHA,
    SIGNALS,
    Holdback,
    Plan,
    Shadow,
    Stage,
    with_buckets,
)


def test_the_default_plan_spends_at_most_five_percent_with_buckets_too() -> None:
    plan = with_buckets(Plan(), ["wrong_tool", "wrong_arguments"])
    assert sum(plan.alphas.values()) <= ALPHA
    assert plan.alphas["bucket:wrong_tool"] == BUCKETS_ALPHA / 2
    assert plan.alphas.keys() >= SIGNALS.keys()


def test_a_signal_that_needs_a_limit_is_judged_only_with_one() -> None:
    assert "slow" not in Plan().signals
    assert "slow" in Plan(limits={"slow": 2.0}).signals


def test_a_plan_is_the_same_from_its_json() -> None:
    plan = Plan(stages=(Stage(100, 20, 0.5), Stage(5000)), finish="person", limits={"dear": 0.1})
    assert Plan.from_json(plan.to_json()) == plan
    more = replace(plan, shadow=Shadow(dollars=2.5, then="person"), holdback=Holdback(300))
    assert with_buckets(Plan.from_json(more.to_json()), []) == more
    assert (len(plan.steps), more.steps[-1].share) == (2, 9700)


def test_a_plan_from_before_there_were_margins_proves_what_it_said() -> None:
    frozen = {name: value for name, value in Plan(margin=0.03).to_json().items() if name != "margins"}
    assert Plan.from_json(frozen).proved == {"failed": 0.03}
    more = with_buckets(Plan(), ["wrong_tool"])
    more = replace(more, margins={"unsafe": 0.02, "bucket:wrong_tool": 0.1})
    assert Plan.from_json(more.to_json()).proved == {"failed": 0.05, "unsafe": 0.02, "bucket:wrong_tool": 0.1}


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({"stages": []}, "stages", "from 1 to 10"),
        ({"stages": [{"share": 0}]}, "stages", "from 1 to 9999"),
        ({"stages": [{"share": 10_000}]}, "stages", "from 1 to 9999"),
        ({"stages": [{"share": float("nan")}]}, "stages", "whole number"),
        ({"stages": [{"share": True}]}, "stages", "whole number"),
        ({"stages": [{"share": 2500}, {"share": 500}]}, "stages", "shares rise"),
        ({"stages": [{"share": 500}, {"share": 500}]}, "stages", "shares rise"),
        ({"stages": [{"part": 500}]}, "stages", "nothing else"),
        ({"stages": "all"}, "stages", "is a list"),
        ({"stages": [{"share": 500, "sessions": 0}]}, "stages", "at least 1 session"),
        ({"stages": [{"share": 500, "minutes": float("nan")}]}, "stages", "number from 0"),
        ({"finish": "never"}, "finish", "proof, person"),
        ({"shadow": {"calls": 0}}, "shadow.calls", "from 1 to 100,000"),
        ({"shadow": {"then": "all"}}, "shadow.then", "stages, person"),
        ({"shadow": {"copies": 1}}, "shadow", "nothing else"),
        ({"holdback": {"share": 1001}}, "holdback.share", "from 1 to 1,000"),
        ({"holdback": {"days": float("nan")}}, "holdback.days", "number from 0"),
        ({"stages": [{"share": 9500}], "holdback": {"share": 500}}, "holdback.share", "95%"),
        ({"margin": 0}, "margin", "0.001 to 0.5"),
        ({"margins": {"unsafe": 0}}, "margins.unsafe", "0.001 to 0.5"),
        ({"margins": {"unsafe": float("nan")}}, "margins.unsafe", "nan"),
        ({"margins": {"slow": 0.1}}, "margins.slow", "signals that are judged have one \\(unsafe, errors, invalid\\)"),
        ({"margins": {"failed": 0.1}}, "margins.failed", "that of failed is `margin`"),
        ({"margins": {"bucket:x": 0.1}}, "margins.bucket:x", "has no margin here"),
        ({"margins": 0.1}, "margins", "an object of numbers"),
        ({"alphas": {"failed": 0.06}}, "alphas.failed", "to 0.05"),
        ({"alphas": {"failed": 0.04, "unsafe": 0.02}}, "alphas", "0.0600 together"),
        ({"alphas": {"failed": float("nan")}}, "alphas.failed", "nan"),
        ({"alphas": {"unsafe": 0.01}}, "alphas", "failed must be judged"),
        ({"alphas": {"failed": 0.01, "mood": 0.01}}, "alphas", "is no signal"),
        ({"alphas": {"failed": 0.01} | {f"bucket:{n}": 1e-5 for n in range(21)}}, "alphas", "at most 20 categories"),
        ({"limits": {"failed": 1}}, "limits", "takes no limit"),
        ({"limits": {"slow": 0}}, "limits.slow", "not 0"),
        ({"quiet_s": 0}, "quiet_s", "from 1"),
        ({"quiet_s": 60, "wait_s": 30}, "wait_s", "from 60"),
        ({"speed": 1}, "speed", "is not part of a plan"),
    ],
)
def test_a_bad_plan_says_which_part_and_would_be_right(given: dict[str, object], field: str, words: str) -> None:
    with pytest.raises(FieldError, match=words) as caught:
        Plan.from_json(given)
    assert caught.value.field == field
