"""Calls written in a form are read back out of it, and a call in another form is told apart."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.core.errors import FieldError
from flywheel.core.traces import Message, ToolCall, call_forms
from flywheel.core.traces.call_forms import LABELS, NATIVE, TEXT_FORMS

NAMES = st.from_regex(r"[a-z][a-z_.]{0,15}", fullmatch=True)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
ARGUMENTS = st.dictionaries(st.text(max_size=8), VALUES, max_size=3)
CALLS = st.lists(st.tuples(NAMES, ARGUMENTS), min_size=1, max_size=3)
WORDS = st.text(st.characters(categories=["L", "Zs"]), max_size=30).map(str.strip)
ALONE = {"json", "llama"}
"""Forms in which a call stands alone."""


def calling(calls: list[tuple[str, dict[str, Any]]], text: str = "") -> Message:
    made = tuple(ToolCall(f"call-{number}", name, arguments) for number, (name, arguments) in enumerate(calls))
    return Message("assistant", text, made)


@pytest.mark.parametrize("form", TEXT_FORMS)
@given(calls=CALLS, text=WORDS)
def test_what_is_written_is_read_back(form: str, calls: list[tuple[str, dict[str, Any]]], text: str) -> None:
    message = calling(calls, "" if form in ALONE else text)
    written = call_forms.write(message, form)
    assert not written.tool_calls
    assert call_forms.read(written, form) == message


@pytest.mark.parametrize("form", TEXT_FORMS)
@pytest.mark.parametrize("other", LABELS)
def test_any_form_is_turned_into_any_other(form: str, other: str) -> None:
    message = calling([("look_up", {"day": "friday", "n": 2})])
    assert call_forms.as_native(call_forms.write(message, form)) == message
    turned = call_forms.write(call_forms.write(message, form), other)
    assert turned == call_forms.write(message, other)


@pytest.mark.parametrize("form", LABELS)
@pytest.mark.parametrize("other", LABELS)
def test_a_call_in_another_form_is_strange(form: str, other: str) -> None:
    written = call_forms.write(calling([("look_up", {"day": "friday"})]), form)
    is_read = form == other or (form == NATIVE and TEXT_FORMS[other].is_models)
    assert call_forms.strange(written, other) == ("" if is_read else LABELS[form])
    assert call_forms.strange(written, "") == ""


@given(text=st.text(max_size=200), form=st.sampled_from(sorted(TEXT_FORMS)))
def test_words_stay_words(text: str, form: str) -> None:
    message = Message("assistant", text)
    read = call_forms.read(message, form)
    assert read.tool_calls or read == message
    assert call_forms.write(message, form) in (message, call_forms.write(read, form)) or read.tool_calls


@pytest.mark.parametrize(
    "text",
    [
        '{"tool": "a"}',
        '{"tool": "a", "arguments": []}',
        '[{"tool": "a", "arguments": {}}, 3]',
        "[]",
        "<tool_call>{}</tool_call>",
        '<tool_call>{"name": "a", "arguments": {}}',
        '{"name": "a", "parameters": {}} and so on',
        '[TOOL_CALLS] {"name": "a", "arguments": {}}',
        "<|channel|>commentary to=functions.a <|constrain|>json<|message|>{}",
        "Action: a",
        "Action: a\nAction Input: no JSON",
        "Action Input: {}",
    ],
)
def test_what_is_half_a_call_is_a_text(text: str) -> None:
    message = Message("assistant", text)
    assert call_forms.as_native(message) == message
    assert all(call_forms.strange(message, form) == "" for form in LABELS)


def test_a_react_answer_as_frameworks_write_it() -> None:
    text = 'Thought: I must look.\nAction: look_up\nAction Input: {"day":\n "friday"}\nObservation: nothing'
    read = call_forms.read(Message("assistant", text), "react")
    assert read.tool_calls == (ToolCall("call-0", "look_up", {"day": "friday"}),)
    assert read.content == "Thought: I must look.\nObservation: nothing"


def test_many_openings_without_an_end_are_read_in_a_moment() -> None:
    for mark in ("<tool_call>{", "<|channel|>commentary to=functions.a", "Action: a\nAction Input: {", "[TOOL_CALLS]["):
        assert not call_forms.as_native(Message("assistant", mark * 20_000)).tool_calls


def test_an_unknown_form_is_refused() -> None:
    assert call_forms.check(NATIVE) == NATIVE
    with pytest.raises(FieldError, match=r"form: 'xml' is unknown; use one of native, json, hermes"):
        call_forms.check("xml")
