"""The HTTP side of small weights that are served here: `POST /v1/chat/completions` and `/v1/responses`,
`GET /v1/models`, `GET /health`.

Nothing that is logged holds what was asked or answered.
"""

import contextlib
import json
import queue
import select
import socket
import threading
import time
from collections.abc import Callable
from itertools import chain
from typing import Any

from django.db import Error

from flywheel.core.envs.policy_rollouts import UNASKED
from flywheel.core.network.json_server import JsonHandler, JsonServer
from workers.policies.small_weights import chat_completions, responses
from workers.policies.small_weights.served_calls import Asked, Pieces, Refused
from workers.policies.small_weights.served_versions import RETRY_AFTER_S, ServedVersion, ServedVersions, Waiter, away

READ: dict[str, Callable[[Any], Asked]] = {
    "/v1/chat/completions": chat_completions.read,
    "/v1/responses": responses.read,
}
"""By the path at which a call is made."""
BODY_MAX = 20 * 2**20
LOAD_S = 20.0
"""How long a request waits for its version to be loaded; then it is told to come again."""
LOOK_S = 0.25
"""How often it is looked whether the caller is still there."""
TEND_S = 2.0


class Left(Exception):
    """The caller is gone."""


class WeightsServer(JsonServer):
    def __init__(self, address: tuple[str, int], token: str, versions: ServedVersions) -> None:
        super().__init__(address, Handler, token)
        self.versions = versions

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def tend_forever(self, ended: threading.Event) -> None:
        while not ended.wait(TEND_S):
            with contextlib.suppress(Error):  # the database is away: what is loaded answers on
                self.versions.tend()


class Handler(JsonHandler):
    server: WeightsServer

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/health":
            self._send(200, {"status": "ok"})
        elif not self._is_known():
            pass
        elif path == "/v1/models":
            rows = [{"id": name, "object": "model", "created": 0, "owned_by": "flywheel"} for name in self._names()]
            self._send(200, {"object": "list", "data": rows})
        else:
            self._refuse(Refused(404, f"there is nothing at {path[:200]!r}"))

    def do_POST(self) -> None:
        if not self._is_known():
            return
        try:
            body = self._body()
            read = READ.get(self.path.partition("?")[0])
            if read is None:
                raise Refused(404, f"these weights are asked at {' or '.join(READ)}, not at {self.path[:200]!r}")
            self._answer(read(body))
        except Refused as refused:
            self._refuse(refused)
        except Left:
            self.close_connection = True

    def _names(self) -> list[str]:
        return self.server.versions.names()

    def _is_known(self) -> bool:
        """Whether the caller has the token. Answers who has not."""
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(given):
            return True
        self.close_connection = True
        self._refuse(Refused(401, "send Authorization: Bearer TOKEN, of this installation", code="invalid_api_key"))
        return False

    def _body(self) -> Any:
        try:
            size = int(self.headers.get("Content-Length", ""))
        except ValueError:
            self.close_connection = True
            raise Refused(411, "send a Content-Length") from None
        if not 0 <= size <= BODY_MAX:
            self.close_connection = True
            raise Refused(413, f"the body is longer than {BODY_MAX >> 20} MiB")
        raw = self.rfile.read(size)
        try:
            return json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is not JSON: {error}"[:300]) from None

    def _answer(self, asked: Asked) -> None:
        """Raises Refused, before anything is sent, and Left."""
        served, waiter = self.server.versions.ask(asked)
        try:
            pieces = self._pieces(asked, served, waiter)
            if asked.is_streamed:
                self._stream(asked, pieces)
                return
            (answer,) = [answer for _, answer in pieces if answer is not None]
            self._send(200, asked.whole(answer))
        finally:
            served.leave(waiter)

    def _pieces(self, asked: Asked, served: ServedVersion, waiter: Waiter) -> Pieces:
        """Raises Refused and Left."""
        since, answer = time.monotonic(), None
        while answer is None:
            try:
                heard = waiter.heard.get(timeout=LOOK_S)
            except queue.Empty:
                if self._has_left():
                    raise Left from None
                if not served.is_loaded and time.monotonic() - since > LOAD_S:
                    raise away(f"the weights of {served.version} are being loaded", "version_loading") from None
                continue
            if isinstance(heard, Refused):
                raise heard
            answer = heard.answer
            if answer is not None:
                if answer.error == UNASKED:
                    raise away(f"{served.version} was let go; ask again")
                if refused := asked.refusal_of(answer):
                    raise refused
            yield heard.text, answer

    def _has_left(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        try:
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _stream(self, asked: Asked, pieces: Pieces) -> None:
        """Raises Refused for what can be refused before it begins; what goes wrong later is the stream's last event,
        and the stream has no proper end."""
        first = next(pieces)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event in asked.events(chain([first], pieces)):
                self._chunk(event)
            self.wfile.write(b"0\r\n\r\n")
        except Refused:
            self.close_connection = True

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")

    def _refuse(self, refused: Refused) -> None:
        self._send(refused.status, refused.body())

    def _send(self, status: int, body: dict[str, Any]) -> None:
        self.send_json(status, body, {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else {})
