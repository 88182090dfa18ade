"""A correction: its forms, what is wrong with one, what it says and calls, and when it changes nothing."""

from typing import Any

import pytest

from flywheel.core.traces import Message, ToolCall
from flywheel.core.traces.corrections import changes_nothing, form_of, message, problems, same, summary

DAY: dict[str, Any] = {
    "name": "book",
    "parameters": {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]},
}
TOOLS = [DAY, {"name": "mail"}, {"name": "broken", "parameters": {"type": 7}}]
BOOK = {"tool": "book", "arguments": {"day": "Monday"}}
MAIL = {"tool": "mail", "arguments": {}}


@pytest.mark.parametrize(
    "corrected",
    [
        BOOK,
        {"tool": "broken", "arguments": {"x": 1}},
        {"calls": [BOOK, MAIL]},
        {"calls": [BOOK, MAIL, BOOK], "order": "any"},
        {"text": "No."},
        {"refuse": ""},
        {"refuse": "That is against the rules."},
        {"ask": ""},
        {"ask": "Which day?"},
        {"avoid": [], "text": ""},
        {"avoid": ["book", "made_up"], "text": "It is booked."},
    ],
)
def test_every_form_is_taken(corrected: dict[str, Any]) -> None:
    assert problems(corrected, TOOLS) == []


@pytest.mark.parametrize(
    ("corrected", "where", "words"),
    [
        (None, "corrected", "expected"),
        ([], "corrected", "expected"),
        ({}, "corrected", "expected"),
        ({"tool": "book"}, "corrected", "expected"),
        ({"text": "a", "refuse": ""}, "corrected", "expected"),
        ({"avoid": []}, "corrected", "expected"),
        ({"order": "any"}, "corrected", "expected"),
        ({"tool": "", "arguments": {}}, "tool", "name the tool"),
        ({"tool": "x", "arguments": {}}, "tool", "'x' is unknown; use one of book, mail, broken"),
        ({"tool": "book", "arguments": []}, "arguments", "must be an object"),
        ({"tool": "book", "arguments": {"day": 7}}, "day", "7 is not of type 'string'"),
        ({"tool": "book", "arguments": {"day": float("nan")}}, "arguments", "plain JSON"),
        ({"text": " "}, "text", "write the answer"),
        ({"text": 7}, "text", "must be a text"),
        ({"refuse": None}, "refuse", "must be a text"),
        ({"ask": []}, "ask", "must be a text"),
        ({"ask": "\ud800"}, "ask", "plain JSON"),
        ({"avoid": "book", "text": ""}, "avoid", "list of names"),
        ({"avoid": [7], "text": ""}, "avoid", "list of names"),
        ({"avoid": ["book", "book"], "text": ""}, "avoid", "twice"),
        ({"avoid": [], "text": None}, "text", "must be a text"),
        ({"calls": BOOK}, "calls", "must be a list"),
        ({"calls": [BOOK]}, "calls", "two or more"),
        ({"calls": [BOOK] * 51}, "calls", "51 calls are too many, at most 50"),
        ({"calls": [BOOK, MAIL], "order": "random"}, "order", '"given" or "any"'),
        ({"calls": [BOOK, MAIL], "order": []}, "order", '"given" or "any"'),
        ({"calls": [BOOK, {"text": "x"}]}, "calls.1", "expected"),
        ({"calls": [BOOK, {"tool": "x", "arguments": {}}]}, "calls.1.tool", "unknown"),
        ({"calls": [MAIL, {"tool": "book", "arguments": {"day": 7}}]}, "calls.1.arguments.day", "not of type"),
        ({"calls": [MAIL, {"tool": "book", "arguments": {}}]}, "calls.1.arguments", "'day' is a required property"),
        ({"calls": [{"tool": "book", "arguments": []}, MAIL]}, "calls.0.arguments", "must be an object"),
    ],
)
def test_each_problem_names_its_field(corrected: Any, where: str, words: str) -> None:
    (problem,) = problems(corrected, TOOLS)
    assert problem.field == where
    assert words in problem.problem


def test_without_definitions_any_tool_may_be_called() -> None:
    assert problems({"calls": [MAIL, {"tool": "other", "arguments": {"a": [1]}}]}, []) == []


