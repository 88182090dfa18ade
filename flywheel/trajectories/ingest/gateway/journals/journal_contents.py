"""The content of a journal: what was asked and what was answered, before either is read as anything."""

import contextlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from flywheel.core.traces import Message
from flywheel.trajectories.formats.values.hostile_json import as_dict, as_list
from flywheel.trajectories.ingest.gateway.journals.journal import (
    ANSWER_MAX,
    CHUNK,
    END,
    HEAD,
    REQUEST,
    RESPONSE,
    Frame,
    frames,
)

NOT_PARAMETERS = frozenset({"model", "messages", "tools", "functions", "stream", "stream_options", "user", "metadata"})
"""Keys of a request that say something else than how to sample."""


@dataclass(slots=True)
class Seen:
    """The content of a journal."""

    head: dict[str, Any] = field(default_factory=dict)
    request: bytes = b""
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[Frame] = field(default_factory=list)
    end: dict[str, Any] | None = None
    ended: float = 0.0

    @property
    def is_response(self) -> bool:
        """Whether it is a call of the Responses API; else it is a chat completion."""
        return self.head.get("api") == "responses"

    @property
    def body(self) -> bytes:
        body = b"".join(piece.body for piece in self.pieces)
        if self.headers.get("content-encoding", "").lower() in ("gzip", "deflate"):  # although nobody asked for it
            with contextlib.suppress(zlib.error):
                return zlib.decompressobj(47).decompress(body, ANSWER_MAX)
        return body


@dataclass(slots=True)
class Answer:
    """An answer as its API has it whole, a chat completion or a response, however it came."""

    completion: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    first_token: float | None = None
    """When the first token came, in seconds since 1970; None where nothing was streamed."""
    is_whole: bool = False
    """It said itself that it was complete."""
    text: str = ""
    """What could not be read."""


def read(content: bytes) -> Seen:
    """Raises ValueError for what is no journal."""
    seen = Seen()
    for frame in frames(content):
        if frame.kind == HEAD:
            seen.head = json.loads(frame.body)
        elif frame.kind == REQUEST:
            seen.request = frame.body
        elif frame.kind == RESPONSE:
            said = json.loads(frame.body)
            seen.status, seen.headers = said["status"], said["headers"]
        elif frame.kind == CHUNK:
            seen.pieces.append(frame)
        elif frame.kind == END:
            seen.end = json.loads(frame.body)
        seen.ended = frame.at
    if not seen.head.get("id") or not seen.request:
        raise ValueError("not a journal of a gateway call")
    return seen


@dataclass(slots=True)
class Reading:
    """One model call, as request and answer tell it."""

    input: list[Message]
    output: list[Message]
    finish_reason: str
    tokens_in: int | None
    tokens_out: int | None
    tokens_cached: int | None
    sampling: dict[str, Any]
    kept: dict[str, Any]
    """The request without what `input` says all of."""


def events(pieces: Sequence[Frame]) -> Iterator[tuple[float, str]]:
    """The data of each server-sent event, with the time of its last byte; without what was cut off in the middle."""
    waiting = b""
    lines: list[str] = []
    for piece in pieces:
        waiting += piece.body
        *whole, waiting = waiting.replace(b"\r\n", b"\n").split(b"\n")
        for line in whole:
            if line.startswith(b"data:"):
                lines.append(line[5:].removeprefix(b" ").decode(errors="replace"))
            elif not line.strip() and lines:
                yield piece.at, "\n".join(lines)
                lines = []
    if waiting.startswith(b"data:"):
        lines.append(waiting[5:].decode(errors="replace"))
    if lines and pieces and ("\n".join(lines).strip() == "[DONE]" or json_object("\n".join(lines).encode())):
        yield pieces[-1].at, "\n".join(lines)


# Small readings


def json_object(data: bytes) -> dict[str, Any]:
    try:
        return as_dict(json.loads(data))
    except (ValueError, RecursionError):
        return {}


def reason(value: Any) -> str:
    if isinstance(value, dict):
        return text(value.get("message")) or json.dumps(value)[:500]
    return text(value)[:2000] if isinstance(value, str) else json.dumps(value)[:500] if value else ""


def rows(value: Any) -> list[dict[str, Any]]:
    return [row for row in as_list(value) if isinstance(row, dict)]


def text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None
