"""Attachments that come apart from their trajectory: events sent as logs, and feedback. Either may come first.

Both are kept by (project, trace id), whether the trajectory is there or not. Whoever comes second tells the trajectory:
`join` when spans make one about which something is kept already, `attach` when something comes about a stored one. A
gate keeps both from happening at once unseen: making a trajectory passes through it side by side with others, and
keeping something about one that is not there passes alone.
"""

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection

from flywheel.accounts.models import Project
from flywheel.core import traces
from flywheel.core.digests import digest
from flywheel.system.sql import planned
from flywheel.trajectories.formats.dialects import genai
from flywheel.trajectories.formats.otlp.otlp_logs import LogEvent
from flywheel.trajectories.formats.otlp.spans import Span
from flywheel.trajectories.formats.semantics import span_meaning
from flywheel.trajectories.formats.semantics.judgments import INTERVENTION, OUTCOME, Judgment, outcome_of
from flywheel.trajectories.formats.values.times import EPOCH, microseconds
from flywheel.trajectories.models import Event, Feedback, Step, Trajectory
from flywheel.trajectories.store.aggregates import agent_resolution, claims
from flywheel.trajectories.store.arrivals.incoming_steps import EARLIEST, LATEST, MAX_US, Said, called, title
from flywheel.trajectories.store.rows import trajectory_rows

GATES = 256
"""Trajectories share gates, so that a large request does not hold thousands of locks."""
_GATE_CLASS = 0x66_6C_77
"""Of PostgreSQL's advisory locks."""
AT_ONCE = 1000


# Spans make or change trajectories


def join(
    project: Project,
    stored: Mapping[str, Trajectory],
    new: Mapping[str, Trajectory],
    said: dict[str, list[Said]],
    adopted: Mapping[str, str],
) -> list[Trajectory]:
    """Add to `said` what was kept before its trajectory came, and keep the judgments among what the spans say.

    `adopted` are traces whose calls have become part of the trajectory of another: what was kept for them is its.
    Returns the stored trajectories whose count of feedback has changed. Costs nothing where no trajectory is new and
    nothing is judged, and one query where trajectories are new and nothing waits for them. Raises Raced.
    """
    given = [row_of(project, judged) for parts in said.values() for part in parts for judged in part.judgments]
    address(project, given, adopted)
    absent = {row.trace_id for row in given} - stored.keys() - new.keys()
    coming = [*new, *adopted]
    waiting = _through_gates(project, coming, absent) if coming or absent else set()
    if absent and Trajectory.objects.filter(project=project, trace_id__in=absent).exists():
        raise trajectory_rows.Raced
    known = [*Feedback.objects.filter(project=project, trace_id__in=waiting)] if waiting else []
    if waiting:
        every = {**stored, **new}
        for event in Event.objects.filter(project=project, trace_id__in=waiting):
            home = adopted.get(event.trace_id, event.trace_id)
            every[home].event_count += 1
            said[home].append(said_of_event(event))
    for trace_id in waiting & adopted.keys():
        for kept in (Feedback, Event):
            kept.objects.filter(project=project, trace_id=trace_id).update(trace_id=adopted[trace_id])
    for row in known:
        row.trace_id = adopted.get(row.trace_id, row.trace_id)
    waiting = {adopted.get(trace_id, trace_id) for trace_id in waiting}
    known += _of_late_roots(project, stored, said)
    if not given and not waiting and not known:
        return []
    keep(given)
    _hear([row for row in [*known, *given] if row.trace_id in said], stored, said)
    return _count(project, {**stored, **new}, {row.trace_id for row in given} | waiting, new)


# Something comes about a trajectory


@dataclass(slots=True)
class Attached:
    feedback: list[Feedback]
    """Those that are new."""
    events: list[Event]
    is_news: bool = False
    """Whether a stored trajectory reads differently now."""


