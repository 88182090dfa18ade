"""A server on loopback that a notice may be sent to, and that behaves as it is told."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Listener:
    url: str
    received: list[Received] = field(default_factory=list)
    behave: "Callable[[BaseHTTPRequestHandler], None]" = lambda handler: answer(handler, 200)

    @property
    def titles(self) -> list[str]:
        return [each.json["data"]["title"] for each in self.received]


def answer(handler: BaseHTTPRequestHandler, status: int, body: bytes = b"ok", **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def hang(handler: BaseHTTPRequestHandler) -> None:
    """Answer nothing until the caller has gone."""
    handler.connection.settimeout(30)
    handler.connection.recv(1)


def drip(handler: BaseHTTPRequestHandler) -> None:
    """Send a header byte by byte without an end."""
    try:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while True:
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.02)
    except OSError:
        pass


def pour(handler: BaseHTTPRequestHandler) -> None:
    """Answer with a gigabyte."""
    try:
        handler.send_response(200)
        handler.send_header("Content-Length", str(2**30))
        handler.end_headers()
        for _ in range(2**14):
            handler.wfile.write(bytes(2**16))
    except OSError:
        pass


def kill_caller(pid: int) -> "Callable[[BaseHTTPRequestHandler], None]":
    """Kill the process that calls, once its message is here and before it knows that."""

    def behave(handler: BaseHTTPRequestHandler) -> None:
        os.kill(pid, signal.SIGKILL)
        answer(handler, 200)

    return behave


@contextmanager
def listening() -> Iterator[Listener]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            found.received.append(Received(self.path, dict(self.headers), body))
            found.behave(self)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Callers that do not wait for the end are what is tested."""

    serving = Server(("127.0.0.1", 0), Handler)
    serving.daemon_threads = True
    found = Listener(f"http://127.0.0.1:{serving.server_port}/hook")
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield found
    finally:
        serving.shutdown()
        serving.server_close()
        thread.join()
