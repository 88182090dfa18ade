"""Environment kind `tool_server`: tools that a team's own server carries out, judged as a world of Python is.

Config: `{"base_url": str, "protocol": "http" | "mcp", "tools": [definition, …], "api_key_env": name, "resets": bool,
"shows_state": bool, "system_prompt": str, "max_turns": n, "token_limit": n}`; address, protocol and tools are wanted.
The definitions are read from the server once and stay: calls are checked against them before they are sent, and an
attempt whose server has others by then is unscored. Task, target, verifier and parts are those of `own_world`.

Over http a server has `GET /tools` and `POST /tools/<name>`, as the tools of a program's attempt have. Where it
`resets`, `POST /reset {"seed", "task": {"prompt", "state"}}` begins a session, which all that follows names; where it
also `shows_state`, `GET /state` tells what an attempt has left behind. An MCP server has neither.

What was answered stands in the messages, and is not asked again: a call may do something. Only where the server resets
is an attempt whose session is lost made again by its calls, and compared.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from flywheel.core.digests import canonical, is_deep
from flywheel.core.envs.environment import Say, Table, Task
from flywheel.core.envs.replay import end_states
from flywheel.core.envs.replay.end_states import EndState
from flywheel.core.envs.worlds.own_world import Difference, OwnWorld, Played
from flywheel.core.network.link_local import is_metadata
from flywheel.core.traces import Message, tooling
from flywheel.core.verifiers import VerifierError, WorldError

KIND = "tool_server"
HTTP, MCP = PROTOCOLS = ("http", "mcp")
MCP_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26")
"""Of the protocol, as it is spoken here on either side; the first is asked for or offered, and each is taken."""
SETTINGS = (
    "base_url", "protocol", "tools", "api_key_env", "resets", "shows_state", "system_prompt", "max_turns",
    "token_limit", "compare",
)  # fmt: skip
MOST_TOOLS = 128
TOOLS_BYTES = 256 * 1024
LONGEST_ADDRESS = 500


@dataclass(frozen=True, slots=True)
class Server:
    """A tool server as whoever asks it knows it."""

    base_url: str
    protocol: str
    api_key_env: str = ""
    """The name of the key that it wants; empty for none."""
    resets: bool = False
    shows_state: bool = False


@dataclass(frozen=True, slots=True)
class ServerEpisode:
    """An attempt as its server sees it."""

    server: Server
    tools: tuple[Mapping[str, Any], ...]
    """The definitions that the server has to have still."""
    seed: int
    prompt: str
    start: Any
    calls: tuple[tuple[str, Mapping[str, Any], str | None], ...]
    """Tool, arguments, and what was answered; None for one that is still to be carried out."""
    retold: frozenset[int] = frozenset()
    """Places of calls that the attempt was told another's answer to: they are carried out as the others, whenever the
    first that waits after them is, and what is said to them is nobody's business."""


@dataclass(frozen=True, slots=True)
class ServerPlayed(Played):
    beginning: Any = None
    """The state in which the session began, where the server shows it."""


class ServerWorld(OwnWorld):
    server: Server

    def _read(self, config: Mapping[str, Any]) -> None:
        self.server, self.has_state = server_of(config), config.get("shows_state", False)
        tools = tools_of(config.get("tools", []))
        if not tools:
            raise VerifierError("tools: none is there; read them from the server, or write their definitions")
        self.tools = tools

    def probes(self, task: Task) -> dict[str, Say]:
        """Those that call nothing, too, where the server has no beginning to return to: a call may do harm there."""
        found = super().probes(task)
        return found if self.server.resets else {name: found[name] for name in ("empty", "echo", "claims to be done")}

    def state(self, task: Task, messages: Sequence[Message]) -> list[Table]:
        is_known = self.has_state and self.runners.server is not None
        return end_states.tables(self.play(task, messages).state) if is_known else []

    def play(self, task: Task, messages: Sequence[Message], queries: Sequence[str] = ()) -> ServerPlayed:
        if self.runners.server is None:
            raise WorldError("its tools are a server's, which only a worker asks", "refused")
        calls = self._calls(messages)
        told = [message.content for message in messages if message.role == "tool"]
        answers: list[str | None] = [*told, *[None] * len(calls)]
        sent = tuple(
            (each.call.name, each.call.arguments, answer)
            for each, answer in zip(calls, answers, strict=False)
            if not each.refusal and isinstance(each.call.arguments, dict)
        )
        seed, start = task.state.get("seed", 0), task.state.get("state")
        played: ServerPlayed = self.runners.server.play(
            ServerEpisode(self.server, tuple(self.tools), seed, task.prompt, start, sent)
        )
        return played

    def difference(
        self, task: Task, messages: Sequence[Message], target: Mapping[str, Any]
    ) -> tuple[Counter[Difference], Counter[Difference]]:
        if not self.has_state:
            raise WorldError("its server shows no state that could be compared", "refused")
        return super().difference(task, messages, target)

    def _end(self, task: Task, messages: Sequence[Message], items: Sequence[Mapping[str, Any]]) -> EndState:
        """Ask nobody where calls and words alone are judged, which stand in the messages."""
        if not any(item["type"] == "state" for item in items):
            return EndState(None, None)
        played = self.play(task, messages)
        unread: dict[str, Any] = {query: {} for query in end_states.queries(items)}
        return EndState(played.beginning, played.state, unread, self.compare)


