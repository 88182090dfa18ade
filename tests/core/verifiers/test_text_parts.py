"""An answer beside a text: what it must be, contain or be like, and what cannot be compared is unscored."""

from typing import Any

import pytest

from flywheel.core.verifiers import VerifierError
from flywheel.core.verifiers.rubric import read
from tests.core.verifiers.test_rubric import judge


@pytest.mark.parametrize(
    ("compare", "answer", "passes"),
    [
        ("be", " Paris\n", True),
        ("be", "paris", False),
        ("differ", "Paris", False),
        ("differ", "Rome", True),
        ("contain", "It is Paris.", True),
        ("contain", "It is PARIS.", False),
        ("contain_any_case", "It is PARIS.", True),
        ("contain_any_case", "It is Rome.", False),
    ],
)
def test_a_text_is_or_contains_another(compare: str, answer: str, passes: bool) -> None:
    given = judge({"type": "text", "value": "Paris", "compare": compare}, answer=answer)
    named = judge({"type": "text", "target": "references.x", "compare": compare}, answer=answer, target={
        "references": {"x": "Paris"}, "tool": "email.send", "arguments": {}
    })  # fmt: skip
    assert (given.success, named.success) == (passes, passes)


@pytest.mark.parametrize("compare", ["contain", "contain_any_case"])
def test_an_empty_text_is_in_every_answer_and_tells_nothing(compare: str) -> None:
    part = {"type": "text", "target": "references.x", "compare": compare}
    found = judge(part, answer="Rome", target={"references": {"x": " "}, "tool": "email.send", "arguments": {}})
    assert (found.score, "every answer contains" in found.reason) == (None, True)


def test_a_field_of_a_json_answer_is_read() -> None:
    part = {"type": "text", "path": "city.name", "value": "Paris"}
    assert judge(part, answer='{"city": {"name": "Paris"}}').success
    assert judge({**part, "value": "2"}, answer='{"city": {"name": 2}}').success
    assert judge(part, answer="Paris").score == 0.0
    assert judge({"type": "text", "target": "nothing"}, answer="Paris").score is None
    assert judge({"type": "text", "target": "arguments"}, answer="Paris").score is None, "an object is no text"


def test_what_is_like_enough_passes_and_the_rest_has_its_share() -> None:
    part = {"type": "similarity", "value": "the cat", "metric": "rouge_1", "least": 0.8}
    assert judge(part, answer="the cat sat").score == 1.0
    verdict = judge({**part, "least": 0.9}, answer="the cat sat")
    assert verdict.score == pytest.approx(0.8)
    assert verdict.success is False
    assert "rouge_1 0.8" in verdict.reason
    assert not judge({**part, "least": 0.9}, answer="").score


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"type": "text"}, "parts.0.target"),
        ({"type": "text", "value": "x", "compare": "matches"}, "parts.0.compare"),
        ({"type": "similarity", "value": "x", "least": 0}, "parts.0.least"),
        ({"type": "similarity", "value": "x", "metric": "cosine"}, "parts.0.metric"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(part: dict[str, Any], problem: str) -> None:
    with pytest.raises(VerifierError, match=problem):
        read({"kind": "rubric", "parts": [part]})
