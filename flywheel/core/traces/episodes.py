"""A trace as detectors read it: what was said, in order, and each call with the observation that answers it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flywheel.core.traces import Conversation, Message, Step, Trace, speaking
from flywheel.core.traces.tooling import parse_call

SHORT = 300
"""An error message is short; a longer observation is content that may well talk about errors."""

_ERROR = re.compile(
    r"^\W{0,3}(error|exception|traceback|failed|failure|fatal|invalid|unauthori[sz]ed|forbidden|access denied|denied)\b"
    r"|\b(not found|not valid|is not a valid|does not exist|doesn't exist|not provided|not allowed|permission denied"
    r"|timed out|could not be found|internal server error|missing (required|\w+ (details|field|argument)s?))\b",
    re.IGNORECASE,
)
_NO_SUCH_TOOL = re.compile(
    r"is not a valid tool|unknown (tool|function)|no (such )?(tool|function) (named|called)|tool not found",
    re.IGNORECASE,
)
_EMPTY = re.compile(
    r"^(\s*|\[\s*\]|\{\s*\}|null|none|0 results?|no (\w+ ){0,3}(found|available|match(es)?|results?))[.!]?$",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Observation:
    step: str
    text: str
    failed: bool = False
    """It says that the call went wrong."""

    @property
    def no_such_tool(self) -> bool:
        """It says that there is no such tool, often with the long list of those that there are."""
        return not self.text.lstrip().startswith(("{", "[")) and _denies_tool(self.text)

    @property
    def empty(self) -> bool:
        """It says that nothing was found."""
        return len(self.text) < SHORT and bool(_EMPTY.match(self.text.strip()))


@dataclass(slots=True)
class Call:
    step: str
    name: str
    arguments: dict[str, Any] | str
    at: int
    """Its place in the conversation: what was said before has a lower index."""
    id: str = ""
    native: bool = True
    """False when it was read out of the agent's text."""
    observation: Observation | None = None

    @property
    def worked(self) -> bool:
        return self.observation is not None and not self.observation.failed


@dataclass(slots=True)
class Turn:
    """One message of the agent."""

    step: str
    text: str
    at: int
    calls: list[Call] = field(default_factory=list)
    finish_reason: str = ""


@dataclass(slots=True)
class Episode:
    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    """Every call in order, also those that only a tool execution tells of."""
    retrievals: list[Call] = field(default_factory=list)
    """Retrieval spans, as calls that they are."""

    @property
    def last(self) -> Turn | None:
        return self.turns[-1] if self.turns else None

    @property
    def closing(self) -> str:
        """The agent's last words, when it ended by saying something."""
        return self.last.text if self.last and not self.last.calls else ""


def read(trace: Trace) -> Episode:
    episode = Episode()
    talk = Conversation()
    waiting: list[Call] = []
    for step in speaking(trace.steps):
        start = len(talk.messages)
        added = talk.add(step)
        for offset, message in enumerate(added):
            if message.role == "assistant":
                turn = _turn(step, message, start + offset)
                episode.turns.append(turn)
                episode.calls += turn.calls
                waiting += turn.calls
            elif message.role == "tool":
                _answer(episode, waiting, step, message, start + offset)
        if step.kind == "tool" and not added:  # a later model call told of it before its own span came
            _mark(episode, step)
        if step.kind == "retrieval":
            episode.retrievals.append(_retrieval(step, len(talk.messages)))
    episode.messages = talk.messages
    return episode


def _turn(step: Step, message: Message, at: int) -> Turn:
    calls = [Call(step.span_id, call.name, call.arguments, at, call.id) for call in message.tool_calls]
    # Most messages are no call, which their first letter tells sooner than a JSON parser does.
    if not calls and message.content.lstrip()[:1] == "{" and (parsed := parse_call(message)).call is not None:
        calls = [Call(step.span_id, parsed.call.name, parsed.call.arguments, at, native=False)]
    return Turn(step.span_id, message.content, at, calls, step.finish_reason)


def _answer(episode: Episode, waiting: list[Call], step: Step, message: Message, at: int) -> None:
    observation = Observation(step.span_id, message.content, _failed(step, message.content))
    call = next((call for call in waiting if message.tool_call_id and call.id == message.tool_call_id), None)
    if call is None:
        name = message.name or step.tool_name
        call = next((call for call in waiting if not name or not call.name or call.name == name), None)
    if call is not None:
        waiting.remove(call)
    elif step.kind == "tool" and step.tool_name:
        call = Call(step.span_id, step.tool_name, _arguments(step), at, step.tool_call_id)
        episode.calls.append(call)
    else:
        return
    call.observation = observation


def _mark(episode: Episode, step: Step) -> None:
    for call in episode.calls:
        if call.id == step.tool_call_id and call.observation and step.status == "error":
            call.observation.failed = True


def _retrieval(step: Step, at: int) -> Call:
    found = step.result if step.result is not None else step.error
    text = "" if found in (None, [], {}) else str(found)
    observation = Observation(step.span_id, text, step.status == "error")
    return Call(step.span_id, step.name, _arguments(step), at, observation=observation)


def _arguments(step: Step) -> dict[str, Any] | str:
    return {} if step.arguments is None else step.arguments


def _failed(step: Step, text: str) -> bool:
    if step.kind == "tool" and (step.status == "error" or step.error):
        return True
    stripped = text.strip()
    if stripped[:1] in ("{", "["):
        return _says_error(stripped)
    return _denies_tool(text) or (len(stripped) < SHORT and bool(_ERROR.search(stripped)))


def _denies_tool(text: str) -> bool:
    head = text[:SHORT]
    return any(word in head.lower() for word in ("tool", "func")) and bool(_NO_SUCH_TOOL.search(head))


_JSON_ERROR = re.compile(r'\{\s*"(error|errors|error_message|exception)"\s*:\s*(?!null|false|\[\]|\{\}|"")')
_JSON_UNSUCCESSFUL = re.compile(
    r'^\{[^{}\[\]]{0,200}"(success|ok)"\s*:\s*false\b|"(status|isError)"\s*:\s*("error"|true)'
)
_STATES = ('"success"', '"ok"', '"status"', '"isError"')
"""What the pattern above needs: looked for first, since few observations hold any."""


def _says_error(text: str) -> bool:
    head = text[: 2 * SHORT]
    if _JSON_ERROR.match(head):
        return True
    return any(name in head for name in _STATES) and bool(_JSON_UNSUCCESSFUL.search(head))


def every_text(values: Iterable[Any]) -> Iterable[str]:
    """All strings and numbers inside plain data, keys too."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from every_text(value)
            yield from every_text(value.values())
        elif isinstance(value, list | tuple):
            yield from every_text(value)
        elif value is not None:
            yield str(value)
