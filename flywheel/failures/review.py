"""What a reviewer sees of one trajectory: the window of the conversation that matters, and the agent's own call."""

from dataclasses import dataclass
from typing import Any

from flywheel.core import episodes
from flywheel.core.traces import Trace
from flywheel.trajectories.load import step_of
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.show import WINDOW, Turn, conversation_of, window_at

LAST = 30
"""Steps at the end among which the agent's last call is looked for."""
LONG = 20_000
"""Characters of an agent's own text that a form is filled with."""


@dataclass(frozen=True, slots=True)
class View:
    """One window of a trajectory, around the step that matters."""

    turns: list[Turn]
    first: int
    last: int
    total: int

    @property
    def is_whole(self) -> bool:
        return self.first == 1 and self.last >= self.total

    @property
    def steps(self) -> list[tuple[str, str]]:
        """(span id, name) of every step shown, for the choice of the failing one."""
        return [(turn.span_id, _name(turn)) for turn in self.turns if turn.step is not None]


def view_of(trajectory: Trajectory, step: str) -> View:
    """The window that holds the step; the first one when no step is meant."""
    start = (window_at(trajectory, step) or 0) if step else 0
    turns = conversation_of(trajectory, start)
    return View(turns, start + 1, min(start + WINDOW, trajectory.step_count), trajectory.step_count)


def own_call(trajectory: Trajectory, step: str) -> dict[str, Any] | None:
    """What the agent did at the step, else what it did last: a call, or the text it wrote."""
    rows = trajectory.steps.defer("raw")
    at_step = list(rows.filter(span_id=step)) if step else []
    for chosen in (at_step, list(rows.order_by("-position")[:LAST])[::-1]):
        episode = episodes.read(Trace("", [step_of(row) for row in chosen]))
        if episode.calls:
            call = episode.calls[-1]
            if isinstance(call.arguments, str):
                return {"text": call.arguments[:LONG]}
            return {"tool": call.name, "arguments": call.arguments}
        if episode.last is not None:
            return {"text": episode.last.text[:LONG]}
    return None


def _name(turn: Turn) -> str:
    assert turn.step is not None
    what = {"assistant": "agent", "observation": f"result {turn.name}"}.get(turn.kind, turn.name or turn.kind)
    return f"{turn.step.position + 1} {what.strip()}"[:80]
