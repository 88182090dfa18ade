"""The scripted teacher behind an OpenAI-compatible endpoint on the loopback, as any other teacher is asked."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from flywheel.core.traces import Message
from workers.reference.game import teacher


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        messages = [Message(row["role"], row["content"] or "") for row in asked["messages"]]
        answer = teacher(messages, asked.get("seed", 0))
        read, wrote = sum(len(message.content) for message in messages) // 4, len(answer.content) // 4
        body = json.dumps(
            {
                "id": "game",
                "object": "chat.completion",
                "model": asked["model"],
                "choices": [
                    {"index": 0, "message": {"role": "assistant", "content": answer.content}, "finish_reason": "stop"}
                ],
                "usage": {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote},
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """No messages in these steps of every request."""


@contextmanager
def serving() -> Iterator[str]:
    """The teacher's address while it answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
