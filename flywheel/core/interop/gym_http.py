"""A `Gym` behind HTTP: cookies, and a token."""

import base64
import binascii
import json
import re
from dataclasses import replace
from http.cookies import CookieError, SimpleCookie

from flywheel.core.interop.gym_server import Answer, Gym
from flywheel.core.network.json_server import JsonHandler, JsonServer

BODY_MAX = 16 * 1024 * 1024
COOKIE = "session"
_SESSION = re.compile(r"[\w-]{1,64}", re.ASCII)


class Server(JsonServer):
    def __init__(self, address: tuple[str, int], gym: Gym, token: str = "") -> None:
        """An empty token lets everybody in who reaches the address."""
        super().__init__(address, Handler, token)
        self.gym = gym

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"


class Handler(JsonHandler):
    server: Server

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
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                given = ""
        if self.is_token(given):
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
        cookie = f"{COOKIE}={answer.session}; Path=/; HttpOnly; SameSite=Lax"
        self.send_json(answer.status, answer.body, {"Set-Cookie": cookie} if answer.session else {})
