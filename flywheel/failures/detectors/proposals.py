"""Detectors read trajectories and propose buckets; what they proposed before is replaced.

`Trajectory.detected_at` holds the `changed_at` of the state that was read, not the time of reading: a batch that was
still being committed while detectors read has a later `changed_at`, so that what it brings is read too.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.db import transaction

from flywheel.core.detectors.standard_buckets import Context, Proposal
from flywheel.core.detectors.standard_buckets import detect as run_detectors
from flywheel.core.traces import Trace, told_twice
from flywheel.failures.detectors import detector_settings
from flywheel.failures.detectors.detector_record import Record, records
from flywheel.failures.models import DetectorSetting
from flywheel.failures.queues import intake
from flywheel.system.sql import bound
from flywheel.trajectories.formats.values.hostile_json import text
from flywheel.trajectories.models import Source
from flywheel.trajectories.search import full_text
from flywheel.trajectories.store.aggregates.running_totals import settle
from flywheel.trajectories.store.stored_traces import Outline, chunks, glance, read_json

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Weighed(Proposal):
    """A proposal whose score takes the detector's record in the project into account."""

    own_score: float
    """That of the detector's rule alone."""


def unread(
    project_id: int | None = None, limit: int = 200, after: int = 0, *, are_rollouts: bool = False
) -> list[Outline]:
    """Trajectories that detectors have not read since they last grew, or rollouts that are not searchable yet, oldest
    first. Rollouts are judged, not guessed at.

    `after` is the primary key from which on to look.
    """
    return _outlines(_UNREAD, [are_rollouts, after, project_id, project_id, limit])


def read_now(keys: Sequence[int], most_steps: int) -> None:
    """Let the detectors read those of these trajectories that they have not read since they last grew, in this order
    and up to so many steps, for somebody who cannot wait until it is their turn."""
    found = {row.pk: row for row in _outlines(_UNREAD_OF, [list(keys)])}
    steps = 0
    rows = []
    for row in (found[key] for key in keys if key in found):
        steps += row.step_count
        if steps > most_steps:
            break
        rows.append(row)
    detect(rows)


def _outlines(statement: str, values: Sequence[Any]) -> list[Outline]:
    found = bound(statement, values)
    return [
        Outline(*[*columns, read_json(interventions), _definitions(tools), read_json(metadata)])
        for *columns, interventions, tools, metadata in found
    ]


_OUTLINE = """
SELECT kept.id, kept.project_id, kept.trace_id, kept.changed_at, kept.step_count, kept.event_count, kept.outcome,
    kept.interventions::text, coalesce(nullif(kept.tools, '[]'), version.tools, '[]')::text, kept.metadata::text
FROM trajectories_trajectory AS kept LEFT JOIN agents_version AS version ON version.id = kept.version_id
WHERE (kept.detected_at IS NULL OR kept.detected_at < kept.changed_at)
"""
_UNREAD = f"""{_OUTLINE} AND (kept.source IN {Source.ATTEMPTS_SQL}) = %s
    AND kept.id > %s AND (%s::bigint IS NULL OR kept.project_id = %s)
ORDER BY kept.id
LIMIT %s
"""
_UNREAD_OF = f"{_OUTLINE} AND kept.id = ANY(%s)"


@lru_cache(maxsize=64)
def _definitions(tools: str) -> list[dict[str, Any]]:
    """Not to be changed: an agent's trajectories have equal tools, which are read once."""
    return [tool for tool in read_json(tools) if isinstance(tool, dict) and isinstance(tool.get("name"), str)]


def detect(rows: Sequence[Outline]) -> int:
    """Run every detector over the trajectories and store what they propose; returns the number of proposals."""
    return sum(_detect(chunk) for chunk in chunks(rows))


def make_searchable(rollouts: Sequence[Outline]) -> None:
    """Let these be found by their words, without proposing anything."""
    for chunk in chunks(rollouts):
        words = {row.pk: full_text.vectors(trace) for row, trace in glance(chunk)}
        with transaction.atomic():
            alive = {pk for (pk,) in bound(_LOCK, [list(words)])}
            _mark([row for row in chunk if row.pk in alive], {})
            full_text.write({pk: words[pk] for pk in alive})


