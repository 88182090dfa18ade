"""Traceloop's OpenLLMetry: `traceloop.*` on the spans of its decorators and of its frameworks' instrumentation.

Its model calls speak the GenAI conventions. https://github.com/traceloop/openllmetry
"""

from typing import Any

from flywheel.core.traces import Kind
from flywheel.trajectories.formats.dialects import payloads
from flywheel.trajectories.formats.otlp.spans import Content, Facts, Span

MARKS: tuple[str, ...] = ("traceloop.span.kind", "traceloop.workflow.name")
SCOPE = ""

KEYS: dict[str, tuple[str, ...]] = {
    "session_id": ("traceloop.association.properties.session_id", "traceloop.association.properties.thread_id"),
    "user_id": ("traceloop.association.properties.user_id",),
}
METADATA: tuple[str, ...] = ("traceloop.association.properties.",)
INPUTS: tuple[str, ...] = ("traceloop.entity.input",)

KINDS: dict[str, Kind] = {"tool": "tool", "agent": "agent", "workflow": "agent"}


def kind(span: Span) -> Kind | None:
    named = span.attributes.get("traceloop.span.kind")
    return KINDS.get(named) if isinstance(named, str) else None


def facts(span: Span, facts: Facts) -> None:
    named = payloads.word(span.attributes.get("traceloop.entity.name"))
    if facts.kind == "tool":
        facts.tool_name = facts.tool_name or named
    elif facts.kind == "agent" and span.attributes.get("traceloop.span.kind") == "agent":
        facts.agent = facts.agent or named


def tools(span: Span) -> list[dict[str, Any]]:
    return []


def content(span: Span, kind: Kind | None, read: Content) -> None:
    asked, came = span.attributes.get("traceloop.entity.input"), span.attributes.get("traceloop.entity.output")
    if kind == "tool":
        if read.arguments is None:
            read.arguments = _inputs(asked)
        if read.result is None:
            read.result = _outputs(came)
    elif kind in ("agent", "assistant"):
        read.input = read.input or payloads.called(_inputs(asked))
        read.output = read.output or payloads.answered(_outputs(came))


def _inputs(value: Any) -> Any:
    """LangChain's callbacks write `{"inputs": …, "tags": …, "metadata": …}` around what a chain was given."""
    value = payloads.decoded(value)
    for key in ("inputs", "input_str"):
        if isinstance(value, dict) and key in value:
            value = payloads.decoded(value[key])
    return payloads.arguments(value)


def _outputs(value: Any) -> Any:
    value = payloads.decoded(value)
    if isinstance(value, dict) and value.keys() <= {"output", "outputs", "kwargs", "tags", "metadata"}:
        value = value.get("outputs", value.get("output"))
    return payloads.result(value)
