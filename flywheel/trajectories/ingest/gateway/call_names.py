"""By which names a caller calls a call: its session, its trace, the answer that it follows, and the unit that all of
these make it part of where a split gives each unit an arm."""

import hashlib
import json
import re
import uuid
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from flywheel.agents.models import SplitUnit
from flywheel.agents.splits.assignment import Unit
from flywheel.trajectories.formats.messages import message_shapes

HEADER_MAX = 200
ANSWER_NAME_MAX = 1000
"""Characters: proxies write into the name where the answer is."""

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
_INSTRUCTS = ("system", "developer")


@dataclass(frozen=True, slots=True)
class CallNames:
    call: str
    """Our own, for this call alone."""
    session: str
    trace: str
    parent: str
    """The span that it belongs to."""
    follows: str
    """The response that it goes on from."""
    is_response: bool
    """Whether its answer will be a response, which a further call can go on from."""
    unit: Unit


def names_of(request: HttpRequest, api: str, asked: dict[str, Any], project_id: int) -> CallNames:
    """Total: what cannot be read names nothing."""
    call = uuid.uuid4().hex
    session = header(request, "Session-Id")
    follows = ""
    if api == "responses":
        held = asked.get("conversation")
        session = session or word(held.get("id") if isinstance(held, dict) else held)
        follows = name_of_answer(asked.get("previous_response_id"))
    parent = _TRACEPARENT.fullmatch(request.headers.get("traceparent", "").strip().lower())
    stated = ""
    if named := header(request, "Trace-Id"):
        stated = message_shapes.trace_id(named, content=["gateway", named])
    elif parent and set(parent["trace"]) != {"0"}:
        stated = parent["trace"]
    if session:
        unit = Unit(SplitUnit.Kind.SESSION.value, session)
    elif stated:
        unit = Unit(SplitUnit.Kind.TRACE.value, stated)
    else:
        unit = Unit(SplitUnit.Kind.BEGINNING.value, _beginning(asked, project_id))
    of_session = hashlib.sha256(f"{project_id}\0{session}".encode()).hexdigest()[:32] if session else ""
    trace = stated or of_session or call
    span = parent["span"] if parent and parent["trace"] == trace else ""
    return CallNames(call, session, trace, span, follows, api == "responses", unit)


def header(request: HttpRequest, name: str) -> str:
    """The value of one of our own headers."""
    return word(request.headers.get(f"X-Flywheel-{name}", ""))


def name_of_answer(value: Any) -> str:
    """The same of a response's id, which may be longer."""
    return word(value, ANSWER_NAME_MAX)


def word(value: Any, most: int = HEADER_MAX) -> str:
    """A short text that can be shown, whatever it was; empty for what is none."""
    start = value.strip()[:most] if isinstance(value, str) else ""
    return "".join(character if character.isprintable() else " " for character in start)


def _beginning(asked: dict[str, Any], project_id: int) -> str:
    """A digest of what every call of a conversation repeats: the first instruction and the first message of a user."""
    said = asked.get("messages", asked.get("input"))
    rows = [{"role": "user", "content": said}] if isinstance(said, str) else said if isinstance(said, list) else []
    first: dict[Any, Any] = {"system": asked["instructions"]} if asked.get("instructions") else {}
    for row in rows:
        role = row.get("role") if isinstance(row, dict) else None
        if isinstance(role, str) and role in (*_INSTRUCTS, "user"):
            first.setdefault("system" if role in _INSTRUCTS else role, row.get("content"))
        if len(first) == 2:
            break
    try:
        told = json.dumps([project_id, first], sort_keys=True)
    except RecursionError:
        told = str(project_id)
    return hashlib.sha256(told.encode()).hexdigest()
