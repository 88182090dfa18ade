"""Which sessions of a ramp are final, and how they went.

A session is final once it has been silent for the plan's `quiet_s`, its detectors have read it, and it is known of each
of its trajectories how it ended; what is not known after `wait_s` counts as missing. Then it is read once, and never
again: what is said of it later changes no judgement.

A trajectory failed where a person says so, else where its outcome does. A bucket is found in it by a person, else by a
detector. A call is a server's error where the server, or the way to it, failed; what the caller got wrong is none.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import fmean
from typing import Any, Final

from django.db import connection

from flywheel.agents.models import Split, SplitUnit
from flywheel.core.evidence.ramp.ramp_plan import BUCKET, Plan
from flywheel.failures.models import ProjectBucket, Proposal
from flywheel.promotions.models import Ramp
from flywheel.trajectories.models import Label, Outcome, Source

UNITS: Final = 2000
"""Looked at in one go."""
TRAJECTORIES: Final = 100
"""Of one session that are read: one session that all calls share is one look, however long it grows."""
SURE: Final = 0.5
"""The least score of a detector's finding that counts."""
INVALID: Final = {"broken_output", "unknown_tool", "broken_schema"}
"""Detectors whose findings are invalid calls."""
UNSAFE: Final = "unsafe_action"
OFTEN, SELDOM = timedelta(seconds=2), timedelta(seconds=60)
"""Between two looks at a session that is not final; one that has waited for long is looked at less often."""

_TRAJECTORIES = """
SELECT unit.id, found.id, found.outcome, found.label, found.label_bucket, found.cost_usd, found.changed_at,
       coalesce(found.detected_at >= found.changed_at, false)
FROM unnest(%(units)s::bigint[], %(names)s::text[]) AS unit (id, name)
CROSS JOIN LATERAL (
    SELECT * FROM trajectories_trajectory
    WHERE {column} = unit.name AND project_id = %(project)s AND agent_id = %(agent)s AND source = %(source)s
    ORDER BY id LIMIT %(most)s
) AS found
"""
_CALLS = """
SELECT trajectory_id, array_agg(DISTINCT answered_by), count(*),
       count(*) FILTER (WHERE status = 'error' AND error !~ '^(400|401|403|413|415|422): '
                        AND error NOT LIKE 'cut off: the caller%%'),
       sum(extract(epoch FROM ended_at - started_at))
FROM trajectories_step WHERE trajectory_id = ANY(%(ids)s) AND answered_by IS NOT NULL GROUP BY trajectory_id
"""


@dataclass(slots=True)
class _Trajectory:
    pk: int
    outcome: str | None
    label: str
    label_bucket: str
    cost_usd: float | None
    changed_at: datetime
    is_detected: bool

    @property
    def failed(self) -> float | None:
        """None while it is not known."""
        if self.label:
            return float(self.label == Label.FAILURE)
        return float(self.outcome == Outcome.FAILED) if self.outcome else None


@dataclass(slots=True)
class _Calls:
    """Model calls of a trajectory that went through the gateway."""

    answered_by: list[str]
    count: int
    errors: int
    seconds: float


def final(ramp: Ramp, now: datetime) -> list[SplitUnit]:
    """The sessions that have become final, with how they went, unsaved; the oldest first. The others are looked at
    again later."""
    split, plan = ramp.split, ramp.rules
    awaited = SplitUnit.objects.filter(split=split, frozen_at=None, look_at__lte=now)
    units = list(awaited.order_by("look_at", "pk")[:UNITS])
    of_units = _trajectories(split, units)
    ready = []
    for unit in units:
        if _is_final(plan, unit, of_units[unit.pk], now):
            ready.append(unit)
        else:
            unit.look_at = now + min(SELDOM, max(OFTEN, (now - unit.met_at) / 200))
    SplitUnit.objects.bulk_update([unit for unit in units if unit.look_at > now], ["look_at"], batch_size=500)
    rows = [row for unit in ready for row in of_units[unit.pk]]
    calls, found = _calls(rows), _buckets(split, rows)
    versions = {True: answerer(split, is_candidate=True), False: answerer(split, is_candidate=False)}
    for unit in ready:
        of_unit = of_units[unit.pk]
        unit.frozen_at, unit.trajectories = now, len(of_unit)
        answerers = {name for row in of_unit if row.pk in calls for name in calls[row.pk].answered_by}
        unit.mixed = _mixed(answerers, versions[unit.is_candidate], versions[not unit.is_candidate])
        unit.parts = {} if unit.mixed else _parts(plan, of_unit, calls, found)
    return sorted(ready, key=lambda unit: unit.pk)


