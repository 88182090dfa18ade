"""OpenTelemetry's GenAI conventions: the current names, and those up to 1.36 that most emitters still send.

https://github.com/open-telemetry/semantic-conventions-genai
"""

from collections.abc import Iterable, Mapping
from typing import Any

from flywheel.core.traces import Kind, Message
from flywheel.trajectories.formats import shapes
from flywheel.trajectories.formats.reading import cost, count, plain, structured
from flywheel.trajectories.formats.spans import Event, Reading, Span, first, unflatten, word

OPERATIONS: dict[str, Kind] = {
    "chat": "assistant",
    "text_completion": "assistant",
    "generate_content": "assistant",
    "execute_tool": "tool",
    "invoke_agent": "agent",
    "create_agent": "agent",
    "invoke_workflow": "agent",
    "retrieval": "retrieval",
    "search_memory": "retrieval",
}

TRACELOOP_KINDS: dict[str, Kind] = {"tool": "tool", "agent": "agent", "workflow": "agent"}

DETAILS = "gen_ai.client.inference.operation.details"
"""The event in which content may arrive instead of in attributes."""

_MESSAGE_EVENTS = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}


def read(span: Span) -> Reading:
    attributes = dict(span.attributes)
    for event in span.events:
        if event.name == DETAILS:
            attributes = {**event.attributes, **attributes}
    reading = _current(attributes)
    reading.fill(_old(attributes, span.events, reading.kind))
    if reading.kind is None:
        reading.kind = _guess(attributes, reading)
    return reading


def _current(attributes: Mapping[str, Any]) -> Reading:
    reading = Reading(
        kind=OPERATIONS.get(word(attributes, "gen_ai.operation.name")),
        input=shapes.messages(attributes.get("gen_ai.input.messages")),
        output=[_said(message) for message in shapes.messages(attributes.get("gen_ai.output.messages"))],
        tool_name=word(attributes, "gen_ai.tool.name"),
        tool_call_id=word(attributes, "gen_ai.tool.call.id"),
        result=first(attributes, "gen_ai.tool.call.result", "gen_ai.retrieval.documents", "gen_ai.memory.records"),
        model=word(attributes, "gen_ai.response.model", "gen_ai.request.model"),
        finish_reason=_finish(attributes),
        tokens_in=count(first(attributes, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")),
        tokens_out=count(first(attributes, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")),
        tokens_cached=count(
            first(attributes, "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens")
        ),
        cost_usd=cost(first(attributes, "gen_ai.usage.cost")),
        tools=shapes.tool_definitions(first(attributes, "gen_ai.tool.definitions", "gen_ai.request.tools")),
        agent=word(attributes, "gen_ai.agent.name"),
        version=word(attributes, "gen_ai.agent.version"),
        session_id=word(attributes, "gen_ai.conversation.id", "session.id", "langfuse.session.id"),
        user_id=word(attributes, "user.id", "enduser.id", "langfuse.user.id"),
    )
    if (given := first(attributes, "gen_ai.tool.call.arguments")) is not None:
        reading.arguments = shapes.arguments(given)
    elif query := word(attributes, "gen_ai.retrieval.query.text", "gen_ai.memory.query.text"):
        reading.arguments = {"query": query}
    if instructions := structured(first(attributes, "gen_ai.system_instructions")):
        reading.input.insert(0, Message("system", shapes.content(instructions)))
    return reading


def _old(attributes: Mapping[str, Any], events: Iterable[Event], kind: Kind | None) -> Reading:
    """Numbered attributes (`gen_ai.prompt.0.content`) and one event per message, the conventions up to 1.36."""
    reading = Reading(tools=shapes.tool_definitions(_listed(unflatten(attributes, "llm.request.functions"))))
    reading.input = _numbered(attributes, "gen_ai.prompt")
    reading.output = [_said(message) for message in _numbered(attributes, "gen_ai.completion")]
    reading.finish_reason = word(attributes, "gen_ai.completion.0.finish_reason")
    said: list[Message] = []
    answers: list[Message] = []
    for event in events:
        if role := _MESSAGE_EVENTS.get(event.name):
            said.append(_event_message(event.attributes, role))
        elif event.name == "gen_ai.choice":
            answers.append(_event_message(event.attributes, "assistant"))
            reading.finish_reason = reading.finish_reason or word(event.attributes, "finish_reason")
        elif event.name == "gen_ai.content.prompt":
            said += shapes.messages(event.attributes.get("gen_ai.prompt"))
        elif event.name == "gen_ai.content.completion":
            answers += [_said(message) for message in shapes.messages(event.attributes.get("gen_ai.completion"))]
    if kind == "tool":
        reading.result = answers[0].content if answers else None
        return reading
    reading.input = reading.input or said
    reading.output = reading.output or answers
    return reading


def _guess(attributes: Mapping[str, Any], reading: Reading) -> Kind | None:
    """The kind of a span that does not name its operation."""
    if (named := word(attributes, "traceloop.span.kind")) in TRACELOOP_KINDS:
        return TRACELOOP_KINDS[named]
    if word(attributes, "llm.request.type") in ("chat", "completion"):
        return "assistant"
    if "gen_ai.operation.name" in attributes:
        return None
    if reading.tool_name and (reading.arguments is not None or reading.result is not None):
        return "tool"
    if reading.output and word(attributes, "gen_ai.system", "gen_ai.provider.name", "gen_ai.request.model"):
        return "assistant"
    return None


def _said(message: Message) -> Message:
    """What a model wrote is the assistant's, also where the emitter left the role out."""
    if message.role == "user":
        return Message("assistant", message.content, message.tool_calls, "", message.name, message.reasoning)
    return message


def _finish(attributes: Mapping[str, Any]) -> str:
    reasons = structured(first(attributes, "gen_ai.response.finish_reasons", "gen_ai.response.finish_reason"))
    if isinstance(reasons, list):
        reasons = reasons[0] if reasons else None
    if isinstance(reasons, str):
        return reasons
    outputs = structured(attributes.get("gen_ai.output.messages"))
    last = outputs[-1] if isinstance(outputs, list) and outputs else None
    return word(last, "finish_reason") if isinstance(last, dict) else ""


def _numbered(attributes: Mapping[str, Any], prefix: str) -> list[Message]:
    rows = _listed(unflatten(attributes, prefix))
    return [shapes.openai_message(row) for row in rows if isinstance(row, Mapping)]


def _listed(tree: Any) -> list[Any]:
    return tree if isinstance(tree, list) else []


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
    return shapes.openai_message(plain({"role": role} | body))
