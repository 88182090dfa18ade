"""Worlds that are a team's own tool server (`core.envs.worlds.server_world`): a session for each attempt.

A session is found by what was done and answered in it. One that is not here any more is made again by the same calls
where the server resets, and what is answered otherwise then is no ground for a verdict; any other server is asked the
calls that wait and no more. A call is never sent twice in a session. No Django: keys are handed in.
"""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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

    def play(self, episode: ServerEpisode) -> ServerPlayed:
        """Carry out the calls that wait; the answers to all, and the state where the server shows it. Raises
        WorldError."""
        done: Done = tuple((tool, arguments, said) for tool, arguments, said in episode.calls if said is not None)
        session = self._session(episode, done)
        for tool, arguments, _ in episode.calls[len(done) :]:
            done = (*done, (tool, arguments, session.line.call(tool, arguments)))
        state = session.line.state() if episode.server.shows_state else None
        self._keep(_key(episode, done), session)
        return ServerPlayed(tuple(answer for _, _, answer in done), state, {}, session.beginning)

    def line(self, server: Server) -> Line:
        """A way to ask the server; nothing is asked yet. Raises WorldError for a key that cannot be had."""
        key = self._key_for(server.api_key_env, server.base_url) if server.api_key_env else ""
        asked = Asked(server, key, self._patience)
        return McpLine(asked) if server.protocol == MCP else HttpLine(asked)

    def _session(self, episode: ServerEpisode, done: Done) -> _Session:
        """The one in which just this was done. Raises WorldError."""
        key = _key(episode, done)
        with self._lock:
            if kept := self._sessions.get(key):
                session = kept.pop()
                if not kept:
                    del self._sessions[key]
                return session
        session = self._begin(episode)
        for tool, arguments, answer in done if episode.server.resets else ():
            if not same(session.line.call(tool, arguments), answer):
                raise WorldError(
                    f"{tool} answers otherwise now than it did in this attempt, whose session is gone", "environment"
                )
        return session

    def _begin(self, episode: ServerEpisode) -> _Session:
        line = self.line(episode.server)
        line.begin(episode.seed, {"prompt": episode.prompt, "state": episode.start})
        if problem := changed_tool(episode.tools, read_tools(line)):
            raise WorldError(f"{problem}; save its environment anew where that is meant", "environment")
        return _Session(line, line.state() if episode.server.shows_state else None)

    def _keep(self, key: str, session: _Session) -> None:
        old: Sequence[_Session] = ()
        with self._lock:
            self._sessions.setdefault(key, []).append(session)
            if len(self._sessions) > SESSIONS_MAX:
                _, old = self._sessions.popitem(last=False)
        for each in old:
            with contextlib.suppress(WorldError):
                each.line.end()


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
