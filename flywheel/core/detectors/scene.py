"""What every detector works with: the context, the scene it looks at, quoting, and how tools are told apart."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flywheel.core.episodes import Call, Episode
from flywheel.core.traces import Trace

REPEATS = 3
"""The same call with the same answer: twice may be a check, three times brings nothing new."""
FRUITLESS = 5
"""As many answers in a row that are empty or errors, from one tool: the agent is not getting anywhere."""
AT_MOST = 3
"""Proposals of one detector for one trace; a reviewer needs the first few, not all."""
MANY = 500
"""Calls that are looked at; what goes wrong in a trace goes wrong before."""
LONG = 20_000
"""Characters of a message that patterns are matched against."""


@dataclass(frozen=True, slots=True)
class Context:
    """What is known beside the trace."""

    tools: Sequence[Mapping[str, Any]] = ()
    """The agent's tools; when empty, those that the trace brought."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """`deny`: names of tools that must not be called. `must_call`: true when every answer must be a tool call."""
    state: Any = None
    """What exists in the agent's world, as plain data; an object of lists for tools with `x-refers`."""
    expected: Mapping[str, Any] | None = None
    """`{"tool": name, "arguments": {…}}` when it is known what should have been called."""


@dataclass(frozen=True, slots=True)
class Proposal:
    detector: str
    bucket: str
    step: str
    """Span id of the step that shows it; empty for the whole trace."""
    score: float
    """How likely a reviewer agrees, in (0, 1]."""
    evidence: str
    """A plain-text sentence."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a detector looks at: the trace, its episode, and the context with the tools filled in."""

    trace: Trace
    episode: Episode
    context: Context


Found = tuple[str, float, str]
"""Step, score, evidence."""


@dataclass(frozen=True, slots=True)
class Detector:
    name: str
    description: str
    bucket: str
    run: Callable[[Scene], Iterator[Found]]


def said(value: Any, limit: int = 120) -> str:
    """Hostile text in quotes: one line, cut, without invisible, control and direction marks."""
    shown = value[: 4 * limit] if isinstance(value, str) else _shown(value)[: 4 * limit]
    shown = " ".join("".join(letter if letter.isprintable() else " " for letter in shown).split())
    return f"“{shown if len(shown) <= limit else shown[: limit - 1] + '…'}”"


def _shown(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return f"something of type {type(value).__name__} that cannot be shown"


def fingerprint(*values: Any) -> str:
    """Equal for equal data. Total, unlike a digest: agents write NaN and worse."""
    try:
        return json.dumps(values, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return f"unlike anything else: {id(values)}"


def called(call: Call) -> str:
    return said(call.name, 60)


def plain_name(name: str) -> str:
    """Instrumentation writes `functions.email.send`, `email_send` and `mcp__mail__email-send` for one tool."""
    last = name.removeprefix("functions.").rpartition("__")[2]
    return re.sub(r"\W", "_", last).lower()


def find(scene: Scene, call: Call) -> Mapping[str, Any] | None:
    wanted = plain_name(call.name)
    return next((tool for tool in scene.context.tools if plain_name(tool["name"]) == wanted), None)


def once(calls: Sequence[Call]) -> Iterator[Call]:
    """Each different call once, the first time; a call that repeats is the loop detector's."""
    seen: Counter[str] = Counter()
    for call in calls[:MANY]:
        key = fingerprint(call.name, call.arguments)
        if not seen[key]:
            yield call
        seen[key] += 1


MAKES = re.compile(r"(^|[._\W])(create|add|new|insert|register|upsert|put|make)([._\W]|$)", re.IGNORECASE)
SEARCH_WORDS = "search|find|lookup|look_up|query|retrieve|retrieval"
SEARCHES = re.compile(rf"(^|[._\W])({SEARCH_WORDS})", re.IGNORECASE)
LOOKS_UP = re.compile(rf"(^|[._\W])({SEARCH_WORDS}|list|get|read|fetch|browse|check|show|view)", re.IGNORECASE)


CUT = frozenset({"length", "max_tokens", "MAX_TOKENS", "max_output_tokens"})
