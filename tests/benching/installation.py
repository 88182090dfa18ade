"""Flywheel as `make up` starts it, in a home of its own."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Collection
from pathlib import Path
from typing import Any

import psycopg

from flywheel.system import postgres
from tests.benching import processes
from tests.benching.bodies import SPANS_EACH

ROOT = Path(__file__).resolve().parents[2]
READY_WITHIN_S = 180.0


class Installation:
    name = "flywheel"
    path = "/v1/traces"

    def __init__(self, scratch: Path) -> None:
        self.home = scratch / "flywheel"
        self.home.mkdir(exist_ok=True)
        self.port = processes.free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.key = ""
        dropped = (
            "DATABASE_URL",
            "CELERY_BROKER_URL",
            "DJANGO_SETTINGS_MODULE",
            "FLYWHEEL_GRPC_PORT",
            "FLYWHEEL_HTTPS",
        )
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        self.settings = {**kept, "FLYWHEEL_HOME": str(self.home), "FLYWHEEL_PORT": str(self.port)}

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def start(self) -> None:
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "flywheel.server.supervisor"],
                cwd=ROOT,
                env=self.settings,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_WITHIN_S
        while not self._is_ready():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"Flywheel did not start: {(self.home / 'log').read_text(errors='replace')[-1000:]}")
            time.sleep(0.2)
        server = postgres.running(self.home / "postgres")
        assert server is not None
        self.url, self.postmaster = server.url, server.pid
        if not self.key:
            ask = ["manage.py", "create_key", "--project", "default", "--scope", "ingest", "--scope", "read"]
            done = subprocess.run(
                [sys.executable, *ask],
                cwd=ROOT,
                env={**self.settings, "DATABASE_URL": self.url},
                check=True,
                capture_output=True,
                text=True,
            )
            self.key = done.stdout.strip()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)
        postgres.stop(self.home / "postgres")

    def kill(self) -> None:
        """-9 for the web, the workers and PostgreSQL, while the supervisor looks away; then for the supervisor."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        for pid in [*processes.tree(self.postmaster), *processes.tree(self.process.pid)[1:], self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    @property
    def roots(self) -> dict[str, int]:
        """Processes whose trees do the work, by what they are."""
        assert self.process is not None
        found = {"postgresql": self.postmaster}
        for pid in processes.tree(self.process.pid)[1:]:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "gunicorn" in words:
                found.setdefault("web", pid)
            elif "celery" in words:
                found.setdefault("beat" if "beat" in words else "worker", pid)
        return found

    @property
    def served_by(self) -> int:
        return self.roots["web"]

    # What a reader sees

    def visible(self) -> int:
        """Spans that the pages and the API speak of."""
        return int(self.ask("SELECT coalesce(sum(step_count), 0) FROM trajectories_trajectory")[0][0])

    def stored(self) -> int:
        return int(self.ask("SELECT count(*) FROM trajectories_step")[0][0])

    def missing(self, trace_ids: Collection[str]) -> int:
        """How many of these traces are not there with all of their spans."""
        ids = list(trace_ids)
        whole = self.ask(
            "SELECT count(*) FROM (SELECT row.id FROM trajectories_trajectory AS row"
            " JOIN trajectories_step AS step ON step.trajectory_id = row.id WHERE row.trace_id = ANY(%s)"
            " GROUP BY row.id, row.step_count HAVING count(*) = %s AND row.step_count = %s) AS whole",
            [ids, SPANS_EACH, SPANS_EACH],
        )
        return len(ids) - int(whole[0][0])

    def backlog(self) -> int:
        """Trajectories that detectors have not read."""
        unread = "detected_at IS NULL OR detected_at < changed_at"
        return int(self.ask(f"SELECT count(*) FROM trajectories_trajectory WHERE {unread}")[0][0])

    def ledger_holds(self) -> bool:
        """Whether the ledger accounts for every span that is stored."""
        stored, told = self.ask(
            "SELECT (SELECT count(*) FROM trajectories_step),"
            " (SELECT coalesce(sum(inserted), 0) FROM trajectories_batch)"
        )[0]
        return bool(stored == told)

    def ask(self, statement: str, values: Collection[Any] = ()) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(statement, list(values)).fetchall()

    def listed(self) -> int:
        """Spans of all pages of the list that the API answers."""
        total, cursor = 0, ""
        while True:
            page = self.page(f"?limit=200&cursor={cursor}")
            total += sum(int(item["step_count"]) for item in page["items"])
            cursor = page["next"]
            if not cursor:
                return total

    def page(self, query: str = "") -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/v1/trajectories{query}", headers=self.headers
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)
