"""The shapes in which the world writes messages, tool calls and tool definitions, read into ours. Total: never raises.

Whatever is not understood is shown as text; nothing is dropped silently, since `Step.raw` keeps what arrived.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from flywheel.core.digests import digest, repeats_a_key
from flywheel.core.traces import Message, Role, ToolCall
from flywheel.core.traces.tooling import SCHEMAS
from flywheel.trajectories.formats.values.hostile_json import plain, structured, text

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "tool": "tool",
    "function": "tool",
}

_HEX_ID = re.compile(r"[0-9a-f]{16,64}")


def trace_id(*candidates: str, content: Any) -> str:
    """The first candidate that is a hexadecimal id (a UUID counts), else the identity of the content."""
    for candidate in candidates:
        compact = candidate.replace("-", "").lower()
        if _HEX_ID.fullmatch(compact):
            return compact
    return digest(plain(content))[:32]


def as_text(value: Any) -> str:
    if value is None:
        return ""
    return text(value) if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)


def arguments(value: Any) -> dict[str, Any] | str:
    """Arguments as an object, or as what the model wrote when that is not a JSON object, or one with a key twice."""
    if value is None or value == "":
        return {}
    decoded = structured(value)
    if not isinstance(decoded, dict) or (isinstance(value, str) and repeats_a_key(value)):
        return as_text(value)
    return decoded if decoded is not value else plain(decoded)


def tool_call(value: Any) -> ToolCall:
    """A call in OpenAI's shape, or flat with `name`/`arguments` (also `input`, as Anthropic has it)."""
    if not isinstance(value, dict):
        return ToolCall("", "", as_text(value))
    function = value.get("function")
    inner = function if isinstance(function, dict) else value
    given = inner.get("arguments", inner.get("input", value.get("args")))
    name = inner.get("name") or (function if isinstance(function, str) else None)
    return ToolCall(as_text(value.get("id")), as_text(name), arguments(given))


def tool_calls(value: Any) -> tuple[ToolCall, ...]:
    decoded = structured(value)
    return tuple(tool_call(call) for call in decoded) if isinstance(decoded, list) else ()


def tool_definition(value: Any) -> dict[str, Any] | None:
    """A definition in OpenAI's, Anthropic's, MCP's or the GenAI conventions' shape; None for what has no name."""
    value = structured(value)
    if not isinstance(value, Mapping):
        return None
    function = value.get("function")
    inner: Mapping[str, Any] = function if isinstance(function, Mapping) else value
    name = inner.get("name")
    if not isinstance(name, str) or not name:
        return None
    parameters = next(
        (decoded for key in SCHEMAS if isinstance(decoded := structured(inner.get(key)), dict)),
        {},
    )
    extensions = {key: item for key, item in {**value, **inner}.items() if str(key).startswith("x-")}
    row = {"name": name, "description": as_text(inner.get("description")), "parameters": parameters, **extensions}
    clean: dict[str, Any] = plain(row)
    return clean


def tool_definitions(value: Any) -> list[dict[str, Any]]:
    decoded = structured(value)
    if not isinstance(decoded, list):
        return []
    return [definition for item in decoded if (definition := tool_definition(item))]


def as_function(definition: Mapping[str, Any]) -> dict[str, Any]:
    """One of our `tool_definitions` in OpenAI's shape, with what it says."""
    said = {key: item for key, item in definition.items() if item not in ("", {})}
    return {"type": "function", "function": said}


@lru_cache(maxsize=256)
def same_definitions(value: str) -> list[dict[str, Any]]:
    """`tool_definitions` of a text, not to be changed: every model call repeats them, and equal ones are read once."""
    return tool_definitions(value)


def content(value: Any) -> str:
    """Message content: a string, or parts of which the text is kept and the rest named."""
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list | tuple):
        return as_text(value)
    return "\n".join(shown for part in value if (shown := _part(part)))


