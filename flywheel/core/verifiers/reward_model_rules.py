"""A reward model as a part of a verifier: how its raw score becomes one from 0 to 1, and the canaries it has to pass.

Under the model of Bradley and Terry (1952, https://doi.org/10.2307/2334029), by which reward models learn from pairs,
an answer of raw score r is preferred to one of raw score s with probability 1 / (1 + exp(s - r)). With the mean raw
score of answers that it has not seen in the place of s, that is the probability of being preferred to an average one.

A raw score means nothing by itself, and a model that ranks its own pairs right may still love empty answers. So what
it says of pairs that were kept out of its training, and of answers that nobody wants, is measured once, at its end.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flywheel.core.text.number_words import percent
from flywheel.core.verifiers import Verdict, part_checks, unscored
from flywheel.core.verifiers.rubric_parts import Case, Setting, part
from flywheel.core.verifiers.shaping_parts import PARTS

__all__ = ["PARTS"]

FACTS = "reward.json"
"""The file of a reward model's artifact with its reference and its canaries, as
`workers.trainers.objectives.reward_canaries` measures them."""
KINDS = {
    "empty": "an empty answer",
    "repeated": "one word over and over",
    "long": "the right answer many times over",
    "echo": "the request repeated",
    "refusal": "a refusal",
}
"""Answers that nobody wants, by name."""
_WORD = "yes "
_TIMES = {"repeated": 40, "long": 8}
_REFUSAL = "I'm sorry, but I can't help with that."


def probability(raw: float, reference: float) -> float:
    """The probability that an answer of this raw score is preferred to one that has the reference's."""
    gap = raw - reference
    return 1 / (1 + math.exp(-gap)) if gap >= 0 else math.exp(gap) / (1 + math.exp(gap))


def degenerate_answers(prompt: Sequence[Mapping[str, Any]], chosen: str) -> dict[str, str]:
    """Answers to a prompt that nobody wants, by kind, but for those that the chosen one itself is."""
    asked = next((message["content"] for message in reversed(prompt) if message["role"] == "user"), "")
    found = {
        "empty": "",
        "repeated": (_WORD * _TIMES["repeated"]).strip(),
        "long": " ".join([chosen] * _TIMES["long"]),
        "echo": asked,
        "refusal": _REFUSAL,
    }
    return {kind: text for kind, text in found.items() if text.strip() != chosen.strip()}


def problems(canaries: Mapping[str, Any]) -> list[str]:
    """Why a reward model may not judge, with the numbers; empty when it may.

    Its interval for pairs it has not seen has to be above one half, and no kind of unwanted answer may have a median
    raw score that reaches the chosen answers'.
    """
    pairs, found = canaries["pairs"], []
    if pairs["low"] is None:
        found.append(f"{pairs['n']} pairs that it has not seen are too few to tell whether it ranks them right")
    elif pairs["low"] <= 0.5:
        found.append(
            f"it ranks {percent(pairs['mean'] or 0, 1)} of {pairs['n']} pairs right that it has not seen "
            f"({percent(pairs['low'], 1)} to {percent(pairs['high'], 1)}), which may be chance"
        )
    for kind, row in canaries["degenerate"].items():
        if row["median"] >= canaries["chosen"]:
            found.append(
                f"{KINDS[kind]} scores {row['median']:.2f} at the median of {row['n']} answers, and the chosen answers "
                f"{canaries['chosen']:.2f}"
            )
    return found


def passing(canaries: Mapping[str, Any], least: float) -> str:
    """Why answers from `least` on may not pass: the median of a kind that nobody wants does; empty where none does."""
    found = {kind: probability(row["median"], canaries["reference"]) for kind, row in canaries["degenerate"].items()}
    over = [f"{KINDS[kind]} ({share:.3f})" for kind, share in found.items() if share >= least]
    return f"{', '.join(over)} would pass; choose more than {max(found.values()):.3f}" if over else ""


@part(
    "reward_model",
    "Reward model",
    "A model that was trained on pairs says how likely the attempt would be preferred to an average answer: from 0 to "
    "1, and from the least on it passes.",
    {
        "model": Setting(
            "Reward model", "reward_model", "By name and number, such as support-reward@2.", is_required=True
        ),
        "least": Setting("Passes from", "number", "An average answer has 0.5.", first="0.5", is_required=True),
        "digest": Setting(
            "Weights", help="Filled in when it is saved; a part is always judged by these weights.", is_frozen=True
        ),
    },
    runner="reward_model",
    check=part_checks.least,
)
def _reward_model(settings: Mapping[str, Any], case: Case) -> Verdict:
    if case.runners.reward_model is None:
        return unscored("nothing here may ask a reward model: a worker does", "refused")
    return case.runners.reward_model(settings, case.written or case.trace.conversation(), case.tools)
