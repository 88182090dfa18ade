"""OpenTelemetry's GenAI conventions: the current names, and those up to 1.36 that most emitters still send.

https://github.com/open-telemetry/semantic-conventions-genai
"""

from collections.abc import Iterable, Mapping
from typing import Any

from flywheel.core.traces import Kind, Message
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.messages.sampling import SETTINGS, sampling
from flywheel.trajectories.formats.otlp.spans import Content, Event, Span, first, unflatten, word
from flywheel.trajectories.formats.values.hostile_json import FormatError, as_dict, as_list, load, plain, structured

OPERATIONS: dict[str, Kind] = {
    **dict.fromkeys(("chat", "text_completion", "generate_content"), "assistant"),
    "execute_tool": "tool",
    **dict.fromkeys(("invoke_agent", "create_agent", "invoke_workflow"), "agent"),
    **dict.fromkeys(("retrieval", "search_memory"), "retrieval"),
}

DETAILS = "gen_ai.client.inference.operation.details"
"""The event in which content may arrive instead of in attributes."""

_SETTINGS = {
    **{f"gen_ai.request.{name}": name for name in SETTINGS},
    "gen_ai.request.choice.count": "n",
    "gen_ai.request.reasoning.level": "reasoning_effort",
}

_ANSWERS = ("gen_ai.choice", "gen_ai.content.completion", DETAILS)

_MESSAGE_EVENTS = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}


def kind(span: Span) -> Kind | None:
    attributes = span.attributes
    if (operation := attributes.get("gen_ai.operation.name")) is not None:
        return OPERATIONS.get(operation) if isinstance(operation, str) else None
    if word(attributes, "llm.request.type") in ("chat", "completion"):
        return "assistant"
    if "gen_ai.tool.name" in attributes and (
        "gen_ai.tool.call.arguments" in attributes or "gen_ai.tool.call.result" in attributes
    ):
        return "tool"
    if _answers(span) and word(attributes, "gen_ai.system", "gen_ai.provider.name", "gen_ai.request.model"):
        return "assistant"
    return None


def _answers(span: Span) -> bool:
    """Whether the span carries what a model wrote."""
    attributes = span.attributes
    return (
        "gen_ai.output.messages" in attributes
        or any(event.name in _ANSWERS for event in span.events)
        or any(key.startswith("gen_ai.completion.") for key in attributes)
    )


def finish_reason(span: Span) -> str:
    """Why the model stopped, where only its message or its event says so."""
    for event in span.events:
        if event.name == "gen_ai.choice" and (reason := word(event.attributes, "finish_reason")):
            return reason
    outputs = as_list(structured(span.attributes.get("gen_ai.output.messages")))
    return word(as_dict(outputs[-1]), "finish_reason") if outputs else ""


def content(span: Span, kind: Kind | None) -> Content:
    """Return the content of a span of this kind."""
    attributes, read = span.attributes, Content()
    if kind not in ("tool", "retrieval"):
        read.input, read.output = _input_messages(attributes), output(attributes)
        if not (read.input and read.output):
            _old(read, attributes, span.events)
        read.sampling = sampling(params={name: attributes[key] for key, name in _SETTINGS.items() if key in attributes})
    if kind not in ("assistant", "agent"):
        read.arguments, read.result = _arguments(attributes) or None, _result(attributes)
        if read.result in ("", [], {}):
            read.result = None
        if read.result is None and kind == "tool" and (said := _event_messages(span.events)[1]):
            read.result = said[0].content
    read.tools = _tools(attributes)
    return read


