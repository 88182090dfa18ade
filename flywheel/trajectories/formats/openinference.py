"""OpenInference: `openinference.span.kind` and messages flattened into numbered attributes.

https://github.com/Arize-ai/openinference/tree/main/spec
"""

from collections.abc import Mapping
from typing import Any

from flywheel.core.traces import Kind, Message
from flywheel.trajectories.formats import shapes
from flywheel.trajectories.formats.reading import cost, count, structured
from flywheel.trajectories.formats.spans import Reading, Span, first, unflatten, word

KINDS: dict[str, Kind] = {
    "LLM": "assistant",
    "TOOL": "tool",
    "AGENT": "agent",
    "RETRIEVER": "retrieval",
    "CHAIN": "other",
    "EMBEDDING": "other",
    "RERANKER": "other",
    "GUARDRAIL": "other",
    "EVALUATOR": "other",
    "PROMPT": "other",
    "DECISION": "other",
    "UNKNOWN": "other",
}


def read(span: Span) -> Reading:
    attributes = span.attributes
    kind = KINDS.get(word(attributes, "openinference.span.kind").upper())
    reading = Reading(
        kind=kind,
        input=_messages(attributes, "llm.input_messages"),
        output=_messages(attributes, "llm.output_messages"),
        model=word(attributes, "llm.model_name"),
        finish_reason=word(attributes, "llm.finish_reason"),
        tokens_in=count(first(attributes, "llm.token_count.prompt")),
        tokens_out=count(first(attributes, "llm.token_count.completion")),
        tokens_cached=count(first(attributes, "llm.token_count.prompt_details.cache_read")),
        cost_usd=cost(first(attributes, "llm.cost.total")),
        tools=_tools(attributes),
        agent=word(attributes, "agent.name"),
        session_id=word(attributes, "session.id"),
        user_id=word(attributes, "user.id"),
        tags=[tag for tag in _listed(attributes.get("tag.tags")) if isinstance(tag, str)],
    )
    if isinstance(metadata := structured(attributes.get("metadata")), dict):
        reading.metadata = metadata
    given, came = attributes.get("input.value"), attributes.get("output.value")
    if kind == "tool":
        reading.tool_name = word(attributes, "tool.name")
        reading.tool_call_id = word(attributes, "tool_call.id", "tool.id")
        asked = first(attributes, "input.value", "tool_call.function.arguments", "tool.parameters")
        reading.arguments = None if asked is None else shapes.arguments(asked)
        reading.result = came
    elif kind == "retrieval":
        reading.arguments = None if given is None else {"query": shapes.as_text(given)}
        documents = _listed(unflatten(attributes, "retrieval.documents"))
        reading.result = [row.get("document", row) if isinstance(row, Mapping) else row for row in documents] or came
    elif kind in ("assistant", "agent"):
        if not reading.input and isinstance(given, str):
            reading.input = [Message("user", given)]
        if not reading.output and isinstance(came, str):
            reading.output = [Message("assistant", came)]
    return reading


def _messages(attributes: Mapping[str, Any], prefix: str) -> list[Message]:
    messages = []
    for row in _listed(unflatten(attributes, prefix)):
        body = row.get("message") if isinstance(row, Mapping) else None
        if not isinstance(body, Mapping):
            continue
        parts = [part.get("message_content", part) for part in _listed(body.get("contents")) if isinstance(part, dict)]
        calls = [call.get("tool_call", call) for call in _listed(body.get("tool_calls")) if isinstance(call, dict)]
        fallback = "assistant" if prefix == "llm.output_messages" else "user"
        messages.append(
            shapes.openai_message(
                {
                    **body,
                    "role": body.get("role") or fallback,
                    "content": body.get("content") or parts or None,
                    "tool_calls": calls,
                }
            )
        )
    return messages


def _tools(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = _listed(unflatten(attributes, "llm.tools"))
    schemas = [
        row["tool"].get("json_schema") for row in rows if isinstance(row, dict) and isinstance(row.get("tool"), dict)
    ]
    return shapes.tool_definitions(schemas)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
