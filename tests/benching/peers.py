"""Phoenix and MLflow, each in an environment of its own, as their documentation says to start them, on SQLite."""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from tests.benching import processes

READY_WITHIN_S = 180.0
_QUIET = {"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "NO_PROXY": "*"}


class Missing(Exception):
    """The peer cannot be had here; the message says why."""


class Peer:
    """A server with a store that a second reader can count."""

    name = package = distribution = program = ready = ""
    path = "/v1/traces"
    headers: dict[str, str] = {}

    def __init__(self, environments: Path, scratch: Path) -> None:
        self.environment = environments / self.name
        self.home = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=scratch))
        self.port = processes.free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def install(self) -> None:
        """Raises Missing."""
        if (self.environment / "bin" / self.program).exists():
            return
        steps = (
            [sys.executable, "-m", "venv", str(self.environment)],
            [str(self.environment / "bin" / "python"), "-m", "pip", "install", "-q", self.distribution],
        )
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True)
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                raise Missing(f"{self.distribution} cannot be installed ({last[:200]})")

    def version(self) -> str:
        ask = f"import importlib.metadata as m; print(m.version({self.distribution!r}))"
        done = subprocess.run([self.environment / "bin" / "python", "-c", ask], capture_output=True, text=True)
        return done.stdout.strip()

    def command(self) -> list[str]:
        raise NotImplementedError

    def settings(self) -> dict[str, str]:
        return {}

    @property
    def database(self) -> Path:
        raise NotImplementedError

    @property
    def roots(self) -> dict[str, int]:
        assert self.process is not None
        return {"server": self.process.pid}

    @property
    def served_by(self) -> int:
        """Root of the processes whose memory counts."""
        return self.roots["server"]

    def start(self) -> None:
        """Raises Missing when it does not come up."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLYWHEEL", "DJANGO", "PG"))}
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.environment / "bin" / self.program), *self.command()],
                cwd=self.home,
                env={**kept, **_QUIET, **self.settings(), "HOME": str(self.home)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self.ready}", timeout=5):
                    self.visible()
                    return
            except (OSError, sqlite3.Error):
                time.sleep(0.5)
        self.kill()
        raise Missing(f"{self.name} did not start: {(self.home / 'log').read_text(errors='replace')[-500:]}")

    def visible(self) -> int:
        """Spans that a second reader sees."""
        with sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=10) as connection:
            return int(connection.execute("SELECT count(*) FROM spans").fetchone()[0])

    def kill(self) -> None:
        if self.process is not None:
            for pid in processes.tree(self.process.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.process.wait()


class Phoenix(Peer):
    name, distribution, program, ready = "phoenix", "arize-phoenix", "phoenix", "/healthz"

    def command(self) -> list[str]:
        return ["serve"]

    def settings(self) -> dict[str, str]:
        return {
            "PHOENIX_WORKING_DIR": str(self.home),
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": str(self.port),
            "PHOENIX_GRPC_PORT": str(processes.free_port()),
            "PHOENIX_TELEMETRY_ENABLED": "false",
            "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
            "PHOENIX_ENABLE_AUTH": "false",
        }

    @property
    def database(self) -> Path:
        return self.home / "phoenix.db"


class MLflow(Peer):
    name, distribution, program, ready = "mlflow", "mlflow", "mlflow", "/health"
    headers = {"x-mlflow-experiment-id": "0"}

    def command(self) -> list[str]:
        store = ["--backend-store-uri", f"sqlite:///{self.database}", "--default-artifact-root", str(self.home / "art")]
        return ["server", "--host", "127.0.0.1", "--port", str(self.port), *store]

    def settings(self) -> dict[str, str]:
        return {"MLFLOW_DISABLE_TELEMETRY": "true"}

    @property
    def database(self) -> Path:
        return self.home / "mlflow.db"


PEERS: dict[str, type[Peer]] = {"phoenix": Phoenix, "mlflow": MLflow}
