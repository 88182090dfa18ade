"""OpenInference: `openinference.span.kind` and messages flattened into numbered attributes.

https://github.com/Arize-ai/openinference/tree/main/spec
"""

from collections.abc import Mapping
from typing import Any

from flywheel.core.traces import Kind, Message
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.messages.sampling import sampling, settings
from flywheel.trajectories.formats.otlp.spans import Content, Span, first, unflatten
from flywheel.trajectories.formats.values.hostile_json import as_list, structured

KINDS: dict[str, Kind] = {
    "LLM": "assistant",
    "TOOL": "tool",
    "AGENT": "agent",
    "RETRIEVER": "retrieval",
    **dict.fromkeys(("CHAIN", "EMBEDDING", "RERANKER", "GUARDRAIL"), "other"),
    **dict.fromkeys(("EVALUATOR", "PROMPT", "DECISION", "UNKNOWN"), "other"),
}


def content(span: Span, kind: Kind | None) -> Content:
    attributes = span.attributes
    read = Content(tools=_tools(attributes))
    given, came = attributes.get("input.value"), attributes.get("output.value")
    if kind == "tool":
        asked = first(attributes, "input.value", "tool_call.function.arguments", "tool.parameters")
        read.arguments = None if asked is None else message_shapes.arguments(asked)
        read.result = came
    elif kind == "retrieval":
        read.arguments = None if given is None else {"query": message_shapes.as_text(given)}
        documents = as_list(unflatten(attributes, "retrieval.documents"))
        read.result = [row.get("document", row) if isinstance(row, Mapping) else row for row in documents] or came
    elif kind in ("assistant", "agent"):
        read.input = _messages(attributes, "llm.input_messages")
        read.output = output(attributes, kind)
        read.sampling = sampling(params=settings(structured(attributes.get("llm.invocation_parameters"))))
        if not read.input and isinstance(given, str):
            read.input = [Message("user", given)]
    return read


def output(attributes: Mapping[str, Any], kind: Kind | None) -> list[Message]:
    """Return the answers of the model or the agent."""
    if kind not in ("assistant", "agent"):
        return []
    said, came = _messages(attributes, "llm.output_messages"), attributes.get("output.value")
    return said or ([Message("assistant", came)] if isinstance(came, str) else [])


def _messages(attributes: Mapping[str, Any], prefix: str) -> list[Message]:
    messages = []
    for row in as_list(unflatten(attributes, prefix)):
        body = row.get("message") if isinstance(row, Mapping) else None
        if not isinstance(body, Mapping):
            continue
        parts = [part.get("message_content", part) for part in as_list(body.get("contents")) if isinstance(part, dict)]
        calls = [call.get("tool_call", call) for call in as_list(body.get("tool_calls")) if isinstance(call, dict)]
        fallback = "assistant" if prefix == "llm.output_messages" else "user"
        messages.append(
            message_shapes.openai_message(
                {
                    **body,
                    "role": body.get("role") or fallback,
                    "content": body.get("content") or parts or None,
                    "tool_calls": calls,
                }
            )
        )
    return messages


def schemas(attributes: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The JSON texts of tool definitions; None when there are none."""
    if _FIRST_TOOL not in attributes:
        return None
    found: list[str] = []
    while isinstance(given := attributes.get(f"llm.tools.{len(found)}.tool.json_schema"), str):
        found.append(given)
    return tuple(found) or None


_FIRST_TOOL = "llm.tools.0.tool.json_schema"


def _tools(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    if _FIRST_TOOL not in attributes:
        return []
    rows = as_list(unflatten(attributes, "llm.tools"))
    schemas = [
        row["tool"].get("json_schema") for row in rows if isinstance(row, dict) and isinstance(row.get("tool"), dict)
    ]
    return message_shapes.tool_definitions(schemas)
