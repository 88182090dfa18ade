"""Watched parts of reward recipes: measured, never learnt from, and judges among them asked about a sample."""

from collections.abc import Mapping
from typing import Any

import pytest

from flywheel.core.traces import Message, Trace
from flywheel.core.verifiers import NO_RUNNERS, Runners, Verdict, VerifierError, unscored
from flywheel.core.verifiers.rubric import KIND, REWARD, SAMPLE, Rubric, read
from flywheel.core.verifiers.rubric_parts import Case

OWN = {"type": "environment", "name": "task"}
TONE = {"type": "judge", "name": "tone", "criteria": "It is kind.", "model": "m", "weight": 0}
POLITE = {"type": "regex", "name": "polite", "weight": 0, "read": "answer", "pattern": "(?i)please"}


def recipe(*parts: dict[str, Any]) -> Rubric:
    return read({"kind": REWARD, "parts": list(parts)})


class Kind:
    """A judge who likes all, and remembers whom it was asked about."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict, self.asked = verdict, 0

    def __call__(self, settings: Any, trace: Mapping[str, Any], reference: Any, *, anew: bool = False) -> Verdict:
        self.asked += 1
        return self.verdict


def case(said: str, runners: Runners = NO_RUNNERS, own: Verdict | None = None) -> Case:
    trace = Trace.from_messages("", [Message("assistant", said)])
    return Case(trace, {}, own or Verdict(0.5, "half"), None, runners)


def test_a_watched_part_is_told_and_has_no_say_in_score_pass_or_reward() -> None:
    found = recipe(OWN, POLITE)
    assert (found.watched, found.weights, found.shaping) == (["polite"], {"task": 1.0}, {})
    verdicts = [found.verdict(case(said)) for said in ("Please.", "No.")]
    assert [verdict.score for verdict in verdicts] == [0.5, 0.5]
    assert [verdict.parts["polite"] for verdict in verdicts] == [1.0, 0.0]
    assert found.is_own_verdict, "so the verifier's audit covers it"
    assert not recipe(OWN, {**POLITE, "required": True}).watched


def test_a_watched_judge_is_asked_about_a_sample_that_is_the_same_whenever_it_is_judged_again() -> None:
    judge = Kind(Verdict(1.0, "kind"))
    found, runners = recipe(OWN, TONE), Runners(judge=judge)
    said = [f"Answer {number}." for number in range(1000)]
    first = [found.verdict(case(each, runners)).parts["tone"] for each in said]
    assert 70 <= judge.asked <= 130, f"about {SAMPLE:.0%}"
    assert first.count(1.0) == judge.asked
    assert [found.verdict(case(each, runners)).parts["tone"] for each in said] == first
    other = recipe(OWN, {**TONE, "name": "style"})
    assert [other.verdict(case(each, runners)).parts["style"] for each in said] != first, "each part has its own"
    whole = recipe(OWN, {**TONE, "sample": 1})
    assert all(whole.verdict(case(each, runners)).parts["tone"] == 1.0 for each in said[:50])


@pytest.mark.parametrize("answer", [unscored("it is away", "judge"), Verdict(0.0, "rude")])
def test_whatever_a_watched_judge_says_or_does_not_say_the_attempt_keeps_its_score(answer: Verdict) -> None:
    found = recipe(OWN, {**TONE, "sample": 1})
    verdict = found.verdict(case("No.", Runners(judge=Kind(answer))))
    assert (verdict.score, verdict.parts["tone"]) == (0.5, answer.score)
    assert recipe(OWN, {**TONE, "sample": 1}).verdict(case("No.")).score == 0.5, "nobody is there to be asked"


def test_a_judge_that_counts_is_asked_about_every_attempt() -> None:
    judge = Kind(Verdict(1.0, "kind"))
    for each in ({**TONE, "weight": 1}, {**TONE, "required": True}, {**TONE, "weight": 1, "shapes": True}):
        found = recipe(OWN, each)
        assert found.watched == []
        for number in range(20):
            found.verdict(case(f"Answer {number}.", Runners(judge=judge)))
    assert judge.asked == 60


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({**TONE, "sample": 0}, "parts.1.sample: 0 is not a share above 0, up to 1"),
        ({**TONE, "sample": 1.5}, "parts.1.sample: 1.5 is not a share above 0, up to 1"),
        ({**TONE, "sample": "all"}, "parts.1.sample: 'all' is not a number below 1e+300"),
        ({**TONE, "sample": 0.5, "weight": 1}, "parts.1.sample: only a judge with weight 0 that is not required"),
        ({**TONE, "sample": 0.5, "required": True}, "parts.1.sample: only a judge with weight 0 that is not required"),
        ({**POLITE, "sample": 0.5}, "parts.1.sample: only a judge with weight 0 that is not required"),
    ],
)
def test_a_sample_that_is_wrong_is_refused_where_it_is(part: dict[str, Any], problem: str) -> None:
    with pytest.raises(VerifierError) as error:
        recipe(OWN, part)
    assert str(error.value).startswith(problem)


def test_a_verifier_judges_every_attempt() -> None:
    judge = Kind(Verdict(1.0, "kind"))
    found = read({"kind": KIND, "parts": [OWN, TONE]})
    for number in range(20):
        found.verdict(case(f"Answer {number}.", Runners(judge=judge)))
    assert judge.asked == 20
    with pytest.raises(VerifierError, match=r"parts\.1\.sample: a verifier judges every attempt"):
        read({"kind": KIND, "parts": [OWN, {**TONE, "sample": 0.5}]})
