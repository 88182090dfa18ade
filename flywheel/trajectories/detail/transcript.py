"""A trajectory as a conversation: turns, a window of steps at a time, so that one of any length opens at once.

`templates/trajectories/_conversation.html` shows turns, on every page that shows a trajectory.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from flywheel.core import traces
from flywheel.core.traces import Conversation, Message
from flywheel.core.traces.tooling import parse_call
from flywheel.edge.prepared_queries import PreparedQuery
from flywheel.system.sql import bound
from flywheel.trajectories.detail.call_runs import fold
from flywheel.trajectories.detail.outline import label
from flywheel.trajectories.detail.turns import Turn
from flywheel.trajectories.models import Feedback, Step, Trajectory
from flywheel.trajectories.store.stored_traces import complete, step_of

WINDOW = 200
"""Steps in one window of the review desk."""
SCREEN = 40
"""Steps in one window of the trajectory's own page, which loads the next as one scrolls."""
FIRST = 4
"""Steps at the beginning, which are read with every window: they hold the prompts that later calls repeat."""
FEEDBACK_SHOWN = 100
REPEATED = 200
"""Characters from which on a message that was shown before is one line. A system prompt always is."""


def conversation_of(trajectory: Trajectory, start: int = 0, limit: int = WINDOW) -> list[Turn]:
    """The turns of the steps from position `start` on, each message once however often history was repeated."""
    rows = _completed(trajectory, _WINDOW(trajectory.pk, start, start + limit))
    asks = any(row.kind == "assistant" for row in rows) or trajectory.steps.filter(kind="assistant").exists()
    reader = _Reader(trajectory, has_model_calls=asks, twice=_told_twice(trajectory, rows))
    for row in _before(trajectory, start):
        reader.read(row)
    turns = [turn for row in rows for turn in reader.read(row)]
    fold(turns)
    if start + limit >= trajectory.step_count:
        turns += _interventions(trajectory, "", -1)
    return turns


def turn_of(trajectory: Trajectory, position: int, index: int, *, own: bool = False) -> Turn | None:
    """One turn of the step at a position; with `own` of its `own_turns`."""
    if own:
        row = trajectory.steps.filter(position=position).first()
        turns = own_turns(trajectory, row) if row else []
    else:
        turns = [turn for turn in conversation_of(trajectory, position, 1) if turn.position == position]
    found = next((turn for turn in turns if turn.index == index), None)
    if found is not None:
        found.opens, found.closes = None, False
    return found


def own_turns(trajectory: Trajectory, row: Step) -> list[Turn]:
    """Return a step's turns without its input: what it wrote and called, or what it was called with and answered."""
    complete([row], [trajectory])
    step = step_of(row)
    step.input = []
    turns = _Reader(trajectory, has_model_calls=False, twice=()).own(row, step)
    for index, turn in enumerate(turns):
        turn.index, turn.is_whole = index, True
    return turns


_FEEDBACK = PreparedQuery(
    lambda project, trace_id, current: Feedback.objects.filter(
        project=project, trace_id=trace_id, current=current
    ).order_by("-at", "-id")[:FEEDBACK_SHOWN]
)


def feedback_of(trajectory: Trajectory, *, current: bool = True) -> list[Feedback]:
    """Return the current feedback, or the earlier feedback of the same givers, newest first."""
    return _FEEDBACK(trajectory.project_id, trajectory.trace_id, current) if trajectory.feedback_count else []


def window_at(trajectory: Trajectory, span_id: str) -> int | None:
    """Where the window begins that holds this step; None when there is no such step."""
    position = trajectory.steps.filter(span_id=span_id).values_list("position", flat=True).first()
    return None if position is None else position // WINDOW * WINDOW


