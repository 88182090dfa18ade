"""Which sessions of a ramp are final, and how they went.

A session is final once it has been silent for the plan's `quiet_s`, the detectors have read it, and it is known of each
of its trajectories how it ended, or it shows a server's error or an unsafe action, which need no outcome. What is not
known after `wait_s` counts as missing. Then it is read once, and never again: what is said of it later changes no
judgement. One that had begun before the ramp is judged in neither arm: live answered its beginning.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connection

from flywheel.agents.models import Agent, Split, SplitUnit, Version
from flywheel.agents.splits.assignment import Arm, arm_of
from flywheel.agents.splits.assignment_tokens import is_assignment
from flywheel.core.evidence.ramp.ramp_plan import Plan
from flywheel.failures.detectors import proposals
from flywheel.promotions.claims.session_results import (
    COLUMNS,
    UNSAFE,
    Read,
    buckets_of,
    calls_of,
    overrides_of,
    parts_of,
)
from flywheel.promotions.models import Ramp
from flywheel.trajectories.formats.semantics.sent_attributes import ASSIGNMENT
from flywheel.trajectories.models import Source

UNITS: Final = 2000
"""Looked at in one go."""
TRAJECTORIES: Final = 100
"""Of one session that are read: one session that all calls share is one look, however long it grows."""
GOES_ON: Final = 20
"""Times the plan's silence after which a session that still goes on is perhaps none: what everybody calls is never
silent, and so never final."""
OFTEN, SELDOM = timedelta(seconds=0.5), timedelta(seconds=60)
"""Between two looks at a session that is not final; one that has waited for long is looked at less often. The shorter
is less than the judge's own second, so that its next look, however early, misses none."""

READ, READ_STEPS = 200, 5000
"""Trajectories, and steps of them, that detectors read for the judge at once. What is more waits for its turn."""

_TRAJECTORIES = f"""
SELECT unit.id, {COLUMNS}
FROM unnest(%(units)s::bigint[], %(names)s::text[]) AS unit (id, name)
CROSS JOIN LATERAL (
    SELECT * FROM trajectories_trajectory
    WHERE {{column}} = unit.name AND project_id = %(project)s AND agent_id = %(agent)s AND source = %(source)s
    ORDER BY id LIMIT %(most)s
) AS found
WHERE {{which}}
"""  # noqa: S608 only names of columns


def final(ramp: Ramp, now: datetime) -> list[SplitUnit]:
    """The sessions that have become final, with how they went, unsaved; the oldest first. The others are looked at
    again later."""
    split, plan = ramp.split, ramp.rules
    awaited = SplitUnit.objects.filter(split=split, frozen_at=None, look_at__lte=now)
    units = list(awaited.order_by("look_at", "pk")[:UNITS])
    of_units = _trajectories(split, units)
    over = [unit for unit in units if _is_over(plan, unit, of_units[unit.pk], now)]
    known = {
        unit.pk for unit in over if _is_known(of_units[unit.pk]) or _is_waited_for(plan, unit, of_units[unit.pk], now)
    }
    found = buckets_of(split.agent.project_id, [row for unit in over for row in of_units[unit.pk]])
    # The calls of a long trajectory are many: of one whose outcome is awaited they are read only where one failed.
    read = [row for unit in over for row in of_units[unit.pk] if unit.pk in known or row.error_count]
    calls = calls_of(split.agent.name, read)
    bad = {row.pk for row in read if row.pk in calls and calls[row.pk].errors}
    bad |= {pk for pk, buckets in found.items() if UNSAFE in buckets}
    ready = [unit for unit in over if unit.pk in known or any(row.pk in bad for row in of_units[unit.pk])]
    missed = [row for unit in ready if unit.pk not in known for row in of_units[unit.pk] if row.pk not in calls]
    calls |= calls_of(split.agent.name, missed)
    later = {unit.pk for unit in units} - {unit.pk for unit in ready}
    for unit in units:
        if unit.pk in later:
            pause = min(SELDOM, max(OFTEN, (now - unit.met_at) / 200))
            quiet = _last(unit, of_units[unit.pk]) + timedelta(seconds=plan.quiet_s)
            unit.look_at = max(now + pause, min(quiet, now + SELDOM))
    SplitUnit.objects.bulk_update([unit for unit in units if unit.pk in later], ["look_at"], batch_size=500)
    _count_long(plan, [unit for unit in units if unit.pk in later], of_units)
    overrides = overrides_of(split.agent.name, [row for unit in ready for row in of_units[unit.pk]])
    versions = {True: answerer(split, is_candidate=True), False: answerer(split, is_candidate=False)}
    for unit in ready:
        of_unit = of_units[unit.pk]
        unit.frozen_at, unit.trajectories = now, len(of_unit)
        said = [names for row in of_unit for names in overrides.get(row.pk, ())]
        unit.overriding_calls, unit.overrides = len(said), Counter(name for names in said for name in names)
        answerers = {name for row in of_unit if row.pk in calls for name in calls[row.pk].answered_by}
        unit.mixed = _mixed(answerers, versions[unit.is_candidate], versions[not unit.is_candidate])
        if any(row.received_at < split.created_at for row in of_unit):
            unit.mixed = SplitUnit.Mixed.EARLIER
        elif unit.is_assigned and not unit.mixed and not answerers and not _is_shown(split, unit, of_unit):
            unit.mixed = SplitUnit.Mixed.CLAIMED
        unit.parts = {} if unit.mixed else parts_of(plan.signals, plan.limits, of_unit, calls, found)
    return sorted(ready, key=lambda unit: unit.pk)


