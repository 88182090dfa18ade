"""Statements for the few places that every request passes: written by hand, with the values beside them.

What Django and psycopg do not document is used here and in `edge/prepared_queries.py`, because what they do document
takes several times as long where a request asks the same question ten times, and of the pool in
`server/gunicorn_settings.py`; a test holds that it is nowhere else.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from django.db import connection
from django.db.models import Model, QuerySet
from django.db.models.base import ModelState
from psycopg.adapt import Transformer
from psycopg.pq import DiagnosticField, ExecStatus, Format, TransactionStatus

M = TypeVar("M", bound=Model)


def give_back() -> None:
    """Return this thread's connection to the pool until it asks the next question: one that is held by a thread which
    waits for somebody is one that pages lack."""
    if connection.settings_dict["OPTIONS"].get("pool") and not connection.in_atomic_block:
        connection.close()


def bound(statement: str, values: Sequence[Any] | Mapping[str, Any]) -> psycopg.Cursor[tuple[Any, ...]]:
    """Execute with the values beside the statement. Django's cursor writes them into it: slow for large ones."""
    connection.ensure_connection()
    with connection.wrap_database_errors:
        return psycopg.Cursor[tuple[Any, ...]](connection.connection).execute(statement, values)


def sql_of(rows: QuerySet[Any, Any]) -> tuple[str, tuple[Any, ...]]:
    """The query's SQL and its values; also of one that can find nothing."""
    statement, values = rows.query.get_compiler(connection=connection, elide_empty=False).as_sql()
    return statement, values


def copied(row: M) -> M:
    """A copy of a row that is not stored yet. Django would look at each of its fields to make one."""
    made = type(row).__new__(type(row))
    made.__dict__.update(row.__dict__, _state=ModelState())
    made._state.fields_cache = dict(row._state.fields_cache)
    return made


def planned(statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The rows of a statement that is parsed and planned once per connection, by libpq itself.

    A tenth of what a cursor takes, which is more than PostgreSQL does. PostgreSQL finds the types of the values, so
    where it cannot, the statement says them. For a statement whose plan does not depend on how full a table is.
    """
    connection.ensure_connection()
    raw = connection.connection
    with connection.wrap_database_errors:
        if not raw.autocommit and raw.pgconn.transaction_status == TransactionStatus.IDLE:
            _succeeded(raw.pgconn.exec_(b"BEGIN"))
        try:
            result = _execute_prepared(raw, statement, values)
        except psycopg.errors.FeatureNotSupported:  # a migration gave a column another type since it was planned
            _NAMES[raw].pop(statement, None)
            if raw.pgconn.transaction_status != TransactionStatus.IDLE:
                raise
            result = _execute_prepared(raw, statement, values)
        if not result.ntuples:
            return []
        reader = Transformer(raw)
        reader.set_pgresult(result)
        return reader.load_rows(0, result.ntuples, tuple)


def clock() -> datetime:
    """The time by the database's clock, which is one for all processes on whatever machines."""
    (at,) = planned("SELECT clock_timestamp()", [])[0]
    found: datetime = at
    return found


def patience(statement_s: float, lock_s: float) -> None:
    """Limit a statement's time and a lock's in this transaction, which begins with it: one question for both."""
    connection.ensure_connection()
    raw = connection.connection
    said = f"SET LOCAL statement_timeout = {statement_s * 1000:.0f}; SET LOCAL lock_timeout = {lock_s * 1000:.0f}"
    with connection.wrap_database_errors:
        is_begun = raw.autocommit or raw.pgconn.transaction_status != TransactionStatus.IDLE
        _succeeded(raw.pgconn.exec_((said if is_begun else f"BEGIN; {said}").encode()))


_NAMES: WeakKeyDictionary[Any, dict[str, bytes]] = WeakKeyDictionary()
"""Of what each connection has planned."""
_NUMBERS = itertools.count()


def _execute_prepared(raw: Any, statement: str, values: Sequence[Any]) -> Any:
    names = _NAMES.setdefault(raw, {})
    name = names.get(statement)
    if name is None:
        name = b"planned_%d" % next(_NUMBERS)
        _succeeded(raw.pgconn.prepare(name, _numbered(statement)))
        names[statement] = name
    given = [_written(value) for value in values]
    formats = [Format.BINARY if isinstance(value, bytes) else Format.TEXT for value in values]
    return _succeeded(raw.pgconn.exec_prepared(name, given, formats))


@functools.cache
def _numbered(statement: str) -> bytes:
    first, *others = statement.split("%s")
    return "".join([first, *(f"${number}{part}" for number, part in enumerate(others, 1))]).encode()


def _written(value: Any) -> bytes | None:
    """As PostgreSQL reads it in text; bytes as they are. Lists hold strings, numbers or booleans."""
    if value is None or isinstance(value, bytes):
        return value
    written = f"{{{','.join(map(_element, value))}}}" if isinstance(value, list) else str(value)
    if "\x00" in written:  # where libpq would take it to end
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return written.encode()


def _element(value: Any) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if isinstance(value, str) else str(value)


def _succeeded(result: Any) -> Any:
    if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
        return result
    if result.error_field(DiagnosticField.SQLSTATE) is None:
        raise psycopg.OperationalError(result.error_message.decode(errors="replace") or "the connection is lost")
    raise psycopg.errors.error_from_result(result)