class _Reader:
    """Reads steps in order and answers the turns that each brings."""

    def __init__(self, trajectory: Trajectory, *, has_model_calls: bool, twice: Collection[str]) -> None:
        self.trajectory = trajectory
        self.has_model_calls = has_model_calls
        self.twice = twice
        """Model calls above a model call that tells of the same."""
        self.talk = Conversation()
        self.asked: dict[str, str] = {}
        """Calls that were shown: id → tool."""
        self.unanswered: Counter[str] = Counter()
        """Calls that were shown and whose tool has not run yet, by tool."""
        self.shown: dict[str, Turn] = {}
        """Texts that were shown, with the turn that did."""

    def read(self, row: Step) -> list[Turn]:
        repeats = (row.kind == "agent" and self.has_model_calls) or row.span_id in self.twice
        turns = [] if repeats else self.own(row, step_of(row))  # it only repeats what its model calls say
        if row.status == "error" and not any(turn.step for turn in turns):
            name = label(row.kind, row.name, row.tool_name)
            turns.append(self._turn(row, "error", text=row.error, name=name, step=row))
        turns += _interventions(self.trajectory, row.span_id, row.position)
        for index, turn in enumerate(turns):
            turn.index = index
            self._compare(turn)
        return turns

    def _compare(self, turn: Turn) -> None:
        """Note who said this before."""
        said = turn.kind in ("user", "assistant", "observation") and not turn.reasoning and len(turn.text) >= REPEATED
        if said or (turn.kind == "system" and turn.text):
            before = self.shown.setdefault(turn.text, turn)
            turn.same_as = None if before is turn else before

    def own(self, row: Step, step: traces.Step) -> list[Turn]:
        """Return the turns that a step adds to the conversation."""
        if row.kind == "retrieval":
            result = self._turn(row, "observation", text=_text(step.result), name=row.name, step=row)
            return [self._call(row, step), result]
        added = self.talk.add(step)
        own = len(step.output) or int(row.kind == "tool" and bool(added))
        given, answered = added[: len(added) - own], added[len(added) - own :]
        turns = [turn for message in given for turn in self._message(row, message)]
        answers = [turn for message in answered for turn in self._message(row, message)]
        if row.kind == "tool":
            answers = self._executed(row, step, answers)
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

    def _executed(self, row: Step, step: traces.Step, turns: list[Turn]) -> list[Turn]:
        """The execution of a tool; the call is shown too when no model was seen to ask for it."""
        for turn in turns:
            turn.name = turn.name or row.tool_name
        if (row.tool_call_id and row.tool_call_id in self.asked) or self.unanswered[row.tool_name] > 0:
            self.unanswered[row.tool_name] -= 1
            return turns
        return [self._call(row, step), *turns]

    def _call(self, row: Step, step: traces.Step) -> Turn:
        return self._turn(row, "call", name=step.tool_name or row.name, arguments=step.arguments)

    def _turn(self, row: Step, kind: str, **fields: Any) -> Turn:
        return Turn(kind, self.trajectory.trace_id, row.span_id, row.position, **fields)


def _interventions(trajectory: Trajectory, span_id: str, position: int) -> list[Turn]:
    return [
        Turn("intervention", trajectory.trace_id, span_id, position, item["note"], item["kind"], item["by"])
        for item in trajectory.interventions
        if item["step"] == span_id
    ]


def _completed(trajectory: Trajectory, rows: list[Step]) -> list[Step]:
    for row in rows:
        row.trajectory = trajectory
    complete(rows, [trajectory])
    return rows


_WINDOW = PreparedQuery(
    lambda trajectory, start, end: Step.objects.filter(
        trajectory=trajectory, position__gte=start, position__lt=end
    ).order_by("position")
)


def _before(trajectory: Trajectory, start: int) -> list[Step]:
    """Return the steps that a window's calls repeat: the first few, the last model call before it, what followed it."""
    if not start:
        return []
    last = _LAST.first(trajectory.pk, start)
    since = max(0, start - WINDOW, last.position if last else 0)
    # Each place by its number: of a range PostgreSQL thinks that half of the trajectory lies in it, and calls workers.
    # Not a standing question: planned for any trajectory, it is planned for a short one.
    places = {*range(min(FIRST, start)), *range(since, start)}
    rows = Step.objects.filter(trajectory=trajectory, position__in=sorted(places)).order_by("position")
    return _completed(trajectory, list(rows))


_LAST = PreparedQuery(
    lambda trajectory, end: (
        Step.objects.filter(trajectory=trajectory, position__lt=end, kind="assistant")
        .order_by("-position")
        .only("position")[:1]
    )
)


def _told_twice(trajectory: Trajectory, rows: Sequence[Step]) -> set[str]:
    """As `core.traces.told_twice`, of the model calls in this window; the inner one begins soon after."""
    calls = [row.span_id for row in rows if row.kind == "assistant"]
    if not calls:
        return set()
    until = rows[-1].position + WINDOW
    return {parent for (parent,) in bound(_ASKED_BY, [trajectory.pk, rows[0].position, until, calls])}


_ASKED_BY = """
SELECT DISTINCT parent_id FROM trajectories_step
WHERE trajectory_id = %s AND position >= %s AND position < %s AND kind = 'assistant' AND parent_id = ANY(%s)
"""


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Iterable):
        return "\n".join(str(item.get("content", item) if isinstance(item, dict) else item) for item in value)
    return "" if value is None else str(value)