def server_of(config: Mapping[str, Any]) -> Server:
    """The server that a config names, with or without its tools. Raises VerifierError, which names the setting."""
    protocol = config.get("protocol", HTTP)
    if protocol not in PROTOCOLS:
        raise VerifierError(f"protocol: {str(protocol)[:60]!r} is unknown; use one of {', '.join(PROTOCOLS)}")
    key = config.get("api_key_env", "")
    if not isinstance(key, str):
        raise VerifierError("api_key_env: expected the name of a key, such as TOOLS_API_KEY")
    for name in ("resets", "shows_state"):
        if not isinstance(config.get(name, False), bool):
            raise VerifierError(f"{name}: expected true or false")
        if config.get(name) and protocol == MCP:
            raise VerifierError(f"{name}: an MCP server has no way to say so; leave it out")
    if config.get("shows_state") and not config.get("resets"):
        raise VerifierError("shows_state: a state is one attempt's own where the server resets; choose that too")
    return Server(
        _address(config.get("base_url")), protocol, key, config.get("resets", False), config.get("shows_state", False)
    )


def tools_of(given: Any) -> list[dict[str, Any]]:
    """Tool definitions in our shape, in whichever known shape a server has them. Raises VerifierError."""
    flat = tooling.definitions(given)
    if problems := tooling.check_definitions(flat):
        raise VerifierError(f"tools: {'; '.join(problems[:5])[:2000]}")
    if problems := tooling.unjudgeable(flat):
        raise VerifierError(f"tools: {'; '.join(problems[:5])[:2000]}")
    names = [tool["name"] for tool in flat]
    if twice := next((name for place, name in enumerate(names) if name in names[:place]), ""):
        raise VerifierError(f"tools: {twice[:100]!r} is there twice")
    try:
        if is_deep(flat) or len(flat) > MOST_TOOLS or len(canonical(flat)) > TOOLS_BYTES:
            raise VerifierError(f"tools: at most {MOST_TOOLS} of {TOOLS_BYTES >> 10} KiB together, at most 50 deep")
    except (ValueError, TypeError) as error:
        raise VerifierError(f"tools: {error}") from None
    return [dict(tool) for tool in flat]


def changed_tool(frozen: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> str:
    """The first definition that a server has no more as it was read, and how it differs; empty where all are there
    still, whatever others stand beside them."""
    there = {tool["name"]: tool for tool in now}
    for tool in frozen:
        if (found := there.get(tool["name"])) is None:
            return f"it has no tool {tool['name'][:100]} any more"
        for part in ("parameters", "description"):
            if canonical(tooling.plain(found).get(part)) != canonical(tooling.plain(tool).get(part)):
                return f"its tool {tool['name'][:100]} has other {part} than when they were read"
    return ""


def renewed(chosen: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The chosen tools as a server has them now, with the `x-` keys that they were given; without those it has no
    more. A definition that is the same there stays as it was written."""
    there = {tool["name"]: tool for tool in now}
    found = []
    for tool in chosen:
        if not changed_tool([tool], now):
            found.append(dict(tool))
        elif tool["name"] in there:
            ours = {key: value for key, value in tool.items() if key.startswith("x-")}
            found.append({**there[tool["name"]], **ours})
    return found


def _address(value: Any) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_ADDRESS or not (value.isascii() and value.isprintable()):
        raise VerifierError("base_url: expected the address of a server, such as http://tools:8000")
    address = value.strip().rstrip("/")
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise VerifierError("base_url: expected the address of a server, such as http://tools:8000")
    if " " in address or parts.username is not None or parts.query or parts.fragment:
        raise VerifierError("base_url: leave out logins, spaces, ? and #; a key is named by api_key_env")
    if is_metadata(host):
        raise VerifierError("base_url: it is link-local, where clouds keep credentials; no tools are there")
    return address
