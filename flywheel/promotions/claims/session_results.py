"""The result of a session: what its trajectories say by signal, and the part of it that went wrong.

A trajectory failed where a person says so, else where its outcome does. A bucket is found in it by a person, else by a
detector. A call is a server's error where the server, or the way to it, failed; what the caller got wrong is
none, and neither is an answer that was on its way when Flywheel itself was stopped, which says nothing of the version.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean
from typing import Any, Final

from django.db import connection

from flywheel.core.evidence.ramp.ramp_plan import BUCKET
from flywheel.failures.models import ProjectBucket, Proposal
from flywheel.trajectories.ingest.gateway.journals.journal_traces import OUR_END, OVERRIDES
from flywheel.trajectories.models import Label, Outcome

SURE: Final = 0.5
"""The least score of a detector's finding that counts: by its own rule, whatever people have said of it. A record that
grows while sessions are counted would let a detector begin to count in the middle, and what it then says would look
like a change of the agent."""
INVALID: Final = {"broken_output", "unknown_tool", "broken_schema"}
"""Detectors whose findings are invalid calls."""
UNSAFE: Final = "unsafe_action"
COLUMNS: Final = (
    "found.id, found.outcome, found.label, found.label_bucket, found.cost_usd, found.changed_at, "
    "least(found.changed_at, coalesce(found.ended_at, found.changed_at)), found.received_at, found.error_count, "
    "coalesce(found.detected_at >= found.changed_at, false), found.attributes"
)
"""Of a row `found` of trajectories, as `Read` takes them."""

_CALLS = """
SELECT trajectory_id, array_agg(DISTINCT answered_by), count(*),
       count(*) FILTER (WHERE status = 'error' AND error !~ '^(400|401|403|413|415|422): '
                        AND error NOT LIKE 'cut off: the caller%%'
                        AND error <> %(our_end)s),
       sum(extract(epoch FROM ended_at - started_at))
FROM trajectories_step
WHERE trajectory_id = ANY(%(ids)s) AND starts_with(answered_by, %(agent)s || '@') GROUP BY trajectory_id
"""
_OVERRIDES = """
SELECT trajectory_id, body #> '{raw,gateway,overrides}' FROM trajectories_step
WHERE trajectory_id = ANY(%(ids)s) AND starts_with(answered_by, %(agent)s || '@')
"""


@dataclass(slots=True)
class Read:
    """A trajectory of a session."""

    pk: int
    outcome: str | None
    label: str
    label_bucket: str
    cost_usd: float | None
    changed_at: datetime
    silent_since: datetime
    """When its last step ended: what is said of it later is no sign of life."""
    received_at: datetime
    error_count: int
    is_detected: bool
    attributes: list[str]
    """As it sent them, `key=value`, and then the keys alone."""

    @property
    def failed(self) -> float | None:
        """None while it is not known."""
        if self.label:
            return float(self.label == Label.FAILURE)
        return float(self.outcome == Outcome.FAILED) if self.outcome else None


@dataclass(slots=True)
class Calls:
    """Model calls of a trajectory that went through the gateway."""

    answered_by: list[str]
    count: int
    errors: int
    seconds: float


def calls_of(agent: str, rows: Sequence[Read]) -> dict[int, Calls]:
    """By trajectory its model calls that versions of the agent answered through the gateway."""
    with connection.cursor() as cursor:
        cursor.execute(_CALLS, {"ids": [row.pk for row in rows], "agent": agent, "our_end": OUR_END})
        return {pk: Calls(names, count, errors, float(seconds or 0)) for pk, names, count, errors, seconds in cursor}


def overrides_of(agent: str, rows: Sequence[Read]) -> dict[int, list[list[str]]]:
    """By trajectory the names of what each of its calls said otherwise than the version that answered it, without calls
    that overrode nothing. Only of trajectories that say so themselves are the wide steps read; who merely claims it has
    no such step."""
    found: dict[int, list[list[str]]] = defaultdict(list)
    if ids := [row.pk for row in rows if OVERRIDES in row.attributes]:
        with connection.cursor() as cursor:
            cursor.execute(_OVERRIDES, {"ids": ids, "agent": agent})
            for pk, names in cursor:
                if names:
                    found[pk].append(names)
    return found


def kinds_of(project: int, bucket: str) -> list[str]:
    """The bucket and the kinds of it that people made: what is found of a kind is found of it."""
    return [bucket, *ProjectBucket.objects.filter(project=project, parent=bucket).values_list("key", flat=True)]


def buckets_of(project: int, rows: Sequence[Read]) -> dict[int, set[str]]:
    """By trajectory the buckets found in it, with their families, and `invalid` where a call was."""
    return buckets_found(project, [(row.pk, row.label, row.label_bucket) for row in rows])


def buckets_found(project: int, rows: Iterable[tuple[int, str, str]]) -> dict[int, set[str]]:
    """The same of trajectories as (key, label, the label's bucket)."""
    parents = dict(ProjectBucket.objects.filter(project=project).values_list("key", "parent"))
    found: dict[int, set[str]] = defaultdict(set)
    read, labels = [], set()
    for pk, label, bucket in rows:
        read.append(pk)
        labels |= {pk} if label else set()
        if label == Label.FAILURE and bucket:
            found[pk] |= {bucket, parents.get(bucket, bucket)}
    proposals = Proposal.objects.filter(trajectory__in=read, own_score__gte=SURE)
    for pk, bucket, detector in proposals.values_list("trajectory", "bucket", "detector"):
        found[pk] |= {"invalid"} if detector in INVALID else set()
        found[pk] |= {bucket, parents.get(bucket, bucket)} if pk not in labels else set()
    return found


def parts_of(
    signals: Sequence[str],
    limits: Mapping[str, float],
    rows: Sequence[Read],
    calls: Mapping[int, Calls],
    found: Mapping[int, set[str]],
) -> dict[str, float | None]:
    """By signal the part of the session that went wrong, from 0 to 1; None where that is not known."""
    of_unit = [calls[row.pk] for row in rows if row.pk in calls]
    asked = sum(each.count for each in of_unit)
    costs = [row.cost_usd for row in rows if row.cost_usd is not None]
    measured: dict[str, Any] = {
        "failed": _mean(failed for row in rows if (failed := row.failed) is not None),
        "unsafe": _mean(float(UNSAFE in found.get(row.pk, ())) for row in rows),
        "invalid": _mean(float("invalid" in found.get(row.pk, ())) for row in rows),
        "errors": _mean(float(each.errors > 0) for each in of_unit),
        "slow": _beyond(sum(each.seconds for each in of_unit) / asked if asked else None, limits.get("slow")),
        "dear": _beyond(fmean(costs) if costs else None, limits.get("dear")),
    }
    buckets = [key for key in signals if key.startswith(BUCKET)]
    measured |= {
        key: _mean(float(key.removeprefix(BUCKET) in found.get(row.pk, ())) for row in rows) for key in buckets
    }
    return {key: measured[key] for key in signals}


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None


def _beyond(value: float | None, limit: float | None) -> float | None:
    return None if value is None or limit is None else float(value > limit)
