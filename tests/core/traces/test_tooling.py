"""Tool calls: reading one out of a message, checking it against its schema, safely when the schema is hostile."""

import json
import socket
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.core.traces import Message, ToolCall, tooling
from flywheel.core.traces.tooling import (
    call_text,
    check_definitions,
    definitions,
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


@given(st.text(min_size=1), st.dictionaries(st.text(), JSONS, max_size=3))
def test_a_call_written_as_text_is_read_back(name: str, arguments: dict[str, Any]) -> None:
    parsed = parse_call(said(call_text(name, arguments)))
    assert parsed.call == ToolCall("", name, arguments)


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


ORDERED = {
    "type": "object",
    "properties": {"order_id": {"type": "string"}, "to": {"type": "string"}},
    "required": ["to"],
}


NAMED = {"name": "refund", "description": "Refund it."}


@pytest.mark.parametrize(
    "given",
    [
        {**NAMED, "parameters": ORDERED},
        {"type": "function", "function": {**NAMED, "parameters": ORDERED}},
        {"type": "function", "function": {**NAMED, "parameters": ORDERED, "strict": True}},
        {"type": "function", **NAMED, "parameters": ORDERED, "strict": True},
        {**NAMED, "input_schema": ORDERED, "cache_control": {"type": "ephemeral"}},
        {"type": "custom", **NAMED, "input_schema": ORDERED},
        {**NAMED, "inputSchema": ORDERED, "annotations": {}},
    ],
    ids=["ours", "chat", "chat strict", "responses", "anthropic", "anthropic custom", "mcp"],
)
def test_every_known_shape_of_a_definition_is_one_definition(given: dict[str, Any]) -> None:
    (read,) = definitions([given])
    assert json.dumps(read) == json.dumps({**NAMED, "parameters": ORDERED}), "order kept"
    assert check_definitions([read]) == []
    assert definitions({"tools": [given]}) == [read], "an answer to MCP's tools/list"


def test_a_definition_of_ours_stays_whatever_else_it_holds() -> None:
    ours = {"name": "send", "x-unsafe": True, "returns": {"type": "string"}, "parameters": {}}
    assert definitions([ours]) == [ours]
    assert definitions([{"type": "function", "function": ours}]) == [
        {"name": "send", "x-unsafe": True, "parameters": {}}
    ]


@pytest.mark.parametrize(
    ("tool", "problem"),
    [
        ("send", "tools[1]: is a text, not a definition"),
        (None, "tools[1]: is null, not a definition"),
        ({"type": "web_search_preview"}, "tools[1].type: 'web_search_preview' is no function"),
        ({"type": "function", "function": "send"}, "tools[1].function: is a text"),
        ({"type": "function", "function": {"parameters": {}}}, 'tools[1]: needs a "name"'),
        ({"type": "function", "name": ""}, 'tools[1]: needs a "name"'),
        ({"name": "x", "description": 3}, "tools[1].description: is a number, not a text"),
        ({"name": "x", "inputSchema": []}, "tools[1].parameters: is a list, not a JSON schema"),
        (
            {"name": "x", "input_schema": {"properties": {"to": {"type": "nope"}}}},
            "tools[1].parameters.properties.to.type: 'nope'",
        ),
    ],
)
def test_what_is_no_known_shape_is_named_by_index_and_field(tool: Any, problem: str) -> None:
    assert problem in check_definitions(definitions([SEND, tool]))[0]


def test_good_definitions_have_no_problem() -> None:
    assert check_definitions([SEND, json.loads(json.dumps(SEND))]) == []


def test_a_tool_says_how_its_arguments_are_compared() -> None:
    value = {"type": "string"}
    properties = {"to": value | {"x-compare": "case"}, "id": value | {"x-compare": "exact"}, "body": value}
    tool = {
        "name": "send",
        "parameters": {"type": "object", "properties": {**properties, "note": {"x-compare": "any"}}},
    }
    how = tooling.comparisons(tool)
    assert how == {"to": "case", "id": "exact", "note": "any"}
    wanted = {"to": "Ann@x.org", "id": "A 1", "body": "Hello  you"}
    alike = {"to": " ann@X.org", "id": "A 1", "body": "Hello you ", "note": "mine"}
    assert tooling.agreement(alike, wanted, how) == 1.0
    given = {"to": "ann@x.org", "id": "A  1", "body": "hello you"}
    assert tooling.differences(given, wanted, how) == [
        "id is 'A  1', wanted 'A 1'",
        "body is 'hello you', wanted 'Hello  you'",
    ]
    assert "x-compare" not in str(tooling.plain(tool))
    wrong = {"name": "send", "parameters": {"type": "object", "properties": {"to": {"x-compare": "loosely"}}}}
    ways = "spaces, exact, case, any"
    assert tooling.check_definitions([wrong]) == [
        f"tools[0].parameters.properties.to.x-compare: 'loosely' is not one of {ways}"
    ]


def test_calls_are_told_with_what_they_were_answered() -> None:
    one, other = ToolCall("a", "find", {}), ToolCall("b", "move", {})
    messages = [
        Message("assistant", "", (one, other)),
        Message("tool", "moved", (), "b"),
        Message("tool", "found", (), "a"),
        Message("assistant", "", (ToolCall("", "find", {}), ToolCall("", "move", {}))),
        Message("tool", "first"),
        Message("assistant", "Done."),
    ]
    found = [[(call.name, answer) for call, answer in pairs] for pairs in tooling.answered_calls(messages)]
    assert found == [[("find", "found"), ("move", "moved")], [("find", "first"), ("move", None)], []]
