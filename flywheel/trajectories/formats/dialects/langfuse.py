"""Langfuse's SDKs from version 3 on, which speak OpenTelemetry: `langfuse.*`.

https://langfuse.com/integrations/native/opentelemetry

Usage is told in buckets that exclude each other: `input` is without what was read from a cache, `output` without the
reasoning (langfuse.com/docs/observability/features/token-and-cost-tracking, "mutually exclusive buckets"). Only
OpenAI's own shape of usage, which has objects of details, includes them. Tokens in and out are all that came in or out.
"""

from collections.abc import Mapping
from typing import Any

from flywheel.core.traces import Kind
from flywheel.trajectories.formats.dialects import payloads
from flywheel.trajectories.formats.messages.sampling import sampling, settings
from flywheel.trajectories.formats.otlp.spans import Content, Facts, Span
from flywheel.trajectories.formats.values.hostile_json import cost, count, structured

MARKS: tuple[str, ...] = ("langfuse.observation.type", "langfuse.observation.input", "langfuse.observation.output")
SCOPE = ""

KEYS: dict[str, tuple[str, ...]] = {
    "model": ("langfuse.observation.model.name",),
    "version": ("langfuse.version", "langfuse.release"),
    "session_id": ("langfuse.session.id",),
    "user_id": ("langfuse.user.id",),
    "environment": ("langfuse.environment",),
    "tags": ("langfuse.trace.tags",),
}
METADATA: tuple[str, ...] = ("langfuse.trace.metadata.",)
INPUTS: tuple[str, ...] = ("langfuse.observation.input",)

KINDS: dict[str, Kind] = {"generation": "assistant", "tool": "tool", "agent": "agent", "retriever": "retrieval"}

_IN = ("input", "input_tokens", "prompt_tokens", "promptTokens")
_OUT = ("output", "output_tokens", "completion_tokens", "completionTokens")
_CACHED = ("input_cached_tokens", "input_cache_read", "cache_read_input_tokens")
_BESIDE_IN = ("cache_read_input_tokens", "cache_creation_input_tokens")
"""Buckets of what came in that are not called `input_…`."""


def kind(span: Span) -> Kind | None:
    named = span.attributes.get("langfuse.observation.type")
    return KINDS.get(named.lower()) if isinstance(named, str) else None


def facts(span: Span, facts: Facts) -> None:
    attributes = span.attributes
    if facts.kind == "assistant":
        usage = structured(attributes.get("langfuse.observation.usage_details"))
        if isinstance(usage, dict) and facts.tokens_in is None and facts.tokens_out is None:
            facts.tokens_in, facts.tokens_out, facts.tokens_cached = tokens_of(usage)
        costs = structured(attributes.get("langfuse.observation.cost_details"))
        if isinstance(costs, dict) and facts.cost_usd is None:
            facts.cost_usd = cost(costs.get("total"))
        facts.finish_reason = (
            facts.finish_reason
            or payloads.word(attributes.get("langfuse.observation.metadata.finish_reason"))
            or payloads.finish_reason(attributes.get("langfuse.observation.output"))
        )
    elif facts.kind == "tool":
        facts.tool_name = facts.tool_name or span.name
    elif facts.kind == "agent":
        facts.agent = facts.agent or span.name


def tools(span: Span) -> list[dict[str, Any]]:
    return _SEEN.within(span.attributes.get("langfuse.observation.input"))


_SEEN = payloads.Definitions()


def content(span: Span, kind: Kind | None, read: Content) -> None:
    attributes = span.attributes
    asked, came = attributes.get("langfuse.observation.input"), attributes.get("langfuse.observation.output")
    if kind in ("tool", "retrieval"):
        read.arguments = payloads.arguments(asked) if read.arguments is None else read.arguments
        read.result = payloads.decoded(came) if read.result is None else read.result
    elif kind in ("assistant", "agent"):
        payloads.take(read, kind, asked, came)
        params = structured(attributes.get("langfuse.observation.model.parameters"))
        read.sampling = read.sampling or sampling(params=settings(params))


def tokens_of(usage: Mapping[str, Any]) -> tuple[int | None, int | None, int | None]:
    """Tokens in, with those read from a cache and written to it; out, with the reasoning; and those read from a cache.

    None where the usage does not say.
    """
    came_in, out, cached = _first(usage, _IN), _first(usage, _OUT), _first(usage, _CACHED)
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    if isinstance(details, dict):
        return came_in, out, count(details.get("cached_tokens")) if cached is None else cached
    for key, value in usage.items():
        tokens = count(value) or 0
        if came_in is not None and key not in _IN and (key.startswith("input_") or key in _BESIDE_IN):
            came_in += tokens
        if out is not None and key not in _OUT and key.startswith("output_"):
            out += tokens
    return came_in, out, cached


def _first(row: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    return next((found for key in keys if (found := count(row.get(key))) is not None), None)
