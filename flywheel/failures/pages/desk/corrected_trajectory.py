"""The corrected trajectory beside the recorded one: what both share, then what happened and what should have."""

from dataclasses import dataclass, field
from typing import Any

from flywheel.core.traces import Message, corrections
from flywheel.failures.models import Failure
from flywheel.trajectories.detail import expected_action, transcript
from flywheel.trajectories.detail.turns import Turn
from flywheel.trajectories.models import Step, Trajectory

AFTER = 20
"""Steps that are shown of what happened after the marked one."""


@dataclass(slots=True)
class Beside:
    """Both trajectories as turns."""

    failure: Failure
    shared: list[Turn] = field(default_factory=list)
    recorded: list[Turn] = field(default_factory=list)
    corrected: list[Turn] = field(default_factory=list)
    earlier: int = 0
    """Steps before those that `shared` shows."""
    later: int = 0
    """Steps after those that `recorded` shows."""
    actual: dict[str, Any] | None = None
    right: dict[str, Any] | None = None


def beside(trajectory: Trajectory, failure: Failure) -> Beside:
    """Put the correction of a failure beside what was recorded. The failure has one."""
    assert failure.corrected is not None
    found = Beside(failure, corrected=_turns_of(trajectory, corrections.message(failure.corrected)))
    found.actual = expected_action.own_call(trajectory, failure.step)
    found.right = expected_action.aligned(found.actual, failure.corrected)
    row = _step_of(trajectory, failure.step)
    if row is None:
        return found
    found.earlier = start = max(0, row.position - transcript.SCREEN)
    turns = _plain(transcript.conversation_of(trajectory, start, row.position - start + 1))
    own = [turn for turn in turns if turn.span_id == row.span_id and turn.kind in ("assistant", "call")]
    first = next((at for at, turn in enumerate(turns) if turn in own), len(turns))
    after = _plain(transcript.conversation_of(trajectory, row.position + 1, AFTER))
    found.shared, found.recorded = turns[:first], turns[first:] + after
    found.later = max(0, trajectory.step_count - row.position - 1 - AFTER)
    return found


def _step_of(trajectory: Trajectory, step: str) -> Step | None:
    """The marked step, else the last one of the agent's own."""
    rows = trajectory.steps.defer("body")
    marked = rows.filter(span_id=step).first() if step else None
    return marked or rows.filter(kind="assistant").order_by("-position").first()


def _turns_of(trajectory: Trajectory, message: Message) -> list[Turn]:
    said = [Turn("assistant", trajectory.trace_id, "", text=message.content)] if message.content else []
    calls = [
        Turn("call", trajectory.trace_id, "", name=call.name, arguments=call.arguments) for call in message.tool_calls
    ]
    turns = [*said, *calls]
    for turn in turns:
        turn.is_whole = True
    return turns


def _plain(turns: list[Turn]) -> list[Turn]:
    """The turns without runs that would be cut in two."""
    for turn in turns:
        turn.opens, turn.closes = None, False
    return turns