def locked(project: Project, trace_ids: Collection[str]) -> dict[str, Trajectory]:
    """The stored trajectories, locked in the order of their ids so that no two writers deadlock."""
    keys = trajectory_rows.lock_trajectories(project.pk, trace_ids)
    return {row.trace_id: row for row in Trajectory.objects.filter(pk__in=keys)} if keys else {}


def address(
    project: Project, rows: Sequence[Feedback | Event], homes: Mapping[str, str] | None = None
) -> Sequence[Feedback | Event]:
    """Let the rows speak of the trajectories that have the calls of the traces that they name. Returns the rows."""
    if rows:
        names = {row.trace_id for row in rows}
        known = {**trajectory_rows.homes_of(project.pk, names), **(homes or {})}
        for row in rows:
            row.trace_id = known.get(row.trace_id, row.trace_id)
    return rows


def held(project: Project, trace_ids: Collection[str]) -> dict[str, Trajectory]:
    """The stored trajectories, locked; until the transaction ends none of the others is made. Raises Raced.

    The ids are those of trajectories (`address`).
    """
    stored = locked(project, trace_ids)
    absent = set(trace_ids) - stored.keys()
    if absent:
        _through_gates(project, (), absent)
        if trajectory_rows.homes_of(project.pk, absent):
            raise trajectory_rows.Raced
        if Trajectory.objects.filter(project=project, trace_id__in=absent).exists():
            raise trajectory_rows.Raced
    return stored


def attach(
    project: Project,
    stored: Mapping[str, Trajectory],
    feedback: Sequence[Feedback],
    events: Sequence[Event],
    now: datetime,
) -> Attached:
    """Keep what came, and tell the stored trajectories. `stored` is what `held` answered for all of it."""
    known = _known_events(project, events)
    fresh = {(event.trace_id, event.span_id, bytes(event.digest)): event for event in events}
    attached = Attached(keep(feedback), [event for key, event in fresh.items() if key not in known])
    Event.objects.bulk_create(attached.events, ignore_conflicts=True, batch_size=AT_ONCE)
    said: dict[str, list[Said]] = {trace_id: [] for trace_id in stored}
    for event in attached.events:
        if event.trace_id in stored:
            stored[event.trace_id].event_count += 1
            said[event.trace_id].append(said_of_event(event))
    _hear([row for row in attached.feedback if row.trace_id in stored], stored, said)
    counted = _count(project, stored, {row.trace_id for row in attached.feedback}, ())
    grown = {event.trace_id for event in attached.events}
    changed = [found for trace_id, found in stored.items() if claims.merge(found, said[trace_id]) or trace_id in grown]
    for trajectory in changed:
        trajectory.changed_at = now
    agent_resolution.resolve(project, changed)
    trajectory_rows.update_trajectories(list(dict.fromkeys([*changed, *counted])))
    attached.is_news = bool(changed)
    return attached


def _known_events(project: Project, events: Sequence[Event]) -> set[tuple[str, str, bytes]]:
    found = Event.objects.filter(
        project=project,
        trace_id__in={event.trace_id for event in events},
        digest__in=[event.digest for event in events],
    )
    rows = found.values_list("trace_id", "span_id", "digest")
    return {(trace_id, span_id, bytes(known)) for trace_id, span_id, known in rows}


# The gate

_THROUGH = """
SELECT CASE WHEN alone THEN pg_advisory_xact_lock(%s, gate)::text ELSE pg_advisory_xact_lock_shared(%s, gate)::text END
FROM unnest(%s::int[], %s::bool[]) AS asked (gate, alone)
"""

WAITING = """
SELECT asked.trace_id FROM unnest(%s::text[]) AS asked (trace_id) CROSS JOIN LATERAL (
    SELECT FROM trajectories_feedback AS row WHERE row.project_id = %s AND row.trace_id = asked.trace_id LIMIT 1
) AS found
UNION ALL
SELECT asked.trace_id FROM unnest(%s::text[]) AS asked (trace_id) CROSS JOIN LATERAL (
    SELECT FROM trajectories_event AS row WHERE row.project_id = %s AND row.trace_id = asked.trace_id LIMIT 1
) AS found
"""