@pytest.mark.parametrize(
    ("corrected", "content", "calls"),
    [
        (BOOK, "", [("call-0", "book", {"day": "Monday"})]),
        ({"calls": [BOOK, MAIL]}, "", [("call-0", "book", {"day": "Monday"}), ("call-1", "mail", {})]),
        ({"text": "Yes."}, "Yes.", []),
        ({"refuse": " "}, "I can't help with that.", []),
        ({"refuse": "No."}, "No.", []),
        ({"ask": ""}, "Could you tell me more?", []),
        ({"avoid": ["mail"], "text": ""}, "Done.", []),
        ({"avoid": [], "text": "It is sent."}, "It is sent.", []),
    ],
)
def test_a_correction_is_a_message_of_the_agent(
    corrected: dict[str, Any], content: str, calls: list[tuple[str, str, dict[str, Any]]]
) -> None:
    made = message(corrected)
    assert (made.role, made.content) == ("assistant", content)
    assert [(call.id, call.name, call.arguments) for call in made.tool_calls] == calls


def test_ids_count_up_from_the_first() -> None:
    ids = [call.id for call in message({"calls": [MAIL, MAIL]}, first_id="call-7").tool_calls]
    assert ids == ["call-7", "call-8"]
    assert [call.id for call in message({"calls": [MAIL, MAIL]}, first_id="x").tool_calls] == ["x", "x-1"]


@pytest.mark.parametrize(
    ("corrected", "words"),
    [
        (BOOK, "book"),
        ({"calls": [BOOK, MAIL, MAIL]}, "book and 2 more"),
        ({"calls": [BOOK, MAIL], "order": "any"}, "book and 1 more in any order"),
        ({"text": "Yes."}, "answer"),
        ({"refuse": ""}, "refuse"),
        ({"ask": "?"}, "ask back"),
        ({"avoid": ["mail", "book"], "text": ""}, "no mail, book"),
        ({"avoid": [], "text": ""}, "no call"),
    ],
)
def test_a_few_words_for_lists(corrected: dict[str, Any], words: str) -> None:
    assert summary(corrected) == words


def test_corrections_are_compared_by_what_they_want() -> None:
    assert same({"calls": [BOOK, MAIL], "order": "any"}, {"calls": [MAIL, BOOK], "order": "any"})
    assert same({"calls": [BOOK, MAIL], "order": "given"}, {"calls": [BOOK, MAIL]})
    assert same({"avoid": ["a", "b"], "text": ""}, {"avoid": ["b", "a"], "text": " "})
    assert same(None, None)
    assert not same({"calls": [BOOK, MAIL]}, {"calls": [MAIL, BOOK]})
    assert not same({"calls": [BOOK, MAIL]}, {"calls": [BOOK, MAIL], "order": "any"})
    assert not same({"refuse": ""}, {"ask": ""})
    assert not same(None, {"text": "a"})


SAID_BOOK = Message("assistant", "", (ToolCall("1", "book", {"day": "Monday"}),))
SAID_BOTH = Message("assistant", "", (ToolCall("1", "mail", {}), ToolCall("2", "book", {"day": "Monday"})))
SAID = Message("assistant", "Yes. ")


@pytest.mark.parametrize(
    ("corrected", "recorded", "is_nothing"),
    [
        (BOOK, SAID_BOOK, True),
        (BOOK, Message("assistant", '{"tool": "book", "arguments": {"day": "Monday"}}'), True),
        (BOOK, SAID_BOTH, False),
        (BOOK, SAID, False),
        ({"tool": "book", "arguments": {}}, SAID_BOOK, False),
        (BOOK, Message("assistant", "", (ToolCall("1", "book", '{"day'),)), False),
        ({"calls": [BOOK, MAIL]}, SAID_BOTH, False),
        ({"calls": [MAIL, BOOK]}, SAID_BOTH, True),
        ({"calls": [BOOK, MAIL], "order": "any"}, SAID_BOTH, True),
        ({"text": "Yes."}, SAID, True),
        ({"text": "Yes."}, Message("assistant", "Yes.", SAID_BOOK.tool_calls), False),
        ({"refuse": "Yes."}, SAID, True),
        ({"refuse": ""}, SAID, False),
        ({"ask": ""}, Message("assistant", ""), False),
        ({"avoid": ["book"], "text": ""}, SAID_BOTH, False),
        ({"avoid": ["other"], "text": ""}, SAID_BOTH, True),
        ({"avoid": ["other"], "text": "Sorry."}, SAID_BOTH, False),
        ({"avoid": [], "text": ""}, SAID_BOOK, False),
        ({"avoid": [], "text": ""}, SAID, True),
    ],
)
def test_what_was_done_already_changes_nothing(corrected: dict[str, Any], recorded: Message, is_nothing: bool) -> None:
    assert changes_nothing(corrected, recorded) is is_nothing


def test_a_form_is_told_by_its_keys() -> None:
    written: list[Any] = [BOOK, {"calls": []}, {"text": 1}, {"tool": 1}, "x"]
    assert list(map(form_of, written)) == ["tool", "calls", "text", "", ""]
