"""Somebody else's NeMo Gym servers, asked over HTTP: sessions, tool calls, verdicts (`core.envs.nemo_gym`).

One session belongs to one attempt, and is found by what was done in it; what is not here any more is made again by the
same calls, and compared. A call that was perhaps carried out is never sent twice in a session: the attempt fails
instead, which leaves it unscored. A server that is full, or away, is waited for, and asked fewer things at once.

The address was chosen by an admin, so private ones are allowed; link-local addresses, where clouds answer with
credentials, are refused when the connection stands. No redirect is followed, no secret is sent, and an answer is read
within a total time and size.
"""

import http.client
import json
import random
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from http.cookies import CookieError, SimpleCookie
from typing import Any

from flywheel.core.digests import digest
from flywheel.core.envs import Environment, Task
from flywheel.core.envs.nemo_gym import GymEpisode, NemoGym, same
from flywheel.core.envs.worlds.own_world import world_of
from flywheel.core.envs.worlds.stand_ins import stand_in_of
from flywheel.core.network.http_exchange import LinkLocal, NotReached, exchange
from flywheel.core.network.http_replies import TooLong
from flywheel.core.verifiers import GymError
from workers.engines.openai_engine import Failed, Flow

AT_ONCE = 16
TIMEOUT_S = 120.0
"""Of one answer: a tool may run somebody's tests."""
CONNECT_S = 10.0
PATIENCE_S = 60.0
"""How long a server may be full or away. After that every attempt is given up at once, until it answers again."""
OBSERVATION_MAX = 256 * 1024
SESSIONS_MAX = 4096
COOKIES_MAX = 16 * 1024
"""Characters of a session's cookies."""

Call = tuple[str, Mapping[str, Any], str | None]


@dataclass(slots=True)
class _Session:
    base_url: str
    cookies: dict[str, str] = field(default_factory=dict)

    def heard(self, headers: http.client.HTTPMessage) -> None:
        for line in headers.get_all("Set-Cookie") or ():
            try:
                self.cookies |= {name: morsel.coded_value for name, morsel in SimpleCookie(line).items()}
            except CookieError:
                continue
        if len(self.header) > COOKIES_MAX:
            raise GymError("its cookies are longer than any session needs")

    @property
    def header(self) -> str:
        return "; ".join(f"{name}={value}" for name, value in self.cookies.items())