def openai_message(value: Mapping[str, Any]) -> Message:
    """A message in OpenAI's chat shape (also with content parts, `function_call`, `refusal`, `reasoning_content`)."""
    named = as_text(value.get("role"))
    calls = tool_calls(value.get("tool_calls"))
    if isinstance(legacy := value.get("function_call"), Mapping):
        calls = (*calls, tool_call(legacy))
    said, thoughts = value.get("content"), as_text(value.get("reasoning_content") or value.get("reasoning"))
    if isinstance(said, list):
        calls = (*calls, *(tool_call(part) for part in said if _kind(part) in _CALLS))
        thoughts = thoughts or "\n".join(_thought(part) for part in said if _kind(part) in _THOUGHTS)
        said = [part for part in said if _kind(part) not in _CALLS | _THOUGHTS]
    return Message(
        role=ROLES.get(named, "user"),
        content=content(said) or as_text(value.get("refusal")),
        tool_calls=calls,
        tool_call_id=as_text(value.get("tool_call_id")),
        name=as_text(value.get("name")) or ("" if named in ROLES else named),
        reasoning=thoughts,
    )


def parts_messages(value: Any) -> list[Message]:
    """A message of the GenAI conventions (`{role, parts}`). Each tool response becomes a message of its own."""
    if not isinstance(value, dict):
        return [Message("user", as_text(value))] if value else []
    parts = value.get("parts")
    if not isinstance(parts, list):
        parts = value.get("content")
        if not isinstance(parts, list) or not any(_kind(part) in _ANSWERS for part in parts):
            return [openai_message(value)]
    named = as_text(value.get("role"))
    said: list[str] = []
    thought: list[str] = []
    calls: list[ToolCall] = []
    responses: list[Message] = []
    for part in parts:
        kind = _kind(part)
        if kind in _CALLS:
            calls.append(tool_call(part))
        elif kind in _ANSWERS:
            responses.append(_answer(part))
        elif kind in _THOUGHTS:
            thought.append(_thought(part))
        elif shown := _part(part):
            said.append(shown)
    name = as_text(value.get("name")) or ("" if named in ROLES else named)
    message = Message(ROLES.get(named, "user"), "\n".join(said), tuple(calls), "", name, "\n".join(thought))
    return responses if responses and not (said or calls or thought) else [message, *responses]


def as_answers(messages: Iterable[Message]) -> list[Message]:
    """Mark messages that a model wrote as the assistant's, also where the role was left out."""
    return [replace(each, role="assistant", tool_call_id="") if each.role == "user" else each for each in messages]


def messages(value: Any) -> list[Message]:
    """A list of messages in either shape, or JSON text of one; a bare string is what the user said."""
    decoded = structured(value)
    if isinstance(decoded, list):
        return [message for item in decoded for message in parts_messages(item)]
    return parts_messages(decoded)


_TEXTS = {"text", "input_text", "output_text", "summary_text", "reasoning_text"}
_CALLS = {"tool_call", "server_tool_call", "tool_use", "server_tool_use"}
_ANSWERS = {"tool_call_response", "server_tool_call_response", "tool_result"}
_THOUGHTS = {"reasoning", "thinking", "thought"}


def _kind(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else ""


def _answer(part: Mapping[str, Any]) -> Message:
    """A tool's result, in the GenAI conventions' shape, Anthropic's (`tool_result`), or TensorZero's."""
    given = part.get("response", part.get("result", part.get("content")))
    said = content(given) if _kind(part) == "tool_result" and isinstance(given, list) else as_text(given)
    return Message("tool", said, (), as_text(part.get("tool_use_id") or part.get("id")), as_text(part.get("name")))


def _thought(part: Mapping[str, Any]) -> str:
    return next(
        (as_text(part[key]) for key in ("content", "reasoning", "thinking", "text", "summary") if part.get(key)), ""
    )


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return as_text(part)
    if (_kind(part) or "text") in _TEXTS:
        for key in ("text", "content"):
            if isinstance(said := part.get(key), str):
                return text(said)
    kind = as_text(part.get("type")) or "part"
    return f"[{kind}: {_origin(part)}]" if _origin(part) else f"[{kind}]"


def _origin(part: Mapping[str, Any]) -> str:
    """Where a part that is no text comes from: its type, address or id; of data that is sent inline, only the type."""
    inner = [part, *(part[key] for key in ("source", "image_url", "file") if isinstance(part.get(key), Mapping))]
    for row in inner:
        for key in ("mime_type", "media_type", "uri", "url", "path", "image_url", "image", "file_id", "id"):
            if isinstance(row.get(key), str) and row[key]:
                return text(row[key].partition(";base64,")[0])[:200]
    return ""
