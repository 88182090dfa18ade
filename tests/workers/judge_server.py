"""An OpenAI-compatible server whose judge is a rule: it reads the data between its fence, and nothing else."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Mark = Callable[[dict[str, Any], dict[str, Any]], Any]
"""What it answers to the data, given the whole request: a mark, a text that is sent as it is (in a list: one that was
cut off), or an HTTP status."""


def data_of(body: dict[str, Any]) -> dict[str, Any]:
    """What stands between the two equal lines of the last message; it must be JSON whatever an attempt wrote."""
    said = body["messages"][-1]["content"]
    fence = said.splitlines()[1]
    found = json.loads(said.split(f"\n{fence}\n")[1])
    assert isinstance(found, dict)
    return found


def answer_of(data: dict[str, Any]) -> str:
    return str(data["attempt"][-1]["content"]) if data["attempt"] else ""


def naming(*words: str) -> Mark:
    """Full marks for an attempt whose last answer has every word, and is no order to the judge."""

    def mark(data: dict[str, Any], _: dict[str, Any]) -> int:
        answer = answer_of(data).lower()
        return int(all(word in answer for word in words) and "judge" not in answer)

    return mark


def credulous(data: dict[str, Any], _: dict[str, Any]) -> int:
    """Does what the attempt says."""
    return int("full marks" in json.dumps(data))


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: Any) -> None:
        """A client that gave up is what some tests are about."""


class JudgeServer:
    def __init__(self, mark: Mark) -> None:
        self.mark, self.model = mark, "rule-1"
        self.seen: list[dict[str, Any]] = []
        self.keys: list[str] = []
        outer, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    outer.seen.append(body)
                    outer.keys.append(self.headers.get("Authorization", ""))
                status, content = outer.reply(body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None: ...

        self._http = _Http(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def reply(self, body: dict[str, Any]) -> tuple[int, bytes]:
        found = self.mark(data_of(body), body)
        if isinstance(found, int) and found >= 400:
            return found, b'{"error": "no \0"}'
        if isinstance(found, float):
            time.sleep(found)
            found = 0
        ending = "length" if isinstance(found, list) else "stop"
        found = found[0] if isinstance(found, list) else found
        text = found if isinstance(found, str) else json.dumps({"reason": "By the rule.", "mark": found})
        choice = {"index": 0, "finish_reason": ending, "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        return 200, json.dumps({"model": self.model, "choices": [choice], "usage": usage}).encode()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@contextmanager
def judge_server(mark: Mark) -> Iterator[JudgeServer]:
    server = JudgeServer(mark)
    try:
        yield server
    finally:
        server.close()
