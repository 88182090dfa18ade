"""One question to a team's own tool server, and the protocol in which it answers over plain HTTP.

Whoever builds may name the server, as a program's address: private addresses are allowed, link-local ones are refused
when the connection stands, no redirect is followed, and an answer is read within a total time and size. A question is
asked again only where there surely was no connection.
"""

import functools
import http.client
import json
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

from flywheel.core.digests import is_deep, read_json
from flywheel.core.envs.worlds.server_world import Server
from flywheel.core.network.http_exchange import LinkLocal, NotReached, exchange
from flywheel.core.network.http_replies import Reply, TooLong
from flywheel.core.verifiers import WorldError
from flywheel.trajectories.formats.values.hostile_json import plain

AT_ONCE = 16
CONNECT_S = 10.0
SHOWN = 300
"""Characters of a strange answer that a reason quotes."""
ANSWER_BYTES = 256 * 1024
"""Of one tool's answer, and of a state."""
SESSION = "Flywheel-Session"
"""The header that names an attempt's session."""
SAID = frozenset({400, 404, 409, 422})
"""With these and JSON a tool has answered the agent, such as that there is no such order. Any other status but 200 is
the server's fault: a login that is wanted, a proxy, a page of errors, a session that is gone (410)."""
_asking = threading.BoundedSemaphore(AT_ONCE)


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds for one answer, and for a server that cannot be reached, in all."""

    answer_s: float = 60.0
    away_s: float = 20.0
    backoff_s: float = 0.5


ENDING = Patience(answer_s=5.0, away_s=0.0)
"""For the end of a session, on which nothing depends."""


class Line(Protocol):
    """A session at a server, for one attempt."""

    def begin(self, seed: int, task: Mapping[str, Any]) -> None:
        """Begin it. Raises WorldError, as all here do."""

    def tools(self) -> Any:
        """The definitions that the server has now, in whichever shape."""

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Carry a call out, once."""

    def state(self) -> Any:
        """The state of the session by now."""

    def name(self) -> dict[str, Any]:
        """Return what names the session, as JSON."""

    def go_on(self, named: Mapping[str, Any]) -> None:
        """Go on in the session of this `name`; nothing is asked yet."""

    def end(self) -> None:
        """Let the server forget it."""


@dataclass(slots=True)
class Asked:
    """Questions to one server, with its key."""

    server: Server
    key: str
    patience: Patience
    more: dict[str, str] = field(default_factory=dict)
    """Headers beside the usual ones."""

    def ask(
        self,
        method: str,
        path: str,
        value: Any = None,
        *,
        what: str,
        is_enough: Callable[[bytes], bool] | None = None,
    ) -> tuple[Reply, bytes]:
        """The answer, whatever its status. `what` names the question in an error. Raises WorldError."""
        body = None if value is None else json.dumps(value).encode()
        headers = {"Accept": "application/json", "User-Agent": "flywheel", **self.more}
        headers |= {"Content-Type": "application/json"} if body else {}
        headers |= {"Authorization": f"Bearer {self.key}"} if self.key else {}
        away_until, goes = time.monotonic() + self.patience.away_s, 0
        while True:
            try:
                return self._ask_once(method, path, body, headers, is_enough)
            except NotReached as error:
                if time.monotonic() > away_until:
                    raise WorldError(f"{what}: no connection: {error}", "environment") from error
                time.sleep(min(5.0, self.patience.backoff_s * 2**goes * random.uniform(0.5, 1.0)))
                goes += 1
            except LinkLocal as error:
                raise WorldError("its address is link-local, where no tools are", "refused") from error
            except TimeoutError as error:
                late = f"{what}: no complete answer within {self.patience.answer_s:g} s"
                raise WorldError(late, "timeout") from error
            except TooLong as error:
                raise WorldError(f"{what}: {error}", "output") from error
            except (OSError, http.client.HTTPException, ValueError) as error:
                broke = f"{what}: the connection broke: {error or type(error).__name__}"
                raise WorldError(broke, "environment") from error

    def _ask_once(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        is_enough: Callable[[bytes], bool] | None,
    ) -> tuple[Reply, bytes]:
        url = f"{self.server.base_url}{path}"
        with _asking:
            deadline = time.monotonic() + self.patience.answer_s
            tls = _tls() if url.startswith("https:") else None
            return exchange(
                method, url, body, headers, connect_s=CONNECT_S, deadline=deadline, tls=tls, is_enough=is_enough
            )


