"""A trajectory as a person reads it: turns of a conversation, and the list of steps with their times.

Both come a window of steps at a time, so that a trajectory of any length opens at once.
`templates/trajectories/_conversation.html` shows turns, on every page that shows a trajectory.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.core.tools import parse_call
from flywheel.core.traces import Conversation, Message
from flywheel.trajectories.load import step_of
from flywheel.trajectories.models import Step, Trajectory

WINDOW = 200
"""Steps in one window."""
DEPTHS = 6
"""Levels of indentation that the list shows."""


@dataclass(frozen=True, slots=True)
class Argument:
    name: str
    value: Any

    @property
    def is_block(self) -> bool:
        """Needs lines of its own."""
        return isinstance(self.value, dict | list) or (isinstance(self.value, str) and "\n" in self.value)


@dataclass(slots=True)
class Turn:
    """One message, call, observation or intervention."""

    kind: str
    """`system`, `user`, `assistant`, `call`, `observation`, `intervention`, `error`"""
    trace_id: str
    span_id: str
    text: str = ""
    name: str = ""
    """The tool's, or what the intervention was."""
    by: str = ""
    arguments: Any = None
    """Of a call: an object, or what the model wrote when that is none."""
    reasoning: str = ""
    step: Step | None = None
    """On the turn that stands for its step: with times, tokens, cost, finish reason, error."""

    @property
    def fields(self) -> list[Argument]:
        """Of a call, when its arguments are an object."""
        given = self.arguments if isinstance(self.arguments, dict) else {}
        return [Argument(name, value) for name, value in given.items()]

    @property
    def is_broken(self) -> bool:
        """A call whose arguments are no object."""
        return self.kind == "call" and isinstance(self.arguments, str)


@dataclass(slots=True)
class Line:
    """A step in the list, with its bar in the window's time."""

    step: Step
    label: str
    depth: int
    start: float
    length: float
    total: float


def conversation_of(trajectory: Trajectory, start: int = 0, limit: int = WINDOW) -> list[Turn]:
    """The turns of the steps from position `start` on, each message once however often history was repeated."""
    rows = _window(trajectory, start, limit)
    reader = _Reader(trajectory, has_model_calls=_has_model_calls(trajectory, rows))
    for row in _before(trajectory, start):
        reader.read(row)
    turns = [turn for row in rows for turn in reader.read(row)]
    if start + limit >= trajectory.step_count:
        turns += _interventions(trajectory, "")
    return turns


def lines_of(trajectory: Trajectory, start: int = 0, limit: int = WINDOW) -> list[Line]:
    """The steps from position `start` on, as the list beside the conversation shows them."""
    rows = _window(trajectory, start, limit)
    depths = _depths(trajectory, rows)
    starts = [row.started_at for row in rows if row.started_at]
    ends = [row.ended_at for row in rows if row.ended_at]
    origin = min(starts, default=None)
    total = (max(ends) - origin).total_seconds() * 1000 if origin and ends else 0.0
    return [
        Line(
            row,
            _label(row),
            depths[row.span_id],
            (row.started_at - origin).total_seconds() * 1000 if row.started_at and origin else 0.0,
            row.duration_ms or 0.0,
            total,
        )
        for row in rows
    ]


def window_at(trajectory: Trajectory, span_id: str) -> int | None:
    """Where the window begins that holds this step; None when there is no such step."""
    position = trajectory.steps.filter(span_id=span_id).values_list("position", flat=True).first()
    return None if position is None else position // WINDOW * WINDOW


