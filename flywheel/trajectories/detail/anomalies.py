"""Oddities in how a trajectory arrived: everything is kept, and they are shown beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from flywheel.system.sql import bound
from flywheel.templatetags.numbers import count, duration
from flywheel.trajectories.models import Source, Step, Trajectory

NO_PARENT = "no parent"
LATE = timedelta(hours=1)
"""After the trajectory's end."""
AHEAD = timedelta(minutes=5)
"""How far a clock may be before ours."""
APART = timedelta(hours=24)
"""Between what the sender's clock says and the arrival of telemetry."""
FIRST = datetime(2000, 1, 1, tzinfo=UTC)
"""No agent's clock was right before that."""


@dataclass(frozen=True, slots=True)
class Oddity:
    word: str
    """For the list of steps."""
    text: str


def of_steps(row: Trajectory, steps: Sequence[Step]) -> dict[str, list[Oddity]]:
    """Return the oddities of these steps, by span id; most have none."""
    missing = _missing(row, steps)
    found: dict[str, list[Oddity]] = {}
    for step in steps:
        odd = [_clock(row, step) or _late(row, step)]
        if step.parent_id in missing:
            odd.append(Oddity(NO_PARENT, "Its parent has not arrived."))
        if any(odd):
            found[step.span_id] = [each for each in odd if each]
    return found


ODD_TIMES = """
    started_at - received_at > %s OR started_at < %s
    OR received_at - coalesce(ended_at, started_at) > %s OR received_at > %s
"""
"""Steps whose times are odd, with the values of `odd_times`; `of_steps` says how."""
_NEVER = datetime.max.replace(tzinfo=UTC)


def odd_times(row: Trajectory) -> list[Any]:
    if row.source != Source.PRODUCTION:
        return [AHEAD, FIRST, timedelta.max, _NEVER]
    return [AHEAD, FIRST, APART, _late_from(row)]


def words_of(row: Trajectory, positions: Sequence[int]) -> dict[int, str]:
    """The words for the steps at these positions, of which ODD_TIMES is true."""
    found = list(row.steps.filter(position__in=positions).order_by("position").defer("body")) if positions else []
    odd = of_steps(row, found)
    return {step.position: ", ".join(each.word for each in odd[step.span_id]) for step in found if step.span_id in odd}


_WHOLE = """
SELECT count(*) FILTER (WHERE started_at - received_at > %s), count(*) FILTER (WHERE started_at < %s),
    count(*) FILTER (WHERE received_at > %s),
    count(*) FILTER (WHERE parent_id <> '' AND parent_id NOT IN (
        SELECT span_id FROM trajectories_step WHERE trajectory_id = %s
    ))
FROM trajectories_step
WHERE trajectory_id = %s
"""
"""Parents are looked for in a list, which PostgreSQL hashes whatever it knows. By EXISTS, where it has no statistics
yet, it compares each step with each, and a long trajectory that has just arrived takes minutes."""


def of_whole(row: Trajectory) -> list[str]:
    """Sentences about the trajectory."""
    asked = [AHEAD, FIRST, _late_from(row), row.pk, row.pk]
    ahead, ancient, late, orphans = bound(_WHOLE, asked).fetchall()[0]
    found = []
    if orphans:
        found.append(f"{_steps(orphans, 'names', 'name')} a parent that has not arrived.")
    if ahead:
        found.append(f"By the sender's clock {_steps(ahead, 'lies', 'lie')} in the future.")
    if ancient:
        found.append(f"By the sender's clock {_steps(ancient, 'is', 'are')} from before 2000.")
    if row.source == Source.PRODUCTION and row.ended_at and row.ended_at > FIRST:
        after = row.received_at - row.ended_at
        if after > LATE:
            found.append(f"It arrived {duration(after)} after its end by the sender's clock.")
        if late:
            found.append(f"{_steps(late, 'arrived', 'arrived')} more than an hour after its end.")
    return found


def _late_from(row: Trajectory) -> datetime:
    """A step that arrives after this is late."""
    return _NEVER if row.ended_at is None else max(row.ended_at, row.received_at) + LATE


def _missing(row: Trajectory, steps: Sequence[Step]) -> set[str]:
    """Parents that none of the trajectory's steps is."""
    own = {step.span_id for step in steps}
    asked = {step.parent_id for step in steps if step.parent_id and step.parent_id not in own}
    return asked - set(row.steps.filter(span_id__in=asked).values_list("span_id", flat=True)) if asked else set()


def _clock(row: Trajectory, step: Step) -> Oddity | None:
    moment = step.ended_at or step.started_at
    if moment is None or step.started_at is None:
        return None
    said = f"The sender's clock says {step.started_at:%Y-%m-%d %H:%M:%S} UTC"
    if step.started_at > step.received_at + AHEAD:
        return Oddity("clock", f"{said}, which is {duration(step.started_at - step.received_at)} after it arrived.")
    if step.started_at < FIRST:
        return Oddity("clock", f"{said}.")
    if row.source == Source.PRODUCTION and step.received_at - moment > APART:
        return Oddity("clock", f"{said}; it arrived {duration(step.received_at - moment)} later.")
    return None


def _late(row: Trajectory, step: Step) -> Oddity | None:
    if row.source != Source.PRODUCTION or row.ended_at is None or step.received_at <= _late_from(row):
        return None
    return Oddity("late", f"It arrived {duration(step.received_at - row.ended_at)} after the trajectory's end.")


def _steps(number: int, one: str, many: str) -> str:
    return f"{count(number)} step {one}" if number == 1 else f"{count(number)} steps {many}"
