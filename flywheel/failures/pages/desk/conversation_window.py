"""The reviewer's view of one trajectory: one window of the conversation, first the one that matters."""

from dataclasses import dataclass

from flywheel.trajectories.detail.outline import label
from flywheel.trajectories.detail.transcript import WINDOW, conversation_of, window_at
from flywheel.trajectories.detail.turns import Turn
from flywheel.trajectories.models import Step, Trajectory


@dataclass(frozen=True, slots=True)
class View:
    """One window of a trajectory."""

    turns: list[Turn]
    first: int
    last: int
    total: int
    elsewhere: Step | None
    """The step that the form calls the failing one, where no turn here stands for it."""

    @property
    def is_whole(self) -> bool:
        return self.first == 1 and self.last >= self.total

    @property
    def previous_start(self) -> int | None:
        return self.first - 1 - WINDOW if self.first > 1 else None

    @property
    def next_start(self) -> int | None:
        return self.last if self.last < self.total else None

    @property
    def steps(self) -> list[tuple[str, str]]:
        """(span id, name) of every step shown, for the choice of the failing one; first the one chosen elsewhere."""
        shown = [(turn.span_id, _name(turn)) for turn in self.turns if turn.step is not None]
        step = self.elsewhere
        if step is None:
            return shown
        name = f"{step.position + 1} {label(step.kind, step.name, step.tool_name).strip()}"[:80]
        return [(step.span_id, f"{name}, not shown here"), *shown]


def view_of(trajectory: Trajectory, step: str, start: int | None = None) -> View:
    """The window that holds the place `start`, or else the step; the first one when neither is meant."""
    if start is None:
        start = (window_at(trajectory, step) or 0) if step else 0
    start = min(start, max(0, trajectory.step_count - 1)) // WINDOW * WINDOW
    turns = conversation_of(trajectory, start)
    is_shown = not step or any(turn.span_id == step for turn in turns if turn.step is not None)
    elsewhere = None if is_shown else trajectory.steps.defer("body").filter(span_id=step).first()
    return View(turns, start + 1, min(start + WINDOW, trajectory.step_count), trajectory.step_count, elsewhere)


def _name(turn: Turn) -> str:
    assert turn.step is not None
    what = {"assistant": "agent", "observation": f"result {turn.name}"}.get(turn.kind, turn.name or turn.kind)
    return f"{turn.step.position + 1} {what.strip()}"[:80]
