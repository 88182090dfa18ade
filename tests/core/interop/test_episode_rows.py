"""Rows of other people: a hostile one is refused by its field, and soon."""

import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.core.interop import episode_rows, foreign_tasks
from flywheel.core.interop.foreign_tasks import CannotTake

TOOLS: list[dict[str, Any]] = [{"name": "email.send", "description": "Send.", "parameters": {"type": "object"}}]


def wanted(answer: str) -> Any:
    return episode_rows.task_of({"prompt": "How many?", "answer": answer}, TOOLS).target["wanted"]


@pytest.mark.parametrize(
    ("answer", "text", "match"),
    [
        ("So\n#### 72", "72", "number"),
        ("####72 ", "72", "number"),
        ("So\n####  Paris", "Paris", None),
        ("#### 72\nso", "#### 72\nso", None),
        ("So #### 72", "So #### 72", None),
        ("So\n####", "So\n####", None),
    ],
)
def test_the_last_line_says_the_answer(answer: str, text: str, match: str | None) -> None:
    assert wanted(answer) == [{"type": "words", "text": text} | ({"match": match} if match else {})]


def test_a_long_answer_is_read_at_once() -> None:
    start = time.process_time()
    for answer in ("####" + " " * 200_000 + "b\nc", "####" + " b" * 200_000 + "\nc", "\n#### " * 100_000):
        wanted(answer)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"messages": [{"role": "user", "content": "x", "tool_calls": 5}]}, "messages.0.tool_calls"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": {"a": 1}}]}, "messages.0.tool_calls"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": {}, "content": "x"}]}, "messages.0"),
        ({"prompt": "x", "completion": [{"role": "assistant", "tool_calls": "no"}]}, "completion.0.tool_calls"),
        ({"prompt": "x", "target": {"wanted": [{"type": {}}]}}, "target.wanted.0.type"),
        ({"prompt": "x", "target": {"wanted": [{"type": "words", "text": "y", "match": {}}]}}, "target.wanted.0.match"),
        ({"prompt": "x", "state": {"messages": [{"role": "assistant", "content": 5}]}, "target": {"wanted": [
            {"type": "words", "text": "y"}]}}, "state"),
        ({"prompt": "x", "state": {"replies": 5}, "target": {"wanted": [{"type": "words", "text": "y"}]}}, "state"),
    ],
)  # fmt: skip
def test_a_field_of_another_type_is_named(row: Any, field: str) -> None:
    with pytest.raises(CannotTake) as refusal:
        episode_rows.task_of({"answer": "y", **row} if "completion" not in row else row, TOOLS)
    assert refusal.value.field == field


def test_tools_that_would_have_one_name_elsewhere_are_named() -> None:
    tools = [{"name": name, "parameters": {"type": "object"}} for name in ("a.b", "a_b")]
    with pytest.raises(CannotTake, match=r"^tools: a\.b and a_b"):
        episode_rows.task_of({"prompt": "x", "answer": "y"}, tools)


@pytest.mark.parametrize(
    "split", ["test", "test ", "Test", ["test"], ["train", "VAL"], "held out", "Held-Out", "set aside"]
)
def test_a_split_that_is_not_trained_on_is_known_however_it_is_written(split: Any) -> None:
    assert foreign_tasks.is_held_out(split)


@pytest.mark.parametrize("split", [None, "", "train", ["train"], [], {"test": 1}, 3, "testing ground"])
def test_another_split_is_trained_on(split: Any) -> None:
    assert not foreign_tasks.is_held_out(split)


KEY_NAMES = """
    prompt question messages input instruction responses_create_params choices answer ideal target
    wanted completion expected_calls calls state replies role from content value
    text tool_calls tool_call_id function name tool arguments result type match
    or order paths weight turns script say after info split cluster slice traces reward
    id
"""
KEYS = st.sampled_from(KEY_NAMES.split())
SAID = "x user assistant tool words calls state avoid question find test { email.send"
WORDS = st.sampled_from(
    [
        *SAID.split(),
        '[{"name": "x", "arguments": {}}]',
        "#### 7",
        "",
    ]
)
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | WORDS
ANY = st.recursive(LEAVES, lambda each: st.lists(each, max_size=3) | st.dictionaries(KEYS, each, max_size=5))
MESSAGE = st.fixed_dictionaries({"role": WORDS}, optional={"content": WORDS | ANY, "tool_calls": ANY, "name": ANY})
ITEM = st.fixed_dictionaries({"type": WORDS}, optional=dict.fromkeys(("text", "calls", "match", "or", "paths"), ANY))
ROW = st.fixed_dictionaries(
    {"prompt": st.just("x") | ANY},
    optional={
        "messages": st.lists(MESSAGE, max_size=3) | ANY,
        "answer": ANY,
        "completion": st.lists(MESSAGE, max_size=2) | ANY,
        "expected_calls": ANY,
        "target": st.fixed_dictionaries({"wanted": st.lists(ITEM, max_size=2) | ANY}) | ANY,
        "state": st.fixed_dictionaries(
            {"messages": st.lists(MESSAGE, max_size=2) | ANY, "replies": ANY, "turns": ANY, "script": ANY}
        )
        | ANY,
        "info": ANY,
    },
)


@settings(max_examples=300)
@given(row=ROW | ANY, match=st.sampled_from(["words", "exact", "number"]))
def test_whatever_stands_in_a_row_it_is_taken_or_refused(row: Any, match: str) -> None:
    with suppress(CannotTake):
        episode_rows.task_of(row, TOOLS, match)
    for kind in foreign_tasks.KINDS:
        with suppress(CannotTake):
            foreign_tasks.task_of(row, kind, TOOLS)


@pytest.mark.parametrize(
    ("state", "field"),
    [
        ({"turns": [{"say": "Yes", "after": "Shall I?"}]}, "state.turns.0.calls"),
        ({"turns": None}, "state.turns"),
        ({"script": [{"say": "Yes", "when": "x"}]}, "state.script.0.when"),
    ],
)
def test_turns_of_a_user_come_as_they_were_exported_or_say_what_is_wrong(state: dict[str, Any], field: str) -> None:
    row = {"prompt": "Move it", "target": {"wanted": [{"type": "question", "text": ""}]}}
    good = {"turns": [{"say": "Yes", "after": "Shall I?", "calls": []}], "script": [{"say": "Go on."}]}
    assert episode_rows.task_of(row | {"state": good}, TOOLS).state == good
    with pytest.raises(CannotTake) as caught:
        episode_rows.task_of(row | {"state": state}, TOOLS)
    assert caught.value.field == field
