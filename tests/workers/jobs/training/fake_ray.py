"""Ray Jobs' REST interface as far as a client sees it, on a server of this process. Jobs do nothing by themselves."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class Cluster:
    """Jobs by their id, as `{"status", "message"}`. `trouble` is a status to answer instead, or seconds to hang."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.asked: list[dict[str, Any]] = []
        """Bodies of the jobs that were submitted, in their order."""
        self.logs = ""
        self.trouble: int | float | None = None
        self.url = ""

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
            self.jobs[wanted["submission_id"]] = {"status": "RUNNING", "message": "Job is currently running."}
            return 200, {"submission_id": wanted["submission_id"]}
        _, name, *act = path.removeprefix("/api").strip("/").split("/")
        if name not in self.jobs:
            return 404, f"Job {name} does not exist"
        if act == ["logs"]:
            return 200, {"logs": self.logs}
        if act == ["stop"]:
            self.jobs[name] = {"status": "STOPPED", "message": "Job was intentionally stopped."}
            return 200, {"stopped": True}
        return 200, self.jobs[name]


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
        server.shutdown()
        server.server_close()
        thread.join()
