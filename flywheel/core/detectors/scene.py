"""Shared parts of the detectors: the context, the scene they look at, quoting, and how tools are told apart."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from flywheel.core.traces import Trace, fingerprint, tooling
from flywheel.core.traces.episodes import Call, Episode, every_text

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
    """Facts known beside the trace."""

    tools: Sequence[Mapping[str, Any]] = ()
    """The agent's tools; when empty, those that the trace brought."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """`deny`: names of tools that must not be called. `must_call`: true when every answer must be a tool call."""
    state: Any = None
    """What exists in the agent's world, as plain data; an object of lists for tools with `x-refers`."""
    expected: Mapping[str, Any] | None = None
    """`{"tool": name, "arguments": {…}}` when it is known what should have been called."""
    without: Collection[str] = ()
    """Names of detectors that are not asked."""


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


@dataclass(frozen=True)
class Scene:
    """The view that a detector gets: the trace, its episode, and the context with the tools filled in.

    What several detectors need, or few, is made when the first one asks.
    """

    trace: Trace
    episode: Episode
    context: Context

    @cached_property
    def keyed(self) -> list[tuple[bytes, Call]]:
        """The calls that are looked at, each with what is equal for calls with equal name and arguments."""
        return [(_key(call), call) for call in self.episode.calls[:MANY]]

    @cached_property
    def once(self) -> list[Call]:
        """Each different call once, the first time; a call that repeats is the loop detector's."""
        first: dict[bytes, Call] = {}
        for key, call in self.keyed:
            first.setdefault(key, call)
        return list(first.values())

    @cached_property
    def _state_and_replies(self) -> list[str]:
        """The state, and at each place of the conversation what was said there by others than the agent."""
        state = folded("\n".join(every_text([self.context.state])))
        return [state, *("" if each.role == "assistant" else folded(each.content) for each in self.episode.messages)]

    def was_told(self, value: str, at: int) -> bool:
        """Whether a value occurs in the state, or in what the agent had been told by then."""
        pattern = as_word(value)
        return any(pattern.search(text) for text in self._state_and_replies[: at + 1])

    @cached_property
    def tools(self) -> dict[str, Mapping[str, Any]]:
        """By plain name."""
        return {plain_name(tool["name"]): tool for tool in reversed(self.context.tools)}


def as_word(value: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(folded(value))}(?!\w)")


def folded(text: str) -> str:
    return " ".join(text.casefold().split())


Found = tuple[str, float, str]
"""Step, score, evidence."""


@dataclass(frozen=True, slots=True)
class Detector:
    name: str
    description: str
    bucket: str
    run: Callable[[Scene], Iterator[Found]]
    about: str
    """What it looks for, as a reviewer is told."""
    is_on: bool = True
    """In a project that says nothing of it: only what held on agents that it was not made by looking at."""


def quoted(value: Any, limit: int = 120) -> str:
    """Hostile text in quotes: one line, cut, without invisible, control and direction marks."""
    shown = value[: 4 * limit] if isinstance(value, str) else _shown(value)[: 4 * limit]
    shown = " ".join("".join(letter if letter.isprintable() else " " for letter in shown).split())
    return f"“{shown if len(shown) <= limit else shown[: limit - 1] + '…'}”"


def _shown(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return f"something of type {type(value).__name__} that cannot be shown"


def _key(call: Call) -> bytes:
    """Equal for equal calls. Total, unlike a digest: agents write NaN and worse."""
    try:
        return fingerprint((call.name, call.arguments))
    except (TypeError, ValueError, RecursionError):
        return b"unlike anything else: %d" % id(call)


def called(call: Call) -> str:
    return quoted(call.name, 60)


def plain_name(name: str) -> str:
    """Instrumentation writes `functions.email.send`, `email_send` and `mcp__mail__email-send` for one tool."""
    last = name.removeprefix("functions.").rpartition("__")[2]
    is_plain = last.isascii() and last.isidentifier()
    return (last if is_plain else re.sub(r"\W", "_", last)).lower()


def find(scene: Scene, call: Call) -> Mapping[str, Any] | None:
    return scene.tools.get(plain_name(call.name)) if scene.tools else None


ID = re.compile(r"(^|_)ids?$", re.IGNORECASE)
_OWN_ID = re.compile(r"(session|request|trace|span|correlation|idempotency|message_uuid|nonce|client)_?", re.IGNORECASE)
_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(\.[\w-]{1,63}){1,4}")


def made_up(scene: Scene, call: Call) -> Iterator[tuple[str, str, float]]:
    """Arguments that must come from somewhere and occur nowhere, and how sure it is that this is what went wrong.

    Surest where the call went through and changed something, and nobody says that this was right; least where it was
    refused: an agent may learn from that.
    """
    if not isinstance(call.arguments, dict):
        return
    tool = find(scene, call)
    marked = tooling.properties(tool) if tool else {}
    for name, value in call.arguments.items():
        if isinstance(value, bool) or not isinstance(value, str | int) or len(str(value).strip()) < 3:
            continue
        schema = marked.get(name, {})
        is_entity = bool(schema.get("x-entity") or schema.get("x-refers"))
        is_id = is_entity or (ID.search(name) and not _OWN_ID.match(name) and not MAKES.search(call.name))
        is_address = isinstance(value, str) and "@" in value and _EMAIL.fullmatch(value)
        if (is_id or is_address) and not scene.was_told(str(value), call.at):
            doubted = scene.trace.outcome != "success"
            yield name, str(value), _weight(call, doubted=doubted, address=not is_id, marked=is_entity)


def _weight(call: Call, *, doubted: bool, address: bool, marked: bool) -> float:
    if doubted and acts(call):
        return 0.9 if address else 0.92
    if call.observation and call.observation.failed:
        return 0.7 if address else 0.8
    return 0.8 if address else 0.9 if marked else 0.88


MAKES = re.compile(r"(^|[._\W])(create|add|new|insert|register|upsert|put|make)([._\W]|$)", re.IGNORECASE)
SEARCH_WORDS = "search|find|lookup|look_up|query|retrieve|retrieval"
SEARCHES = re.compile(rf"(^|[._\W])({SEARCH_WORDS})", re.IGNORECASE)
LOOKS_UP = re.compile(rf"(^|[._\W])({SEARCH_WORDS}|list|get|read|fetch|browse|check|show|view)", re.IGNORECASE)


def acts(call: Call) -> bool:
    """It went through, and it was not just a look."""
    return call.worked and not LOOKS_UP.search(call.name)


def is_put_right(scene: Scene, call: Call) -> bool:
    """A try or a look after which the agent acted, or called this tool again with success, on nothing made up."""
    if acts(call):
        return False
    later = [each for each in scene.episode.calls[:MANY] if each.at > call.at and each.worked]
    return any(not any(made_up(scene, each)) for each in later if acts(each) or each.name == call.name)


CUT = frozenset({"length", "max_tokens", "MAX_TOKENS", "max_output_tokens"})
