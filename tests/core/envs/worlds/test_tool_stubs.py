"""A world to begin with, out of an agent's own tools."""

from typing import Any

from flywheel.core.envs.worlds import tool_functions
from flywheel.core.envs.worlds.tool_stubs import server_stubs, stubs
from flywheel.core.traces import tooling
from tests.conftest import TOOLS

STRANGE: list[dict[str, Any]] = [
    {"name": "class", "description": 'Say """hello"""\n\\ and more'},
    {
        "name": "a-b",
        "description": "A.",
        "x-unsafe": True,
        "parameters": {
            "type": "object",
            "properties": {
                "tags": {"type": "array", "items": {"type": "string"}},
                "of": {"type": ["string", "null"], "description": "Of whom."},
                "from": {"type": "string"},
            },
            "required": ["tags"],
        },
    },
    {"name": "a.b", "parameters": {"type": "object", "properties": {"kind": {"enum": ["x", "y's"]}}}},
    {"name": "reset"},
]


def test_the_stubs_of_tools_define_the_same_tools() -> None:
    tools: list[dict[str, Any]] = [*TOOLS]  # type: ignore[list-item]
    found = tool_functions.read(stubs("assistant@1", tools)).tools
    assert [tool["name"] for tool in found] == [tool["name"] for tool in tools]
    for made, wanted in zip(found, tools, strict=True):
        assert made["parameters"]["required"] == wanted["parameters"].get("required", [])
        assert made["description"] == wanted["description"]
    assert found[0]["parameters"]["properties"]["day"]["enum"] == ["monday", "tuesday", "friday"]


def test_names_that_python_has_not_are_kept() -> None:
    source = stubs("assistant@1", STRANGE)
    functions = tool_functions.read(source)
    assert list(functions.functions) == ["class", "a-b", "a.b", "reset"]
    assert functions.functions["a-b"] != functions.functions["a.b"]
    assert [tool["name"] for tool in functions.tools if tool.get("x-unsafe")] == ["a-b"]
    assert tooling.check_definitions(list(functions.tools)) == []


def test_a_tool_that_is_called_as_something_of_python_hides_nothing() -> None:
    tools = [{"name": name, "parameters": {"type": "object", "properties": {}}} for name in ("list", "json", "Door")]
    functions = tool_functions.read(stubs("assistant@1", tools))
    assert list(functions.functions) == ["list", "json", "Door"]
    assert not {"list", "json", "Door"} & set(functions.functions.values())


def test_a_server_to_begin_with_is_python_whatever_the_tools_are_called() -> None:
    tools: list[dict[str, Any]] = [*TOOLS, *STRANGE]  # type: ignore[list-item]
    found: dict[str, Any] = {"__name__": "server"}
    exec(compile(server_stubs('"""\\n{of} import os', tools), "server.py", "exec"), found)
    assert found["DEFINITIONS"] == tools
    assert list(found["TOOLS"]) == [tool["name"] for tool in tools]
