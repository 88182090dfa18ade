"""Where in an attempt a part of a rubric looks: its answer, its tool calls, its steps."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from flywheel.core.digests import DEEPEST, is_deep, read_json
from flywheel.core.traces import Message, Trace, tooling

PLACES = {
    "answer": "the text of the last message",
    "last_call": "the last tool call",
    "any_call": "any tool call, the best of them",
    "calls": "all tool calls together",
    "steps": "how often the agent spoke",
}
LONGEST = 200_000
"""Characters of a text that is judged; who writes a longer one has failed."""

_INDEX = re.compile(r"-?\d{1,6}")


class NotThere(Exception):
    """Something looked for that is not in the attempt: the part scores 0, and says why."""


class NotJson(NotThere):
    """Something that should be JSON and is not: nothing can be said of its fields, not even that one is absent."""


class TooLong(Exception):
    """The text is longer, or nested deeper, than what is judged."""


def calls_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Every call that the agent made, in order; a text is a call when it has the form of one."""
    calls = (call for message in messages if message.role == "assistant" for call in tooling.calls_of(message))
    return [{"tool": call.name, "arguments": call.arguments} for call in calls]


def attempt_json(trace: Trace) -> dict[str, Any]:
    """An attempt as a Python verifier is told of it. The same attempt is told in the same words, wherever it is judged:
    what differs between an eval, a training run and a stored trajectory (ids, times, tokens) is left out."""
    messages = trace.conversation()
    return {
        "answer": answer_of(messages),
        "calls": calls_of(messages),
        "messages": [message.to_json() for message in messages],
        "steps": [{"kind": message.role, "output": [message.to_json()]} for message in messages],
    }


def answer_of(messages: Sequence[Message]) -> str:
    return next((message.content for message in reversed(messages) if message.role == "assistant"), "")


def read(place: str, path: str, trace: Trace, *, as_json: bool = False) -> list[Any]:
    """Read the values at a place: one, or for `any_call` one for each call. Raises NotThere and TooLong.

    An answer of which a field is named is read as JSON; `as_json` asks for that where none is.
    """
    messages = trace.conversation()
    values: list[Any]
    match place:
        case "answer":
            text = answer_of(messages)
            if len(text) > LONGEST:
                raise TooLong(f"the answer has {len(text):,} characters; up to {LONGEST:,} are judged")
            values = [_json(text) if path or as_json else text]
        case "steps":
            values = [sum(message.role == "assistant" for message in messages)]
        case "calls":
            values = [calls_of(messages)]
        case _:
            values = calls_of(messages)
            if not values:
                raise NotThere("no tool was called")
            if place == "last_call":
                values = values[-1:]
    for value in values:
        flat(value)
    if not path:
        return values
    found = [value for each in values if (value := dig(each, path)) is not MISSING]
    if not found:
        raise NotThere(f"there is no {path}")
    return found


def flat(value: Any) -> Any:
    """The value, as no deeper than what is judged. Raises TooLong."""
    if is_deep(value):
        raise TooLong(f"lists and objects stand in each other more than {DEEPEST} deep; up to that are judged")
    return value


MISSING = object()


def dig(value: Any, path: str) -> Any:
    """Return the value under a dotted path, such as `arguments.to` or `calls.0.tool`; MISSING when there is none."""
    for name in path.split("."):
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and _INDEX.fullmatch(name) and -len(value) <= int(name) < len(value):
            value = value[int(name)]
        else:
            return MISSING
    return value


def _json(text: str) -> Any:
    try:
        return read_json(text)
    except (ValueError, RecursionError) as error:
        raise NotJson(f"the answer is not JSON: {error}") from None


def shown(value: Any) -> str:
    """Quote a value for a reason, cut where it is long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return repr(text[:120] + "…" if len(text) > 120 else text)
