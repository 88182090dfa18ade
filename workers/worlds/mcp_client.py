"""An MCP server over streamable HTTP, as far as tools need it: initialize, `tools/list`, `tools/call`.

A question is a POST of JSON-RPC; its answer comes as JSON, or as a stream of events that is read until the answer is
there. What a server asks or tells meanwhile is passed over, for no capability of ours is declared.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from flywheel.core.envs.worlds.server_world import MCP_VERSIONS
from flywheel.core.network.http_replies import Reply
from flywheel.core.verifiers import WorldError
from flywheel.trajectories.formats.values.hostile_json import text
from workers.worlds.server_lines import ENDING, Asked, answer_text, decoded, refuse, shown

PAGES_MOST = 50
INVALID_PARAMS = -32602
SESSION, VERSION = "Mcp-Session-Id", "MCP-Protocol-Version"
_NAMED = {SESSION, VERSION}


class McpLine:
    """A session at an MCP server; `server_lines.Line`."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._number = 0
        asked.more["Accept"] = "application/json, text/event-stream"

    def begin(self, seed: int, task: Mapping[str, Any]) -> None:
        about = {"name": "flywheel", "version": "1"}
        wanted = {"protocolVersion": MCP_VERSIONS[0], "capabilities": {}, "clientInfo": about}
        reply, answer = self._request("initialize", wanted)
        result = _result(answer, "initialize")
        version = result.get("protocolVersion")
        if version not in MCP_VERSIONS:
            raise WorldError(
                f"initialize: it speaks MCP {str(version)[:40]!r}, and {', '.join(MCP_VERSIONS)} are spoken here",
                "refused",
            )
        self._asked.more[VERSION] = version
        if session := reply.headers.get(SESSION, ""):
            if len(session) > 1000 or not session.isascii() or not session.isprintable():
                raise WorldError("initialize: its session is what no header can carry", "environment")
            self._asked.more[SESSION] = session
        told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        reply, content = self._asked.ask("POST", "", told, what="initialized", is_enough=lambda _: True)
        if reply.status not in (200, 202, 204):
            refuse("initialized", reply, content)

    def tools(self) -> Any:
        found: list[Any] = []
        cursor: str | None = None
        for _ in range(PAGES_MOST):
            _, answer = self._request("tools/list", {"cursor": cursor} if cursor else {})
            page = _result(answer, "tools/list")
            if not isinstance(page.get("tools"), list):
                raise WorldError("tools/list: it names no list of tools", "environment")
            found += [_marked(tool) for tool in page["tools"]]
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or not cursor:
                return found
        raise WorldError(f"tools/list: it has more than {PAGES_MOST} pages", "environment")

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        _, answer = self._request("tools/call", {"name": name, "arguments": dict(arguments)}, what=name)
        error = answer.get("error")
        if isinstance(error, dict) and error.get("code") == INVALID_PARAMS:
            return answer_text(name, f"Error: {error.get('message', 'invalid arguments')}")
        return answer_text(name, _text(_result(answer, name)))

    def state(self) -> Any:
        raise WorldError("an MCP server shows no state", "refused")

    def name(self) -> dict[str, Any]:
        return {
            "number": self._number,
            "headers": {key: self._asked.more[key] for key in _NAMED & self._asked.more.keys()},
        }

    def go_on(self, named: Mapping[str, Any]) -> None:
        self._number = named["number"]  # of which none may come twice in a session
        self._asked.more |= named["headers"]

    def end(self) -> None:
        if SESSION in self._asked.more:
            replace(self._asked, patience=ENDING).ask("DELETE", "", what="end")

    def _request(self, method: str, params: Mapping[str, Any], *, what: str = "") -> tuple[Reply, dict[str, Any]]:
        """The answer as JSON-RPC has it, with `result` or `error`. Raises WorldError."""
        self._number += 1
        number, what = self._number, what or method
        events = _Events(number)
        asked = {"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params)}
        reply, content = self._asked.ask("POST", "", asked, what=what, is_enough=events.is_enough)
        if reply.headers.get_content_type() == "text/event-stream" and reply.status == 200:
            if events.answer is None:
                raise WorldError(f"{what}: its stream ended without an answer", "environment")
            return reply, events.answer
        # An error of the protocol comes with a status of its own; whatever else does is not read.
        value = decoded(content, what) if reply.status == 200 or _is_error(content) else refuse(what, reply, content)
        is_answer = isinstance(value, dict) and value.get("id") in (number, None)
        if not is_answer or not value.keys() & {"result", "error"}:
            raise WorldError(f"{what}: its answer is no JSON-RPC: {shown(content)}", "environment")
        return reply, value


def _marked(tool: Any) -> Any:
    """A definition with our mark where its server says that it may destroy something."""
    about = tool.get("annotations") if isinstance(tool, dict) else None
    is_unsafe = isinstance(about, dict) and about.get("destructiveHint") is True
    return {**tool, "x-unsafe": True} if is_unsafe else tool


class _Events:
    """Server-sent events, until the answer with this number is among them."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._rest = bytearray()
        self.answer: dict[str, Any] | None = None

    def is_enough(self, part: bytes) -> bool:
        """Take another part of the body. A body that is no stream never is enough before its end."""
        known = max(0, len(self._rest) - 1)
        self._rest += part.replace(b"\r", b"")
        while (end := self._rest.find(b"\n\n", known)) >= 0:
            value, known = _value(b"\n".join(_data(bytes(self._rest[:end])))), 0
            del self._rest[: end + 2]
            if isinstance(value, dict) and value.get("id") == self._number and value.keys() & {"result", "error"}:
                self.answer = value
        return self.answer is not None


def _data(event: bytes) -> Iterator[bytes]:
    for line in event.split(b"\n"):
        if line.startswith(b"data:"):
            yield line.removeprefix(b"data:").removeprefix(b" ")


def _value(data: bytes) -> Any:
    try:
        return decoded(data, "event")
    except WorldError:
        return None


def _is_error(content: bytes) -> bool:
    value = _value(content)
    return isinstance(value, dict) and isinstance(value.get("error"), dict)


def _result(answer: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Raises WorldError."""
    if isinstance(error := answer.get("error"), dict):
        code, message = str(error.get("code"))[:30], str(error.get("message", ""))[:300]
        raise WorldError(text(f"{what}: it answered the error {code}: {message}"), "environment")
    result = answer.get("result")
    if not isinstance(result, dict):
        raise WorldError(f"{what}: its result is no object", "environment")
    return result


def _text(result: Mapping[str, Any]) -> str:
    """The words of a tool's result; of anything else its JSON, without what is long."""
    content = result.get("content")
    parts = [
        str(part.get("text", "")) if part.get("type") == "text" else _short(part)
        for part in (content if isinstance(content, list) else [])
        if isinstance(part, dict)
    ]
    if not parts and "structuredContent" in result:
        return json.dumps(result["structuredContent"], ensure_ascii=False)
    words = "\n".join(parts)
    return f"Error: {words}" if result.get("isError") is True and not words.startswith("Error") else words


def _short(part: Mapping[str, Any]) -> str:
    """A part that is no words, such as an image or a link, as JSON that names it."""
    kept = {key: value for key, value in part.items() if key in ("type", "mimeType", "uri", "name", "title")}
    if isinstance(inner := part.get("resource"), Mapping):
        kept["resource"] = {key: inner[key] for key in ("uri", "mimeType", "text") if key in inner}
    return json.dumps(kept, ensure_ascii=False)
