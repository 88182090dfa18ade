"""Worlds that are a team's own tool server (`core.envs.worlds.server_world`): a session for each attempt.

A session is found by what was done and answered in it. One that is not here any more is made again by the same calls
where the server resets, and what is answered otherwise then is no ground for a verdict; any other server is asked the
calls that wait and no more. A call is never sent twice in a session. No Django: keys are handed in.

Sessions end with their job (`close`), unless another goes on with them (`hand_over`, `take_over`).
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from flywheel.core.digests import digest
from flywheel.core.envs.nemo_gym import same
from flywheel.core.envs.worlds.server_world import (
    MCP,
    Server,
    ServerEpisode,
    ServerPlayed,
    changed_tool,
    tools_of,
)
from flywheel.core.verifiers import VerifierError, WorldError
from workers.worlds.mcp_client import McpLine
from workers.worlds.server_lines import Asked, HttpLine, Line, Patience

log = logging.getLogger(__name__)

SESSIONS_MAX = 1024
KeyFor = Callable[[str, str], str]
"""The key of this name, for the server at this address. Raises WorldError."""
Done = tuple[tuple[str, Mapping[str, Any], str], ...]


@dataclass(slots=True)
class _Session:
    line: Line
    beginning: Any


def no_key(name: str, base_url: str) -> str:
    raise WorldError(f"the key {name} of its server is not known here", "refused")


class ToolServers:
    """Safe for many threads. Sessions are this object's own: one for a job."""

    def __init__(self, key_for: KeyFor = no_key, patience: Patience | None = None) -> None:
        self._key_for, self._patience = key_for, patience or Patience()
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, list[_Session]] = OrderedDict()
        self._count = 0

    def play(self, episode: ServerEpisode) -> ServerPlayed:
        """Carry out the calls that wait; the answers to all, and the state where the server shows it. Raises
        WorldError."""
        session, done = self._session(episode)
        try:
            for place, (tool, arguments, said) in enumerate(episode.calls[len(done) :], len(done)):
                answer = session.line.call(tool, arguments)
                done = (*done, (tool, arguments, (said or "") if place in episode.retold else answer))
            state = session.line.state() if episode.server.shows_state else None
        except WorldError:
            _end([session])
            raise
        self._keep(_key(episode, done), session)
        return ServerPlayed(tuple(answer for _, _, answer in done), state, {}, session.beginning)

    def hand_over(self) -> dict[str, Any]:
        """The session that was used last, as JSON for `take_over`, and no more this object's; empty for none."""
        with self._lock:
            if not self._sessions:
                return {}
            key = next(reversed(self._sessions))
            session = self._taken_out(key)
        return {"key": key, "line": session.line.name(), "beginning": session.beginning}

    def take_over(self, server: Server, handed: Mapping[str, Any]) -> None:
        """Go on in a session that was handed over. Raises WorldError for a key that cannot be had."""
        line = self.line(server)
        line.go_on(handed["line"])
        self._keep(handed["key"], _Session(line, handed["beginning"]))

    def close(self) -> None:
        """Let the servers forget all sessions that are open here."""
        with self._lock:
            kept, self._sessions, self._count = self._sessions, OrderedDict(), 0
        _end(each for sessions in kept.values() for each in sessions)

    def line(self, server: Server) -> Line:
        """A way to ask the server; nothing is asked yet. Raises WorldError for a key that cannot be had."""
        key = self._key_for(server.api_key_env, server.base_url) if server.api_key_env else ""
        asked = Asked(server, key, self._patience)
        return McpLine(asked) if server.protocol == MCP else HttpLine(asked)

    @contextmanager
    def session(self, server: Server) -> Iterator[Line]:
        """A line to the server whose session, if one is begun, ends with the block."""
        line = self.line(server)
        try:
            yield line
        finally:
            _end([_Session(line, None)])

    def _session(self, episode: ServerEpisode) -> tuple[_Session, Done]:
        """The one in which all of the episode was done that it knows the answers to, or all but the last calls that are
        retold; and what was done in it. Raises WorldError."""
        answered = takewhile(lambda call: call[2] is not None, episode.calls)
        done: Done = tuple((tool, arguments, said or "") for tool, arguments, said in answered)
        least = len(done)
        while least and least - 1 in episode.retold:
            least -= 1
        with self._lock:
            for count in range(len(done), least - 1, -1):
                if (key := _key(episode, done[:count])) in self._sessions:
                    return self._taken_out(key), done[:count]
        return self._begin(episode, done), done

    def _begin(self, episode: ServerEpisode, done: Done) -> _Session:
        line = self.line(episode.server)
        session = _Session(line, None)
        try:
            line.begin(episode.seed, {"prompt": episode.prompt, "state": episode.start})
            if problem := changed_tool(episode.tools, read_tools(line)):
                raise WorldError(f"{problem}; save its environment anew where that is meant", "environment")
            session.beginning = line.state() if episode.server.shows_state else None
            for place, (tool, arguments, answer) in enumerate(done if episode.server.resets else ()):
                if not same(line.call(tool, arguments), answer) and place not in episode.retold:
                    raise WorldError(
                        f"{tool} answers otherwise now than it did in this attempt, whose session is gone",
                        "environment",
                    )
        except WorldError:
            _end([session])
            raise
        return session

    def _keep(self, key: str, session: _Session) -> None:
        with self._lock:
            self._sessions.setdefault(key, []).append(session)
            self._count += 1
            old = [self._taken_out(next(iter(self._sessions)))] if self._count > SESSIONS_MAX else []
        _end(old)

    def _taken_out(self, key: str) -> _Session:
        """One of the sessions under this key. Hold the lock."""
        kept = self._sessions[key]
        self._count -= 1
        if len(kept) == 1:
            del self._sessions[key]
        return kept.pop()


def _end(sessions: Iterable[_Session]) -> None:
    """Ask for an end until a server does not answer: it is not waited for a thousand times."""
    try:
        for each in sessions:
            each.line.end()
    except WorldError as error:
        log.info("sessions are left to a tool server, which did not end one: %s", error)


def read_tools(line: Line) -> list[dict[str, Any]]:
    """The definitions that a server has now, in our shape. Raises WorldError."""
    try:
        return tools_of(line.tools())
    except VerifierError as error:
        raise WorldError(f"its definitions cannot be used: {error}", "environment") from None


def _key(episode: ServerEpisode, done: Done) -> str:
    server = episode.server
    begun = [server.base_url, server.protocol, episode.seed, episode.prompt, episode.start]
    return digest([begun, [list(call) for call in done]])
