"""The ceiling: what PostgreSQL takes by COPY from Python that does nothing but gunzip, decode and hand over.

The same columns and indexes as `trajectories_step`, a commit for each request, and no HTTP, no client, no trajectories,
no ledger, no dialects: no ingest through this database and this language can be faster.
"""

import gzip
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import psycopg
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tests.benching.bodies import SPANS, Bodies

_COLUMNS = {
    "trajectory_id": "int8",
    "span_id": "text",
    "parent_id": "text",
    "position": "int4",
    "place": "int4",
    "kind": "text",
    "name": "text",
    "status": "text",
    "error": "text",
    "started_at": "int8",
    "ended_at": "int8",
    "model": "text",
    "tool_name": "text",
    "tool_call_id": "text",
    "finish_reason": "text",
    "tokens_in": "int4",
    "tokens_out": "int4",
    "tokens_cached": "int4",
    "cost_usd": "float8",
    "is_span": "bool",
    "body": "text",
    "blobs": "varchar[]",
    "size": "int4",
    "digest": "bytea",
    "received_at": "int8",
}
_COPY = f"COPY bench_step ({', '.join(_COLUMNS)}) FROM STDIN (FORMAT BINARY)"
_TABLE = """
DROP TABLE IF EXISTS bench_step;
CREATE TABLE bench_step (LIKE trajectories_step INCLUDING ALL)
"""
_EPOCH_US = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000


def ceiling(url: str, bodies: Path, seconds: float, processes: int) -> float:
    """Spans a second with this many processes, in a database that has Flywheel's tables."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_TABLE)
    given = [(url, bodies, seconds, part, processes) for part in range(processes)]
    with ProcessPoolExecutor(processes) as pool:
        list(pool.map(_ready, range(processes)))
        rates = list(pool.map(_work, given))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE bench_step")
    return sum(rates)


def _ready(_: int) -> None:
    """Start the process and load its libraries before the clock starts."""
    time.sleep(0.1)


def _work(given: tuple[str, Path, float, int, int]) -> float:
    url, directory, seconds, part, processes = given
    bodies, types, done = Bodies(directory), list(_COLUMNS.values()), 0
    with psycopg.connect(url) as connection:
        began = time.monotonic()
        for number in range(part, len(bodies), processes):
            request = TracesData.FromString(gzip.decompress(bodies[number]))
            with connection.cursor().copy(_COPY) as copy:
                copy.set_types(types)
                for row in _rows(request, number):
                    copy.write_row(row)
            connection.commit()
            done += SPANS
            if time.monotonic() - began > seconds:
                break
        return done / (time.monotonic() - began)


def _rows(request: TracesData, number: int) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    now = time.time_ns() // 1000 - _EPOCH_US
    known: dict[bytes, int] = {}
    for group in request.resource_spans:
        resource = {pair.key: _plain(pair.value) for pair in group.resource.attributes}
        for scoped in group.scope_spans:
            for span in scoped.spans:
                attributes = {pair.key: _plain(pair.value) for pair in span.attributes}
                body = orjson.dumps({"name": span.name, "attributes": attributes, "resource": resource})
                trajectory = known.setdefault(span.trace_id, number * SPANS + len(known))
                start, end = span.start_time_unix_nano // 1000, span.end_time_unix_nano // 1000
                ids = span.span_id.hex(), span.parent_span_id.hex()
                ends = start - _EPOCH_US, end - _EPOCH_US
                rows.append(
                    (
                        trajectory, *ids, len(rows), 0, "assistant", span.name, "ok", "", *ends, "", "", "", "", None,
                        None, None, None, True, body.decode(), None, len(body), sha256(body).digest(), now,
                    )
                )  # fmt: skip
    return rows


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None


if __name__ == "__main__":
    json.dump(ceiling(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])), sys.stdout)
