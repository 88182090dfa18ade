"""Ray Jobs' REST interface as far as a client sees it, on a server of this process. Jobs do nothing by themselves, or
run as on a machine of a cluster that has another home."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from tests.waiting import wait_for

ROOT = Path(__file__).parents[4]


class Cluster:
    """Jobs by their id, as `{"status", "message"}`. `trouble` is a status to answer instead, or seconds to hang."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.asked: list[dict[str, Any]] = []
        """Bodies of the jobs that were submitted, in their order."""
        self.logs = ""
        self.trouble: int | float | None = None
        self.url = ""
        self.machine: Path | None = None
        """The home of a machine that runs the jobs; without one they do nothing."""
        self.processes: list[subprocess.Popen[bytes]] = []
        """Of the jobs, in their order."""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        if isinstance(self.trouble, float):
            time.sleep(self.trouble)
        elif self.trouble:
            return self.trouble, "no"
        if method == "POST" and path == "/api/jobs/":
            wanted = json.loads(body)
            if wanted["submission_id"] in self.jobs:
                return (
                    400,
                    f"Job with submission_id {wanted['submission_id']} already exists. Please use a different one.",
                )
            self.asked.append(wanted)
            self.jobs[wanted["submission_id"]] = self._started(wanted)
            return 200, {"submission_id": wanted["submission_id"]}
        _, name, *act = path.removeprefix("/api").strip("/").split("/")
        if name not in self.jobs:
            return 404, f"Job {name} does not exist"
        if act == ["logs"]:
            return 200, {"logs": self.logs}
        if act == ["stop"]:
            self.jobs[name] |= {"status": "STOPPED", "message": "Job was intentionally stopped."}
            if process := self.jobs[name].get("process"):
                process.terminate()
            return 200, {"stopped": True}
        return 200, self._seen(self.jobs[name])

    def end(self) -> None:
        """End what the jobs left, as the machine's end does."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()

    def wait(self, number: int = -1) -> int:
        """The exit code of a job's process, once it has ended."""
        process = self.processes[number]
        wait_for(lambda: process.poll() is not None, "the job's process ends", lambda: self.logs)
        return process.returncode

    def _started(self, wanted: dict[str, Any]) -> dict[str, Any]:
        job = {"status": "RUNNING", "message": "Job is currently running.", "metadata": wanted["metadata"]}
        if self.machine is None:
            return job
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        known = {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(self.machine), "TMPDIR": str(self.machine)}
        home = {"FLYWHEEL_HOME": str(self.machine / "home")}
        with (self.machine / "job.log").open("ab") as log:
            process = subprocess.Popen(
                ["sh", "-c", wanted["entrypoint"]],
                cwd=self.machine,
                env=known | home | wanted["runtime_env"]["env_vars"],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return job | {"process": process}

    def _seen(self, job: dict[str, Any]) -> dict[str, Any]:
        process = job.get("process")
        if process is not None and job["status"] == "RUNNING" and process.poll() is not None:
            code = process.returncode
            assert self.machine is not None
            self.logs = (self.machine / "job.log").read_text()
            job["status"] = "FAILED" if code else "SUCCEEDED"
            job["message"] = f"Job entrypoint command failed with exit code {code}" if code else ""
        return {name: value for name, value in job.items() if name != "process"}


@contextmanager
def cluster() -> Iterator[Cluster]:
    found = Cluster()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            code, answer = found.answer(self.command, self.path, body)
            content = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.end()
        server.shutdown()
        server.server_close()
        thread.join()
