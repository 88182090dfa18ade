"""Rows, written by COPY in its binary form, the cheapest way to hand them to PostgreSQL.

What is known already is looked up by statements that are planned once per connection. Each looks up one key after the
other (`unnest … CROSS JOIN LATERAL`), for which there is one good plan, and it is found on an empty table too.
"""

import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import orjson
import psycopg
from django.contrib.postgres.fields import ArrayField
from django.db import IntegrityError, connection, models

from flywheel.system.sql import bound, patience, planned
from flywheel.trajectories.formats.values.times import microseconds
from flywheel.trajectories.models import Blob, Step, Trajectory
from flywheel.trajectories.store.aggregates import claims
from flywheel.trajectories.store.arrivals.incoming_steps import Arrival
from flywheel.trajectories.store.rows.blobs import spill

_PG_EPOCH_US = microseconds(datetime(2000, 1, 1, tzinfo=UTC))


class Raced(Exception):
    """Another writer has made one of the trajectories in the meantime; the transaction has to run again."""


@dataclass(slots=True)
class Head:
    """The facts that decide whether a stored step is replaced."""

    pk: int
    ended: bool
    size: int
    digest: bytes

    @property
    def rank(self) -> tuple[bool, int, bytes]:
        return self.ended, self.size, self.digest


def heads_of(wanted: Collection[tuple[int, str]]) -> dict[int, dict[str, Head]]:
    """The stored steps among these (trajectory, span id), by trajectory and span id."""
    found: dict[int, dict[str, Head]] = {}
    if wanted:
        keys, spans = zip(*wanted, strict=True)
        for trajectory, span_id, *values in bound(_HEADS, [list(keys), list(spans)]):
            found.setdefault(trajectory, {})[span_id] = Head(*values)
    return found


_HEADS = """
SELECT step.trajectory_id, step.span_id, step.id, step.ended_at IS NOT NULL, step.size, step.digest
FROM unnest(%s::bigint[], %s::text[]) AS asked (trajectory, span_id)
JOIN trajectories_step AS step ON step.trajectory_id = asked.trajectory AND step.span_id = asked.span_id
"""


def hurry(lock_s: float = 10) -> None:
    """Let nothing in this transaction wait for ever: who sent the request waits for its answer."""
    patience(statement_s=30, lock_s=lock_s)


# Trajectories

_FIELDS = [(field.attname, str(field.column)) for field in Trajectory._meta.concrete_fields]
_CHANGING = [
    *claims.COMPARED, "agent_id", "version_id", "started_at", "ended_at", "changed_at", "latency_ms", "step_count",
    "error_count", "tokens_in", "tokens_out", "cost_usd", "event_count", "feedback_count",
]  # fmt: skip

_ROWS = "jsonb_populate_recordset(NULL::trajectories_trajectory, %s::jsonb) AS given"
_UPDATE = (
    f"UPDATE trajectories_trajectory AS row SET {', '.join(f'{name} = given.{name}' for name in _CHANGING)}"  # noqa: S608
    f" FROM {_ROWS} WHERE row.id = given.id"
)


def lock_trajectories(project_id: int, trace_ids: Collection[str]) -> list[int]:
    """The keys of those that are stored, locked in the order of their ids. Most requests bring new ones only."""
    return [key for (key,) in planned(LOCK, [sorted(trace_ids), project_id])]


LOCK = """
SELECT found.id FROM unnest(%s::text[]) AS asked (trace_id)
CROSS JOIN LATERAL (
    SELECT row.id FROM trajectories_trajectory AS row
    WHERE row.project_id = %s AND row.trace_id = asked.trace_id FOR NO KEY UPDATE
) AS found
"""


def homes_of(project_id: int, trace_ids: Collection[str]) -> dict[str, str]:
    """Trace id to that of the trajectory that has its model calls, where they came as a trace of their own."""
    return dict(planned(HOMES, [sorted(trace_ids), project_id])) if trace_ids else {}


HOMES = """
SELECT asked.trace_id, home.trace_id FROM unnest(%s::text[]) AS asked (trace_id)
CROSS JOIN LATERAL (
    SELECT call.trajectory_id FROM trajectories_modelcall AS call
    WHERE call.project_id = %s AND call.trace_id = asked.trace_id LIMIT 1
) AS found
CROSS JOIN LATERAL (
    SELECT row.trace_id FROM trajectories_trajectory AS row WHERE row.id = found.trajectory_id LIMIT 1
) AS home
"""


def home_of(project_id: int, trace_id: str) -> str:
    """The id of the trajectory that has the calls of a trace: often its own."""
    return homes_of(project_id, [trace_id]).get(trace_id, trace_id)


def insert_trajectories(new: Iterable[Trajectory]) -> None:
    """Insert them and set their keys. Raises Raced when another writer was faster."""
    ordered = sorted(new, key=lambda row: row.trace_id)
    if not ordered:
        return
    keys = planned(_KEYS, [len(ordered)])
    for row, (key,) in zip(ordered, keys, strict=True):
        row.pk = key
    try:
        with connection.wrap_database_errors, connection.cursor() as cursor, cursor.copy(_COPY_TRAJECTORIES) as copy:
            copy.set_types(_TYPES)
            for row in ordered:
                values = zip(_values_of(row), _ENCODERS, strict=True)
                copy.write_row(
                    [value if encode is None or value is None else encode(value) for value, encode in values]
                )
    except IntegrityError as error:
        if isinstance(error.__cause__, psycopg.errors.UniqueViolation):
            raise Raced from None
        raise
    for row in ordered:
        row._state.adding = False
        row._state.db = connection.alias


