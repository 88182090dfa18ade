"""Reading failures so that they can be compared: the sketches that are kept of them, and what is nearest to one.

A sketch is made when detectors have read a trajectory and proposed something, when a person has labelled one, and
otherwise when it is wanted. It holds no text: what the words are is read again from the few trajectories that a page
shows.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from flywheel.accounts.models import Project
from flywheel.core.evidence.similarity import failure_similarity
from flywheel.core.evidence.similarity.failure_similarity import METHOD, PARTS, Near, Terms
from flywheel.core.traces import Trace
from flywheel.failures.models import Cluster, Failure, Proposal, Sketch
from flywheel.system.sql import bound
from flywheel.trajectories.models import Label, Source, Step, Trajectory
from flywheel.trajectories.store.stored_traces import Outline, chunks, complete, glance, step_of

log = logging.getLogger(__name__)

AMONG = 3_000
"""Failures that one is compared with, the newest."""
LONG = 1_000
"""Of a trajectory with more steps, its beginning, its end and what is around the failing step is read."""
HEAD, TAIL, AROUND = 500, 100, 20
LABELLED_AT_ONCE = 500

Packed = dict[str, bytes]


def failing() -> Q:
    """Return the filter for failures: by people's word, or by detectors' as long as no person has decided."""
    return Q(label=Label.FAILURE) | Q(label="", proposed_bucket__gt="")


def failures_of(project: Project) -> QuerySet[Trajectory]:
    return Trajectory.objects.filter(failing(), project=project).exclude(source__in=Source.ATTEMPTS)


# Reading


def terms_of(keys: Sequence[int]) -> dict[int, Terms]:
    """Return the terms that these trajectories are compared by. One that cannot be read is left out."""
    found: dict[int, Terms] = {}
    where = _where(keys)
    for pk, trace in _traces(keys, where):
        step, said = where.get(pk, ("", ""))
        try:
            found[pk] = failure_similarity.read(trace, step, said)
        except Exception:
            # One that is nested beyond all reason must not keep the others from being compared.
            log.exception("trajectory %s cannot be compared", trace.trace_id)
    return found


def _where(keys: Sequence[int]) -> dict[int, tuple[str, str]]:
    """By trajectory: the step where it fails and what is said of it, by a person and by the strongest proposal."""
    found: dict[int, tuple[str, str]] = {}
    proposals = Proposal.objects.filter(trajectory__in=keys).order_by("trajectory_id", "-score", "id")
    for pk, step, evidence in proposals.distinct("trajectory_id").values_list("trajectory_id", "step", "evidence"):
        found[pk] = step, evidence
    decided = Failure.objects.filter(trajectory__in=keys, current=True)
    for pk, step, note in decided.values_list("trajectory_id", "step", "note"):
        proposed, evidence = found.get(pk, ("", ""))
        found[pk] = step or proposed, f"{note} {evidence}"
    return found


def _traces(keys: Sequence[int], where: dict[int, tuple[str, str]]) -> Iterator[tuple[int, Trace]]:
    columns = ("pk", "project_id", "trace_id", "changed_at", "step_count", "event_count")
    found = Trajectory.objects.filter(pk__in=keys).order_by("pk").values(*columns)
    rows = [Outline(**values, outcome=None, interventions=[], tools=[], metadata={}) for values in found]
    for row in rows:
        if row.step_count > LONG:
            yield row.pk, _excerpt(row, where.get(row.pk, ("", ""))[0])
    for chunk in chunks([row for row in rows if row.step_count <= LONG]):
        yield from ((row.pk, trace) for row, trace in glance(chunk))


def _excerpt(row: Outline, failing_step: str) -> Trace:
    """A long trajectory in parts."""
    steps = Step.objects.filter(trajectory=row.pk)
    wanted = Q(position__lt=HEAD) | Q(position__gte=row.step_count - TAIL)
    at = steps.filter(span_id=failing_step).values_list("position", flat=True).first() if failing_step else None
    if at is not None:
        wanted |= Q(position__range=(at - AROUND, at + AROUND))
    found = list(steps.filter(wanted).order_by("position"))
    complete(found, Trajectory.objects.filter(pk=row.pk))
    return Trace(row.trace_id, [step_of(step) for step in found])


# Keeping


def keep(keys: Sequence[int]) -> int:
    """Read these failures and keep their sketches; forget those of the others, which are none any more, and what
    clusters were told by that have any of them. Returns how many were kept."""
    told = Cluster.objects.filter(members__trajectory__in=keys, is_rest=False)
    told.update(is_stale=True, words=[], calls=[])
    failed = list(Trajectory.objects.filter(failing(), pk__in=keys).values_list("pk", flat=True))
    Sketch.objects.filter(trajectory__in=set(keys) - set(failed)).delete()
    return _write(failed) if failed else 0


def _write(keys: Sequence[int]) -> int:
    read_at = timezone.now()
    packed = {pk: failure_similarity.pack(terms) for pk, terms in terms_of(keys).items()}
    with transaction.atomic():
        rows = [
            Sketch(trajectory_id=pk, project_id=project, read_at=read_at, method=METHOD, **packed[pk])
            for pk, project in hold(packed).items()
        ]
        Sketch.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["trajectory"], update_fields=["read_at", "method", *PARTS]
        )
    return len(rows)


def hold(keys: Iterable[int]) -> dict[int, int]:
    """Those that are still there, with their projects. None of them is deleted before the transaction ends."""
    return dict(bound(_HOLD, [list(keys)]).fetchall())


_HOLD = "SELECT id, project_id FROM trajectories_trajectory WHERE id = ANY(%s) ORDER BY id FOR KEY SHARE"


def unread(keys: Sequence[int]) -> list[int]:
    """Those without a sketch that still holds."""
    return [pk for (pk,) in bound(_UNREAD, [list(keys), METHOD])]


_UNREAD = """
SELECT row.id
FROM unnest(%s::bigint[]) AS wanted (id)
JOIN trajectories_trajectory AS row ON row.id = wanted.id
LEFT JOIN failures_sketch AS sketch ON sketch.trajectory_id = row.id
LEFT JOIN failures_failure AS decided ON decided.trajectory_id = row.id AND decided.current
WHERE sketch.trajectory_id IS NULL OR sketch.method <> %s OR row.detected_at IS NULL
    OR sketch.read_at < row.changed_at OR sketch.read_at < decided.labelled_at