def read_awaited(ramp: Ramp, now: datetime) -> None:
    """Let the detectors read what the judge waits for: they are humble, and on a busy machine it would be minutes until
    it is their turn. Those whose outcome is known first; also those that are due in a moment, when the judge looks."""
    split, quiet, due = ramp.split, timedelta(seconds=ramp.rules.quiet_s), now + OFTEN
    units = SplitUnit.objects.filter(split=split, frozen_at=None, look_at__lte=due).order_by("look_at", "pk")[:UNITS]
    of_units = _trajectories(split, list(units), which="coalesce(found.detected_at < found.changed_at, true)")
    rows = [row for of_unit in of_units.values() for row in of_unit if now - row.silent_since >= quiet]
    if rows:
        rows.sort(key=lambda row: (row.failed is None, row.pk))
        proposals.read_now([row.pk for row in rows[:READ]], READ_STEPS)


def answerer(split: Split, *, is_candidate: bool) -> str:
    """An arm's version as steps have it (`Step.answered_by`)."""
    return answerer_of(split.agent, split.candidate if is_candidate else split.live)


def answerer_of(agent: Agent, version: Version) -> str:
    """A version as the steps have it that it answered."""
    return f"{agent.name}@{version.number}:{version.digest}"


def is_given(row: Read, split: Split, kind: str, name: str, arm: Arm) -> bool:
    """Whether a trace carries the token by which this unit of the split was given that arm."""
    return is_assignment(next(_tokens(row), ""), split, kind, name) == arm


def _is_over(plan: Plan, unit: SplitUnit, rows: Sequence[Read], now: datetime) -> bool:
    """Whether nothing more is awaited of it but outcomes."""
    if _is_waited_for(plan, unit, rows, now):
        return True
    is_quiet = now - _last(unit, rows) >= timedelta(seconds=plan.quiet_s)
    return bool(rows) and is_quiet and all(row.is_detected for row in rows)


def _is_known(rows: Sequence[Read]) -> bool:
    return bool(rows) and all(row.failed is not None for row in rows)


def _is_waited_for(plan: Plan, unit: SplitUnit, rows: Sequence[Read], now: datetime) -> bool:
    """Whether it was waited for as long as the plan says."""
    return now - _last(unit, rows) >= timedelta(seconds=plan.wait_s)


def _count_long(plan: Plan, units: Sequence[SplitUnit], of_units: Mapping[int, Sequence[Read]]) -> None:
    """Write the trajectories of those that go on for long, or have as many as are read: they may never be final."""
    changed, longest = [], timedelta(seconds=GOES_ON * plan.quiet_s)
    for unit in units:
        rows = of_units[unit.pk]
        is_long = len(rows) >= TRAJECTORIES or _last(unit, rows) - unit.met_at >= longest
        if is_long and unit.trajectories != len(rows):
            unit.trajectories = len(rows)
            changed.append(unit)
    SplitUnit.objects.bulk_update(changed, ["trajectories"], batch_size=500)


def _last(unit: SplitUnit, rows: Sequence[Read]) -> datetime:
    """When it was last heard of itself."""
    return max([unit.met_at, *(row.silent_since for row in rows)])


def _mixed(answerers: set[str], own: str, other: str) -> str:
    if other in answerers:
        return SplitUnit.Mixed.TWO_VERSIONS if own in answerers else SplitUnit.Mixed.NOT_GIVEN
    return SplitUnit.Mixed.NOT_GIVEN if answerers - {own} else ""


def _is_shown(split: Split, unit: SplitUnit, rows: Sequence[Read]) -> bool:
    """Whether each of the traces carries the token of its session's assignment: an arm that is only claimed counts for
    nothing."""
    arm = arm_of(unit.is_candidate)
    return all(is_given(row, split, unit.kind, unit.name, arm) for row in rows)


def _tokens(row: Read) -> Iterator[str]:
    start = f"{ASSIGNMENT}="
    return (each.removeprefix(start) for each in row.attributes if each.startswith(start))


def _trajectories(split: Split, units: Sequence[SplitUnit], *, which: str = "true") -> dict[int, list[Read]]:
    found: dict[int, list[Read]] = defaultdict(list)
    by_session = [unit for unit in units if unit.kind == SplitUnit.Kind.SESSION]
    by_trace = [unit for unit in units if unit.kind != SplitUnit.Kind.SESSION]
    for column, some in (("session_id", by_session), ("trace_id", by_trace)):
        values: dict[str, Any] = {
            "units": [unit.pk for unit in some],
            "names": [unit.name if column == "session_id" else unit.trace_id for unit in some],
            "project": split.agent.project_id,
            "agent": split.agent_id,
            "source": Source.PRODUCTION,
            "most": TRAJECTORIES,
        }
        with connection.cursor() as cursor:
            cursor.execute(_TRAJECTORIES.format(column=column, which=which), values)
            for unit, *row in cursor:
                found[unit].append(Read(*row))
    return found
