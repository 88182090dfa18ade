"""When one model call goes on where another has ended: the stretch of a conversation that each of them covers.

A call is given a history and adds an answer. The next call of the same conversation is given that history, that answer,
and what came after it. So each call knows, by digest, the *point* that it reaches (its history with its answer) and the
points that its own history passes (the end of each answer in it). Who passes the point that another reaches continues
it.

What senders write differently without meaning anything by it does not count: white space, ids of calls, the order of
an argument's keys, answers that are written in one message or in several, and instructions (system messages), which
carry the time of day and change with a release in the middle of a conversation.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any
from uuid import UUID

from flywheel.core.traces import Message, fingerprint

RECENT = 4
"""Answers of a history that are remembered, from its end: so many calls less one may be missing in between."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The points of one model call. Points of different scopes never meet."""

    opening: UUID
    """Equal for all calls of a conversation: the first message of their histories."""
    passes: tuple[UUID, ...]
    """The whole history, and the ends of the last answers in it, the latest first."""
    reaches: UUID | None
    """The history with the answer; where the call has failed, the history alone; None where no answer was recorded."""
    has_failed: bool
    is_shared: bool
    """Whether several calls may go on from one point. They may where the sender has named the session. Else two
    conversations that begin word for word alike could not be told apart, and each point is continued once."""
    named: UUID | None = None
    """The point that it reaches by the name of its answer, whatever its content is; of it, several calls may go on."""

    @property
    def gates(self) -> tuple[UUID, ...]:
        """Points such that of any two calls that can be joined, both have one."""
        return (self.opening,) if self.named is None else (self.opening, self.named)

    def continues(self, earlier: "Stretch") -> bool:
        return earlier.reaches in self.passes


def stretch_of(
    scope: Sequence[str], history: Iterable[Message], answer: Iterable[Message], *, has_failed: bool, is_shared: bool
) -> Stretch | None:
    """The stretch of a call within a scope: project, agent and session, or whatever else keeps conversations apart.

    None where nobody has said anything in the history: content was not sent.
    """
    opening: UUID | None = None
    ends: list[UUID] = []
    state = hashlib.sha256("\0".join(scope).encode(errors="replace"))
    start = state.copy()
    for is_answer, said in _turns(history):
        state.update(said)
        if opening is None:
            start.update(said)
            opening = _point(start)
        if is_answer:
            ends.append(_point(state))
    if opening is None:
        return None
    whole = _point(state)
    reaches = whole if has_failed else None
    if not has_failed:
        for _, said in _turns(answer):
            state.update(said)
            reaches = _point(state)
    passes = tuple(dict.fromkeys([whole, *reversed(ends[-RECENT:])]))
    return Stretch(opening, passes, reaches, has_failed, is_shared)


def following(name: str) -> Stretch:
    """The stretch of a call that names the answer from which it goes on, and repeats nothing of the history."""
    point = _named(name)
    return Stretch(point, (point,), None, has_failed=False, is_shared=True)


def answering(stretch: Stretch | None, name: str) -> Stretch:
    """The stretch of a call whose answer has this name."""
    point = _named(name)
    return replace(stretch or Stretch(point, (), None, has_failed=False, is_shared=True), named=point)


def _named(name: str) -> UUID:
    return _point(hashlib.sha256(b"named\0" + name.encode(errors="replace")))


def _turns(messages: Iterable[Message]) -> Iterator[tuple[bool, bytes]]:
    """Each message as what counts of it, and whether it is an answer; answers that follow each other are one."""
    spoken = (message for message in messages if message.role != "system")
    for is_answer, group in groupby(spoken, lambda message: message.role == "assistant"):
        if is_answer:
            said = list(group)
            text = _plain(" ".join(message.content for message in said))
            calls = [[call.name, _arguments(call.arguments)] for message in said for call in message.tool_calls]
            if text or calls:
                yield True, _framed(["assistant", text, calls])
        else:
            for message in group:
                yield False, _framed([message.role, _plain(message.content)])


def _plain(text: str) -> str:
    return " ".join(text.split())


def _arguments(value: dict[str, Any] | str) -> Any:
    """As an object where it can be read as one, else the text: senders write the same call in both ways."""
    if not isinstance(value, str):
        return value
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        return _plain(value)
    return read if isinstance(read, dict) else _plain(value)


def _framed(value: list[Any]) -> bytes:
    """JSON with its length, so that no two lists of messages read alike."""
    try:
        said = fingerprint(value)
    except (TypeError, ValueError, RecursionError):  # agents write what no JSON says
        said = repr(value).encode(errors="replace")
    return b"%d:%b" % (len(said), said)


def _point(state: Any) -> UUID:
    return UUID(bytes=state.digest()[:16])
