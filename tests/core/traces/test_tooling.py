"""Tool calls: reading one out of a message, checking it against its schema, safely when the schema is hostile."""

import json
import socket
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.core.traces import Message, ToolCall
from flywheel.core.traces.tooling import (
    call_text,
    check_definitions,
    find,
    parse_call,
    properties,
    schema_problems,
    unjudgeable,
)

SEND: dict[str, Any] = {
    "name": "send",
    "description": "Send a mail",
    "parameters": {
        "type": "object",
        "properties": {"to": {"type": "string", "x-refers": "people"}, "text": {"type": "string"}},
        "required": ["to"],
        "additionalProperties": False,
    },
}


def said(text: str) -> Message:
    return Message("assistant", text)


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.text(min_size=1), st.dictionaries(st.text(), JSONS, max_size=3))
def test_a_call_written_as_text_is_read_back(name: str, arguments: dict[str, Any]) -> None:
    parsed = parse_call(said(call_text(name, arguments)))
    assert parsed.call == ToolCall("", name, arguments)


@settings(deadline=None)
@given(st.text())
def test_any_text_is_a_call_or_has_a_problem(text: str) -> None:
    parsed = parse_call(said(text))
    assert (parsed.call is None) == bool(parsed.problem)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (None, "the agent wrote nothing"),
        (said("  "), "the agent wrote nothing"),
        (said('{"tool": '), "not valid JSON"),
        (said('{"tool": "x", "arguments": {"n": NaN}}'), "not valid JSON: NaN is no JSON"),
        (said("[" * 100_000), "not valid JSON"),
        (said('{"tool": "x"}'), "not a call of the form"),
        (said('{"tool": "x", "arguments": {}, "more": 1}'), "not a call of the form"),
        (said('{"tool": 1, "arguments": {}}'), '"tool" must be a string'),
        (said('{"tool": "x", "arguments": []}'), '"arguments" an object'),
        (Message("assistant", "", (ToolCall("1", "x", "{"),)), "not a JSON object"),
        (Message("assistant", "", (ToolCall("1", "x", {}), ToolCall("2", "y", {}))), "2 tool calls"),
    ],
)
def test_what_is_no_single_call_says_why(message: Message | None, problem: str) -> None:
    assert problem in parse_call(message).problem


def test_schema_problems_name_the_argument() -> None:
    assert schema_problems(SEND, {"to": "Ann"}) == []
    assert list(map(str, schema_problems(SEND, {"to": 1}))) == ["to: 1 is not of type 'string'"]
    assert list(map(str, schema_problems(SEND, {}))) == ["arguments: 'to' is a required property"]
    assert schema_problems({"name": "free"}, {"anything": 1}) == []


def test_a_schema_never_reaches_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "create_connection", refuse)
    remote = {"name": "x", "parameters": {"$ref": "http://127.0.0.1:9/schema.json"}}
    with pytest.raises(Exception, match="Unresolvable"):
        schema_problems(remote, {})


def test_a_pattern_from_outside_is_not_run() -> None:
    never_ends = {"properties": {"a": {"pattern": "^(a+)+$"}}, "patternProperties": {"^(b+)+$": {}}}
    tool = {"name": "x", "parameters": {**never_ends, "additionalProperties": False}}
    assert schema_problems(tool, {"a": "a" * 60 + "!", "b" * 60 + "!": 1}, patterns=False) == []


@pytest.mark.parametrize("dialect", [{}, {"$schema": "http://json-schema.org/draft-07/schema#"}])
def test_no_pattern_of_a_schema_takes_long(dialect: dict[str, str]) -> None:
    mail = {**dialect, "type": "string", "pattern": r"^([a-zA-Z0-9._-]+)+@example\.com$"}
    parameters = {**dialect, "properties": {"to": mail, "copy": {"$ref": "#/properties/to"}, "more": {"$ref": "#"}}}
    tool = {"name": "x", "parameters": parameters}
    begun = time.thread_time()
    for gave in ({"to": "a" * 5000 + "!"}, {"copy": "a" * 5000 + "!"}, {"more": {"to": "a" * 5000 + "!"}}):
        assert "does not match" in str(schema_problems(tool, gave)[0])
    assert time.thread_time() - begun < 2.0
    assert schema_problems(tool, {"to": "ann@example.com", "copy": "bo@example.com"}) == []
    assert schema_problems(tool, {"to": "\ud800"})


def test_patterns_that_nothing_runs_in_time_are_named_with_their_place() -> None:
    tools = [
        {"name": "fine", "parameters": {"properties": {"pattern": {"pattern": "^a+$"}}, "enum": [{"pattern": "("}]}},
        {"name": "looks", "parameters": {"properties": {"to": {"items": [{"pattern": "(?=a)b"}]}}}},
        {"name": "named", "parameters": {"patternProperties": {"^a": {}}}},
        {"name": "free"},
    ]
    looks, named = unjudgeable(tools)
    assert looks.startswith("tools[1].parameters.properties.to.items.0.pattern: ")
    assert named.startswith("tools[2].parameters.patternProperties: ")


def test_a_property_named_pattern_is_still_a_property() -> None:
    tool = {
        "name": "grep",
        "parameters": {"properties": {"pattern": {"type": "string"}}, "additionalProperties": False},
    }
    assert schema_problems(tool, {"pattern": "x"}, patterns=False) == []
    assert list(map(str, schema_problems(tool, {"pattern": 1}, patterns=False))) == [
        "pattern: 1 is not of type 'string'"
    ]


def test_properties_are_those_alone_that_are_schemas() -> None:
    assert properties({"name": "x", "parameters": {"properties": {"to": True}}}) == {}
    assert properties({"name": "x", "parameters": []}) == {}


def test_tools_are_found_by_name() -> None:
    assert find([SEND], "send") is SEND
    assert find([{}, SEND], "gone") is None


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ({}, "tools must be a list"),
        ([{}], 'tools[0]: needs a "name"'),
        ([SEND, {"name": "x", "parameters": {"type": "nope"}}], "tools[1].parameters"),
    ],
)
def test_bad_definitions_are_named(tools: Any, problem: str) -> None:
    assert problem in check_definitions(tools)[0]


def test_good_definitions_have_no_problem() -> None:
    assert check_definitions([SEND, json.loads(json.dumps(SEND))]) == []
