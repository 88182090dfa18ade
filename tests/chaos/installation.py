"""A real installation in a home of its own: PostgreSQL, gunicorn, Celery's worker and beat, as the supervisor has them.

What dies is started again at once, without the supervisor's growing pauses, so that a trial can hurt it often.
"""

import contextlib
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from flywheel.system import postgres
from flywheel.system.data_directory import PostgresError
from tests.benching.processes import free_port, rss_mb, tree
from tests.waiting import PATIENCE_S, wait_for

ROOT = Path(__file__).resolve().parent.parent.parent
KINDS = ("web process", "web master", "worker", "postmaster")
_MAKE = """
import json, sys
from flywheel.accounts.management.commands.create_key import system_account
from flywheel.accounts.models import ApiKey, Project
made = {}
for slug in json.loads(%r):
    project = Project.objects.create(slug=slug, name=slug)
    _, made[slug] = ApiKey.make(project, "chaos", ["ingest"], system_account(project, ["ingest"]))
print("MADE", json.dumps(made))
"""
_REREAD = """
import uuid
from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project, User
from flywheel.trajectories.models import Reread
Reread.submit(key=uuid.uuid4(), project=Project.objects.get(slug=%r), actor=Actor(User.objects.get(username="system")))
"""


class Installation:
    def __init__(self, home: Path, *, processes: int = 2, with_worker: bool = True, with_grpc: bool = False) -> None:
        self.home = home
        self.port = free_port()
        self.grpc_port = free_port() if with_grpc else None
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            **{
                key: value
                for key, value in os.environ.items()
                if not key.startswith(("FLYWHEEL_", "DJANGO_", "PYTEST_"))
            },
            "FLYWHEEL_HOME": str(home),
            "FLYWHEEL_PORT": str(self.port),
            "FLYWHEEL_WEB_PROCESSES": str(processes),
            "FLYWHEEL_LEASE_SECONDS": "5",
            "PYTHONUNBUFFERED": "1",
        }
        self.environment.pop("CELERY_BROKER_URL", None)
        python = sys.executable
        celery = [python, "-m", "celery", "-A", "workers.celery", "--quiet"]
        self.commands = {
            "web": [python, "-m", "gunicorn", "flywheel.wsgi", "--config", "python:flywheel.server.gunicorn_settings"]
        }
        if with_worker:
            self.commands["worker"] = [*celery, "worker", "--concurrency", "2"]
            self.commands["beat"] = [*celery, "beat"]
        if self.grpc_port:
            self.commands["grpc"] = [python, "manage.py", "otlp_grpc", "--port", str(self.grpc_port)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.database = ""
        self.restarts: dict[str, int] = {}
        self._end = threading.Event()
        self._tending: threading.Thread | None = None
        self._log = (home / "output.log").open("ab")

    # Life

    def __enter__(self) -> "Installation":
        try:
            self.database = postgres.start(self.home / "postgres").url
            self.environment["DATABASE_URL"] = self.database
            self.run("prepare")
            for name in self.commands:
                self._start(name)
            self.wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        self._tending = threading.Thread(target=self._tend, daemon=True)
        self._tending.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._tending is not None:
            self._tending.join(PATIENCE_S)
        pids = [pid for process in self.processes.values() for pid in tree(process.pid) if process.poll() is None]
        for process in self.processes.values():
            process.terminate()
        deadline = time.monotonic() + PATIENCE_S
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
        for pid in pids:
            self._kill(pid)
        for process in self.processes.values():
            process.wait(PATIENCE_S)
        postgres.stop(self.home / "postgres")
        self._log.close()

    def _start(self, name: str) -> None:
        self.processes[name] = subprocess.Popen(
            self.commands[name],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_us,
        )

    def _tend(self) -> None:
        while not self._end.wait(0.2):
            with contextlib.suppress(PostgresError):  # the disk may be full: try again
                if postgres.running(self.home / "postgres") is None:
                    server = postgres.start(self.home / "postgres")
                    assert server.url == self.database
                    self.restarts["postgres"] = self.restarts.get("postgres", 0) + 1
            for name, process in self.processes.items():
                if process.poll() is not None and not self._end.is_set():
                    self.restarts[name] = self.restarts.get(name, 0) + 1
                    self._start(name)

    def wait_until_ready(self) -> None:
        ready = "/readyz" if "worker" in self.commands else "/healthz"  # the first also wants workers
        wait_for(lambda: self.status(ready) == 200, "it is ready", lambda: self.log()[-4000:])

    # Asking

    def status(self, path: str, timeout: float = PATIENCE_S) -> int:
        try:
            with urllib.request.urlopen(self.url + path, timeout=timeout) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    def make_projects(self, slugs: Sequence[str]) -> dict[str, str]:
        """An ingest key for each."""
        said = self.run("shell", "--no-imports", "-c", _MAKE % json.dumps(slugs))
        made: dict[str, str] = json.loads(said.partition("MADE ")[2])
        return made

    def submit_reread(self, slug: str) -> None:
        self.run("shell", "--no-imports", "-c", _REREAD % slug)

    def sql(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database, autocommit=True, connect_timeout=int(PATIENCE_S)) as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def as_superuser(self, statement: str) -> None:
        url = self.database.replace(f"://{postgres.ROLE}@", f"://{postgres.SUPERUSER}@")
        with psycopg.connect(url, autocommit=True, options="-c default_transaction_read_only=off") as connection:
            connection.execute(statement.encode())

    def log(self) -> str:
        return (self.home / "output.log").read_text(errors="replace")

    # Hurting

    def pids(self, kind: str) -> list[int]:
        """Ours alone, and only those that live."""
        if kind == "postmaster":
            server = postgres.running(self.home / "postgres")
            return [server.pid] if server and self._is_our_server(server.pid) else []
        web = kind.startswith("web")
        process = self.processes.get("web" if web else kind)
        if process is None or process.poll() is not None or not self._is_ours(process.pid):
            return []
        below = [pid for pid in tree(process.pid) if pid != process.pid and self._is_ours(pid)]
        return below if kind == "web process" else [process.pid, *below] if kind == "worker" else [process.pid]

    def kill9(self, kind: str, chance: random.Random) -> bool:
        """Kill one process of a kind; for the worker, it with its pool or one of its pool."""
        found = self.pids(kind)
        if not found:
            return False
        if kind == "worker" and chance.random() < 0.5:
            return [self._kill(pid) for pid in found].count(True) > 0
        return self._kill(chance.choice(found))

    def rss_mb(self) -> float:
        """Of all web processes."""
        return sum(rss_mb(self.pids("web master") + self.pids("web process")).values())

    def _kill(self, pid: int) -> bool:
        if not (self._is_ours(pid) or self._is_our_server(pid)):
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
        return False

    def _is_ours(self, pid: int) -> bool:
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return f"FLYWHEEL_HOME={self.home}".encode() in variables

    def _is_our_server(self, pid: int) -> bool:
        try:
            return os.path.samefile(f"/proc/{pid}/cwd", self.home / "postgres" / "cluster")
        except OSError:
            return False


def _die_with_us() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