_KEYS = "SELECT nextval(pg_get_serial_sequence('trajectories_trajectory', 'id')) FROM generate_series(1, %s)"
_COPY_TRAJECTORIES = (
    f"COPY trajectories_trajectory ({', '.join(column for _, column in _FIELDS)}) FROM STDIN (FORMAT BINARY)"
)
_values_of = attrgetter(*(name for name, _ in _FIELDS))


def _moment(value: datetime) -> bytes:
    """The 64-bit number of microseconds since 2000."""
    return (microseconds(value) - _PG_EPOCH_US).to_bytes(8, signed=True)


def _jsonb(value: Any) -> bytes:
    """JSON numbers beyond 64 bits never get here: `hostile_json.plain` has made text of them."""
    return b"\x01" + orjson.dumps(value)


def _texts(values: Sequence[str]) -> bytes:
    """An array of `varchar`, which is type 1043."""
    if not values:
        return _NO_TEXTS
    encoded = [value.encode() for value in values]
    items = b"".join([len(item).to_bytes(4) + item for item in encoded])
    return struct.pack("!5I", 1, 0, 1043, len(encoded), 1) + items


_NO_TEXTS = struct.pack("!3I", 0, 0, 1043)
_ENCODERS_OF: dict[type[Any], Callable[[Any], bytes]] = {
    models.DateTimeField: _moment,
    models.JSONField: _jsonb,
    ArrayField: _texts,
}
_ENCODERS = [_ENCODERS_OF.get(type(field)) for field in Trajectory._meta.concrete_fields]
"""For what psycopg encodes slowly; of the others it is told the type."""
_TYPES = [
    "bytea" if encode else str(field.db_type(connection)).partition("(")[0]
    for field, encode in zip(Trajectory._meta.concrete_fields, _ENCODERS, strict=True)
]


def update_trajectories(changed: Sequence[Trajectory]) -> None:
    if changed:
        rows = [{column: getattr(row, name) for name, column in _FIELDS} for row in changed]
        bound(_UPDATE, [orjson.dumps(rows).decode()])


# Steps

_STEP_COLUMNS = {
    "trajectory_id": "int8",
    **dict.fromkeys(("span_id", "parent_id"), "text"),
    **dict.fromkeys(("position", "place"), "int4"),
    **dict.fromkeys(("kind", "name", "status", "error"), "text"),
    **dict.fromkeys(("started_at", "ended_at"), "int8"),
    **dict.fromkeys(("model", "tool_name", "tool_call_id", "finish_reason"), "text"),
    **dict.fromkeys(("tokens_in", "tokens_out", "tokens_cached"), "int4"),
    "cost_usd": "float8",
    **dict.fromkeys(("priced_by", "answered_by"), "text"),
    "is_span": "bool",
    "body": "bytea",
    "blobs": "varchar[]",
    "size": "int4",
    "digest": "bytea",
    "received_at": "int8",
}
"""Column and how it is sent. In binary, a time is the 64-bit number of microseconds since 2000, and `json` is bytes."""

_COPY = f"COPY trajectories_step ({', '.join(_STEP_COLUMNS)}) FROM STDIN (FORMAT BINARY)"


def write_steps(
    trajectories: Mapping[str, Trajectory],
    fresh: Mapping[str, Sequence[Arrival]],
    replaced: Mapping[str, Mapping[str, int]],
    now: datetime,
) -> None:
    """Write the new steps of each trajectory, in place of those that they replace."""
    gone = [pk for each in replaced.values() for pk in each.values()]
    if gone:
        Step.objects.filter(pk__in=gone).delete()
    if not any(fresh.values()):
        return
    received = microseconds(now) - _PG_EPOCH_US
    taken: dict[tuple[int, str], str] = {}
    with connection.wrap_database_errors, connection.cursor() as cursor, cursor.copy(_COPY) as copy:
        copy.set_types(list(_STEP_COLUMNS.values()))
        for trace_id, steps in fresh.items():
            row = trajectories[trace_id]
            for step in steps:
                body, values = spill(step.body)
                if values:
                    taken |= {(row.project_id, digest): value for digest, value in values.items()}
                copy.write_row(
                    (
                        row.pk,
                        step.span_id,
                        step.parent_id,
                        step.position,
                        step.place,
                        step.kind,
                        step.name,
                        step.status,
                        step.error,
                        None if step.start_us is None else step.start_us - _PG_EPOCH_US,
                        None if step.end_us is None else step.end_us - _PG_EPOCH_US,
                        step.model,
                        step.tool_name,
                        step.tool_call_id,
                        step.finish_reason,
                        step.tokens_in,
                        step.tokens_out,
                        step.tokens_cached,
                        step.cost_usd,
                        step.priced_by or None,
                        step.answered_by or None,
                        step.is_span,
                        body,
                        sorted(values) or None,
                        step.size,
                        step.digest,
                        received,
                    )
                )
    # A value that is there already is touched, so that whoever is about to delete it waits and looks again.
    Blob.objects.bulk_create(
        [Blob(project_id=project, sha256=digest, content=value) for (project, digest), value in sorted(taken.items())],
        update_conflicts=True,
        unique_fields=["project", "sha256"],
        update_fields=["sha256"],
    )


def move_steps(moved: Sequence[tuple[int, int]]) -> None:
    """Give stored steps (by key) their new positions."""
    if moved:
        bound(
            "UPDATE trajectories_step AS step SET position = moved.position"
            " FROM unnest(%s::bigint[], %s::int[]) AS moved (id, position) WHERE step.id = moved.id",
            [list(column) for column in zip(*moved, strict=True)],
        )