def answerer(split: Split, *, is_candidate: bool) -> str:
    """An arm's version as steps have it (`Step.answered_by`)."""
    version = split.candidate if is_candidate else split.live
    return f"{split.agent.name}@{version.number}:{version.digest}"


def _is_final(plan: Plan, unit: SplitUnit, rows: Sequence[_Trajectory], now: datetime) -> bool:
    last = max((row.changed_at for row in rows), default=unit.met_at)
    if now - max(last, unit.met_at) >= timedelta(seconds=plan.wait_s):
        return True
    if not rows or now - last < timedelta(seconds=plan.quiet_s):
        return False
    return all(row.is_detected and row.failed is not None for row in rows)


def _mixed(answerers: set[str], own: str, other: str) -> str:
    if other in answerers:
        return SplitUnit.Mixed.TWO_VERSIONS if own in answerers else SplitUnit.Mixed.NOT_GIVEN
    return SplitUnit.Mixed.NOT_GIVEN if answerers - {own} else ""


def _trajectories(split: Split, units: Sequence[SplitUnit]) -> dict[int, list[_Trajectory]]:
    found: dict[int, list[_Trajectory]] = defaultdict(list)
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
            cursor.execute(_TRAJECTORIES.format(column=column), values)
            for unit, *row in cursor:
                found[unit].append(_Trajectory(*row))
    return found


def _calls(rows: Sequence[_Trajectory]) -> dict[int, _Calls]:
    with connection.cursor() as cursor:
        cursor.execute(_CALLS, {"ids": [row.pk for row in rows]})
        return {pk: _Calls(names, count, errors, float(seconds or 0)) for pk, names, count, errors, seconds in cursor}


def _buckets(split: Split, rows: Sequence[_Trajectory]) -> dict[int, set[str]]:
    """By trajectory the buckets found in it, with their families, and `invalid` where a call was."""
    parents = dict(ProjectBucket.objects.filter(project=split.agent.project_id).values_list("key", "parent"))
    found: dict[int, set[str]] = defaultdict(set)
    labels = {row.pk: row for row in rows if row.label}
    for row in labels.values():
        if row.label == Label.FAILURE and row.label_bucket:
            found[row.pk] |= {row.label_bucket, parents.get(row.label_bucket, row.label_bucket)}
    proposals = Proposal.objects.filter(trajectory__in=[row.pk for row in rows], score__gte=SURE)
    for pk, bucket, detector in proposals.values_list("trajectory", "bucket", "detector"):
        found[pk] |= {"invalid"} if detector in INVALID else set()
        found[pk] |= {bucket, parents.get(bucket, bucket)} if pk not in labels else set()
    return found


def _parts(
    plan: Plan, rows: Sequence[_Trajectory], calls: Mapping[int, _Calls], found: Mapping[int, set[str]]
) -> dict[str, float | None]:
    of_unit = [calls[row.pk] for row in rows if row.pk in calls]
    asked = sum(each.count for each in of_unit)
    costs = [row.cost_usd for row in rows if row.cost_usd is not None]
    measured: dict[str, Any] = {
        "failed": _mean(failed for row in rows if (failed := row.failed) is not None),
        "unsafe": _mean(float(UNSAFE in found.get(row.pk, ())) for row in rows),
        "invalid": _mean(float("invalid" in found.get(row.pk, ())) for row in rows),
        "errors": _mean(float(each.errors > 0) for each in of_unit),
        "slow": _beyond(sum(each.seconds for each in of_unit) / asked if asked else None, plan.limits.get("slow")),
        "dear": _beyond(fmean(costs) if costs else None, plan.limits.get("dear")),
    }
    buckets = [key for key in plan.signals if key.startswith(BUCKET)]
    measured |= {
        key: _mean(float(key.removeprefix(BUCKET) in found.get(row.pk, ())) for row in rows) for key in buckets
    }
    return {key: measured[key] for key in plan.signals}


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None


def _beyond(value: float | None, limit: float | None) -> float | None:
    return None if value is None or limit is None else float(value > limit)
