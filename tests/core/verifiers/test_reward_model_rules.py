"""A reward model's raw score as one from 0 to 1, and which reward models may judge."""

import math
from typing import Any

import pytest

from flywheel.core.traces import Message, Trace
from flywheel.core.verifiers import Runners, Verdict, VerifierError, rubric
from flywheel.core.verifiers.reward_model_rules import KINDS, degenerate_answers, passing, probability, problems
from flywheel.core.verifiers.rubric_parts import Case

GOOD: dict[str, Any] = {
    "reference": 0.5,
    "pairs": {"mean": 0.9, "low": 0.7, "high": 0.98, "n": 40, "unscored": 0, "sources": 40},
    "chosen": 2.0,
    "rejected": -1.0,
    "degenerate": {kind: {"median": -2.0, "beaten": 40, "n": 40} for kind in KINDS},
}


def test_a_score_is_the_probability_of_being_preferred_to_the_reference() -> None:
    assert probability(1.25, 1.25) == 0.5
    assert probability(3.0, 1.0) == pytest.approx(math.exp(3) / (math.exp(3) + math.exp(1)), abs=1e-12)
    assert probability(0.3, 1.0) + probability(1.0, 0.3) == pytest.approx(1)
    assert (probability(-1e4, 0), probability(1e4, 0)) == (0, 1), "however far"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        (
            {"pairs": GOOD["pairs"] | {"low": 0.5}},
            ["it ranks 90.0% of 40 pairs right that it has not seen (50.0% to 98.0%), which may be chance"],
        ),
        (
            {"pairs": GOOD["pairs"] | {"low": None, "high": None, "n": 1}},
            ["1 pairs that it has not seen are too few to tell whether it ranks them right"],
        ),
        (
            {"degenerate": GOOD["degenerate"] | {"empty": {"median": 2.0, "beaten": 3, "n": 40}}},
            ["an empty answer scores 2.00 at the median of 40 answers, and the chosen answers 2.00"],
        ),
    ],
    ids=["passes", "chance", "too few", "loves nothing"],
)
def test_canaries_refuse_a_broken_judge_with_the_numbers(change: dict[str, Any], said: list[str]) -> None:
    assert problems(GOOD | change) == said


def test_a_threshold_that_an_unwanted_answer_reaches_is_named() -> None:
    assert passing(GOOD, 0.5) == ""
    loose = GOOD | {"degenerate": GOOD["degenerate"] | {"refusal": {"median": 1.0, "beaten": 40, "n": 40}}}
    assert passing(loose, 0.5) == "a refusal (0.622) would pass; choose more than 0.622"
    assert passing(loose, 0.7) == ""


def test_unwanted_answers_are_made_of_the_prompt_and_the_right_one() -> None:
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Meet Ada"}]
    made = degenerate_answers(asked, "Done.")
    assert set(made) == set(KINDS)
    assert (made["empty"], made["echo"], made["long"]) == ("", "Meet Ada", " ".join(["Done."] * 8))
    assert "echo" not in degenerate_answers(asked, "Meet Ada "), "where the right answer is one of them it is none"


def test_a_part_hands_on_what_was_written_and_refuses_without_a_runner() -> None:
    row = {"type": "reward_model", "model": "mail-reward@1", "least": 0.6}
    read = rubric.read({"kind": "rubric", "parts": [row]})
    written, tools, heard = [Message("user", "Hi"), Message("assistant", "Hello")], [{"name": "wave"}], []

    def scored(settings: Any, messages: Any, tools: Any) -> Verdict:
        heard.append((settings["model"], list(messages), tools))
        return Verdict(0.25, "poor")

    def verdict(runners: Runners) -> Verdict:
        trace = Trace.from_messages("", [Message("user", "read")])
        return read.verdict(Case(trace, {}, Verdict(1.0, ""), None, runners, None, written, tools))

    assert verdict(Runners(reward_model=scored)).score == 0.25
    assert heard == [("mail-reward@1", written, tools)]
    assert (verdict(Runners()).score, verdict(Runners()).cause) == (None, "refused")
    with pytest.raises(VerifierError, match=r"parts\.0\.least: 2 is not above 0 and at most 1"):
        rubric.read({"kind": "rubric", "parts": [row | {"least": 2}]})