def _through_gates(project: Project, new: Collection[str], absent: Collection[str]) -> set[str]:
    """Pass the gates, alone for what is absent. Returns the new trajectories about which something is kept."""
    gates = dict.fromkeys((_gate(project, trace_id) for trace_id in new), False)
    gates |= dict.fromkeys((_gate(project, trace_id) for trace_id in absent), True)
    numbers = sorted(gates)
    made = list(new)
    planned(_THROUGH, [_GATE_CLASS, _GATE_CLASS, numbers, [gates[number] for number in numbers]])
    # A statement of its own: it sees what was committed while the one before waited.
    return {trace_id for (trace_id,) in planned(WAITING, [made, project.pk, made, project.pk])}


def _gate(project: Project, trace_id: str) -> int:
    return (project.pk * GATES + zlib.crc32(trace_id.encode()) % GATES) % 2**31


# Feedback

_SETTLE = """
WITH ranked AS (
    SELECT id, row_number() OVER (
        PARTITION BY trace_id, span_id, key, source, by ORDER BY at DESC, identity DESC
    ) = 1 AS newest
    FROM trajectories_feedback WHERE project_id = %s AND trace_id = ANY(%s)
)
UPDATE trajectories_feedback AS row SET current = newest FROM ranked
WHERE row.id = ranked.id AND row.current != newest;
SELECT trace_id, count(*) FROM trajectories_feedback WHERE project_id = %s AND trace_id = ANY(%s) AND current
GROUP BY trace_id
"""


def keep(given: Sequence[Feedback]) -> list[Feedback]:
    """Insert the rows. Returns those that are new."""
    fresh = {(row.project_id, row.identity): row for row in given}
    if not fresh:
        return []
    known = Feedback.objects.filter(
        project__in={project for project, _ in fresh}, identity__in=[identity for _, identity in fresh]
    )
    for key in known.values_list("project_id", "identity"):
        fresh.pop(key, None)
    Feedback.objects.bulk_create(fresh.values(), ignore_conflicts=True, batch_size=AT_ONCE)
    return list(fresh.values())


def _count(
    project: Project, trajectories: Mapping[str, Trajectory], changed: Collection[str], new: Collection[str]
) -> list[Trajectory]:
    """Let the newest feedback of each giver hold, and count what holds. Returns the trajectories whose count is new."""
    if not changed:
        return []
    ids = sorted(changed)
    with connection.cursor() as cursor:
        cursor.execute(_SETTLE, [project.pk, ids, project.pk, ids])
        cursor.nextset()
        counts = dict(cursor.fetchall())
    recounted = []
    for trace_id in ids:
        row = trajectories.get(trace_id)
        if row is not None and row.feedback_count != counts.get(trace_id, 0):
            row.feedback_count = counts.get(trace_id, 0)
            if trace_id not in new:
                recounted.append(row)
    return recounted


def row_of(project: Project, judged: Judgment) -> Feedback:
    """A judgment of telemetry, known by its content: what is exported twice is one."""
    return identified(
        Feedback(
            project=project,
            trace_id=judged.trace_id,
            span_id=judged.span_id,
            key=judged.key,
            value=judged.value,
            score=judged.score,
            comment=judged.comment,
            source=judged.source,
            by=judged.by,
            at=moment(judged.time_ns),
        )
    )


def identified(row: Feedback, identity: str = "") -> Feedback:
    """Set what makes this row the one that it is: the sender's own id, or else its content and time."""
    content = [row.trace_id, row.span_id, row.key, row.value, row.score, row.comment, row.source, row.by]
    row.digest = digest(content)
    row.identity = digest(["id", identity] if identity else [row.digest, microseconds(row.at)])
    return row


# What they say of the whole


