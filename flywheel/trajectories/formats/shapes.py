"""The shapes in which the world writes messages, tool calls and tool definitions, read into ours. Total: never raises.

Whatever is not understood is shown as text; nothing is dropped silently, since `Step.raw` keeps what arrived.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from flywheel.core.digests import digest
from flywheel.core.traces import Message, Role, ToolCall
from flywheel.trajectories.formats.reading import plain, structured, text

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
    """Arguments as an object, or as what the model wrote when that is not a JSON object."""
    if value is None or value == "":
        return {}
    decoded = structured(value)
    return plain(decoded) if isinstance(decoded, dict) else as_text(value)


def tool_call(value: Any) -> ToolCall:
    """A call in OpenAI's shape, or flat with `name`/`arguments` (also `input`, as Anthropic has it)."""
    if not isinstance(value, Mapping):
        return ToolCall("", "", as_text(value))
    function = value.get("function")
    inner = function if isinstance(function, Mapping) else value
    given = inner.get("arguments", inner.get("input", value.get("args")))
    return ToolCall(as_text(value.get("id")), as_text(inner.get("name")), arguments(given))


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
        (
            decoded
            for key in ("parameters", "input_schema", "inputSchema")
            if isinstance(decoded := structured(inner.get(key)), dict)
        ),
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


def content(value: Any) -> str:
    """Message content: a string, or parts of which the text is kept and the rest named."""
    if isinstance(value, Mapping):
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
    return Message(
        role=ROLES.get(named, "user"),
        content=content(value.get("content")) or as_text(value.get("refusal")),
        tool_calls=calls,
        tool_call_id=as_text(value.get("tool_call_id")),
        name=as_text(value.get("name")) or ("" if named in ROLES else named),
        reasoning=as_text(value.get("reasoning_content") or value.get("reasoning")),
    )


def parts_messages(value: Any) -> list[Message]:
    """A message of the GenAI conventions (`{role, parts}`). Each tool response becomes a message of its own."""
    if not isinstance(value, Mapping):
        return [Message("user", as_text(value))] if value else []
    parts = value.get("parts")
    if not isinstance(parts, list):
        return [openai_message(value)]
    named = as_text(value.get("role"))
    said: list[str] = []
    thought: list[str] = []
    calls: list[ToolCall] = []
    responses: list[Message] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in ("tool_call", "server_tool_call"):
            calls.append(tool_call(part))
        elif kind in ("tool_call_response", "server_tool_call_response"):
            answer = part.get("response", part.get("result", part.get("content")))
            responses.append(Message("tool", as_text(answer), (), as_text(part.get("id")), as_text(part.get("name"))))
        elif kind == "reasoning":
            thought.append(as_text(part.get("content")))
        elif shown := _part(part):
            said.append(shown)
    name = as_text(value.get("name")) or ("" if named in ROLES else named)
    message = Message(ROLES.get(named, "user"), "\n".join(said), tuple(calls), "", name, "\n".join(thought))
    return responses if responses and not (said or calls or thought) else [message, *responses]


def messages(value: Any) -> list[Message]:
    """A list of messages in either shape, or JSON text of one; a bare string is what the user said."""
    decoded = structured(value)
    if isinstance(decoded, list):
        return [message for item in decoded for message in parts_messages(item)]
    return parts_messages(decoded)


def _part(part: Any) -> str:
    if not isinstance(part, Mapping):
        return as_text(part)
    for key in ("text", "content"):
        if isinstance(part.get(key), str) and part.get("type", "text") in ("text", "input_text", "output_text"):
            return text(part[key])
    kind = as_text(part.get("type")) or "part"
    return f"[{kind}: {_origin(part)}]" if _origin(part) else f"[{kind}]"


def _origin(part: Mapping[str, Any]) -> str:
    return next(
        (text(part[key]) for key in ("mime_type", "uri", "file_id", "id") if isinstance(part.get(key), str)), ""
    )[:200]