def _detect(rows: list[Outline]) -> int:
    found: dict[int, list[Weighed]] = {}
    projects = {row.project_id for row in rows}
    said, record = detector_settings.settings(projects), records(projects)
    words: dict[int, list[str]] = {}
    twice: dict[int, Trace] = {}
    for row, trace in glance(rows):
        found[row.pk] = _read(row, trace, said.get(row.project_id, {}), record[row.project_id])
        words[row.pk] = full_text.vectors(trace)
        if told_twice(trace.steps):
            twice[row.pk] = trace
    with transaction.atomic():
        # Locked in the order in which ingest locks, so that neither waits for the other for ever.
        alive = {pk for (pk,) in bound(_LOCK, [list(found)])}
        kept = [row for row in rows if row.pk in alive]
        count = _replace([(row, proposal) for row in kept for proposal in found[row.pk]], alive)
        marks = _mark(kept, found)
        full_text.write({pk: words[pk] for pk in alive})
        intake.after_detection(sorted(alive))
        settle({pk: twice[pk] for pk, is_unchanged in marks if is_unchanged and pk in twice})
    return count


def _mark(rows: list[Outline], found: Mapping[int, list[Weighed]]) -> list[tuple[int, bool]]:
    """Write that these were read, and what is surest of what was found. Returns which are still as they were read."""
    best = [max(found.get(row.pk, []), key=lambda proposal: proposal.score, default=None) for row in rows]
    values = [
        [row.pk for row in rows],
        [row.changed_at for row in rows],
        [proposal.bucket if proposal else "" for proposal in best],
        [proposal.score if proposal else None for proposal in best],
    ]
    return bound(_MARK, values).fetchall()


_LOCK = "SELECT id FROM trajectories_trajectory WHERE id = ANY(%s) ORDER BY trace_id FOR NO KEY UPDATE"

_MARK = """
UPDATE trajectories_trajectory AS kept
SET detected_at = read.changed_at, proposed_bucket = read.bucket, proposed_score = read.score
FROM unnest(%s::bigint[], %s::timestamptz[], %s::text[], %s::float8[]) AS read (id, changed_at, bucket, score)
WHERE kept.id = read.id
RETURNING kept.id, kept.changed_at = read.changed_at
"""


def _replace(found: list[tuple[Outline, Weighed]], alive: Collection[int]) -> int:
    """Store these proposals in the place of all that were there of these trajectories."""
    bound("DELETE FROM failures_proposal WHERE trajectory_id = ANY(%s)", [list(alive)])
    if found:
        bound(
            _INSERT,
            [
                [row.project_id for row, _ in found],
                [row.pk for row, _ in found],
                *([getattr(each, name) for _, each in found] for name in _WRITTEN),
                [text(proposal.evidence) for _, proposal in found],
            ],
        )
    return len(found)


_WRITTEN = ("detector", "bucket", "step", "score", "own_score")
_INSERT = f"""
INSERT INTO failures_proposal (project_id, trajectory_id, {", ".join(_WRITTEN)}, evidence, created_at)
SELECT *, now() FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::float8[], %s::float8[],
    %s::text[])
"""  # noqa: S608 only names of columns


def _read(
    row: Outline, trace: Trace, said: Mapping[str, DetectorSetting], record: Mapping[str, Record]
) -> list[Weighed]:
    without = detector_settings.switched_off(said)
    context = Context(tools=row.tools, state=row.metadata.get("state"), without=without)
    try:
        proposals = run_detectors(trace, context)
    except Exception:
        # One trajectory that cannot be read must not keep detectors from all that came after it.
        log.exception("detectors cannot read trajectory %s of project %s", row.trace_id, row.project_id)
        return []
    return [
        Weighed(
            detector=proposal.detector,
            bucket=said[proposal.detector].proposes if proposal.detector in said else proposal.bucket,
            step=proposal.step,
            score=record.get(proposal.detector, Record()).certainty(proposal.score),
            evidence=proposal.evidence,
            own_score=proposal.score,
        )
        for proposal in proposals
    ]
