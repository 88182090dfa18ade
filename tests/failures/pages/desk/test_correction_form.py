"""The corrected action as a form: fields from the schema, JSON, and from one to the other."""

from typing import Any

import pytest

from flywheel.failures.pages.desk.correction_form import TEXT, of_action, read
from flywheel.trajectories.detail.expected_action import aligned

TOOLS: list[dict[str, Any]] = [
    {
        "name": "book",
        "parameters": {
            "type": "object",
            "properties": {
                "who": {"type": "string", "description": "Whom to meet"},
                "day": {"type": "string", "enum": ["monday", "friday"]},
                "minutes": {"type": "integer"},
                "online": {"type": "boolean"},
                "guests": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["who", "day"],
            "additionalProperties": False,
        },
    },
    {"name": "wait", "parameters": {"type": "object", "properties": {"minutes": {"type": "integer"}}}},
]
FILLED = {
    "tool": "book",
    "was_tool": "book",
    "editor": "form",
    "was": "form",
    "arg.who": "Bako",
    "arg.day": "friday",
    "arg.minutes": "30",
    "arg.online": "true",
    "arg.guests": '["Ines"]',
}


def test_fields_are_made_from_the_schema_and_filled_with_the_agents_call() -> None:
    made = of_action(TOOLS, {"tool": "book", "arguments": {"who": "Bako", "day": "someday", "minutes": 30}})
    kinds = {field.name: (field.kind, field.value, field.is_required) for field in made.fields}
    assert kinds == {
        "who": ("text", "Bako", True),
        "day": ("choice", "someday", True),
        "minutes": ("number", "30", False),
        "online": ("truth", "", False),
        "guests": ("json", "", False),
    }
    day = next(field for field in made.fields if field.name == "day")
    assert day.choices[0] == "someday"
    assert day.error == "'someday' is not one of ['monday', 'friday']"


def test_what_the_fields_say_becomes_the_action_with_the_schemas_types() -> None:
    made = read(TOOLS, FILLED)
    assert made.problems == []
    arguments = {"who": "Bako", "day": "friday", "minutes": 30, "online": True, "guests": ["Ines"]}
    assert made.action == {"tool": "book", "arguments": arguments}


def test_an_empty_field_is_an_argument_left_out() -> None:
    made = read(TOOLS, {**FILLED, "arg.minutes": "", "arg.online": "", "arg.guests": ""})
    assert made.action == {"tool": "book", "arguments": {"who": "Bako", "day": "friday"}}
    assert made.problems == []


def test_a_required_text_that_is_left_empty_is_missing() -> None:
    made = read(TOOLS, {**FILLED, "arg.who": ""})
    assert made.problems == ["arguments: 'who' is a required property"]
    assert "who" not in made.arguments


def test_a_text_is_empty_where_somebody_says_so() -> None:
    made = read(TOOLS, {**FILLED, "arg.who": "", "empty.who": "1"})
    assert (made.problems, made.arguments["who"]) == ([], "")
    again = of_action(TOOLS, made.action)
    assert [field.name for field in again.fields if field.is_emptied] == ["who"]
    assert read(TOOLS, {**FILLED, "empty.who": "1"}).arguments["who"] == "Bako"
    assert "minutes" not in read(TOOLS, {**FILLED, "arg.minutes": "", "empty.minutes": "1"}).arguments


def test_a_switch_to_json_and_back_keeps_everything() -> None:
    as_json = read(TOOLS, {**FILLED, "editor": "json"})
    assert as_json.as_json
    back = read(TOOLS, {"tool": "book", "was_tool": "book", "was": "json", "editor": "form", "arguments": as_json.json})
    assert not back.as_json
    assert back.action == read(TOOLS, FILLED).action


@pytest.mark.parametrize("text", ["{", "[1]", '{"who": NaN}', "9" * 5000])
def test_json_that_cannot_be_read_is_kept_as_it_was_written(text: str) -> None:
    made = read(TOOLS, {"tool": "book", "was": "json", "editor": "form", "arguments": text})
    assert made.problems
    if text != '{"who": NaN}':
        assert (made.raw, made.as_json) == (text, True)


def test_another_tool_keeps_the_arguments_that_it_has_too() -> None:
    made = read(TOOLS, {**FILLED, "tool": "wait"})
    assert made.action == {"tool": "wait", "arguments": {"minutes": 30}}


def test_an_argument_that_the_schema_does_not_know_stays_until_it_is_cleared() -> None:
    made = of_action(TOOLS, {"tool": "book", "arguments": {"who": "Bako", "day": "friday", "room": 4}})
    assert [field.name for field in made.fields][-1] == "room"
    assert made.general == ["arguments: Additional properties are not allowed ('room' was unexpected)"]
    cleared = read(TOOLS, {**FILLED, "arg.room": ""})
    assert cleared.problems == []


def test_an_answer_in_words_is_a_correction_too() -> None:
    assert read(TOOLS, {"tool": TEXT, "text": "I cannot do that"}).action == {"text": "I cannot do that"}
    assert read(TOOLS, {"tool": TEXT, "text": " "}).problems
    assert read(TOOLS, {"tool": ""}).problems == ["tool: choose what should have been called"]


def test_a_call_of_an_unknown_tool_leaves_the_choice_open() -> None:
    made = of_action(TOOLS, {"tool": "invented", "arguments": {"a": 1}})
    assert (made.tool, made.action) == ("", None)


def test_the_difference_shows_what_differs_and_not_the_order() -> None:
    actual = {"tool": "book", "arguments": {"who": "Bako", "day": "someday"}}
    wanted = {"tool": "book", "arguments": {"day": "friday", "who": "Bako", "minutes": 5}}
    shown = aligned(actual, wanted)
    assert shown is not None
    assert list(shown["arguments"]) == ["who", "day", "minutes"]
