"""Payloads that applications log of a model call or a function call, in whatever shape. Total: never raises.

Libraries keep a request and an answer as one JSON text: OpenAI's chat or Responses, LangChain's messages, a list of
messages, or what an application made up itself.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from flywheel.core.traces import Kind, Message, Role
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.openai import openai_responses
from flywheel.trajectories.formats.otlp.spans import Content
from flywheel.trajectories.formats.values.hostile_json import FormatError, Row, as_dict, load, plain, structured

_ITEMS = re.compile(r"message|reasoning|\w+_call|\w+_call_output")
_LANGCHAIN = re.compile(r"(Human|AI|System|Tool|Function|Chat)Message(?:Chunk)?")
_SPOKEN = {"messages", "message", "input", "prompt", "text"}
_NESTED = ("messages", "choices", "generations", "message", "data")
"""Where the messages stand in an object that has no role itself."""


def decoded(value: Any) -> Any:
    """The value of a JSON text, also of a mere string or number: some libraries write every attribute so."""
    if isinstance(value, str) and value[:1] == '"' and value[-1:] == '"':
        try:
            return plain(load(value))
        except FormatError:
            return value
    return structured(value)


def word(value: Any) -> str:
    value = decoded(value)
    return value if isinstance(value, str) else ""


def arguments(value: Any) -> dict[str, Any] | str | None:
    """Arguments of a function, where Python's decorators write `{"args": […], "kwargs": {…}}`."""
    value = decoded(value)
    if value is None:
        return None
    if isinstance(value, dict) and value.keys() <= {"args", "kwargs"} and isinstance(value.get("kwargs"), dict):
        return value["kwargs"] if not value.get("args") else {"args": value["args"], **value["kwargs"]}
    return message_shapes.arguments(value)


def result(value: Any) -> Any:
    """Return the result of a function, without the `{"output": …}` that some write around it."""
    value = decoded(value)
    if isinstance(value, dict) and value.keys() == {"output"}:
        return value["output"]
    return value


def called(value: Any) -> list[Message]:
    """Return the input of an agent that is a function: `answer("Find it")`, `run(question="Find it")`."""
    value = arguments(value)
    if isinstance(value, dict) and len(value) == 1 and not value.keys() & _SPOKEN:
        value = next(iter(value.values()))
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        value = "\n".join(value)
    return input_messages(value)


def input_messages(value: Any) -> list[Message]:
    """Return the messages given to a model or an agent."""
    return _messages(decoded(value), "user")


def answered(value: Any) -> list[Message]:
    """Return the answers of a model or an agent."""
    return message_shapes.as_answers(_messages(decoded(value), "assistant"))


def take(read: Content, kind: Kind | None, asked: Any, came: Any) -> Any:
    """Take from the request of a model call or an agent, and from its answer, what is not known yet. Returns it."""
    request = decoded(asked)
    read.input = read.input or (called if kind == "agent" else input_messages)(request)
    read.output = read.output or answered(came)
    read.tools = read.tools or message_shapes.tool_definitions(as_dict(request).get("tools"))
    return request


class Definitions:
    """Reads the `tools` of requests in JSON texts, without the rest of them; what was seen lately only once."""

    def __init__(self) -> None:
        self._seen: tuple[tuple[str, list[dict[str, Any]]], ...] = ()
        """JSON arrays and what they define. An array ends by itself, so a text that goes on with it holds just it."""

    def within(self, text: Any) -> list[dict[str, Any]]:
        # Within a JSON string the closing quote would be escaped, so this is always a name.
        if not isinstance(text, str) or (found := _TOOLS.search(text)) is None:
            return []
        start = found.end()
        for raw, definitions in self._seen:
            if text.startswith(raw, start):
                return definitions
        try:
            listed, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            return []
        definitions = message_shapes.tool_definitions(plain(listed))
        self._seen = ((text[start:end], definitions), *self._seen)[:32]
        return definitions


