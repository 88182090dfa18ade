"""Pydantic's Logfire and PydanticAI, where they do not speak the GenAI conventions.

PydanticAI's spans named `agent run` repeat usage and all messages of the model calls below them. Logfire's span of a
streamed call ends before the answer is there; what came follows in a second span, `logfire.span_type` `log`.
https://ai.pydantic.dev/logfire/
"""

import functools
from collections.abc import Mapping
from typing import Any

from flywheel.core.traces import Kind, Message
from flywheel.trajectories.formats.dialects import genai, payloads
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.messages.sampling import sampling, settings
from flywheel.trajectories.formats.otlp.spans import Content, Event, Facts, Span, word
from flywheel.trajectories.formats.values.hostile_json import as_dict, as_list, count, structured

MARKS: tuple[str, ...] = (
    "logfire.msg",
    "logfire.span_type",
    "model_request_parameters",
    "tool_arguments",
    "agent_name",
)
SCOPE = ""

KEYS: dict[str, tuple[str, ...]] = {}
METADATA: tuple[str, ...] = ()
INPUTS: tuple[str, ...] = ("model_request_parameters", "tool_arguments", "request_data")

_SCRUBBED = "[Scrubbed due to "
_AGENT_MARKS = ("pydantic_ai.all_messages", "all_messages_events", "final_result", "model_name")
_ANSWERS = ("response_data", "gen_ai.output.messages", "gen_ai.usage.input_tokens")


def is_placeholder(span: Span) -> bool:
    """Whether the span is a mere placeholder, whatever else it says: for an open span, or for a streamed call."""
    attributes = span.attributes
    if attributes.get("logfire.span_type") == "pending_span":
        return True
    return (
        span.scope.get("name") == "logfire.openai"
        and span.status != "error"
        and "request_data" in attributes
        and not any(key in attributes for key in _ANSWERS)
    )


def kind(span: Span) -> Kind | None:
    attributes = span.attributes
    if "agent_name" in attributes and any(key in attributes for key in _AGENT_MARKS):
        return "agent"
    if "gen_ai.tool.name" in attributes:
        return "tool"
    if "request_data" in attributes and "response_data" in attributes:
        return "assistant"
    return None


def facts(span: Span, facts: Facts) -> None:
    attributes = span.attributes
    if facts.kind == "agent":
        facts.agent = facts.agent or word(attributes, "agent_name")
        facts.model = facts.model or word(attributes, "model_name")
    elif facts.kind == "assistant":
        facts.finish_reason = facts.finish_reason or payloads.finish_reason(attributes.get("events"))
        if facts.tokens_cached is None and "response_data" in attributes:
            _usage(structured(attributes["response_data"]), facts)
        if facts.tokens_cached is None and "gen_ai.usage.raw" in attributes:
            _usage({"usage": structured(attributes["gen_ai.usage.raw"])}, facts)
    # Logfire takes the word session for a secret; one session of all that it scrubbed would be none.
    if facts.session_id.startswith(_SCRUBBED):
        facts.session_id = ""
    if isinstance(tags := attributes.get("logfire.tags"), list):
        facts.tags = facts.tags or [tag for tag in tags if isinstance(tag, str) and tag != "LLM"]


def _usage(answer: Any, facts: Facts) -> None:
    usage = as_dict(as_dict(answer).get("usage"))
    if facts.tokens_in is None and facts.tokens_out is None:
        facts.tokens_in = count(usage.get("prompt_tokens", usage.get("input_tokens")))
        facts.tokens_out = count(usage.get("completion_tokens", usage.get("output_tokens")))
    details = as_dict(usage.get("prompt_tokens_details", usage.get("input_tokens_details")))
    facts.tokens_cached = count(details.get("cached_tokens"))


def tools(span: Span) -> list[dict[str, Any]]:
    given = span.attributes.get("model_request_parameters")
    return _tools(given) if isinstance(given, str) else _SEEN.within(span.attributes.get("request_data"))


_SEEN = payloads.Definitions()


def content(span: Span, kind: Kind | None, read: Content) -> None:
    attributes = span.attributes
    if kind == "tool":
        if read.arguments is None and "tool_arguments" in attributes:
            read.arguments = message_shapes.arguments(attributes["tool_arguments"])
        if read.arguments is None and "arguments" in attributes:
            read.arguments = message_shapes.arguments(attributes["arguments"])
        read.result = payloads.decoded(attributes.get("tool_response")) if read.result is None else read.result
        return
    read.tools = read.tools or tools(span)
    if kind == "agent":
        _agent(attributes, read)
    elif kind == "assistant":
        said = _listed_messages(attributes.get("events"))
        request, answer = structured(attributes.get("request_data")), structured(attributes.get("response_data"))
        asks = as_dict(request).keys() & {"messages", "input"}
        read.input = read.input or said.input or (payloads.given(request) if asks else [])
        read.output = read.output or said.output or (payloads.answered(answer) if isinstance(answer, dict) else [])
        read.sampling = read.sampling or sampling(params=settings(request))


def _agent(attributes: Mapping[str, Any], read: Content) -> None:
    """An agent's run: everything that was said, of which the last is its answer."""
    system = [message for message in read.input if message.role == "system"]
    said = message_shapes.messages(attributes.get("pydantic_ai.all_messages"))
    said = said or _listed_messages(attributes.get("all_messages_events")).input
    if said and read.input == system:
        if not read.output and said[-1].role == "assistant":
            read.output = [said.pop()]
        read.input = [*system, *said]
    if not read.output and "final_result" in attributes:
        read.output = [Message("assistant", message_shapes.as_text(attributes["final_result"]))]


def _listed_messages(listed: Any) -> Content:
    """Messages as the events of the older conventions, in one attribute."""
    events = [
        Event(name, 0, {key: value for key, value in row.items() if key != "event.name"})
        for row in as_list(structured(listed))
        if isinstance(row, dict) and isinstance(name := row.get("event.name"), str)
    ]
    return genai.content(Span("", "", events=events), "assistant") if events else Content()


@functools.lru_cache(maxsize=256)
def _tools(given: str) -> list[dict[str, Any]]:
    listed = as_list(as_dict(structured(given)).get("function_tools"))
    return message_shapes.tool_definitions(
        [{**tool, "parameters": tool.get("parameters_json_schema")} for tool in listed if isinstance(tool, dict)]
    )
