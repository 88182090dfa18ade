"""The meaning of spans, whichever telemetry dialect they are written in.

`facts` is read of every span that arrives, so it only looks attributes up, by the span's plan. `content` reads
messages, arguments and results, when somebody looks. Where dialects overlap in one span, the more specific one counts:
OpenInference before the GenAI conventions before what single libraries write.
"""

import functools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import orjson

from flywheel.core.traces import Kind, Message
from flywheel.trajectories.formats.dialects import dialect_registry, genai, logfire, openinference, payloads
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.otlp.spans import Content, Facts, Span, first, word
from flywheel.trajectories.formats.semantics import attribute_plans
from flywheel.trajectories.formats.semantics.attribute_plans import Plan
from flywheel.trajectories.formats.values.hostile_json import cost, count, structured


def facts(span: Span, plan: Plan | None = None) -> Facts:
    """Return the facts of a span; `plan`, where the caller has it already, is that of its attributes."""
    if span.events and (whole := _whole(span)) is not span:
        span, plan = whole, None
    attributes = span.attributes
    if plan is None:
        plan = attribute_plans.of(attributes)
    dialect = _dialect(span, plan)
    facts = Facts(_kind(span, dialect, plan))
    for name, key, others in plan.words:
        value = attributes[key]
        if others and (value is None or value == ""):
            value = first(attributes, *others)
        if isinstance(value, str) and value:
            setattr(facts, name, value if value[0] != '"' else payloads.word(value))
    if facts.kind == "assistant" or (plan.has_operation and attributes["gen_ai.operation.name"] == "embeddings"):
        # An agent's own span often repeats the sum over its model calls; counting both would count twice.
        for name, key, others in plan.counts:
            value = attributes[key]
            if others and (value is None or value == ""):
                value = first(attributes, *others)
            setattr(facts, name, count(value))
        if plan.cost:
            facts.cost_usd = cost(first(attributes, *plan.cost))
    if facts.kind == "assistant" or facts.kind == "agent":
        facts.finish_reason = _finish(first(attributes, *plan.finish_reason)) or genai.finish_reason(span)
        facts.speaks = plan.speaks or bool(span.events)
    if plan.tags and isinstance(tags := first(attributes, *plan.tags), list):
        facts.tags = [tag for tag in tags if isinstance(tag, str)]
    if plan.metadata_objects and isinstance(said := structured(first(attributes, *plan.metadata_objects)), dict):
        facts.metadata = dict(said)
    for key, name in plan.metadata:
        facts.metadata[name] = payloads.decoded(attributes[key])
    if dialect is not None:
        dialect.facts(span, facts)
    deployed = word(span.resource, "deployment.environment.name", "deployment.environment")
    facts.environment = deployed or facts.environment
    return facts


def content(span: Span, kind: Kind | None) -> Content:
    """The messages, arguments and results of a span of this kind. Total: whatever the attributes hold."""
    span = _whole(span)
    read = genai.content(span, kind)
    if "openinference.span.kind" in span.attributes:
        preferred = openinference.content(span, kind)
        preferred.fill(read)
        read = preferred
    if (dialect := _dialect(span, attribute_plans.of(span.attributes))) is not None:
        dialect.content(span, kind, read)
    return read


def input(span: Span, kind: Kind | None) -> list[Message]:
    """Return the messages given to a model call."""
    return content(span, kind).input


def output(span: Span, kind: Kind | None) -> list[Message]:
    """Return the answers, without reading the input."""
    span = _whole(span)
    attributes = span.attributes
    said: list[Message] = []
    if "openinference.span.kind" in attributes:
        said = openinference.output(attributes, kind)
    dialect = _dialect(span, attribute_plans.of(attributes))
    if dialect is None:
        return said or genai.answers(span)
    outputs = {key: value for key, value in attributes.items() if not key.startswith(_INPUTS)}
    read = Content(output=said or genai.answers(span))
    dialect.content(Span("", "", span.parent_id, attributes=outputs, events=span.events, scope=span.scope), kind, read)
    return read.output


_INPUTS = (
    "gen_ai.input.messages",
    "gen_ai.prompt.",
    "gen_ai.tool.definitions",
    "llm.input_messages.",
    "llm.tools.",
    *dialect_registry.INPUTS,
)


