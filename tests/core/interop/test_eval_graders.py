"""Graders of the hosted evals become parts of a rubric, or are left with the reason."""

from typing import Any

import pytest

from flywheel.core.interop.eval_graders import Left, fill, read_grader
from flywheel.core.interop.foreign_tasks import CannotTake

SAID, RIGHT = "{{sample.output_text}}", "{{ item.answer }}"
CHECK = {"type": "string_check", "name": "Match", "input": SAID, "reference": RIGHT, "operation": "eq"}
ALIKE = {"type": "text_similarity", "name": "Alike", "input": SAID, "reference": RIGHT, "pass_threshold": 0.8}
LABEL = {
    "type": "label_model",
    "name": "Tone",
    "model": "gpt-5",
    "input": [{"role": "developer", "content": f"Is it polite? {SAID} to {{{{item.who}}}}"}],
    "labels": ["polite", "rude"],
    "passing_labels": ["polite"],
}
SCORE = {**LABEL, "type": "score_model", "range": [1, 7], "pass_threshold": 5}
CODE = {"type": "python", "name": "Code", "source": "def grade(sample, item):\n    return 1.0", "pass_threshold": 0.5}


def settings(grader: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(part.settings) for part in read_grader(grader, set())[0]]


@pytest.mark.parametrize(
    ("operation", "compare"),
    [("eq", "be"), ("ne", "differ"), ("neq", "differ"), ("like", "contain"), ("ilike", "contain_any_case")],
)
def test_a_string_check_is_a_text(operation: str, compare: str) -> None:
    (part,), words, is_same = read_grader({**CHECK, "operation": operation}, {"match"})
    assert part.settings == {"type": "text", "compare": compare, "target": "references.match_2"}
    assert (part.reference, is_same, bool(part.tells)) == (RIGHT, True, "n" not in operation)
    assert RIGHT in words


def test_sides_may_stand_the_other_way_and_a_field_of_json_is_read() -> None:
    turned = {**CHECK, "input": RIGHT, "reference": SAID}
    assert settings(turned) == settings(CHECK)
    with pytest.raises(Left, match="one of them must be"):
        settings({**turned, "operation": "like"})
    assert settings({**CHECK, "input": "{{sample.output_json.a[0].b}}"})[0]["path"] == "a.0.b"


@pytest.mark.parametrize("metric", ["fuzzy_match", "bleu", "gleu", "meteor", "rouge_1", "rouge_5", "rouge_l"])
def test_a_text_similarity_keeps_its_measure_and_threshold(metric: str) -> None:
    (part,), words, is_same = read_grader({**ALIKE, "evaluation_metric": metric}, set())
    assert part.settings == {"type": "similarity", "metric": metric, "least": 0.8, "target": "references.alike"}
    assert ("hundredths" in words, is_same) == (True, False)


@pytest.mark.parametrize(("grader", "rule"), [(LABEL, "the label is polite"), (SCORE, "from 1 to 7")])
def test_a_model_is_a_judge_with_the_same_criteria(grader: dict[str, Any], rule: str) -> None:
    (part,), words, is_same = read_grader(grader, set())
    criteria = part.settings["criteria"]
    assert "Is it polite? (the answer) to (the reference's who)" in criteria
    assert rule in criteria
    assert (part.settings["model"], part.settings["target"], part.settings["top"]) == ("gpt-5", "item", 1)
    assert (is_same, "in Flywheel's own form" in words) == (False, True)


def test_a_weighted_sum_is_parts_with_weights() -> None:
    graders = {"one": CHECK, "two": {**ALIKE, "evaluation_metric": "bleu"}, "three": CODE}
    multi = {"type": "multi", "name": "All", "graders": graders}
    parts, words, _ = read_grader({**multi, "calculate_output": "0.5*one + (two + three) / 4"}, set())
    assert [(part.name, part.weight) for part in parts] == [("one", 0.5), ("two", 0.25), ("three", 0.25)]
    assert "0.5 ×" in words
    for formula in ("one * two", "one + two", "max(one, two, three)", "one - two - three", "1/0*one", "one +",
                    "-" * 1_900 + "one", f"1{'0' * 400}*one + two + three", "1e999*one + two + three"):  # fmt: skip
        with pytest.raises(Left, match="no sum of its graders"):
            read_grader({**multi, "calculate_output": formula}, set())
    with pytest.raises(Left, match="up to 30 graders"):
        read_grader({**multi, "calculate_output": "-" * 100_000 + "one"}, set())


def test_more_than_a_thousand_graders_may_have_one_name() -> None:
    names: set[str] = set()
    made = [read_grader(CHECK, names)[0][0].name for _ in range(1_100)]
    assert (made[-1], len(set(made))) == ("match_1100", 1_100)