class Gym:
    """Safe for many threads. Sessions are this object's own: one for a job."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S, patience_s: float = PATIENCE_S, backoff_s: float = 0.5) -> None:
        self._timeout_s, self._patience_s, self._backoff_s = timeout_s, patience_s, backoff_s
        self._flow = Flow(AT_ONCE)
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, list[_Session]] = OrderedDict()
        self._failed: OrderedDict[str, str] = OrderedDict()
        self._away_since: float | None = None

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """Made where a server is asked over it: reading the certificates that this machine trusts takes a while."""
        return ssl.create_default_context()

    def carry_out(self, episodes: Sequence[GymEpisode]) -> list[list[str] | None]:
        if not episodes:
            return []
        with ThreadPoolExecutor(min(AT_ONCE, len(episodes)), thread_name_prefix="gym") as pool:
            return list(pool.map(self._carry_out, episodes))

    def why(self, episode: GymEpisode) -> str:
        with self._lock:
            return self._failed.get(_key(episode), "")

    def verify(self, episode: GymEpisode, response: Mapping[str, Any]) -> Mapping[str, Any]:
        session = self._session(episode, episode.calls)
        answer = _object(self._post(session, "verify", {**episode.row, "response": response}))
        if not isinstance(answer, dict):
            raise GymError("its verdict is not a JSON object")
        return answer

    def begin(self, base_url: str, row: Mapping[str, Any]) -> _Session:
        """A new session. Raises GymError."""
        session = _Session(base_url)
        self._post(session, "seed_session", row)
        return session

    def _carry_out(self, episode: GymEpisode) -> list[str] | None:
        done: list[Call] = [call for call in episode.calls if call[2] is not None]
        waiting = episode.calls[len(done) :]
        answers: list[str] = []
        try:
            session = self._session(episode, done)
            for tool, arguments, _ in waiting:
                answers.append(self._call(session, tool, arguments))
                done.append((tool, arguments, answers[-1]))
        except GymError as error:
            with self._lock:
                self._failed[_key(episode)] = str(error)
                while len(self._failed) > SESSIONS_MAX:
                    self._failed.popitem(last=False)
            return None
        self._keep(_key(episode, done), session)
        return answers

    def _call(self, session: _Session, tool: str, arguments: Mapping[str, Any]) -> str:
        content = self._post(session, tool, arguments, is_tool=True)
        if len(content) > OBSERVATION_MAX:
            raise GymError(f"{tool} answered more than {OBSERVATION_MAX // 1024} KiB")
        return content.decode(errors="replace")

    def _session(self, episode: GymEpisode, done: Sequence[Call]) -> _Session:
        """The one in which just this was done; made again where there is none. Raises GymError."""
        key = _key(episode, done)
        with self._lock:
            if kept := self._sessions.get(key):
                session = kept.pop()
                if not kept:
                    del self._sessions[key]
                return session
        session = self.begin(episode.base_url, episode.row)
        for tool, arguments, observation in done:
            if not same(self._call(session, tool, arguments), observation or ""):
                raise GymError(
                    f"{tool} answers otherwise now than it did in this attempt, so it cannot be judged again"
                )
        return session

    def _keep(self, key: str, session: _Session) -> None:
        with self._lock:
            self._sessions.setdefault(key, []).append(session)
            while len(self._sessions) > SESSIONS_MAX:
                self._sessions.popitem(last=False)

    def _post(self, session: _Session, path: str, body: Mapping[str, Any], *, is_tool: bool = False) -> bytes:
        """The body of an answer, waiting for a server that has not begun with it. Raises GymError."""
        content = json.dumps(body).encode()
        attempt = 0
        while True:
            began = time.monotonic()
            try:
                with self._flow:
                    began = time.monotonic()
                    answer = self._exchange(session, path, content, is_tool)
            except Failed as failure:
                if not failure.again or self._is_given_up():
                    raise GymError(f"/{path}: {failure}") from failure
                self._flow.full(began)
                # Jitter, so that the attempts of a batch do not all come back at once.
                time.sleep(max(failure.after_s, min(10.0, self._backoff_s * 2**attempt * random.uniform(0.5, 1.0))))
                attempt += 1
            else:
                self._flow.well()
                self._away_since = None
                return answer

    def _is_given_up(self) -> bool:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        return now > self._away_since + self._patience_s

    def _exchange(self, session: _Session, path: str, body: bytes, is_tool: bool) -> bytes:
        """Raises Failed, `again` where the server has surely not begun with it."""
        url, deadline = f"{session.base_url.rstrip('/')}/{path}", time.monotonic() + self._timeout_s
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "flywheel"}
        if session.cookies:
            headers["Cookie"] = session.header
        tls = self._tls if url.startswith("https:") else None
        try:
            reply, content = exchange("POST", url, body, headers, connect_s=CONNECT_S, deadline=deadline, tls=tls)
        except NotReached as error:
            raise Failed(f"no connection: {error}", again=True) from error
        except LinkLocal as error:
            raise Failed("its address is link-local, where no environment lives") from error
        except TimeoutError as error:
            raise Failed(f"no complete answer within {self._timeout_s:g} s") from error
        except TooLong as error:
            raise Failed(str(error)) from error
        except (OSError, http.client.HTTPException) as error:
            raise Failed(f"the connection broke: {error or type(error).__name__}") from error
        session.heard(reply.headers)
        if reply.status == 200 or (is_tool and _is_said(reply.status)):
            return content
        shown = content[:300].decode(errors="replace")
        moved = ", and redirects are not followed" if 300 <= reply.status < 400 else f": {shown}" if shown else ""
        full = reply.status in (429, 503)
        raise Failed(f"it answered {reply.status} {reply.reason}{moved}", again=full, status=reply.status)


def meet(env: Environment, task: Task) -> None:
    """Begin a session at the environment's server, or in its world of Python, or with what stands in for its tools,
    before anything is spent on attempts. Raises GymError and WorldError."""
    if (world := world_of(env)) is not None:
        world.play(task, [])
    if (stand_in := stand_in_of(env)) is not None:
        stand_in.begin(task)
    if isinstance(env, NemoGym) and isinstance(env.gym, Gym):
        env.gym.begin(env.base_url, env.row_of(task))


def _is_said(status: int) -> bool:
    """Whether a tool has answered the policy with it, such as 422 to arguments that are wrong. An address that is not
    there, a login that is wanted and a server that breaks are no answers."""
    return 400 <= status < 500 and status not in (401, 403, 404, 405, 407, 408, 429)


def _object(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise GymError("its verdict is not JSON") from None


def _key(episode: GymEpisode, calls: Sequence[Call] | None = None) -> str:
    done = episode.calls if calls is None else calls
    return digest({"at": episode.base_url, "row": episode.row, "done": [list(call) for call in done]})