def user_messages(span: Span, kind: Kind | None) -> Iterable[Message]:
    """Return the users' messages of `input`, read only as far as somebody looks."""
    if _is_current(span, attribute_plans.of(span.attributes)):
        listed = structured(span.attributes.get("gen_ai.input.messages"))
        if isinstance(listed, list):
            return (message for item in listed for message in message_shapes.parts_messages(item))
    return input(span, kind)


def calls(span: Span, plan: Plan) -> set[str] | None:
    """Names of the tools that a model asked for; None where only all of `output` tells them.

    Of most answers this is all that is read when they arrive, so the messages themselves are not made.
    """
    if not _is_current(span, plan):
        return None
    came = span.attributes.get("gen_ai.output.messages")
    if came is None:
        return set()
    if not isinstance(came, str) or "\\u0000" in came:
        return None
    try:
        messages = orjson.loads(came)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(messages, list):
        return None
    names: set[str] = set()
    for message in messages:
        parts = message.get("parts") if isinstance(message, dict) else None
        if not isinstance(parts, list):
            return None
        for part in parts:
            if (name := _called(part)) is None:
                return None
            names.add(name)
    return names - {""}


def _called(part: Any) -> str | None:
    """The tool that a part of a message calls, empty for none; None when a closer look is needed."""
    if not isinstance(part, dict):
        return None
    kind, said = part.get("type"), part.get("content")
    if kind == "tool_call":
        name = part.get("name")
        return name if isinstance(name, str) and "function" not in part else None
    if kind == "text" and isinstance(said, str) and "text" not in part:
        return None if said.lstrip().startswith(WRITTEN_CALL) else ""
    return "" if kind == "reasoning" else None


WRITTEN_CALL = '{"tool"'
"""How a call begins that is written as text."""


def _is_current(span: Span, plan: Plan) -> bool:
    """Whether messages can stand nowhere but in the attributes of the current GenAI conventions."""
    return plan.is_current and not span.events and dialect_registry.of_scope(span.scope) is None


def tools(span: Span, plan: Plan | None = None) -> list[dict[str, Any]]:
    """The tool definitions that the span gives; not to be changed, since equal ones are read once."""
    attributes = span.attributes
    if plan is None:
        plan = attribute_plans.of(attributes)
    if not plan.has_tools:
        return []
    given = attributes.get("gen_ai.tool.definitions") or attributes.get("gen_ai.request.tools")
    if isinstance(given, str):
        return message_shapes.same_definitions(given)
    if given:
        return content(span, None).tools
    if (flat := openinference.schemas(attributes) or genai.functions(attributes)) is not None:
        return _flat(flat)
    dialect = _dialect(span, plan)
    return dialect.tools(span) if dialect is not None else []


@functools.lru_cache(maxsize=256)
def _flat(given: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Return tool definitions from JSON texts, or from names, descriptions and parameters."""
    return message_shapes.tool_definitions(
        [
            item if isinstance(item, str) else dict(zip(("name", "description", "parameters"), item, strict=True))
            for item in given
        ]
    )


def _whole(span: Span) -> Span:
    """The span with the attributes that came in an event of its own."""
    for event in span.events:
        if event.name == genai.DETAILS:
            return replace(span, attributes={**event.attributes, **span.attributes})
    return span


def _dialect(span: Span, plan: Plan) -> dialect_registry.Dialect | None:
    return plan.dialect or dialect_registry.of_scope(span.scope)


def _kind(span: Span, dialect: dialect_registry.Dialect | None, plan: Plan) -> Kind | None:
    """Return the kind of a span; None for one that is not an agent's, such as an HTTP request."""
    if plan.is_openinference and (named := span.attributes["openinference.span.kind"]) is not None:
        return openinference.KINDS.get(str(named).upper())
    if dialect is None:
        return genai.kind(span)
    if logfire.is_placeholder(span):
        return None
    return genai.kind(span) or dialect.kind(span)


def _finish(value: Any) -> str:
    """Finish reasons come as a list, as JSON of one, or as one word."""
    value = structured(value)
    if isinstance(value, list):
        value = next(iter(value), None)
    return value if isinstance(value, str) else ""
