"""A team's own programs, scripted, and evals of versions that are one: over real sockets, in one process."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from flywheel.agents.models import Version
from tests.conftest import Build

CODE = "0123abcd4567"
Work = dict[str, Any]
Does = Callable[[Work], Any]
"""What a program answers: a value as JSON, or `(status, value)`."""


def post(url: str, value: Any, key: str = "") -> Any:
    """The JSON that comes back. Raises urllib.error.HTTPError."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, json.dumps(value).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.loads(reply.read())


def status_of(url: str, value: Any, key: str = "") -> int:
    try:
        post(url, value, key)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    return 200


def ask_model(work: Work, messages: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    """The message of the model, asked through the gateway with the attempt's key."""
    body = {"model": work["model"] or "tiny", "messages": messages or work["messages"], **more}
    reply = post(f"{work['base_url']}/chat/completions", body, work["api_key"])
    message: dict[str, Any] = reply["choices"][0]["message"]
    return message


def use_tool(work: Work, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = post(f"{work['tools_url']}/{name}", arguments, work["api_key"])
    return answer


class Program:
    """A program behind an address, which does as it is told."""

    def __init__(self, port: int, does: Does) -> None:
        self.url = f"http://127.0.0.1:{port}/run"
        self.does = does
        self.seen: list[Work] = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()

    def run(self, work: Work) -> tuple[int, Any]:
        with self.lock:
            self.seen.append(work)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            found = self.does(work)
        finally:
            with self.lock:
                self.at_once -= 1
        return found if isinstance(found, tuple) else (200, found)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    program: Program

    def do_POST(self) -> None:
        work = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            status, value = self.program.run(work)
        except ConnectionAbortedError:  # it dies
            self.close_connection = True
            self.connection.close()
            return
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serve_program(does: Does) -> Iterator[Program]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.block_on_close = False
    program = Program(server.server_port, does)
    server.RequestHandlerClass = type("Handler", (_Handler,), {"program": program})
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield program
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def program_version(build: Build, model_url: str = "", **endpoint: Any) -> Version:
    """A version that is a program; with the address of its model's server."""
    about = {"kind": "program", "way": "http", "code": CODE, "timeout_s": 20.0, **endpoint}
    if model_url:
        about |= {"base_url": model_url, "model": "tiny-1"}
    return build.version(endpoint=about, form="native", sampling={"temperature": 0.0, "max_tokens": 64})
