"""Vercel's AI SDK up to version 6: `ai.*`. From version 7 on it speaks the GenAI conventions.

The span around the model calls (`ai.generateText`) repeats the question, the last answer and the sum of the usage;
only the inner ones (`ai.generateText.doGenerate`) are model calls. https://ai-sdk.dev/docs/ai-sdk-core/telemetry
"""

import functools
from collections.abc import Mapping
from typing import Any

from flywheel.core.traces import Kind, Message, ToolCall
from flywheel.trajectories.formats.dialects import payloads
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.messages.sampling import sampling
from flywheel.trajectories.formats.otlp.spans import Content, Facts, Span
from flywheel.trajectories.formats.values.hostile_json import structured

MARKS: tuple[str, ...] = ("ai.operationId", "ai.settings.context.sessionId", "ai.settings.context.userId")
SCOPE = ""

KEYS: dict[str, tuple[str, ...]] = {
    "model": ("ai.response.model", "ai.model.id"),
    "finish_reason": ("ai.response.finishReason",),
    "tokens_in": ("ai.usage.inputTokens", "ai.usage.promptTokens"),
    "tokens_out": ("ai.usage.outputTokens", "ai.usage.completionTokens"),
    "tokens_cached": ("ai.usage.cachedInputTokens", "ai.usage.inputTokenDetails.cacheReadTokens"),
    "tool_name": ("ai.toolCall.name",),
    "tool_call_id": ("ai.toolCall.id",),
    "agent": ("ai.telemetry.functionId",),
    "session_id": ("ai.telemetry.metadata.sessionId", "ai.settings.context.sessionId"),
    "user_id": ("ai.telemetry.metadata.userId", "ai.settings.context.userId"),
    "tags": ("ai.telemetry.metadata.tags",),
}
METADATA: tuple[str, ...] = ("ai.telemetry.metadata.", "ai.settings.context.")
INPUTS: tuple[str, ...] = ("ai.prompt",)

_SETTINGS = {
    "ai.settings.temperature": "temperature",
    "ai.settings.topP": "top_p",
    "ai.settings.topK": "top_k",
    "ai.settings.maxOutputTokens": "max_output_tokens",
    "ai.settings.maxTokens": "max_tokens",
    "ai.settings.frequencyPenalty": "frequency_penalty",
    "ai.settings.presencePenalty": "presence_penalty",
    "ai.settings.seed": "seed",
    "ai.settings.stopSequences": "stop_sequences",
}
_ANSWERS = ("generateText", "streamText", "generateObject", "streamObject")


def kind(span: Span) -> Kind | None:
    operation = span.attributes.get("ai.operationId")
    if not isinstance(operation, str):
        return None
    if operation == "ai.toolCall":
        return "tool"
    _, _, rest = operation.partition(".")
    name, _, inner = rest.partition(".")
    if name not in _ANSWERS:
        return None
    return "assistant" if inner in ("doGenerate", "doStream") else "agent"


def facts(span: Span, facts: Facts) -> None:
    pass


def tools(span: Span) -> list[dict[str, Any]]:
    given = span.attributes.get("ai.prompt.tools")
    if not isinstance(given, list):
        return message_shapes.tool_definitions(given)
    return _tools(tuple(tool for tool in given if isinstance(tool, str)))


@functools.lru_cache(maxsize=256)
def _tools(given: tuple[str, ...]) -> list[dict[str, Any]]:
    return message_shapes.tool_definitions(list(given))


def content(span: Span, kind: Kind | None, read: Content) -> None:
    attributes = span.attributes
    if kind == "tool":
        if read.arguments is None and "ai.toolCall.args" in attributes:
            read.arguments = message_shapes.arguments(attributes["ai.toolCall.args"])
        if read.result is None:
            read.result = payloads.decoded(attributes.get("ai.toolCall.result"))
        return
    read.tools = read.tools or tools(span)
    read.input = read.input or _input_messages(attributes)
    read.output = read.output or _answer(attributes)
    params = {name: attributes[key] for key, name in _SETTINGS.items() if key in attributes}
    read.sampling = read.sampling or sampling(params=params)


def _input_messages(attributes: Mapping[str, Any]) -> list[Message]:
    if isinstance(listed := structured(attributes.get("ai.prompt.messages")), list):
        return _messages(listed)
    prompt = payloads.decoded(attributes.get("ai.prompt"))
    if not isinstance(prompt, Mapping):
        return [Message("user", message_shapes.as_text(prompt))] if prompt else []
    system = [Message("system", message_shapes.content(prompt["system"]))] if prompt.get("system") else []
    asked = prompt.get("messages", prompt.get("prompt"))
    if isinstance(asked, list):
        return [*system, *_messages(asked)]
    return [*system, Message("user", message_shapes.as_text(asked))] if asked else system


def _messages(listed: list[Any]) -> list[Message]:
    return [message for item in listed for message in _message(item)]


def _message(value: Any) -> list[Message]:
    """A message in the SDK's own shape, whose parts are `tool-call`, `tool-result`, `text`, `reasoning`, `file`."""
    parts = value.get("content") if isinstance(value, Mapping) else None
    if not isinstance(parts, list):
        return message_shapes.parts_messages(value)
    rest, calls, answers = [], [], []
    for part in parts:
        named = part.get("type") if isinstance(part, Mapping) else None
        if named == "tool-call":
            calls.append(_call(part))
        elif named in ("tool-result", "tool-error"):
            answers.append(_result(part))
        else:
            rest.append(part)
    if not rest and not calls:
        return answers
    message = message_shapes.openai_message({"role": value.get("role"), "content": rest})
    return [Message(message.role, message.content, tuple(calls), reasoning=message.reasoning), *answers]


def _call(part: Mapping[str, Any]) -> ToolCall:
    id, name = message_shapes.as_text(part.get("toolCallId")), message_shapes.as_text(part.get("toolName"))
    return ToolCall(id, name, message_shapes.arguments(part.get("input", part.get("args"))))


def _result(part: Mapping[str, Any]) -> Message:
    """Version 5 wraps a result as `{"type": "text" | "json" | "error-text" | …, "value": …}`."""
    came = part.get("output", part.get("result", part.get("error")))
    if isinstance(came, Mapping) and "type" in came and "value" in came:
        came = came["value"]
    id, name = message_shapes.as_text(part.get("toolCallId")), message_shapes.as_text(part.get("toolName"))
    return Message("tool", message_shapes.as_text(came), (), id, name)


def _answer(attributes: Mapping[str, Any]) -> list[Message]:
    written = attributes.get("ai.response.text") or attributes.get("ai.response.object")
    listed = structured(attributes.get("ai.response.toolCalls"))
    calls = tuple(_call(call) for call in listed if isinstance(call, Mapping)) if isinstance(listed, list) else ()
    thought = message_shapes.as_text(attributes.get("ai.response.reasoning"))
    if not (written or calls or thought):
        return []
    return [Message("assistant", message_shapes.as_text(written), calls, reasoning=thought)]
