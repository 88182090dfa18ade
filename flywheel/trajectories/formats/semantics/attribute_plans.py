"""Plans from the names of a span's attributes alone: which of them state which fact, and whose dialect it is.

An application writes thousands of spans with the same names, so what they mean is worked out once, and of each span
only the values are looked up that say something.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flywheel.trajectories.formats.dialects import dialect_registry
from flywheel.trajectories.formats.semantics import judgments
from flywheel.trajectories.formats.semantics.sent_attributes import keys_of

META = "flywheel.meta."
OUTCOME = "flywheel.outcome"

_KEYS: dict[str, tuple[str, ...]] = {
    "model": ("llm.model_name", "gen_ai.response.model", "gen_ai.request.model"),
    "finish_reason": (
        "llm.finish_reason",
        "gen_ai.response.finish_reasons",
        "gen_ai.response.finish_reason",
        "gen_ai.completion.0.finish_reason",
    ),
    "tokens_in": ("llm.token_count.prompt", "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    "tokens_out": ("llm.token_count.completion", "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
    "tokens_cached": (
        "llm.token_count.prompt_details.cache_read",
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read_input_tokens",
    ),
    "cost_usd": ("llm.cost.total", "gen_ai.usage.cost"),
    "tool_name": ("tool.name", "gen_ai.tool.name"),
    "tool_call_id": ("tool_call.id", "tool.id", "gen_ai.tool.call.id"),
    "agent": ("gen_ai.agent.name", "agent.name"),
    "version": ("gen_ai.agent.version",),
    "session_id": ("session.id", "langfuse.session.id", "gen_ai.conversation.id"),
    "user_id": ("user.id", "enduser.id", "langfuse.user.id"),
    "environment": ("deployment.environment.name", "deployment.environment", "langfuse.environment"),
    "tags": ("tag.tags",),
    "metadata": ("metadata",),
}
"""Which attributes say a fact, the one that counts first."""

_ALL_KEYS = {name: tuple(dict.fromkeys((*keys, *dialect_registry.keys(name)))) for name, keys in _KEYS.items()}
_KNOWN = frozenset(key for keys in _ALL_KEYS.values() for key in keys)
_PREFIXES = (META, *dialect_registry.PREFIXES)
_WORDS = ("model", "tool_name", "tool_call_id", "agent", "version", "session_id", "user_id", "environment")
_COUNTS = ("tokens_in", "tokens_out", "tokens_cached")

_SILENT = (
    "gen_ai.operation.", "gen_ai.provider.", "gen_ai.request.", "gen_ai.response.", "gen_ai.usage.", "server.",
    "openinference.span.kind", "llm.invocation_parameters", "llm.token_count.", "flywheel.",
)  # fmt: skip
"""Attributes that hold no messages. What is missing here costs time, nothing else."""
_TOOLS = (
    "gen_ai.tool.definitions",
    "gen_ai.request.tools",
    "llm.request.functions.",
    "llm.tools.",
    *dialect_registry.SCOPED_INPUTS,
)
_ERRORS = ("error.type", "error.message", "exception.message")

MOST, LONGEST = 256, 2048
"""How many plans are remembered, and of names with how many characters together: some names hold numbers."""

Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    words: tuple[tuple[str, str, Keys], ...]
    """Facts that are words, the attribute that says each, and those that say it where that one is empty."""
    counts: tuple[tuple[str, str, Keys], ...]
    """Facts that are counts of tokens."""
    cost: Keys
    finish_reason: Keys
    tags: Keys
    metadata_objects: Keys
    """Attributes that hold an object of metadata."""
    metadata: tuple[tuple[str, str], ...]
    """Attributes that are metadata, each with its name there."""
    speaks: bool
    """Whether some attribute may hold messages."""
    dialect: dialect_registry.Dialect | None
    is_openinference: bool
    has_operation: bool
    is_current: bool
    """Whether messages stand in the attributes of the current GenAI conventions or nowhere, unless in events."""
    has_tools: bool
    """Whether it may define tools, by any convention."""
    has_error: bool
    has_outcome: bool
    has_judgments: bool
    others: Keys
    """Attributes that state none of it: what the sender may want to filter by."""


def of(attributes: Mapping[str, Any]) -> Plan:
    """The plan for a span with attributes of these names, in this order."""
    keys = tuple(attributes)
    plan = _PLANS.get(keys)
    if plan is None:
        plan = _made(keys)
        if sum(map(len, keys)) <= LONGEST:
            if len(_PLANS) >= MOST:
                _PLANS.clear()
            _PLANS[keys] = plan
    return plan


_PLANS: dict[Keys, Plan] = {}


def _made(keys: Keys) -> Plan:
    names = frozenset(keys)
    said = {name: there for name, every in _ALL_KEYS.items() if (there := tuple(key for key in every if key in names))}
    dialect = dialect_registry.of(names)
    rest = [key for key in keys if key not in _KNOWN]
    metadata = [(key, _named(key)) for key in rest if key.startswith(_PREFIXES)]
    is_openinference = "openinference.span.kind" in names
    return Plan(
        words=tuple((name, said[name][0], said[name][1:]) for name in _WORDS if name in said),
        counts=tuple((name, said[name][0], said[name][1:]) for name in _COUNTS if name in said),
        cost=said.get("cost_usd", ()),
        finish_reason=said.get("finish_reason", ()),
        tags=said.get("tags", ()),
        metadata_objects=said.get("metadata", ()),
        metadata=tuple((key, name) for key, name in metadata if name),
        speaks=any(not key.startswith((*_PREFIXES, *_SILENT)) for key in rest),
        dialect=dialect,
        is_openinference=is_openinference,
        has_operation="gen_ai.operation.name" in names,
        is_current=dialect is None
        and not is_openinference
        and not any(key.startswith(("gen_ai.completion.", "gen_ai.prompt.")) for key in keys),
        has_tools=dialect is not None or any(key.startswith(_TOOLS) for key in keys),
        has_error=not names.isdisjoint(_ERRORS),
        has_outcome=OUTCOME in names,
        has_judgments=not names.isdisjoint(judgments.FLAT),
        others=keys_of(key for key in keys if not reads(key)),
    )


def _named(key: str) -> str:
    return key[len(META) :] if key.startswith(META) else dialect_registry.metadata(key)


def reads(key: str) -> bool:
    """Whether an attribute of this name is one of those that are read."""
    return key in _KNOWN or key.startswith((*_PREFIXES, "gen_ai.", "llm.", "openinference.", "input.", "output."))


def fact_of(key: str) -> str:
    """The fact that an attribute of this name says, such as `environment`; empty where it says none."""
    return next((name for name, keys in _ALL_KEYS.items() if key in keys), "")


def metadata_of(key: str) -> str:
    """The name in the metadata of what an attribute of this name says; empty where it is none."""
    return _named(key) if key.startswith(_PREFIXES) else ""
