"""Model calls that came as traces of their own, put together: one conversation is one trajectory.

Who instruments a client without a span around the agent's run, or calls through the gateway without saying which
episode a call belongs to, sends every call as a trace. `join` finds for each such call the trajectory that it
continues, or that continues it, by the points of `core.traces.stretches`; docs/design/stitching.md says why so.

A trajectory keeps the id of the trace of it that came first. Which other traces are in it stands in `ModelCall`: by it
their later spans, feedback and log events find their way, and who asks for their ids (`trajectory_rows.homes_of`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db import connection

from flywheel.accounts.models import Project
from flywheel.core.traces.stretches import Stretch
from flywheel.system.sql import bound, planned
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.models import ModelCall, Source, Step, Trajectory
from flywheel.trajectories.store.arrivals.incoming_steps import Arrival, Reader, Said
from flywheel.trajectories.store.rows import trajectory_rows
from flywheel.trajectories.store.rows.blobs import restore

GATES = 256
_GATE_CLASS = 0x73_74_69
"""Of PostgreSQL's advisory locks."""
CANDIDATES = 4
"""Calls that are looked at for one point, the newest first; one is enough but where conversations begin alike."""
ANSWER = ".answer"
"""What the id of a call's second row ends with, which says how its answer is named."""
LARGEST = 2_000
"""Steps of a trajectory that is taken into another; a larger one stays apart."""


@dataclass(slots=True, eq=False)
class _Call:
    """A model call to which others may be joined."""

    home: str
    """Trace id of its trajectory."""
    trace_id: str
    span_id: str
    reaches: UUID | None
    passes: list[UUID]
    key: int | None = None
    """None where it is not stored yet."""
    is_changed: bool = False


@dataclass(slots=True)
class Joined:
    """Where the calls of a request belong."""

    homes: dict[str, str] = field(default_factory=dict)
    """Trace id to that of the trajectory which has its calls, where that is another."""
    adopted: dict[str, str] = field(default_factory=dict)
    """Those of them that are new: what waits for such a trace has a trajectory now."""
    absorbed: dict[str, str] = field(default_factory=dict)
    """Stored trajectories that turn out to be parts of others."""
    calls: list[_Call] = field(default_factory=list)

    def home(self, trace_id: str) -> str:
        return self.homes.get(trace_id, trace_id)


def join(project: Project, came: Mapping[str, Sequence[Arrival]], names: Collection[str]) -> Joined:
    """Find where the calls among these steps, by trace id, belong; `names` are all traces that the request speaks of.

    In a transaction, before any trajectory is locked: two calls of one conversation wait for each other here. Costs one
    look-up where no call has come as a trace of its own.
    """
    calls = [(trace, step, step.stretch) for trace, steps in came.items() for step in steps if step.stretch is not None]
    if not calls:
        return Joined(_apart(trajectory_rows.homes_of(project.pk, names)))
    _through_gates(project, [point for _, _, stretch in calls for point in stretch.gates])
    search = _Search(project, trajectory_rows.homes_of(project.pk, names))
    known = _stored_calls(project, [(trace, step.span_id) for trace, step, _ in calls])
    fresh = [call for call in calls if (call[0], call[1].span_id) not in known]
    fresh.sort(key=lambda call: (call[1].start_us or 0, call[0], call[1].span_id))
    search.look_up([trace for trace, _, _ in fresh], [stretch for _, _, stretch in fresh])
    for trace, step, stretch in fresh:
        search.place(trace, step.span_id, stretch)
    return Joined(_apart(search.homes), search.adopted, search.absorbed, search.calls)


def _apart(homes: Mapping[str, str]) -> dict[str, str]:
    return {trace: home for trace, home in homes.items() if home != trace}


