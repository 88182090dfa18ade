"""The record of each detector in a project: how often people filed its proposals where it had proposed them.

It corrects how sure the next proposals are, and by that the order in which they are looked at: a detector that is wrong
about this agent sinks, one that is right rises, as decisions come. It is the precision of `detector_quality` as a quick
count of the newest decisions, in one statement, since detectors ask for it with every batch that they read.
"""

from collections.abc import Collection
from dataclasses import dataclass

from flywheel.accounts.models import Project
from flywheel.failures.buckets.bucket_definitions import every
from flywheel.system.sql import bound

WEIGHT = 20
"""So many decisions weigh as much as the detector's own score."""
READ = 2_000
"""Decisions of a project, the newest, that are looked at."""


@dataclass(frozen=True, slots=True)
class Record:
    """Counts of trajectories for which the detector proposed something and about which people decided."""

    right: int = 0
    decided: int = 0

    def certainty(self, score: float) -> float:
        """The detector's score, drawn towards the share that was right here: the mean of a beta distribution that
        begins at the score."""
        return (WEIGHT * score + self.right) / (WEIGHT + self.decided)


def records(project_ids: Collection[int]) -> dict[int, dict[str, Record]]:
    """Return each project's records by detector; one that nobody decided about has none."""
    return {project_id: _of_project(project_id) for project_id in project_ids}


def _of_project(project_id: int) -> dict[str, Record]:
    counts = bound(_DECIDED, [project_id, READ]).fetchall()
    if not counts:
        return {}
    kinds = {key: bucket.family for key, bucket in every(Project.objects.get(pk=project_id)).items()}
    found: dict[str, Record] = {}
    for detector, proposed, filed, count in counts:
        before = found.get(detector, Record())
        is_right = proposed in (filed, kinds.get(filed, filed))
        found[detector] = Record(before.right + count * is_right, before.decided + count)
    return found


_DECIDED = """
SELECT proposal.detector, proposal.bucket, decided.bucket, count(DISTINCT decided.trajectory_id)
FROM (
    SELECT trajectory_id, bucket FROM failures_failure WHERE project_id = %s AND current ORDER BY id DESC LIMIT %s
) AS decided
JOIN failures_proposal AS proposal ON proposal.trajectory_id = decided.trajectory_id
GROUP BY proposal.detector, proposal.bucket, decided.bucket
"""
