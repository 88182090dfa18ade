"""LangSmith's SDK in its OpenTelemetry mode: `langsmith.*`, and a whole request and answer in `gen_ai.prompt` and
`gen_ai.completion`. https://docs.langchain.com/langsmith/trace-with-opentelemetry
"""

from typing import Any

from flywheel.core.traces import Kind
from flywheel.trajectories.formats.dialects import payloads
from flywheel.trajectories.formats.messages.sampling import sampling, settings
from flywheel.trajectories.formats.otlp.spans import Content, Facts, Span
from flywheel.trajectories.formats.values.hostile_json import count, structured

MARKS: tuple[str, ...] = ("langsmith.span.kind",)
SCOPE = ""

KEYS: dict[str, tuple[str, ...]] = {
    "model": ("langsmith.metadata.ls_model_name",),
    "agent": ("langsmith.metadata.lc_agent_name",),
    "session_id": (
        "langsmith.metadata.session_id",
        "langsmith.metadata.thread_id",
        "langsmith.metadata.conversation_id",
    ),
    "user_id": ("langsmith.metadata.user_id",),
}
METADATA: tuple[str, ...] = ("langsmith.metadata.",)
INPUTS: tuple[str, ...] = ("gen_ai.prompt",)

KINDS: dict[str, Kind] = {"llm": "assistant", "tool": "tool", "retriever": "retrieval"}


def kind(span: Span) -> Kind | None:
    """A run of type chain is an agent where nothing is around it, else a part of one."""
    named = span.attributes.get("langsmith.span.kind")
    if named == "chain" and not span.parent_id:
        return "agent"
    return KINDS.get(named) if isinstance(named, str) else None


def facts(span: Span, facts: Facts) -> None:
    attributes = span.attributes
    if facts.kind == "assistant" and facts.tokens_cached is None:
        usage = structured(attributes.get("langsmith.metadata.usage_metadata"))
        details = usage.get("input_token_details") if isinstance(usage, dict) else None
        facts.tokens_cached = count(details.get("cache_read")) if isinstance(details, dict) else None
    if isinstance(tags := attributes.get("langsmith.span.tags"), str):
        facts.tags = facts.tags or [tag.strip() for tag in tags.split(",") if tag.strip()]
    if facts.kind == "tool":
        facts.tool_name = facts.tool_name or span.name


def tools(span: Span) -> list[dict[str, Any]]:
    return _SEEN.within(span.attributes.get("gen_ai.prompt"))


_SEEN = payloads.Definitions()


def content(span: Span, kind: Kind | None, read: Content) -> None:
    asked, came = span.attributes.get("gen_ai.prompt"), span.attributes.get("gen_ai.completion")
    if kind in ("tool", "retrieval"):
        read.arguments = payloads.arguments(asked) if read.arguments is None else read.arguments
        read.result = payloads.result(came) if read.result is None else read.result
    elif kind in ("assistant", "agent"):
        request = payloads.take(read, kind, asked, came)
        read.sampling = read.sampling or sampling(params=settings(request))