ORDER BY row.id
"""
"""What detectors have to read again (`detected_at`) may say something else than before: it was redacted, perhaps."""


def catch_up() -> int:
    """Keep sketches of what people labelled lately. Returns how many were read."""
    latest = Failure.objects.filter(current=True).order_by("-id").values_list("trajectory_id", flat=True)
    waiting = unread(list(latest[:LABELLED_AT_ONCE]))
    return keep(waiting) if waiting else 0


def sketches_of(keys: Sequence[int]) -> dict[int, Packed]:
    """Return the stored sketches of these trajectories, by their keys."""
    rows = Sketch.objects.filter(trajectory__in=keys, method=METHOD).values_list("trajectory_id", *PARTS)
    return {pk: _packed(parts) for pk, *parts in rows}


def _packed(parts: Sequence[memoryview | bytes]) -> Packed:
    return {part: bytes(value) for part, value in zip(PARTS, parts, strict=True)}


# The nearest


@dataclass(frozen=True, slots=True)
class Neighbours:
    rows: list[tuple[Trajectory, Near]]
    among: int
    """How many failures it was compared with."""
    is_cut: bool
    """There are older ones, which were left out."""


def neighbours(trajectory: Trajectory, most: int = 20) -> Neighbours:
    """The failures that are most like this trajectory, which may be none itself, and why."""
    mine = terms_of([trajectory.pk]).get(trajectory.pk)
    if mine is None:
        return Neighbours([], 0, False)
    rows = (
        Sketch.objects.filter(project=trajectory.project_id, method=METHOD)
        .filter(trajectory__in=Trajectory.objects.filter(failing()).exclude(source__in=Source.ATTEMPTS))
        .exclude(trajectory=trajectory)
        .order_by("-trajectory_id")
        .values_list("trajectory_id", *PARTS)[: AMONG + 1]
    )
    every = list(rows)
    found = failure_similarity.nearest(mine, [_packed(parts) for _, *parts in every[:AMONG]], most)
    keys = [every[near.at][0] for near in found]
    shown = Trajectory.objects.select_related("version__agent", "agent").in_bulk(keys)
    pairs = [(shown[pk], near) for pk, near in zip(keys, found, strict=True) if pk in shown]
    return Neighbours(pairs, min(len(every), AMONG), len(every) > AMONG)
