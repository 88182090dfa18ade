"""`python -m tests.benching.parts [requests]`: what a span costs in processor time, part by part, in one thread.

A database of its own is started and removed. Of each part the lowest decile over the requests is printed, in µs a span:
in Python by the thread's clock, and in PostgreSQL by its backend's `/proc/<pid>/schedstat`. So other work on the
machine shows less. HTTP, and several threads that want one interpreter, are not in it: `tests.bench_ingest` has them.
"""

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flywheel.system import postgres
from tests.benching import bodies

ROOT = Path(__file__).resolve().parents[2]
WARM = 30


def main(requests: int) -> None:
    with tempfile.TemporaryDirectory(prefix="flywheel-bench-parts-") as scratch:
        home = Path(scratch)
        home.chmod(0o755)
        os.environ["FLYWHEEL_HOME"] = scratch
        os.environ["DATABASE_URL"] = postgres.start(home / "postgres").url
        os.environ["DJANGO_SETTINGS_MODULE"] = "flywheel.settings"
        try:
            subprocess.run([sys.executable, "manage.py", "prepare"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            for name, python, database in _measured(bodies.make(home, WARM + requests)):
                print(f"{name:36} Python {python:6.1f}   PostgreSQL {database:6.1f}")
        finally:
            postgres.stop(home / "postgres")


def _measured(sent: bodies.Bodies) -> list[tuple[str, float, float]]:
    import django

    django.setup()
    from django.db import connection

    from flywheel.accounts.models import ApiKey, Project, User
    from flywheel.trajectories.formats.semantics import otlp_traces
    from flywheel.trajectories.ingest import otlp_http
    from flywheel.trajectories.store import attachments, batch_ledger, detector_wakeup, merge
    from flywheel.trajectories.store.aggregates import agent_resolution, claims
    from flywheel.trajectories.store.batch_ledger import Sent
    from flywheel.trajectories.store.rows import trajectory_rows

    project = Project.objects.get(slug="default")
    key, _ = ApiKey.make(project, "parts", ["ingest"], User.objects.get(username="admin"))
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        backend = os.open(f"/proc/{cursor.fetchone()[0]}/schedstat", os.O_RDONLY)

    spent: dict[str, list[int]] = {}

    def watched(name: str, part: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(part)
        def call(*args: Any, **named: Any) -> Any:
            before = time.thread_time_ns(), _worked(backend)
            try:
                return part(*args, **named)
            finally:
                known = spent.setdefault(name, [0, 0])
                known[0] += time.thread_time_ns() - before[0]
                known[1] += _worked(backend) - before[1]

        return call

    parts: dict[Any, tuple[str, ...]] = {
        otlp_http: ("decompress",),
        otlp_traces: ("decode",),
        attachments: ("locked", "join"),
        claims: ("merge",),
        agent_resolution: ("resolve",),
        trajectory_rows: ("hurry", "insert_trajectories", "write_steps"),
        merge: ("redactor_of", "_read", "_new", "_place"),
        batch_ledger: ("record", "keep"),
    }
    for module, names in parts.items():
        for name in names:
            setattr(module, name, watched(f"{module.__name__.rpartition('.')[2]}.{name}", getattr(module, name)))
    setattr(detector_wakeup, "soon", bool)  # noqa: B010 nobody has to be woken

    def request(body: bytes) -> None:
        plain = otlp_http.decompress(body, "gzip", len(body) * 200)
        otlp_http.take(project, key, Sent(otlp_traces.PROTOBUF, "gzip", body), plain)

    whole = watched("all of it", request)
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number in range(len(sent)):
        spent.clear()
        whole(sent[number])
        if number >= WARM:
            for name, (python, database) in spent.items():
                found[name].append((python, database))
    os.close(backend)
    connection.close()
    return [(name, *(_decile(each) for each in zip(*taken, strict=True))) for name, taken in found.items()]  # type: ignore[misc]


def _worked(backend: int) -> int:
    """Nanoseconds that it had a processor."""
    return int(os.pread(backend, 64, 0).split()[0])


def _decile(values: tuple[int, ...]) -> float:
    return sorted(values)[len(values) // 10] / 1000 / bodies.SPANS


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