class _Reader:
    """Reads steps in order and answers the turns that each brings."""

    def __init__(self, trajectory: Trajectory, *, has_model_calls: bool) -> None:
        self.trajectory = trajectory
        self.has_model_calls = has_model_calls
        self.talk = Conversation()
        self.asked: dict[str, str] = {}
        """Calls that were shown: id → tool."""
        self.unanswered: Counter[str] = Counter()
        """Calls that were shown and whose tool has not run yet, by tool."""

    def read(self, row: Step) -> list[Turn]:
        turns = self._said(row)
        if row.status == "error" and not any(turn.step for turn in turns):
            turns.append(self._turn(row, "error", text=row.error, name=_label(row), step=row))
        return turns + _interventions(self.trajectory, row.span_id)

    def _said(self, row: Step) -> list[Turn]:
        if row.kind == "agent" and self.has_model_calls:
            return []  # it only repeats what its model calls say
        if row.kind == "retrieval":
            return [self._call(row), self._turn(row, "observation", text=_text(row.result), name=row.name, step=row)]
        step = step_of(row)
        added = self.talk.add(step)
        own = len(step.output) or int(row.kind == "tool" and bool(added))
        given, answered = added[: len(added) - own], added[len(added) - own :]
        turns = [turn for message in given for turn in self._message(row, message)]
        answers = [turn for message in answered for turn in self._message(row, message)]
        if row.kind == "tool":
            answers = self._executed(row, answers)
        if answers:
            answers[-1 if row.kind == "tool" else 0].step = row
        return turns + answers

    def _message(self, row: Step, message: Message) -> list[Turn]:
        if message.role == "tool":
            name = message.name or self.asked.get(message.tool_call_id, "")
            return [self._turn(row, "observation", text=message.content, name=name)]
        if message.role == "assistant" and not message.tool_calls and message.content.lstrip().startswith("{"):
            written = parse_call(message).call
            if written is not None:
                self.unanswered[written.name] += 1
                fields = {"text": message.content, "reasoning": message.reasoning}
                return [self._turn(row, "call", name=written.name, arguments=written.arguments, **fields)]
        turns = []
        if message.content or message.reasoning or not message.tool_calls:
            turns.append(self._turn(row, message.role, text=message.content, reasoning=message.reasoning))
        for call in message.tool_calls:
            self.asked[call.id] = call.name
            self.unanswered[call.name] += 1
            turns.append(self._turn(row, "call", name=call.name, arguments=call.arguments))
        return turns

    def _executed(self, row: Step, turns: list[Turn]) -> list[Turn]:
        """The execution of a tool; the call is shown too when no model was seen to ask for it."""
        for turn in turns:
            turn.name = turn.name or row.tool_name
        if (row.tool_call_id and row.tool_call_id in self.asked) or self.unanswered[row.tool_name] > 0:
            self.unanswered[row.tool_name] -= 1
            return turns
        return [self._call(row), *turns]

    def _call(self, row: Step) -> Turn:
        return self._turn(row, "call", name=row.tool_name or row.name, arguments=row.arguments)

    def _turn(self, row: Step, kind: str, **fields: Any) -> Turn:
        return Turn(kind, self.trajectory.trace_id, row.span_id, **fields)


def _interventions(trajectory: Trajectory, span_id: str) -> list[Turn]:
    return [
        Turn("intervention", trajectory.trace_id, span_id, text=item["note"], name=item["kind"], by=item["by"])
        for item in trajectory.interventions
        if item["step"] == span_id
    ]


def _window(trajectory: Trajectory, start: int, limit: int) -> list[Step]:
    rows = trajectory.steps.defer("raw").filter(position__gte=start, position__lt=start + limit)
    return list(rows.order_by("position"))


def _before(trajectory: Trajectory, start: int) -> list[Step]:
    """What a window's model calls repeat as history: the last model call before it, and what followed."""
    if not start:
        return []
    earlier = trajectory.steps.filter(position__lt=start).order_by("-position")
    last = earlier.filter(kind="assistant").exclude(input=[]).values_list("position", flat=True)[:1].first()
    since = start - WINDOW if last is None else max(last, start - WINDOW)
    return list(earlier.defer("raw").filter(position__gte=since).order_by("position"))


def _has_model_calls(trajectory: Trajectory, rows: Sequence[Step]) -> bool:
    return any(row.kind == "assistant" for row in rows) or trajectory.steps.filter(kind="assistant").exists()


def _depths(trajectory: Trajectory, rows: Sequence[Step]) -> dict[str, int]:
    """How deep each step lies, as far as the list shows it; parents outside the window are looked up level by level."""
    parents = {row.span_id: row.parent_id for row in rows}
    for _ in range(DEPTHS):
        missing = {parent for parent in parents.values() if parent and parent not in parents}
        if not missing:
            break
        found = dict(trajectory.steps.filter(span_id__in=missing).values_list("span_id", "parent_id"))
        parents |= {parent: found.get(parent, "") for parent in missing}
    depths = {}
    for row in rows:
        depth, parent = 0, row.parent_id
        while parent and parent in parents and depth < DEPTHS - 1:
            depth, parent = depth + 1, parents[parent]
        depths[row.span_id] = depth
    return depths


def _label(row: Step) -> str:
    """What the step is called in the list."""
    if row.kind == "tool":
        return row.tool_name or row.name or "tool"
    return row.name or {"assistant": "answer", "system": "system prompt"}.get(row.kind, row.kind)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Iterable):
        return "\n".join(str(item.get("content", item) if isinstance(item, dict) else item) for item in value)
    return "" if value is None else str(value)
