"""What a reviewer sees of one trajectory: the window of the conversation that matters."""

from dataclasses import dataclass

from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.show import WINDOW, Turn, conversation_of, window_at


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


def _name(turn: Turn) -> str:
    assert turn.step is not None
    what = {"assistant": "agent", "observation": f"result {turn.name}"}.get(turn.kind, turn.name or turn.kind)
    return f"{turn.step.position + 1} {what.strip()}"[:80]
