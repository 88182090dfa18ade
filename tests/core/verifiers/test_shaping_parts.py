"""Reward recipes: what only shapes a reward stays out of the score, and what it may be."""

from typing import Any

import pytest

from flywheel.core.traces import Message, Trace
from flywheel.core.verifiers import NO_RUNNERS, Verdict, VerifierError
from flywheel.core.verifiers.rubric import Rubric, needs, read
from flywheel.core.verifiers.rubric_parts import Case

OWN = {"type": "environment", "name": "task"}
LENGTH = {"type": "length", "name": "long", "weight": -0.5, "free": 10, "most": 20}
POLITE = {"type": "regex", "name": "polite", "weight": 0.2, "shapes": True, "read": "answer", "pattern": "(?i)please"}


def recipe(*parts: dict[str, Any]) -> Rubric:
    return read({"kind": "reward", "parts": list(parts)})


def case(tokens: int | None, own: Verdict, said: str = "Please.") -> Case:
    return Case(Trace.from_messages("", [Message("assistant", said)]), {}, own, None, NO_RUNNERS, tokens)


@pytest.mark.parametrize(("tokens", "share"), [(0, 0), (10, 0), (13, 0.3), (20, 1), (500, 1)])
def test_length_grows_from_the_free_tokens_to_the_most(tokens: int, share: float) -> None:
    """TRL's get_soft_overlong_punishment, of which this is the negative: the weight has the sign."""
    from trl.rewards.other_rewards import get_soft_overlong_punishment

    verdict = recipe(OWN, LENGTH).verdict(case(tokens, Verdict(1.0, "")))
    assert verdict.parts["long"] == pytest.approx(share)
    (theirs,) = get_soft_overlong_punishment(20, 10)(completion_ids=[[0] * tokens])
    assert theirs == pytest.approx(-share)


def test_what_shapes_is_told_and_is_no_part_of_the_score() -> None:
    found = recipe(OWN, LENGTH, POLITE)
    assert (found.weights, found.shaping) == ({"task": 1.0}, {"long": -0.5, "polite": 0.2})
    verdict = found.verdict(case(20, Verdict(0.25, "half", {"valid": 1.0})))
    assert (verdict.score, verdict.reason) == (0.25, "task: half")
    assert verdict.parts == {"valid": 1.0, "task": 0.25, "long": 1.0, "polite": 1.0}


def test_harm_leaves_nothing_of_the_score_and_is_too_long_as_well() -> None:
    found = recipe(OWN, LENGTH)
    verdict = found.verdict(case(20, Verdict(0.0, "it erased", {"unsafe": 1.0})))
    assert (verdict.score, verdict.reason, verdict.parts["long"]) == (0.0, "it erased", 1.0)


def test_without_a_score_of_its_own_or_of_a_part_it_has_none() -> None:
    found = recipe(OWN, LENGTH)
    assert found.verdict(case(20, Verdict(None, "away", cause="away"))).score is None
    uncounted = found.verdict(case(None, Verdict(1.0, "")))
    assert (uncounted.score, uncounted.reason) == (None, "long: nobody counted its tokens")


def test_only_what_judges_as_the_task_does_keeps_its_pass() -> None:
    assert recipe(OWN, LENGTH, POLITE).is_own_verdict
    assert not recipe({**OWN, "part": "tool"}, LENGTH).is_own_verdict
    assert not recipe(OWN, {**POLITE, "shapes": False}).is_own_verdict
    assert not recipe(OWN, {**POLITE, "shapes": False, "weight": 0, "required": True}).is_own_verdict


def test_a_recipe_needs_the_runners_of_its_parts() -> None:
    judge = {"type": "judge", "criteria": "good", "model": "m", "shapes": True}
    assert needs({"kind": "reward", "parts": [OWN, judge]}) == {"judge"}


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([LENGTH], "at least one weight of a part that judges must be above 0"),
        ([OWN, {**LENGTH, "required": True}], "parts.1.required: what only shapes a reward cannot be required"),
        ([OWN, {**LENGTH, "most": 10}], "parts.1.most: 10 is not above the 10 tokens that are free"),
        ([OWN, {**LENGTH, "free": -1}], "parts.1.free: -1 is below 0"),
        ([OWN, {**POLITE, "shapes": "yes"}], "parts.1.shapes: 'yes' is neither true nor false"),
        ([OWN, {**POLITE, "shapes": False, "weight": -1}], "parts.1.weight: -1 is not from 0 to 1000"),
        ([OWN, {**POLITE, "weight": -1001}], "parts.1.weight: -1001 is not from -1000 to 1000"),
    ],
)
def test_a_recipe_that_is_wrong_is_refused_where_it_is(parts: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(VerifierError, match=problem.replace("(", r"\(")):
        recipe(*parts)


@pytest.mark.parametrize("part", [LENGTH, POLITE])
def test_no_verifier_of_an_environment_shapes(part: dict[str, Any]) -> None:
    with pytest.raises(VerifierError, match=r"parts.1.(type|shapes): "):
        read({"kind": "rubric", "parts": [OWN, part]})
