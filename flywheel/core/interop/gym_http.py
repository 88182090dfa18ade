"""A `Gym` behind HTTP, with the standard library alone: threads, cookies, a token."""

import base64
import binascii
import hmac
import json
import re
import sys
from dataclasses import replace
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from flywheel.core.interop.gym_server import Answer, Gym

BODY_MAX = 16 * 1024 * 1024
COOKIE = "session"
_SESSION = re.compile(r"[\w-]{1,64}", re.ASCII)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], gym: Gym, token: str = "") -> None:
        """An empty token lets everybody in who reaches the address."""
        super().__init__(address, Handler)
        self.gym, self.token = gym, token

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller who did not wait for an answer is nobody's mistake; the rest goes to stderr."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 120
    disable_nagle_algorithm = True
    """Head and body are two packets: the second would wait 40 ms for the caller's word of the first, at every call."""
    server_version, sys_version = "Flywheel", ""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] in ("/", "/health"):
            self._send(Answer(200, {"status": "ok"}))
        elif self._is_known():
            self._send(Answer(404, {"detail": "there is no such address"}))

    def do_POST(self) -> None:
        if not self._is_known():
            return
        try:
            size = int(self.headers.get("Content-Length", ""))
        except ValueError:
            self.close_connection = True
            self._send(Answer(411, {"detail": "Content-Length is missing"}))
            return
        if not 0 <= size <= BODY_MAX:
            self.close_connection = True
            self._send(Answer(413, {"detail": f"the body is larger than {BODY_MAX} bytes"}))
            return
        raw = self.rfile.read(size)
        try:
            body = json.loads(raw or b"{}")
        except (ValueError, RecursionError) as error:
            self._send(Answer(422, {"detail": f"not JSON: {error}"[:300]}))
            return
        session = self._session()
        answer = self.server.gym.answer(self.path.partition("?")[0], body, session)
        # Each answer says it again: NeMo Gym's agents go on with the cookies of the last one alone.
        self._send(replace(answer, session=answer.session or session))

    def _is_known(self) -> bool:
        """Whether the caller has the token, as a bearer or as the password of a login. Answers who has not."""
        if not self.server.token:
            return True
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                given = ""
        if hmac.compare_digest(given.strip().encode(), self.server.token.encode()):
            return True
        self.close_connection = True
        self._send(Answer(401, {"detail": "send Authorization: Bearer TOKEN"}))
        return False

    def _session(self) -> str:
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(COOKIE)
        except CookieError:
            return ""
        return cookie.value if cookie and _SESSION.fullmatch(cookie.value) else ""

    def _send(self, answer: Answer) -> None:
        content = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if answer.session:
            self.send_header("Set-Cookie", f"{COOKIE}={answer.session}; Path=/; HttpOnly; SameSite=Lax")
        if answer.status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Rows and tokens do not belong into logs."""
