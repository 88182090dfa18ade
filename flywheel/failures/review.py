"""What a reviewer sees of one trajectory: the conversation with the failing step marked, and the agent's own call."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Q

from flywheel.core import episodes
from flywheel.core.traces import Conversation, Message, Trace, speaking
from flywheel.core.traces import Step as CoreStep
from flywheel.failures.models import Failure, Proposal
from flywheel.trajectories.load import step_of
from flywheel.trajectories.models import Step, Trajectory

OPENING = 60
"""Steps shown from the beginning."""
NEAR = 30
"""Steps shown on either side of a step that somebody points at."""
LONG = 20_000
"""Characters of one message that are shown here; the trajectory's own page has all of them."""


@dataclass(slots=True)
class Turn:
    """One message or call, as the page shows it."""

    kind: str
    """`system`, `user`, `assistant`, `tool`, `observation` or `other`."""
    title: str
    text: str = ""
    data: Any = None
    """Arguments or a result, shown as JSON."""
    is_error: bool = False
    cut: int = 0
    """Characters that are left out."""


@dataclass(slots=True)
class Shown:
    """One step with what it adds to the conversation."""

    span_id: str
    position: int
    label: str
    turns: list[Turn]
    marks: list[str] = field(default_factory=list)
    """Buckets that detectors or the decision see in this step."""
    skipped: int = 0
    """Steps left out just before this one."""
    duration_ms: float | None = None


def marked_steps(failure: Failure | None, proposals: Iterable[Proposal]) -> dict[str, list[str]]:
    """Span id → buckets that somebody sees there: the decision's alone once there is one."""
    if failure is not None:
        return {failure.step: [failure.bucket]} if failure.step and failure.bucket else {}
    marks: dict[str, list[str]] = {}
    for proposal in proposals:
        if proposal.step and proposal.bucket not in marks.setdefault(proposal.step, []):
            marks[proposal.step].append(proposal.bucket)
    return marks


def conversation(trajectory: Trajectory, marks: Mapping[str, list[str]]) -> list[Shown]:
    """The steps that speak: all of a short trajectory; of a long one the opening and what lies around the marks."""
    rows = list(_window(trajectory, marks))
    by_span = {row.span_id: row for row in rows}
    talk = Conversation()
    asked: set[str] = set()
    shown: list[Shown] = []
    last = -1
    for step in speaking([step_of(row) for row in rows]):
        row = by_span[step.span_id]
        turns = _turns(step, talk.add(step), asked)
        if not turns and step.span_id not in marks:
            continue
        shown.append(
            Shown(
                span_id=step.span_id,
                position=row.position,
                label=_label(row, turns),
                turns=turns or [Turn("other", step.kind, step.error or step.name)],
                marks=list(marks.get(step.span_id, [])),
                skipped=_skipped(rows, last, row.position),
                duration_ms=step.duration_ms,
            )
        )
        last = row.position
    return shown


def own_call(trajectory: Trajectory, step: str) -> dict[str, Any] | None:
    """What the agent did at the step, else what it did last: a call, or the text it wrote."""
    rows = trajectory.steps.defer("raw").order_by("position")
    wanted = rows.filter(span_id=step) if step else rows.none()
    for chosen in (list(wanted), list(rows.order_by("-position")[:NEAR])[::-1]):
        episode = episodes.read(Trace("", [step_of(row) for row in chosen]))
        if episode.calls:
            call = episode.calls[-1]
            if isinstance(call.arguments, str):
                return {"text": call.arguments}
            return {"tool": call.name, "arguments": call.arguments}
        if episode.last is not None:
            return {"text": episode.last.text[:LONG]}
    return None


def _window(trajectory: Trajectory, marks: Mapping[str, list[str]]) -> Iterable[Step]:
    steps = trajectory.steps.defer("raw").order_by("position")
    if trajectory.step_count <= OPENING + 2 * NEAR:
        return steps
    wanted = Q(position__lt=OPENING) | Q(position__gte=trajectory.step_count - NEAR)
    for position in steps.filter(span_id__in=list(marks)).values_list("position", flat=True)[:10]:
        wanted |= Q(position__range=(position - NEAR, position + NEAR))
    return steps.filter(wanted)


def _skipped(rows: list[Step], last: int, position: int) -> int:
    """Steps of the trajectory between two shown ones that were not even read."""
    read = sum(last < row.position < position for row in rows)
    return position - last - 1 - read


def _turns(step: CoreStep, added: list[Message], asked: set[str]) -> list[Turn]:
    """What the step adds. `asked` holds the calls shown so far, so that their execution does not show them again."""
    turns = [turn for message in added for turn in _of_message(message, step)]
    asked |= {call.id for message in added for call in message.tool_calls if call.id}
    if step.kind in ("tool", "retrieval") and step.arguments is not None and step.tool_call_id not in asked:
        turns.insert(0, Turn("tool", step.tool_name or step.name, data=step.arguments))
    if step.error and not any(turn.is_error for turn in turns):
        turns.append(Turn("other", "Error", step.error, is_error=True))
    return turns


def _of_message(message: Message, step: CoreStep) -> list[Turn]:
    failed = step.status == "error"
    if message.role == "tool":
        text, cut = _cut(message.content)
        return [Turn("observation", message.name or step.tool_name, text, is_error=failed, cut=cut)]
    turns = []
    if message.content or not message.tool_calls:
        text, cut = _cut(message.content)
        turns.append(Turn(message.role, message.role.capitalize(), text, cut=cut))
    turns += [Turn("tool", call.name, data=call.arguments) for call in message.tool_calls]
    return turns


def _cut(text: str) -> tuple[str, int]:
    return text[:LONG], max(0, len(text) - LONG)


def _label(row: Step, turns: list[Turn]) -> str:
    """How the list of steps names it: `4 send_mail`."""
    calls = [turn.title for turn in turns if turn.kind == "tool"]
    return f"{row.position + 1} {', '.join(calls) or (turns[0].title if turns else row.kind)}"[:80]
