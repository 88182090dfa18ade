"""Messages into steps, one step a message: how every format that holds a plain conversation becomes a trajectory."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from flywheel.core.traces import Message, Outcome, Step, ToolCall
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.values.hostile_json import FormatError, Row, quote

ROLES = tuple(message_shapes.ROLES)


@dataclass(slots=True)
class Turn:
    """A message and what the source says of how it came about."""

    message: Message
    raw: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    finish_reason: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_cached: int | None = None
    cost_usd: float | None = None
    error: str = ""
    sampling: dict[str, Any] = field(default_factory=dict)


def steps_of(turns: Iterable[Turn], prefix: str = "m") -> list[Step]:
    """A step for each turn; a tool's result is told by the call that it answers."""
    calls: dict[str, ToolCall] = {}
    steps = []
    for index, turn in enumerate(turns):
        message = turn.message
        calls |= {call.id: call for call in message.tool_calls if call.id}
        step = Step(
            span_id=f"{prefix}{index}",
            kind=message.role,
            started_at=turn.started_at,
            ended_at=turn.ended_at,
            status="error" if turn.error else "unset",
            error=turn.error,
            model=turn.model,
            finish_reason=turn.finish_reason,
            tokens_in=turn.tokens_in,
            tokens_out=turn.tokens_out,
            tokens_cached=turn.tokens_cached,
            cost_usd=turn.cost_usd,
            sampling=turn.sampling,
            raw=turn.raw,
        )
        if message.role == "tool":
            call = calls.get(message.tool_call_id)
            step.name = step.tool_name = message.name or (call.name if call else "")
            step.tool_call_id = message.tool_call_id
            step.arguments = call.arguments if call else None
            step.result = message.content
        else:
            step.output = [message]
        steps.append(step)
    return steps


def read_turns(root: Row, key: str, role: str = "user") -> list[Turn]:
    """The messages under `key`: a list of chat messages, or a text that `role` said."""
    value = root.value.get(key)
    if isinstance(value, str):
        return [Turn(Message(message_shapes.ROLES[role], value), {"role": role, "content": value})]
    if isinstance(value, Mapping) and "messages" in value:
        return read_turns(root.row(key), "messages", role)
    return [Turn(read_message(row), row.value) for row in root.rows(key)]


def read_message(row: Row) -> Message:
    """A chat message. Raises FormatError, naming the field."""
    row.choice("role", ROLES)
    content = row.value.get("content")
    if content is not None and not isinstance(content, str | list):
        raise FormatError(f"{row.at('content')}: {quote(content)} is neither a string nor a list of parts")
    for call in row.rows("tool_calls"):
        function = call.value.get("function")
        if isinstance(function, str) and function:
            continue
        if not call.row("function").text("name") and not call.text("name"):
            raise FormatError(f"{call.at('function.name')}: missing, a string")
    return message_shapes.openai_message(row.value)


def outcome_of(value: Any, place: str) -> Outcome | None:
    """Return the outcome that a source states, in our own words. Raises FormatError."""
    if value in (None, ""):
        return None
    if value not in ("success", "failed"):
        raise FormatError(f"{place}: {quote(value)} is not one of success, failed")
    return "success" if value == "success" else "failed"


def of_reward(value: Any) -> Outcome | None:
    """A reward of at least 1 is success, of at most 0 failure; what lies between is not for us to say."""
    if isinstance(value, bool):
        return "success" if value else "failed"
    if not isinstance(value, int | float):
        return None
    return "success" if value >= 1 else "failed" if value <= 0 else None


GOOD = {"success", "pass", "passed", "true", "correct", "c", "yes", "good", "1", "1.0"}
BAD = {"failed", "fail", "failure", "false", "incorrect", "i", "no", "bad", "0", "0.0"}


def of_score(value: Any) -> Outcome | None:
    """As `of_reward`, also for the words that graders use."""
    if isinstance(value, str):
        word = value.strip().lower()
        return "success" if word in GOOD else "failed" if word in BAD else None
    return of_reward(value)


def agreed(values: Iterable[Any]) -> Outcome | None:
    """The outcome that all scores with an opinion share."""
    said = {outcome for value in values if (outcome := of_score(value))}
    return said.pop() if len(said) == 1 else None
