"""Clients that people have, through a proxy that cuts the connection once the server has committed: each span once."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.chaos import check
from tests.chaos.installation import ROOT, Installation
from tests.waiting import PATIENCE_S, wait_for

HERE = Path(__file__).parent
MARK = "proxied"
"""In the name of every span or service, so that the proxy sees that a request passes."""
PYTHON = ("http", "grpc", "openinference", "openllmetry")
EXPECTED = {"http": 3, "grpc": 3, "openinference": 1, "openllmetry": 1, "javascript": 3}
MODULES = "FLYWHEEL_TEST_NODE_MODULES"


class Proxy:
    """Passes bytes on. The answer to the first requests never arrives: it cuts both ends when `has_committed`."""

    def __init__(self, port: int, has_committed: Callable[[int], bool], cuts: int = 1) -> None:
        self._target = port
        self._has_committed = has_committed
        self._lock = threading.Lock()
        self._left = cuts
        self.cut = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._server.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._target))
                swallow = threading.Event()
                threading.Thread(target=self._up, args=(client, server, swallow), daemon=True).start()
                threading.Thread(target=self._down, args=(server, client, swallow), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket, swallow: threading.Event) -> None:
        seen = b""
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                seen = (seen + data)[-200_000:]
                with self._lock:
                    cuts = not swallow.is_set() and self._left > 0 and MARK.encode() in seen
                    if cuts:
                        self._left -= 1
                        swallow.set()
                server.sendall(data)
                if cuts:
                    threading.Thread(target=self._cut, args=(client, server), daemon=True).start()
        _end(client, server)

    def _down(self, server: socket.socket, client: socket.socket, swallow: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if not swallow.is_set():
                    client.sendall(data)
        if not swallow.is_set():
            _end(client, server)

    def _cut(self, client: socket.socket, server: socket.socket) -> None:
        wait_for(lambda: self._has_committed(self.cut), "it is stored")
        self.cut += 1
        _end(client, server)


def _end(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


class _Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": "It comes on Friday."}
        answer = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "model-1",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
        }
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def model() -> Iterator[str]:
    """A local server that answers chat completions; its base URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def without_javascript() -> str:
    """Why the JavaScript SDK cannot be tried here, or nothing."""
    if shutil.which("node") is None:
        return "there is no node"
    if not Path(os.environ.get(MODULES, "/nonexistent"), "@opentelemetry/exporter-trace-otlp-http").is_dir():
        return f"{MODULES} names no node_modules with the OpenTelemetry SDK (CONTRIBUTING.md says how to make them)"
    return ""


def trial(installation: Installation, name: str) -> dict[str, Any]:
    """One client sends its spans, loses its first answer, and sends them again."""
    slug = f"client-{name}"
    key = installation.make_projects([slug])[slug]
    ((project,),) = installation.sql("SELECT id FROM accounts_project WHERE slug = %s", slug)

    def requests() -> int:
        return int(installation.sql("SELECT count(*) FROM trajectories_batch WHERE project_id = %s", project)[0][0])

    target = installation.grpc_port if name == "grpc" else installation.port
    assert target is not None
    proxy = Proxy(target, lambda cut: requests() > cut)
    if name == "javascript":
        command = ["node", str(HERE / "client.cjs")]
    else:
        command = [sys.executable, "-m", "tests.chaos.client", name]
    environment = {**os.environ, "NODE_PATH": os.environ.get(MODULES, ""), "MARK": MARK}
    with model() as base:
        done = subprocess.run(
            [*command, f"http://127.0.0.1:{proxy.port}", key, base],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    proxy.close()
    found = [f"the client ended with {done.returncode}: {done.stderr[-2000:]}"] if done.returncode else []
    steps = installation.sql(
        "SELECT t.trace_id, s.span_id, s.name FROM trajectories_step s JOIN trajectories_trajectory t"
        " ON t.id = s.trajectory_id WHERE t.project_id = %s",
        project,
    )
    if len(steps) != EXPECTED[name]:
        found.append(f"{len(steps)} spans are stored, not {EXPECTED[name]}: {steps}; {done.stderr[-2000:]}")
    if proxy.cut != 1 or requests() < 2:
        found.append(f"{proxy.cut} connections were cut, and {requests()} requests came: this proves nothing")
    found += check.violations(installation)
    return {"spans": len(steps), "requests": requests(), "violations": found}