class HttpLine:
    """`GET /tools`, `POST /tools/<name>`, and where the server has them `POST /reset` and `GET /state`."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def begin(self, seed: int, task: Mapping[str, Any]) -> None:
        if not self._asked.server.resets:
            return
        answer = self._value("POST", "/reset", {"seed": seed, "task": dict(task)})
        session = answer.get("session") if isinstance(answer, dict) else None
        if not isinstance(session, str) or not 0 < len(session) <= 200 or not session.isascii():
            raise WorldError('/reset: {"session": text} of up to 200 characters is wanted', "environment")
        if not session.isprintable():
            raise WorldError("/reset: its session holds what no header can carry", "environment")
        self._asked.more[SESSION] = session

    def tools(self) -> Any:
        return self._value("GET", "/tools")

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        path = f"/tools/{quote(name, safe='')}"
        reply, content = self._asked.ask("POST", path, dict(arguments), what=name)
        if reply.status in SAID and _is_json(content):
            return answer_text(name, content.decode())
        value = decoded(content, name) if reply.status == 200 else refuse(name, reply, content)
        if not isinstance(value, dict) or "result" not in value:
            raise WorldError(f'{name}: {{"result": …}} is wanted, not {shown(content)}', "environment")
        return answer_text(name, value["result"])

    def state(self) -> Any:
        reply, content = self._asked.ask("GET", "/state", what="/state")
        if len(content) > ANSWER_BYTES:
            raise WorldError(f"/state: it is larger than {ANSWER_BYTES >> 10} KiB", "output")
        return plain(decoded(content, "/state")) if reply.status == 200 else refuse("/state", reply, content)

    def name(self) -> dict[str, Any]:
        return {"session": self._asked.more.get(SESSION, "")}

    def go_on(self, named: Mapping[str, Any]) -> None:
        if named["session"]:
            self._asked.more[SESSION] = named["session"]

    def end(self) -> None:
        """A server forgets its sessions itself."""

    def _value(self, method: str, path: str, value: Any = None) -> Any:
        reply, content = self._asked.ask(method, path, value, what=path)
        return decoded(content, path) if reply.status == 200 else refuse(path, reply, content)


def answer_text(name: str, value: Any) -> str:
    """The answer of a tool as the agent reads it. Raises WorldError for one that is too long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text.encode(errors="replace")) > ANSWER_BYTES:
        raise WorldError(f"{name}: it answered more than {ANSWER_BYTES >> 10} KiB", "output")
    return text.encode("utf-8", "replace").decode().replace("\0", "�")


def decoded(content: bytes, what: str) -> Any:
    """The JSON value of an answer. Raises WorldError."""
    try:
        value = read_json(content.decode())
    except (ValueError, RecursionError):
        raise WorldError(f"{what}: its answer is not JSON: {shown(content)}", "environment") from None
    if is_deep(value):
        raise WorldError(f"{what}: its answer is nested too deeply", "environment")
    return value


def refuse(what: str, reply: Reply, content: bytes) -> Any:
    """Raise WorldError for a status that is no answer."""
    more = f": {shown(content)}" if content else ""
    more = ", and redirects are not followed" if 300 <= reply.status < 400 else more
    raise WorldError(f"{what}: it answered {reply.status} {reply.reason}{more}", "environment")


def shown(content: bytes) -> str:
    return content[:SHOWN].decode(errors="replace").replace("\0", "�")


def _is_json(content: bytes) -> bool:
    try:
        decoded(content, "")
    except WorldError:
        return False
    return True


@functools.cache
def _tls() -> ssl.SSLContext:
    """Made once, where a server is asked over it: reading the certificates that this machine trusts takes a while."""
    return ssl.create_default_context()
