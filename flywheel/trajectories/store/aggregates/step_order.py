"""Where each step stands in its trajectory.

Steps are put in order by their start; those that started together by their place in what was sent, then a parent before
its child. Where any step has no clock, all of them by their place. Only the steps from the earliest new one on are read
again, so that a trajectory of 35,000 steps grows by a few hundred without being read whole each time.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.system.sql import bound
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.store.arrivals.incoming_steps import Arrival

UNTIMED = "untimed"
"""In `Trajectory.claims` once a step without a clock has come."""


@dataclass(slots=True)
class Known:
    """The facts of a stored step that ordering needs."""

    pk: int
    span_id: str
    parent_id: str
    start_us: int | None
    place: int
    position: int


Placed = Known | Arrival


def number(
    trajectory: Trajectory, fresh: Sequence[Arrival], known: Sequence[Known], base: int
) -> list[tuple[int, int]]:
    """Give positions from `base` on to the new steps and those known from there on.

    Returns (primary key, position) of the stored steps that move.
    """
    every: list[Placed] = [*known, *fresh]
    is_timed = UNTIMED not in trajectory.claims
    if len(every) > 1:
        depths = _depths(every, is_timed)

        def by_clock(step: Placed) -> tuple[Any, ...]:
            return step.start_us, step.place, depths[step.span_id], step.span_id

        def by_place(step: Placed) -> tuple[Any, ...]:
            start = math.inf if step.start_us is None else step.start_us
            return step.place, start, depths[step.span_id], step.span_id

        every.sort(key=by_clock if is_timed else by_place)
    moved = []
    for position, step in enumerate(every, base):
        if isinstance(step, Known) and step.position != position:
            moved.append((step.pk, position))
        step.position = position
    return moved


def _depths(steps: Iterable[Placed], is_timed: bool) -> dict[str, int]:
    """Return each step's depth below one without a known parent; with clocks, counting parents that started together.

    Looked up in the order of ids, so that even a circle of parents comes out the same every time.
    """
    every = {step.span_id: step for step in steps}

    def above(step: Placed) -> str:
        parent = every.get(step.parent_id)
        return step.parent_id if parent is not None and (not is_timed or parent.start_us == step.start_us) else ""

    depths: dict[str, int] = {}
    for span_id in sorted(every):
        path: dict[str, None] = {}
        while span_id in every and span_id not in depths and span_id not in path:
            path[span_id] = None
            span_id = above(every[span_id])
        for level, name in enumerate(reversed(path), depths.get(span_id, -1) + 1):
            depths[name] = level
    return depths


_TAILS = """
SELECT asked.trajectory, step.id, step.span_id, step.parent_id,
    (extract(epoch FROM step.started_at) * 1000000)::bigint, step.place, step.position
FROM unnest(%s::bigint[], %s::bigint[]) AS asked (trajectory, start_us)
CROSS JOIN LATERAL (
    SELECT * FROM trajectories_step AS later
    WHERE later.trajectory_id = asked.trajectory AND later.position > coalesce((
        SELECT earlier.position FROM trajectories_step AS earlier
        WHERE earlier.trajectory_id = asked.trajectory
            AND earlier.started_at < timestamptz 'epoch' + asked.start_us * interval '1 microsecond'
        ORDER BY earlier.position DESC LIMIT 1
    ), -1)
) AS step
"""
"""From the last step that started before the earliest new one; found from the end of the index on positions."""


def tails(earliest: dict[int, int]) -> dict[int, list[Known]]:
    """The stored steps that may stand after the earliest new one (µs), by trajectory. -1 asks for all."""
    found: dict[int, list[Known]] = {pk: [] for pk in earliest}
    if earliest:
        for trajectory, *values in bound(_TAILS, [list(earliest), list(earliest.values())]):
            found[trajectory].append(Known(*values))
    return found