class _Search:
    """The points at which calls can be joined: those that are stored, and those that have just come."""

    def __init__(self, project: Project, homes: dict[str, str]) -> None:
        self.project = project
        self.homes = homes
        self.adopted: dict[str, str] = {}
        self.absorbed: dict[str, str] = {}
        self.calls: list[_Call] = []
        self._ends: dict[UUID, list[_Call]] = {}
        self._passing: dict[UUID, list[_Call]] = {}
        self._stored: set[str] = set()

    def look_up(self, traces: Collection[str], stretches: Sequence[Stretch]) -> None:
        """Read the stored calls that these may continue, or be continued by."""
        passed = sorted({str(point) for stretch in stretches for point in stretch.passes})
        reached = sorted({str(point) for stretch in stretches for point in (stretch.reaches, stretch.named) if point})
        rows = planned(NEIGHBOURS, [passed, self.project.pk, reached, self.project.pk])
        found = {row[0]: row for row in rows}
        for key, home, trace, span, reaches, points in (found[key] for key in sorted(found)):
            self._index(_Call(home, trace, span, reaches, list(points), key))
        # Of a trace without a call so far something may be stored: its other spans came first.
        lost = {trace for trace in traces if trace not in self.homes} | {call.home for call in self.calls}
        self._stored = set(self.project.trajectories.filter(trace_id__in=lost).values_list("trace_id", flat=True))

    def _index(self, call: _Call) -> None:
        self.calls.append(call)
        if call.reaches:
            self._ends.setdefault(call.reaches, []).append(call)
        for point in call.passes:
            self._passing.setdefault(point, []).append(call)

    def place(self, trace: str, span_id: str, stretch: Stretch) -> None:
        """Give a new call its trajectory, and close the points that it has taken."""
        home = self.homes.get(trace)
        before, after = self._before(stretch, home), self._after(stretch)
        if after is before:  # the same request once more, after one that failed
            after = None
        if home is None:
            nearest = before or after
            home = trace if nearest is None else nearest.home
            if home != trace and (not self._gives_way(trace) or self._has_step(home, span_id)):
                home, before = trace, None
        if after and after.home != home and not self._gives_way(after.home):
            after = None
        new = _Call(home, trace, span_id, stretch.reaches, list(stretch.passes))
        self.homes[trace] = home
        for gone in dict.fromkeys([trace, *([after.home] if after else [])]):
            if gone != home:
                self._take(gone, home)
        if not stretch.is_shared:
            _close(before, new, after)
        self._index(new)
        if stretch.named:
            self._index(_Call(home, trace, f"{span_id}{ANSWER}", stretch.named, []))

    def _before(self, stretch: Stretch, home: str | None) -> _Call | None:
        """The call that it continues, at the latest point; of several, the newest."""
        found = (call for point in stretch.passes for call in reversed(self._ends.get(point, ())))
        return next((call for call in found if call.reaches and home in (None, call.home)), None)

    def _after(self, stretch: Stretch) -> _Call | None:
        """A call that continues it and came before it."""
        points = [point for point in (stretch.reaches, stretch.named) if point]
        found = ((point, call) for point in points for call in reversed(self._passing.get(point, ())))
        return next((call for point, call in found if point in call.passes), None)

    def _gives_way(self, trace: str) -> bool:
        """Whether what is stored under this id may become part of another trajectory."""
        if trace not in self._stored:
            return True
        row = self.project.trajectories.filter(trace_id=trace).first()
        return row is None or is_free(row)

    def _has_step(self, trace: str, span_id: str) -> bool:
        """Whether the trajectory has a step of this id already: senders that count their spans in each trace do, and
        joined, one of the two would be lost."""
        is_new = any(call.home == trace and call.span_id == span_id for call in self.calls)
        return (
            is_new
            or Step.objects.filter(
                trajectory__project=self.project, trajectory__trace_id=trace, span_id=span_id
            ).exists()
        )

    def _take(self, gone: str, home: str) -> None:
        """Let all that is in one trajectory be in another."""
        if gone in self._stored:
            self.absorbed[gone] = home
        if gone in self._stored or gone in self.homes.values():
            for table in (self.homes, self.adopted, self.absorbed):
                table.update({trace: home for trace, other in table.items() if other == gone})
            for call in self.calls:
                if call.home == gone:
                    call.home, call.is_changed = home, True
        self.homes[gone] = self.adopted[gone] = home


def _close(before: _Call | None, new: _Call, after: _Call | None) -> None:
    """Close the points between calls that follow each other: nothing else can be joined there."""
    if after is not None and new.reaches in after.passes:
        # Whatever else is missing before the later call is missing before this one.
        open_before = after.passes
        new.passes = [point for point in new.passes if point in open_before]
        after.passes = open_before[: open_before.index(new.reaches)]
        new.reaches, after.is_changed = None, True
    if before is not None and before.reaches is not None:
        if before.reaches in new.passes:
            new.passes = new.passes[: new.passes.index(before.reaches)]
        before.reaches, before.is_changed = None, True


def is_free(row: Trajectory) -> bool:
    """Whether a trajectory may become part of another: spans alone, not too many, and no person has touched it."""
    touched = (row.comments, row.failures, row.queue_items, row.tasks)
    is_plain = row.source == Source.PRODUCTION and not row.label and row.step_count <= LARGEST
    return is_plain and not any(rows.exists() for rows in (*touched, row.steps.filter(is_span=False)))


