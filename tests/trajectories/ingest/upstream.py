"""A model's server that says what a test wants it to say, over real sockets.

upstream.say(sse({"choices": […]}, …))        # the next answers; the last one stays
upstream.say(Answer(b"…", status=429, headers={…}))
upstream.seen[0].body["messages"]
"""

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.waiting import PATIENCE_S

DONE = b"data: [DONE]\n\n"


@dataclass
class Answer:
    body: bytes | Sequence[bytes] = b""
    """In one piece with its length, or in several, chunked."""
    status: int = 200
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    """Before each piece."""
    breaks: bool = False
    """Reset the connection after the last piece instead of ending the answer."""
    length: int | None = None
    """A Content-Length that is not the body's."""
    hold: threading.Event | None = None
    """Wait for it before the last piece."""


@dataclass
class Seen:
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


class Upstream:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/v1"
        self.host = f"127.0.0.1:{port}"
        self.seen: list[Seen] = []
        self.hung_up = threading.Event()
        """Somebody closed the connection before the answer's end."""
        self.connections = 0
        self._answers: list[Answer | Callable[[Seen], Answer]] = [Answer(completion("Hello."))]

    def say(self, *answers: Answer | bytes | Callable[[Seen], Answer]) -> None:
        self._answers = [Answer(answer) if isinstance(answer, bytes) else answer for answer in answers]

    def next(self, seen: Seen) -> Answer:
        self.seen.append(seen)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return answer if isinstance(answer, Answer) else answer(seen)


def completion(content: str | None, **changes: Any) -> bytes:
    """A chat completion."""
    message = {"role": "assistant", "content": content, **changes.pop("message", {})}
    value = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": "tiny-1",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 3,
            "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    }
    return json.dumps({**value, **changes}).encode()


def delta(index: int = 0, finish_reason: str | None = None, usage: Any = None, **said: Any) -> bytes:
    """An event of a streamed completion."""
    choices = [{"index": index, "delta": said, "finish_reason": finish_reason}]
    value = {"id": "chatcmpl-2", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": "tiny-1"}
    event = {**value, "choices": [] if usage else choices, **({"usage": usage} if usage else {})}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def sse(*pieces: bytes, **more: Any) -> Answer:
    return Answer([*pieces, DONE], kind="text/event-stream; charset=utf-8", **more)


def hello(**more: Any) -> Answer:
    return sse(
        delta(role="assistant", content=""),
        delta(content="Hel"),
        delta(content="lo."),
        delta(finish_reason="stop"),
        delta(usage={"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}),
        **more,
    )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: Upstream

    def setup(self) -> None:
        self.upstream.connections += 1
        super().setup()

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _answer(self, body: bytes) -> None:
        seen = Seen(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        answer = self.upstream.next(seen)
        try:
            self._send(answer)
        except OSError:
            self.upstream.hung_up.set()
            self.close_connection = True

    def _send(self, answer: Answer) -> None:
        is_whole = isinstance(answer.body, bytes)
        pieces: list[bytes] = [answer.body] if isinstance(answer.body, bytes) else list(answer.body)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if is_whole:
            self.send_header("Content-Length", str(answer.length if answer.length is not None else len(pieces[0])))
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, piece in enumerate(pieces):
            time.sleep(answer.wait_s)
            if answer.hold is not None and number == len(pieces) - 1 and not answer.hold.wait(PATIENCE_S):
                raise TimeoutError("nobody let the last piece go")
            self.wfile.write(piece if is_whole else b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        if answer.breaks:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
        elif not is_whole:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


@contextlib.contextmanager
def serve() -> Iterator[Upstream]:
    handler = type("Handler", (_Handler,), {})
    server = _Server(("127.0.0.1", 0), handler)
    handler.upstream = Upstream(server.server_address[1])  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield handler.upstream  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