_TOOLS = re.compile(r'"tools":\s*(?=\[)')
_DECODER = json.JSONDecoder()


def finish_reason(value: Any) -> str:
    """Why the model stopped, in the JSON text of an answer, without reading the rest of it."""
    found = _FINISH.search(value) if isinstance(value, str) else None
    return found.group(1) if found else ""


_FINISH = re.compile(r'"finish_reason":\s*"(\w+)"')


def _messages(value: Any, role: Role) -> list[Message]:
    if value in (None, "", [], {}):
        return []
    if isinstance(value, str):
        return [Message(role, value)]
    if isinstance(value, list):
        return _listed(value, role)
    if not isinstance(value, Mapping):
        return [Message(role, message_shapes.as_text(value))]
    if (langchain := _langchain(value)) is not None:
        return [langchain]
    if "role" in value or "parts" in value:
        return message_shapes.parts_messages({"role": role, **value})
    for key in _NESTED:
        if isinstance(inner := value.get(key), list | Mapping) and inner:
            # Of several choices the conversation shows the first; all are in the raw form.
            is_choice = key in ("choices", "generations") and isinstance(inner, list)
            said = _messages(inner[:1] if is_choice else inner, role)
            return [*_instructions(value), *said]
    if isinstance(items := value.get("output" if role == "assistant" else "input"), list | str | Mapping):
        return [*_instructions(value), *_messages(items, role)]
    if role == "assistant" and ("content" in value or "tool_calls" in value):
        return message_shapes.parts_messages({"role": role, **value})
    if isinstance(said := value.get("text", value.get("prompt")), str):
        return [*_instructions(value), Message(role, said)]
    return [Message(role, message_shapes.as_text(value))]


def _listed(value: list[Any], role: Role) -> list[Message]:
    if len(value) == 1 and isinstance(value[0], list):  # LangChain asks in batches
        return _listed(value[0], role)
    if all(isinstance(item, Mapping) for item in value):
        if any(_is_item(item) for item in value):
            try:
                return [turn.message for turn in openai_responses.turns_of(Row({"items": value}), "items")]
            except FormatError:
                return [Message(role, message_shapes.as_text(value))]
        if all(_speaks(item) for item in value):
            return [message for item in value for message in _messages(item, role)]
        if all(isinstance(item.get("type"), str) and ("text" in item or "content" in item) for item in value):
            return message_shapes.parts_messages({"role": role, "content": value})
    return [Message(role, message_shapes.as_text(value))]


def _is_item(item: Mapping[str, Any]) -> bool:
    """Whether this stands in a request or an answer of the Responses API."""
    kind = item.get("type")
    return isinstance(kind, str) and _ITEMS.fullmatch(kind) is not None and "data" not in item and kind != "tool_call"


def _speaks(item: Mapping[str, Any]) -> bool:
    return "role" in item or any(isinstance(item.get(key), Mapping) for key in _NESTED) or _langchain(item) is not None


def _langchain(value: Mapping[str, Any]) -> Message | None:
    """A message as LangChain writes it: `{"id": […, "AIMessage"], "kwargs": {…}}` or `{"type": "ai", "content": …}`."""
    named = value.get("id")
    kind = value.get("type")
    fields = value.get("kwargs")
    if isinstance(named, list) and named and isinstance(fields, Mapping):
        found = _LANGCHAIN.fullmatch(str(named[-1]))
        if found is None:
            return None
        role = found.group(1).lower()
        return message_shapes.openai_message({**fields, "role": role if role != "chat" else fields.get("role")})
    if kind in ("human", "ai", "system", "tool") and "role" not in value:
        inner = value.get("data")
        fields = inner if isinstance(inner, Mapping) else value
        return message_shapes.openai_message({**fields, "role": kind}) if "content" in fields else None
    return None


def _instructions(value: Mapping[str, Any]) -> list[Message]:
    said = value.get("instructions") or value.get("system")
    return [Message("system", message_shapes.content(said))] if said else []
