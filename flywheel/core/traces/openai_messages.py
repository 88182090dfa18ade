"""Episodes in the words of OpenAI's APIs, Responses (which NeMo Gym speaks) and chat: to messages and back.

A name of ours may hold a dot (`calendar.search_events`), which function names there may not: it becomes `_` on the way
out, and the way back looks the name up.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flywheel.core.digests import read_json
from flywheel.core.traces import Message, ToolCall, tooling

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


def outside(name: str) -> str:
    """A tool's name as other systems take it."""
    return _NOT_IN_NAMES.sub("_", name)[:64]


def names(tools: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Our name by the name outside. Raises ValueError where two tools would have one name."""
    found: dict[str, str] = {}
    for tool in tools:
        other = found.setdefault(outside(tool["name"]), tool["name"])
        if other != tool["name"]:
            raise ValueError(f"{other} and {tool['name']} would both be called {outside(other)} elsewhere; rename one")
    return found


def chat_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools as chat completions and TRL's column `tools` have them."""
    return [{"type": "function", "function": tooling.plain(tool)} for tool in tools]


def definitions(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """List the tools that may be called, in the form of `responses_create_params.tools`."""
    return [
        {
            "type": "function",
            "name": outside(tool["name"]),
            "description": tool.get("description", ""),
            "parameters": tool.get("parameters") or {"type": "object", "properties": {}},
            "strict": False,
        }
        for tool in tools
    ]


def opening(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages that open an episode, as `responses_create_params.input` has them: calls and their results too."""
    items: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "tool":
            result = {"call_id": message.tool_call_id, "output": message.content}
            items.append({"type": "function_call_output", **result})
            continue
        if message.content or not message.tool_calls:
            items.append({"role": message.role, "content": message.content})
        for call in message.tool_calls:
            written = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
            called = {"call_id": call.id, "name": outside(call.name), "arguments": written}
            items.append({"type": "function_call", **called})
    return items


def policy_messages(items: Iterable[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the policy's messages, one a turn: all that it wrote between two things that it was told is one.

    Outputs of tools and words of users are not read: the environment says again what it says.
    """
    ours = names(tools)
    turns: list[Message] = []
    texts: list[str] = []
    calls: list[ToolCall] = []

    def end() -> None:
        if texts or calls:
            turns.append(Message("assistant", "".join(texts), tuple(calls)))
        texts.clear()
        calls.clear()

    for item in items:
        kind = item.get("type", "message")
        if kind == "function_call":
            name = str(item.get("name", ""))
            calls.append(ToolCall(str(item.get("call_id", "")), ours.get(name, name), arguments(item.get("arguments"))))
        elif kind == "message" and item.get("role", "assistant") == "assistant":
            end()  # words that come after other words, or after calls, are another turn
            texts.append(text(item.get("content")))
        elif kind != "reasoning":
            end()
    end()
    return turns


def chat_said(messages: Iterable[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the policy's turns in chat messages, whose calls may stand as OpenAI writes them or flat."""
    ours = names(tools)
    turns = []
    for row in messages:
        if row.get("role") != "assistant":
            continue
        calls = []
        for call in row.get("tool_calls") or ():
            function = call.get("function") or call
            name = str(function["name"])
            own = ours.get(name) or ours.get(name.rpartition("__")[2], name)  # some harnesses add the server's name
            calls.append(ToolCall(str(call.get("id", "")), own, arguments(function.get("arguments"))))
        turns.append(Message("assistant", text(row.get("content")), tuple(calls)))
    return turns


def arguments(given: Any) -> dict[str, Any] | str:
    """A call's arguments: an object where they are one, else what the model wrote."""
    if isinstance(given, dict):
        return given
    written = given if isinstance(given, str) else json.dumps(given)
    try:
        value = read_json(written or "{}")
    except (ValueError, RecursionError):
        return written
    return value if isinstance(value, dict) else written


def text(content: Any) -> str:
    """The words of a message, whose content may be a text or parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def items(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as the output of a response: what the policy wrote, and what it was told."""
    found: list[dict[str, Any]] = []
    for at, message in enumerate(messages):
        if message.role == "tool":
            found.append({"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content})
            continue
        if message.role != "assistant":
            found.append({"type": "message", "role": message.role, "content": message.content})
            continue
        if message.content or not message.tool_calls:
            part = {"type": "output_text", "text": message.content, "annotations": []}
            whole = {"id": f"msg_{at}", "role": "assistant", "status": "completed", "content": [part]}
            found.append({"type": "message"} | whole)
        for call in message.tool_calls:
            written = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
            name = outside(call.name)
            found.append({"type": "function_call", "call_id": call.id, "name": name, "arguments": written})
    return found
