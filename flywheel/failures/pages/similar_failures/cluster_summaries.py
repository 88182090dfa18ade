"""Details that the pages of clusters show beside their rows: versions, days and examples of a few clusters at once, and
the shape of a trajectory's calls."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import groupby
from operator import itemgetter
from typing import Any

from flywheel.core.traces import Trace, episodes
from flywheel.failures.models import Cluster, Clustering
from flywheel.system.sql import bound
from flywheel.trajectories.models import Step, Trajectory
from flywheel.trajectories.store.stored_traces import complete, step_of

EXAMPLES = 3
VERSIONS = 3
BARS = 14
"""Of a mini trend, over the time in which members of the clustering began."""
CALLS = 12
STEPS = 400
"""Steps in which calls are looked for."""


@dataclass(slots=True)
class Shown:
    """One cluster in the list of a clustering."""

    cluster: Cluster
    examples: list[Trajectory] = field(default_factory=list)
    versions: list[tuple[str, float]] = field(default_factory=list)
    """The most frequent, with their share."""
    trend: list[int] = field(default_factory=list)
    decided: int = 0


def shown(clustering: Clustering, clusters: Sequence[Cluster]) -> list[Shown]:
    """A few clusters of one clustering with what their rows say: two statements that read members, however many
    clusters there are."""
    found = {cluster.pk: Shown(cluster) for cluster in clusters}
    nearest = bound(_NEAREST, [list(found), EXAMPLES]).fetchall()
    rows = Trajectory.objects.in_bulk([pk for _, pk in nearest])
    for cluster, pk in nearest:
        if pk in rows:
            found[cluster].examples.append(rows[pk])
    versions: dict[int, Counter[str]] = defaultdict(Counter)
    days: dict[int, Counter[date]] = defaultdict(Counter)
    for cluster, agent, number, reported, day, is_decided, count in bound(_SAID, [list(found)]):
        version = str(number) if number is not None else reported
        versions[cluster]["@".join(part for part in (agent, version) if part) or "unnamed"] += count
        days[cluster][day] += count
        found[cluster].decided += count if is_decided else 0
    for pk, one in found.items():
        whole = versions[pk].total()
        one.versions = [(name, count / whole) for name, count in versions[pk].most_common(VERSIONS)]
        one.trend = trend_of(clustering, days[pk])
    return list(found.values())


_NEAREST = """
SELECT cluster.id, nearest.trajectory_id
FROM unnest(%s::bigint[]) WITH ORDINALITY AS cluster (id, place) CROSS JOIN LATERAL (
    SELECT trajectory_id, likeness, id FROM failures_member
    WHERE cluster_id = cluster.id ORDER BY likeness DESC, id DESC LIMIT %s
) AS nearest
ORDER BY cluster.place, nearest.likeness DESC, nearest.id DESC
"""

_SAID = """
SELECT member.cluster_id, row.agent_name, version.number, row.version_label,
    (row.started_at AT TIME ZONE 'UTC')::date AS day, row.label <> '' AS is_decided, count(*)
FROM failures_member AS member
JOIN trajectories_trajectory AS row ON row.id = member.trajectory_id
LEFT JOIN agents_version AS version ON version.id = row.version_id
WHERE member.cluster_id = ANY(%s)
GROUP BY member.cluster_id, row.agent_name, version.number, row.version_label, day, is_decided
"""


def trend_of(clustering: Clustering, days: Counter[date]) -> list[int]:
    """Count those that began in each part of the time over which the clustering reaches; a part is a day at least."""
    if "first" not in clustering.report:
        return []
    first, last = (date.fromisoformat(clustering.report[name]) for name in ("first", "last"))
    whole = (last - first).days + 1
    trend = [0] * min(BARS, whole)
    for day, count in days.items():
        at = (day - first).days * len(trend) // whole
        trend[min(max(at, 0), len(trend) - 1)] += count
    return trend


def call_shape(trajectory: Trajectory, step: str = "") -> dict[str, Any]:
    """Which tools it called, with which arguments by name, and how that went; those that are the same in a row are one.

    `more` calls are left out; `is_part` says that of further ones nothing is known, because nobody looked so far.
    """
    steps = list(Step.objects.filter(trajectory=trajectory).order_by("position")[:STEPS])
    complete(steps, [trajectory])
    episode = episodes.read(Trace(trajectory.trace_id, [step_of(row) for row in steps]))
    told: list[tuple[tuple[str, str, str], bool]] = []
    for call in episode.calls:
        seen = call.observation
        failing = bool(step) and step in (call.step, seen.step if seen else "")
        names = ", ".join(sorted(call.arguments)) if isinstance(call.arguments, dict) else "unreadable"
        ended = "" if seen is None else "error" if seen.failed else "nothing found" if seen.empty else "ok"
        told.append(((call.name or "unnamed", names[:200], ended), failing))
    found = []
    for (name, arguments, ended), group in groupby(told, key=itemgetter(0)):
        fails = [failing for _, failing in group]
        shown = {"name": name, "arguments": arguments, "ended": ended}
        found.append(shown | {"times": len(fails), "is_failing": any(fails)})
    return {"calls": found[:CALLS], "more": max(0, len(found) - CALLS), "is_part": trajectory.step_count > STEPS}