def _tools(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = first(attributes, "gen_ai.tool.definitions", "gen_ai.request.tools")
    found = message_shapes.same_definitions(given) if isinstance(given, str) else message_shapes.tool_definitions(given)
    if found or _FIRST_FUNCTION not in attributes:
        return found
    return message_shapes.tool_definitions(unflatten(attributes, _FUNCTIONS))


def _input_messages(attributes: Mapping[str, Any]) -> list[Message]:
    """Return the messages given to a model, by the current names."""
    given = message_shapes.messages(attributes.get("gen_ai.input.messages"))
    if instructions := structured(first(attributes, "gen_ai.system_instructions")):
        given.insert(0, Message("system", message_shapes.content(instructions)))
    return given


def _arguments(attributes: Mapping[str, Any]) -> dict[str, Any] | str | None:
    if (given := first(attributes, "gen_ai.tool.call.arguments")) is not None:
        return message_shapes.arguments(given)
    query = word(attributes, "gen_ai.retrieval.query.text", "gen_ai.memory.query.text")
    return {"query": query} if query else None


def answers(span: Span) -> list[Message]:
    """Return the model's answers, by any of the names: as `content` does, which also reads the input."""
    said = output(span.attributes) or _completion(span.attributes)
    return said or _event_messages(span.events)[1]


def _result(attributes: Mapping[str, Any]) -> Any:
    """Return the result of a tool; some write a mere text as JSON, in quotes."""
    came = first(attributes, "gen_ai.tool.call.result", "gen_ai.retrieval.documents", "gen_ai.memory.records")
    if isinstance(came, str) and len(came) > 1 and came[0] == came[-1] == '"':
        try:
            return plain(load(came))
        except FormatError:
            return came
    return came


def output(attributes: Mapping[str, Any]) -> list[Message]:
    """Return the model's answers, by the current names."""
    return message_shapes.as_answers(message_shapes.messages(attributes.get("gen_ai.output.messages")))


def _old(read: Content, attributes: Mapping[str, Any], events: Iterable[Event]) -> None:
    """Add what is not known yet: from numbered attributes (`gen_ai.prompt.0.content`), then from events."""
    read.input = read.input or _numbered(attributes, "gen_ai.prompt")
    read.output = read.output or _completion(attributes)
    given, said = _event_messages(events)
    read.input, read.output = read.input or given, read.output or said


def _completion(attributes: Mapping[str, Any]) -> list[Message]:
    return message_shapes.as_answers(_numbered(attributes, "gen_ai.completion"))


def _event_messages(events: Iterable[Event]) -> tuple[list[Message], list[Message]]:
    """Return the input and the answers, from one event per message: the conventions up to 1.36."""
    given: list[Message] = []
    answers: list[Message] = []
    for event in events:
        if role := _MESSAGE_EVENTS.get(event.name):
            given.append(_event_message(event.attributes, role))
        elif event.name == "gen_ai.choice":
            answers.append(_event_message(event.attributes, "assistant"))
        elif event.name == "gen_ai.content.prompt":
            given += message_shapes.messages(event.attributes.get("gen_ai.prompt"))
        elif event.name == "gen_ai.content.completion":
            answers += message_shapes.as_answers(message_shapes.messages(event.attributes.get("gen_ai.completion")))
    return given, answers


def functions(attributes: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...] | None:
    """Names, descriptions and parameters of tools in numbered attributes; None when there are none."""
    if _FIRST_FUNCTION not in attributes:
        return None
    found: list[tuple[str, str, str]] = []
    while name := word(attributes, f"{_FUNCTIONS}.{len(found)}.name"):
        at = f"{_FUNCTIONS}.{len(found)}"
        found.append((name, word(attributes, f"{at}.description"), word(attributes, f"{at}.parameters")))
    return tuple(found) or None


_FUNCTIONS = "llm.request.functions"
_FIRST_FUNCTION = f"{_FUNCTIONS}.0.name"


def _numbered(attributes: Mapping[str, Any], prefix: str) -> list[Message]:
    rows = as_list(unflatten(attributes, prefix))
    return [message_shapes.openai_message(row) for row in rows if isinstance(row, Mapping)]


def _event_message(attributes: Mapping[str, Any], role: str) -> Message:
    """The body of a message event: its own attributes, or a `message` object (or JSON text) among them."""
    inner = structured(attributes.get("message"))
    body = {**attributes, **inner} if isinstance(inner, dict) else dict(attributes)
    if isinstance(inner, str):
        body.setdefault("content", inner)
    if isinstance(decoded := structured(body.get("content")), list):
        body["content"] = decoded
    if role == "tool":
        body.setdefault("tool_call_id", body.get("id"))
    return message_shapes.openai_message(plain({"role": role} | body))
