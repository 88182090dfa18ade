"""MLflow's tracing exported by OTLP: `mlflow.*`, every value of which is JSON text.

https://mlflow.org/docs/latest/genai/tracing/
"""

from typing import Any

from flywheel.core.traces import Kind, Message
from flywheel.trajectories.formats.dialects import payloads
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.messages.sampling import sampling, settings
from flywheel.trajectories.formats.otlp.spans import Content, Facts, Span
from flywheel.trajectories.formats.values.hostile_json import as_dict, as_list, count, structured

MARKS: tuple[str, ...] = ("mlflow.spanType",)
SCOPE = "mlflow.tracing.provider"

KEYS: dict[str, tuple[str, ...]] = {
    "model": ("mlflow.llm.model", "mlflow.chat.model"),
    "session_id": ("mlflow.trace.session",),
    "user_id": ("mlflow.trace.user",),
}
METADATA: tuple[str, ...] = ("mlflow.traceTag.",)
INPUTS: tuple[str, ...] = ("mlflow.spanInputs", "mlflow.chat.tools")

KINDS: dict[str, Kind] = {
    "CHAT_MODEL": "assistant",
    "LLM": "assistant",
    "TOOL": "tool",
    "AGENT": "agent",
    "WORKFLOW": "agent",
    "RETRIEVER": "retrieval",
}

_CHUNK = "mlflow.chunk.item."


def kind(span: Span) -> Kind | None:
    return KINDS.get(payloads.word(span.attributes.get("mlflow.spanType")))


def facts(span: Span, facts: Facts) -> None:
    attributes = span.attributes
    if facts.kind == "assistant":
        usage = structured(attributes.get("mlflow.chat.tokenUsage"))
        if isinstance(usage, dict) and facts.tokens_in is None and facts.tokens_out is None:
            facts.tokens_in, facts.tokens_out = count(usage.get("input_tokens")), count(usage.get("output_tokens"))
            facts.tokens_cached = count(usage.get("cache_read_input_tokens"))
        facts.finish_reason = (
            _streamed_reason(span)
            or facts.finish_reason
            or payloads.finish_reason(attributes.get("mlflow.spanOutputs"))
        )
    elif facts.kind == "tool":
        facts.tool_name = facts.tool_name or span.name
    elif payloads.word(attributes.get("mlflow.spanType")) == "AGENT":
        facts.agent = facts.agent or span.name


def tools(span: Span) -> list[dict[str, Any]]:
    given = span.attributes.get("mlflow.chat.tools")
    return message_shapes.same_definitions(given) if isinstance(given, str) else []


def content(span: Span, kind: Kind | None, read: Content) -> None:
    asked, came = span.attributes.get("mlflow.spanInputs"), span.attributes.get("mlflow.spanOutputs")
    if kind in ("tool", "retrieval"):
        read.arguments = payloads.arguments(asked) if read.arguments is None else read.arguments
        read.result = payloads.decoded(came) if read.result is None else read.result
    elif kind in ("assistant", "agent"):
        read.tools, read.output = read.tools or tools(span), _streamed(span) or read.output
        request = payloads.take(read, kind, asked, came)
        read.sampling = read.sampling or sampling(params=settings(request))


def _streamed_reason(span: Span) -> str:
    """The last chunk that says why. `mlflow.spanOutputs` of a streamed answer says "stop" whatever happened."""
    chunks = [event.attributes.get("mlflow.chunk.value") for event in span.events if event.name.startswith(_CHUNK)]
    return next(filter(None, map(payloads.finish_reason, reversed(chunks))), "")


def _streamed(span: Span) -> list[Message]:
    """The answer put together from its chunks, since `mlflow.spanOutputs` of a streamed answer loses its tool calls."""
    said, thought = [], []
    calls: dict[int, dict[str, Any]] = {}
    for event in span.events:
        if not event.name.startswith(_CHUNK):
            continue
        delta = _delta(event.attributes.get("mlflow.chunk.value"))
        said.append(message_shapes.as_text(delta.get("content")))
        thought.append(message_shapes.as_text(delta.get("reasoning_content")))
        for part in as_list(delta.get("tool_calls")):
            _add(calls, part)
    if not calls:
        return []  # then the outputs are whole
    made = tuple(message_shapes.tool_call(calls[index]) for index in sorted(calls))
    return [Message("assistant", "".join(said), made, reasoning="".join(thought))]


def _delta(value: Any) -> dict[str, Any]:
    """Return the part that a chunk of a chat completion adds to its first choice."""
    choices = as_list(as_dict(structured(value)).get("choices"))
    return as_dict(as_dict(choices[0]).get("delta")) if choices else {}


def _add(calls: dict[int, dict[str, Any]], part: Any) -> None:
    if not isinstance(part, dict):
        return
    index = part.get("index")
    call = calls.setdefault(index if isinstance(index, int) else len(calls), {"id": "", "name": "", "arguments": ""})
    function = as_dict(part.get("function"))
    call["id"] = call["id"] or message_shapes.as_text(part.get("id"))
    call["name"] += message_shapes.as_text(function.get("name"))
    call["arguments"] += message_shapes.as_text(function.get("arguments"))
