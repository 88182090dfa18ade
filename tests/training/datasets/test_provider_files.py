"""Files for a provider's fine-tuning: the shapes that OpenAI documents, checked field by field."""

import json
from typing import Any

import jsonschema
import pytest

from flywheel.training.datasets.provider_files import lines

LOOK_UP = {
    "name": "orders.look_up",
    "description": "Find an order.",
    "parameters": {"type": "object", "properties": {"id": {"type": "string", "x-entity": True}}},
}
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is A-1?"}]
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "", "type": "function", "function": {"name": "orders.look_up", "arguments": '{"id": "A-1"}'}}
    ],
}
LATER = [*ASKED, CALL, {"role": "tool", "content": "on its way"}]
WORDS = {"role": "assistant", "content": "On its way."}

_TOOLS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["type", "function"],
        "additionalProperties": False,
        "properties": {
            "type": {"const": "function"},
            "function": {
                "type": "object",
                "required": ["name"],
                "additionalProperties": False,
                "properties": {
                    "name": {"pattern": "^[a-zA-Z0-9_-]{1,64}$"},
                    "description": {"type": "string"},
                    "parameters": {"type": "object"},
                },
            },
        },
    },
}
_CALLS = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["id", "type", "function"],
        "additionalProperties": False,
        "properties": {
            "id": {"type": "string", "minLength": 1},
            "type": {"const": "function"},
            "function": {
                "type": "object",
                "required": ["name", "arguments"],
                "additionalProperties": False,
                "properties": {"name": {"pattern": "^[a-zA-Z0-9_-]{1,64}$"}, "arguments": {"type": "string"}},
            },
        },
    },
}
_MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role"],
        "additionalProperties": False,
        "anyOf": [{"required": ["content"]}, {"required": ["tool_calls"]}],
        "if": {"properties": {"role": {"const": "tool"}}},
        "then": {"required": ["content", "tool_call_id"]},
        "properties": {
            "role": {"enum": ["system", "user", "assistant", "tool"]},
            "content": {"type": "string"},
            "tool_calls": _CALLS,
            "tool_call_id": {"type": "string", "minLength": 1},
            "weight": {"enum": [0, 1]},
        },
    },
}
_WITH_TOOLS = {"messages": _MESSAGES, "tools": _TOOLS, "parallel_tool_calls": {"type": "boolean"}}
SHAPES: dict[str, dict[str, Any]] = {
    "sft": {"required": ["messages"], "properties": _WITH_TOOLS},
    "dpo": {
        "required": ["input", "preferred_output", "non_preferred_output"],
        "properties": {
            "input": {"required": ["messages"], "additionalProperties": False, "properties": _WITH_TOOLS},
            "preferred_output": _MESSAGES,
            "non_preferred_output": _MESSAGES,
        },
    },
    "rft": {
        "required": ["messages", "reference_answer", "reference_calls"],
        "properties": {
            "messages": _MESSAGES,
            "tools": _TOOLS,
            "reference_answer": {"type": "string"},
            "reference_calls": {"type": "array"},
        },
    },
}


def written(name: str, *rows: dict[str, Any], tools: Any = ()) -> list[dict[str, Any]]:
    """The file's lines, each of the documented shape."""
    found = [json.loads(line) for line in lines(name, rows, tools)]
    for line in found:
        jsonschema.validate(line, {"type": "object", "additionalProperties": False, **SHAPES[name]})
    return found


def test_supervised_rows_learn_the_completion_alone() -> None:
    first, second = written(
        "sft",
        {"prompt": ASKED, "completion": [CALL], "tools": [LOOK_UP], "origin": "corrected"},
        {"prompt": LATER, "completion": [WORDS], "tools": [LOOK_UP]},
    )
    assert first["messages"][2]["tool_calls"][0] == {
        "id": "call_2_0",
        "type": "function",
        "function": {"name": "orders_look_up", "arguments": '{"id": "A-1"}'},
    }
    (tool,) = first["tools"]
    assert tool["function"]["name"] == "orders_look_up"
    assert tool["function"]["parameters"]["properties"] == {"id": {"type": "string"}}, "without extensions of ours"
    assert first["parallel_tool_calls"] is False
    called, answered, said = second["messages"][2:]
    assert (called["weight"], "weight" in said) == (0, False)
    assert answered["tool_call_id"] == called["tool_calls"][0]["id"]


def test_preferences_have_an_input_and_two_outputs() -> None:
    (line,) = written("dpo", {"prompt": ASKED, "chosen": [CALL], "rejected": [WORDS]}, tools=[LOOK_UP])
    assert [message["role"] for message in line["input"]["messages"]] == ["system", "user"]
    assert line["input"]["tools"][0]["function"]["name"] == "orders_look_up"
    assert line["preferred_output"][0]["tool_calls"]
    assert line["non_preferred_output"] == [WORDS]


def test_reinforcement_items_end_with_the_user_and_bring_what_a_grader_compares() -> None:
    (line,) = written(
        "rft", {"prompt": ASKED, "completion": [CALL]}, {"prompt": LATER, "completion": [WORDS]}, tools=[LOOK_UP]
    )
    assert line["messages"][-1]["role"] == "user"
    assert line["reference_calls"] == [{"name": "orders_look_up", "arguments": '{"id": "A-1"}'}]
    assert line["reference_answer"] == ""


def test_rows_without_tools_name_none() -> None:
    (line,) = written("sft", {"prompt": ASKED, "completion": [WORDS]})
    assert set(line) == {"messages"}


def test_two_tools_that_would_have_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="would both be called a_b elsewhere"):
        list(lines("sft", [], [{"name": "a.b"}, {"name": "a_b"}]))
