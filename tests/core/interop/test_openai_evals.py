"""Objects of the hosted evals: whatever stands in them is read, or refused by field; and what guards answers."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.core.errors import FieldError
from flywheel.core.interop.foreign_tasks import CannotTake
from flywheel.core.interop.openai_evals import GUARD, HostedEval, read
from flywheel.core.traces import json_schemas

SAID = "{{sample.output_text}}"
CHECK = {"type": "string_check", "name": "Match", "input": SAID, "reference": "{{item.a}}", "operation": "eq"}
CODE = {"type": "python", "name": "Code", "source": "def grade(sample, item):\n    return 1.0"}
SCORE = {
    "type": "score_model",
    "name": "Good",
    "model": "gpt-5",
    "input": [{"role": "user", "content": SAID}],
    "pass_threshold": 0.5,
}


def hosted(*graders: Any, items: tuple[Any, ...] = (), **more: Any) -> HostedEval:
    return replace(read({"testing_criteria": list(graders), **more}, "{{item.q}}"), items=items)


def passes(found: HostedEval, answer: str) -> bool:
    guards = [part["pattern"] for part in found.verifier["parts"] if part["name"] == GUARD]
    return not any(json_schemas.pattern(each).search(answer) for each in guards)


JSON_ANSWER, CODE_ANSWER, MARKED = '{"city": "Paris"}', 'print({"a": 1})', "Paris<|end|>"


@pytest.mark.parametrize(
    ("graders", "items", "passed"),
    [
        ([CHECK], [{"q": "?", "a": "Paris"}], [False, True, False]),
        ([CHECK], [{"item": {"q": "?", "a": JSON_ANSWER}}], [True, True, False]),
        ([CHECK], [{"q": "?", "a": MARKED}], [False, True, True]),
        ([CHECK], [{"q": "?", "a": f"{JSON_ANSWER[:-1]}, {MARKED!r}: 1}}"}], [True, True, True]),
        ([CHECK, CODE], [{"q": "?", "a": "b"}], [True, True, False]),
        ([SCORE], [5, {"item": 5}, {"q": "?"}], [True, True, False]),
        ([{**CHECK, "input": "{{sample.output_json.city}}"}], [], [True, True, False]),
    ],
)
def test_an_object_or_a_marker_is_no_answer_unless_it_may_be_wanted(graders: Any, items: Any, passed: Any) -> None:
    found = hosted(*graders, items=tuple(items))
    assert [passes(found, answer) for answer in (JSON_ANSWER, CODE_ANSWER, MARKED)] == passed
    assert (GUARD in [part["name"] for part in found.verifier["parts"]]) == (not all(passed))


@pytest.mark.parametrize(
    "row",
    [
        {"item": {"q": "?", "a": "b", "split": "held_out"}},
        {"item": {"q": "?", "a": "b", "split": "test "}},
        {"item": {"q": "?", "a": "b", "split": "train"}, "split": ["test"]},
        {"item": {"q": "?", "a": "b"}, "split": "Held-Out"},
        {"q": "?", "a": "b", "info": {"split": "set aside"}},
    ],
)
def test_an_item_that_is_held_out_where_it_comes_from_is_left(row: Any) -> None:
    with pytest.raises(CannotTake, match="might be trained on"):
        hosted(CHECK).task_of(row)


def test_an_item_keeps_its_source_and_its_slice() -> None:
    task = hosted(CHECK).task_of(
        {"item": {"q": "?", "a": "b", "cluster": "doc 1", "slice": "x"}, "id": 7, "split": "train", "synthetic": True}
    )
    assert (task.id, task.cluster, task.slice, task.synthetic) == ("7", "doc 1", "x", True)
    asked = hosted(CHECK).task_of({"q": "?", "a": "b", "messages": [1], "expected_calls": 5, "target": {"wanted": 1}})
    assert (asked.prompt, asked.target["wanted"]) == ("?", [{"type": "words", "text": "b"}])


def test_two_fields_of_which_one_is_in_the_other_are_named() -> None:
    inner, outer = ({**CHECK, "input": f"{{{{sample.output_json.{path}}}}}"} for path in ("a.b", "a"))
    for graders in ((inner, outer), (outer, inner)):
        with pytest.raises(CannotTake, match=r"^sample\.output_json\.a"):
            hosted(*graders).task_of({"q": "?", "a": "x"})


RUN = {"data_source": {"input_messages": {"template": 5}}}
TWO = [{"name": name, "description": "T.", "parameters": {"type": "object"}} for name in ("a.b", "a_b")]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"type": {}}, "it holds no eval"),
        ([{"type": [1]}], "it holds no eval"),
        ({"testing_criteria": [CHECK], "runs": [RUN]}, r"data_source\.input_messages\.template: expected a list"),
        (
            {"testing_criteria": [CHECK], "data_source_config": {"schema": {"properties": []}}},
            r"data_source_config\.schema\.properties: expected an object",
        ),
        ({"testing_criteria": [CHECK] * 1_000}, "testing_criteria: 1000 graders are too many; 100 are"),
    ],
)
def test_odd_objects_are_refused_by_name(document: Any, problem: str) -> None:
    with pytest.raises(FieldError, match=problem):
        read(document)


def test_tools_that_would_have_one_name_elsewhere_are_not_taken() -> None:
    source = {"data_source": {"sampling_params": {"tools": TWO}}}
    found = read({"testing_criteria": [CHECK], "runs": [source]}, "{{item.q}}")
    assert (found.tools, found.notes) == ([], ("its tools are not taken: a.b and a_b would both be called a_b "
                                               "elsewhere; rename one",))  # fmt: skip


VALUES = """
    x {{ {{item}} {{item.a}} {{item.a.b}} eq bleu user template item_reference 1/0*a test 0.5*a+b
    string_check text_similarity label_model score_model python multi
"""
WORDS = st.sampled_from(
    [
        *VALUES.split(),
        *(SAID, "{{sample.output_json.a}}", "{{sample.output_json.a.b}}", "def grade(sample, item): pass", ""),
    ]
)
KEY_NAMES = """
    type name input reference operation evaluation_metric pass_threshold model labels passing_labels
    range source graders calculate_output testing_criteria data_source runs eval data data_source_config
    schema properties item item_schema input_messages template item_reference role content text
    sampling_params tools metadata result_counts a b split cluster info id
    function parameters
"""
KEYS = st.sampled_from(KEY_NAMES.split())
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | WORDS
ANY = st.recursive(LEAVES, lambda each: st.lists(each, max_size=3) | st.dictionaries(KEYS, each, max_size=5))
GRADER = st.fixed_dictionaries(
    {"type": WORDS, "input": WORDS | ANY, "reference": WORDS | ANY},
    optional=dict.fromkeys(("operation", "name", "model", "labels", "range", "source", "graders"), ANY),
)
LIKELY = st.fixed_dictionaries(
    {"testing_criteria": st.lists(GRADER | ANY | st.just(CHECK) | st.just(SCORE), max_size=4)},
    optional={"data_source_config": ANY, "name": ANY, "metadata": ANY, "runs": st.lists(
        st.fixed_dictionaries({"data_source": st.dictionaries(KEYS, ANY, max_size=5)}), max_size=2
    )},
)  # fmt: skip


@settings(max_examples=300)
@given(document=LIKELY | ANY, rows=st.lists(st.dictionaries(KEYS, ANY) | ANY, max_size=2), request=WORDS)
def test_whatever_stands_in_it_is_read_or_refused(document: Any, rows: list[Any], request: str) -> None:
    try:
        found = replace(read(document, request), items=tuple(rows))
    except FieldError:
        return
    assert found.verifier["kind"] == "rubric"
    for row in [*rows, {"item": {"a": "b"}}]:
        with suppress(CannotTake):
            found.task_of(row)
