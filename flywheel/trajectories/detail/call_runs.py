"""Calls of the same tool one after the other, folded into one line so that nobody reads them again."""

from collections.abc import Sequence

from flywheel.trajectories.detail.turns import Run, Turn

FEWEST = 4
"""Calls that make a run."""


def fold(turns: Sequence[Turn]) -> None:
    """Mark where runs begin and end: `Turn.opens` and `Turn.closes`."""
    begun: list[Turn] = []
    for turn in turns:
        if begun and not _goes_on(begun[0], turn):
            _close(begun)
            begun = []
        if begun or turn.kind == "call":
            begun.append(turn)
    _close(begun)


def _goes_on(first: Turn, turn: Turn) -> bool:
    silent = not turn.reasoning and not (turn.kind == "error" and turn.name != first.name)
    return turn.kind in ("call", "observation", "error") and turn.name == first.name and silent


def _close(turns: Sequence[Turn]) -> None:
    calls = sum(turn.kind == "call" for turn in turns)
    if calls < FEWEST:
        return
    steps = {turn.span_id: turn.step for turn in turns if turn.step is not None}
    times = [step.duration_ms for step in steps.values() if step.duration_ms is not None]
    failed = sum(step.status == "error" for step in steps.values())
    turns[0].opens = Run(
        turns[0].name, calls, failed, sum(times) if times else None, frozenset(turn.span_id for turn in turns)
    )
    turns[-1].closes = True