def said_of(given: Sequence[Feedback], stored: Mapping[str, Trajectory]) -> list[Said]:
    """Return the claims of feedback about trajectories, each about its own, in the order given."""
    said: dict[str, list[Said]] = {row.trace_id: [] for row in given}
    _hear(given, stored, said)
    return [each for parts in said.values() for each in parts]


def _hear(given: Sequence[Feedback], stored: Mapping[str, Trajectory], said: dict[str, list[Said]]) -> None:
    """Add to `said` what the feedback says of the whole.

    What names a step judges that step. Only when that is the root span does its outcome count for the trajectory,
    whichever of both comes first: the root is among what came (`said`), or stored, or calls for the judgment itself
    when it comes (`_of_late_roots`).
    """
    judged = {(row.trace_id, row.span_id) for row in given if row.key == OUTCOME and row.span_id}
    roots = {(trace_id, part.first[2]) for trace_id, _ in judged for part in said[trace_id] if part.is_root}
    if judged - roots:
        keys = {stored[trace_id].pk: trace_id for trace_id, _ in judged if trace_id in stored}
        spans = Step.objects.filter(is_span=True, parent_id="", span_id__in={span_id for _, span_id in judged})
        found = spans.filter(trajectory__in=keys).values_list("trajectory", "span_id")
        roots |= {(keys[pk], span_id) for pk, span_id in found}
    for row in given:
        is_whole = not row.span_id or (row.trace_id, row.span_id) in roots
        said[row.trace_id].append(_said_of(row, is_whole))


def _of_late_roots(
    project: Project, stored: Mapping[str, Trajectory], said: Mapping[str, Sequence[Said]]
) -> list[Feedback]:
    """The outcomes that were given to a stored trajectory's root span before it came."""
    roots = {
        trace_id: ids
        for trace_id, row in stored.items()
        if row.feedback_count and (ids := {part.first[2] for part in said[trace_id] if part.is_root})
    }
    if not roots:
        return []
    given = Feedback.objects.filter(project=project, key=OUTCOME, trace_id__in=roots).exclude(span_id="")
    return [row for row in given if row.span_id in roots[row.trace_id]]


def _said_of(row: Feedback, is_whole: bool) -> Said:
    key = (microseconds(row.at), True, row.span_id)
    said = Said(key, key)
    if row.key == OUTCOME:
        if is_whole:
            said.outcome, said.is_person = outcome_of(row.value), row.is_person
    elif row.key == INTERVENTION and row.value not in (None, False, 0, ""):
        kind = row.value if isinstance(row.value, str) else "stepped_in"
        by = row.by or row.source
        said.interventions = [traces.Intervention(row.span_id, kind, by, row.comment, row.at.isoformat())]
    return said


def said_of_event(row: Event) -> Said:
    """Return an event's claims about the whole: all that a span with only this event would say, and no figures."""
    event = log_event(row).event()
    details = event.attributes if event.name == genai.DETAILS else {}
    span = Span(row.trace_id, row.span_id, attributes=details, events=[event])
    found = span_meaning.facts(span)
    time = microseconds(row.at) if row.at else None
    said = Said(
        (LATEST if time is None else time, True, row.span_id),
        (EARLIEST if time is None else time, False, row.span_id),
        found.agent,
        found.version,
        found.session_id,
        found.user_id,
        found.environment,
    )
    said.metadata, said.tags, said.tools = found.metadata, found.tags, span_meaning.tools(span)
    read = span_meaning.content(span, "assistant")
    said.title = title(read.input) or title(read.output)
    said.tool_names = called(read.output)
    return said


def log_event(row: Event) -> LogEvent:
    """The event as it came."""
    body = row.body
    return LogEvent(
        row.trace_id, row.span_id, row.name, int(body["time_ns"]), body.get("attributes", {}), body.get("body")
    )


def moment(ns: int) -> datetime:
    """The time that a number of nanoseconds says, whatever the number."""
    return EPOCH + timedelta(microseconds=min(ns // 1000, MAX_US))