# The database

_THROUGH = "SELECT pg_advisory_xact_lock(%s, gate)::text FROM unnest(%s::int[]) AS asked (gate)"

NEIGHBOURS = f"""
WITH found AS (
    SELECT call.* FROM unnest(%s::uuid[]) AS asked (point) CROSS JOIN LATERAL (
        SELECT * FROM trajectories_modelcall AS row
        WHERE row.reaches = asked.point AND row.project_id = %s ORDER BY row.id DESC LIMIT {CANDIDATES}
    ) AS call
    UNION ALL
    SELECT row.* FROM trajectories_modelcall AS row WHERE row.passes && %s::uuid[] AND row.project_id = %s
)
SELECT found.id, home.trace_id, found.trace_id, found.span_id, found.reaches, found.passes
FROM found CROSS JOIN LATERAL (
    SELECT row.trace_id FROM trajectories_trajectory AS row WHERE row.id = found.trajectory_id LIMIT 1
) AS home
"""  # noqa: S608

_KNOWN = """
SELECT call.trace_id, call.span_id FROM unnest(%s::text[], %s::text[]) AS asked (trace_id, span_id)
JOIN trajectories_modelcall AS call
ON call.project_id = %s AND call.trace_id = asked.trace_id AND call.span_id = asked.span_id
"""


def _through_gates(project: Project, points: Iterable[UUID]) -> None:
    """Let the calls of one conversation pass one after the other, until this transaction ends."""
    gates = sorted({(project.pk * GATES + point.int % GATES) % 2**31 for point in points})
    planned(_THROUGH, [_GATE_CLASS, gates])


def _stored_calls(project: Project, calls: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return those of these calls (trace id, span id) that are stored."""
    traces, spans = [list(column) for column in zip(*calls, strict=True)]
    return {(trace, span) for trace, span in planned(_KNOWN, [traces, spans, project.pk])}


def store(project: Project, joined: Joined, trajectories: Mapping[str, Trajectory], gone: Sequence[Trajectory]) -> None:
    """Write the calls, by the trajectories by trace id, and delete what has become part of another."""
    for row in gone:
        ModelCall.objects.filter(trajectory=row).update(trajectory=trajectories[joined.absorbed[row.trace_id]])
        Step.objects.filter(trajectory=row)._raw_delete(connection.alias)
        row.delete()
    new = [_row(trajectories, call) for call in joined.calls if call.key is None]
    changed = [_row(trajectories, call) for call in joined.calls if call.key is not None and call.is_changed]
    if new:
        _, homes, traces, spans, ends, points = (list(column) for column in zip(*new, strict=True))
        bound(_INSERT, [project.pk, homes, traces, spans, ends, points])
    if changed:
        keys, homes, _, _, ends, points = (list(column) for column in zip(*changed, strict=True))
        bound(_CHANGE, [keys, homes, ends, points])


def _row(trajectories: Mapping[str, Trajectory], call: _Call) -> tuple[Any, ...]:
    points = f"{{{','.join(map(str, call.passes))}}}"
    return call.key, trajectories[call.home].pk, call.trace_id, call.span_id, call.reaches, points


_INSERT = """
INSERT INTO trajectories_modelcall (project_id, trajectory_id, trace_id, span_id, reaches, passes)
SELECT %s, new.home, new.trace_id, new.span_id, new.reaches, new.passes::uuid[]
FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::uuid[], %s::text[])
    AS new (home, trace_id, span_id, reaches, passes)
ON CONFLICT DO NOTHING
"""

_CHANGE = """
UPDATE trajectories_modelcall AS call SET trajectory_id = new.home, reaches = new.reaches, passes = new.passes::uuid[]
FROM unnest(%s::bigint[], %s::bigint[], %s::uuid[], %s::text[]) AS new (id, home, reaches, passes)
WHERE call.id = new.id
"""


def taken_back(row: Trajectory) -> tuple[list[Arrival], list[Said]]:
    """The spans of a stored trajectory and what they say of the whole, as if they came now."""
    steps = list(row.steps.select_related("trajectory").order_by("position"))
    restore(steps)
    reader = Reader()
    ids = {"trace_id": row.trace_id}
    spans = [otlp_traces.from_json(step.body, span_id=step.span_id, parent_id=step.parent_id, **ids) for step in steps]
    read = list(reader.spans(spans))
    return [arrival for arrival, _ in read], [said for _, said in read]
