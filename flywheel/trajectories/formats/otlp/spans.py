"""A span as it came off the wire, and what telemetry dialects read out of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from flywheel.core.traces import Kind, Message, Status
from flywheel.trajectories.formats.otlp import request_bounds
from flywheel.trajectories.formats.values.hostile_json import text


@dataclass(slots=True)
class Event:
    name: str
    time_ns: int
    attributes: dict[str, Any]


@dataclass(slots=True)
class Span:
    trace_id: str
    """32 lower-case hex digits."""
    span_id: str
    """16 lower-case hex digits."""
    parent_id: str = ""
    name: str = ""
    kind: int = 0
    start_ns: int = 0
    end_ns: int = 0
    status: Status = "unset"
    status_message: str = ""
    trace_state: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    links: list[dict[str, Any]] = field(default_factory=list)
    resource: dict[str, Any] = field(default_factory=dict)
    scope: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rejected:
    reason: str
    index: int
    """Which span of the batch, counted from 0 in the order of the wire."""
    content: bytes = b""
    """A request of its own that holds the span alone, in the encoding of the batch, where it could be cut out."""


@dataclass(slots=True)
class Decoded:
    spans: list[Span] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    says_more: bool = False
    """Whether something of the request is in no span and in nothing that was rejected: a field that is not known or
    not kept, or the first of two attributes of one name."""
    _room: int = request_bounds.CONTENTS

    @property
    def received(self) -> int:
        return len(self.spans) + len(self.rejected)

    def reject(self, reason: str, alone: Callable[[], bytes] | None = None) -> None:
        """`alone` makes its content, and is not asked when enough is kept."""
        content = alone() if alone is not None and self._room > 0 else b""
        self._room -= len(content)
        self.says_more = self.says_more or not content
        self.rejected.append(Rejected(text(reason)[:500], self.received, content))


@dataclass(slots=True)
class Facts:
    """Facts that a span states of itself and its trajectory, without its content: read of every span that arrives.

    Empty and None mean that it does not say.
    """

    kind: Kind | None = None
    speaks: bool = False
    """Whether it may carry messages: some attribute or event is neither one of these facts nor known to hold none."""
    model: str = ""
    finish_reason: str = ""
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_cached: int | None = None
    cost_usd: float | None = None
    tool_name: str = ""
    tool_call_id: str = ""
    agent: str = ""
    version: str = ""
    session_id: str = ""
    user_id: str = ""
    environment: str = ""
    tags: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Content:
    """The content of a span: read when somebody looks at it."""

    input: list[Message] = field(default_factory=list)
    output: list[Message] = field(default_factory=list)
    arguments: dict[str, Any] | str | None = None
    result: Any = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    sampling: dict[str, Any] = field(default_factory=dict)
    """As `core.traces.Step.sampling`."""

    def fill(self, other: "Content") -> None:
        """Take from `other` what is not known yet."""
        for name in _CONTENT:
            if getattr(self, name) in _UNKNOWN:
                setattr(self, name, getattr(other, name))


_CONTENT = tuple(item.name for item in fields(Content))
_UNKNOWN: tuple[Any, ...] = (None, "", [], {})


STATUSES: tuple[Status, ...] = ("unset", "ok", "error")
"""OTLP's status codes, by number."""


def scope(name: str, version: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The instrumentation scope as plain JSON, only what is set."""
    row = {"name": text(name), "version": text(version), "attributes": dict(attributes)}
    return {key: value for key, value in row.items() if value}


def first(attributes: Mapping[str, Any], *keys: str) -> Any:
    """The first of these attributes that is set to something."""
    for key in keys:
        if (value := attributes.get(key)) is not None and value != "":
            return value
    return None


def word(attributes: Mapping[str, Any], *keys: str) -> str:
    """The first of these attributes that is a non-empty string."""
    for key in keys:
        if isinstance(value := attributes.get(key), str) and value:
            return value
    return ""


def unflatten(attributes: Mapping[str, Any], prefix: str) -> Any:
    """The tree that was flattened into keys under `prefix.`; a level whose names are all numbers becomes a list."""
    root: dict[str, Any] = {}
    start = prefix + "."
    for key, value in attributes.items():
        if not key.startswith(start):
            continue
        *path, leaf = key[len(start) :].split(".")
        if len(path) > _MAX_PATH:
            continue
        node = root
        for name in path:
            below = node.setdefault(name, {})
            if not isinstance(below, dict):
                below = node[name] = {}
            node = below
        node[leaf] = value
    return _lists(root)


_MAX_PATH = 16
"""The deepest flattened key in use has 9 names; more is not a message."""


def _lists(node: Any) -> Any:
    if not isinstance(node, dict) or not node:
        return node
    if all(name.isascii() and name.isdigit() and len(name) < 10 for name in node):
        return [_lists(node[name]) for name in sorted(node, key=int)]
    return {name: _lists(value) for name, value in node.items()}