@pytest.mark.parametrize(
    ("grader", "reason"),
    [
        ({"type": "vibes"}, "no such grader"),
        ({}, "no such grader"),
        ({**CHECK, "operation": "regex"}, "none of eq, ne, neq, like, ilike"),
        ({**CHECK, "input": "{{item.model_answer}}"}, "one of them must be"),
        ({**CHECK, "reference": "{{ item.answer | upper }}"}, "one of them must be"),
        ({**CHECK, "input": f"Answer: {SAID}"}, "one of them must be"),
        ({**CHECK, "input": 3}, "to be texts"),
        ({**ALIKE, "evaluation_metric": "cosine"}, "embeddings"),
        ({**ALIKE, "evaluation_metric": "bert"}, "none of fuzzy_match"),
        ({**ALIKE, "evaluation_metric": "bleu", "pass_threshold": 0}, "above 0"),
        ({**LABEL, "passing_labels": []}, "passing_labels"),
        ({**LABEL, "input": [{"content": [{"type": "input_image", "image_url": "x"}]}]}, "no text"),
        ({**LABEL, "input": [{"content": "{{sample.output_tools}}"}]}, "it reads {{sample.output_tools}}"),
        ({**SCORE, "pass_threshold": None}, "no pass_threshold"),
        ({**SCORE, "range": [1]}, "two numbers"),
        ({**CODE, "source": "def mark(): pass"}, r"no function grade\(sample, item\)"),
        ({**CODE, "source": "import rapidfuzz\ndef grade(sample, item): pass"}, "imports rapidfuzz"),
        ({**CODE, "source": "def grade(:"}, "cannot be read"),
        ({**CODE, "source": f"x = {'-' * 60_000}1"}, "nested too deeply"),
        ({**CODE, "source": "#" * 70_000}, "longer than 64 kB"),
        ({**SCORE, "range": [0, 10**400]}, "two numbers"),
        ({**SCORE, "pass_threshold": 10**400}, "is to be a number"),
        ({**LABEL, "input": [{"content": "{{item.a}}" * 100_000}]}, "longer than a judge's criteria"),
        ({**CODE, "source": "def verify(): pass\ndef grade(sample, item): pass"}, "rename it"),
    ],
)
def test_what_cannot_be_taken_says_why(grader: dict[str, Any], reason: str) -> None:
    with pytest.raises(Left, match=reason):
        read_grader(grader, set())


def test_python_is_asked_as_its_service_did() -> None:
    source = (
        "def grade(sample, item):\n"
        "    call = sample['output_tools'][0]['function']\n"
        "    assert sample['choices'][0]['message']['content'] == sample['output_text']\n"
        "    return item['share'] if call['arguments'] == '{\"a\": 1}' and sample['output_json'] == [1] else 0\n"
    )
    inside: dict[str, Any] = {}
    exec(settings({**CODE, "source": source})[0]["source"], inside)
    trace = {"answer": "[1]", "calls": [{"tool": "t", "arguments": {"a": 1}}], "messages": []}
    assert inside["verify"](trace, {"item": {"share": 0.5}}) == {"score": 1.0, "reason": "the grader gives 0.5"}
    assert inside["verify"](trace, {"item": {"share": 0.4}})["score"] == 0.4
    indented = "\n    def grade(sample, item):\n        return 1\n"
    assert "\ndef grade" in settings({**CODE, "source": indented})[0]["source"]
    assert "unscored" in read_grader(CODE, set())[1]
    assert inside["verify"]({**trace, "answer": "no"}, {"item": {"share": 1}})["score"] == 0.0


def test_names_are_those_that_a_rubric_takes_and_stand_once() -> None:
    names: set[str] = set()
    given = ["Match", "match", "Unsafe", "123 ü", "unsafe"]
    made = [read_grader({**CHECK, "name": name}, names)[0][0].name for name in given]
    assert made == ["match", "match_2", "grader_unsafe", "grader_123", "grader_unsafe_2"]


def test_templates_are_filled_once() -> None:
    item = {"a": "{{item.b}}", "b": [1, {"c": "ü"}], "d": None}
    assert fill("{{item.a}} {{ item.b[1].c }} {{item.b}}", item) == '{{item.b}} ü [1, {"c": "ü"}]'
    for template, field in (("{{item.x}}", "item.x"), ("{{item.d}}", "item.d"), ("{{a}}", "item"), ("{{#if}}", "item")):
        with pytest.raises(CannotTake) as refusal:
            fill(template, item)
        assert refusal.value.field == field
