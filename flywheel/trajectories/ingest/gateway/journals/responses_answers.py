"""A call of OpenAI's Responses API as what a step tells of it. Total: whatever the upstream said, something is told."""

from collections.abc import Sequence
from typing import Any

from flywheel.core.traces import Message
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.messages.message_turns import Turn
from flywheel.trajectories.formats.openai import openai_responses
from flywheel.trajectories.formats.values.hostile_json import FormatError, Row, as_dict, plain
from flywheel.trajectories.ingest.gateway.journals.journal import Frame
from flywheel.trajectories.ingest.gateway.journals.journal_contents import (
    NOT_PARAMETERS,
    Answer,
    Reading,
    count,
    events,
    json_object,
    reason,
    rows,
    text,
)

ABOUT_THE_EPISODE = frozenset(
    {"input", "instructions", "previous_response_id", "conversation", "prompt", "store", "include", "background"}
)
"""Keys of a request that say something else than how to sample, beside those that chat completions have too."""
ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
"""The last event of a stream, which repeats the whole answer."""
_PARTS = {
    "response.output_text.delta": ("message", "content", "output_text", "text"),
    "response.refusal.delta": ("message", "content", "refusal", "refusal"),
    "response.reasoning_text.delta": ("reasoning", "content", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("reasoning", "summary", "summary_text", "text"),
}
"""Events that add to a text: the kind of the item, where its parts are, the kind of the part, and its text's name."""


def reading(request: dict[str, Any], answer: Answer) -> Reading:
    """Read request and answer. Items that cannot be read are in the request alone."""
    response = answer.completion
    instructions, items = request.get("instructions"), request.get("input")
    opening = [Message("system", message_shapes.content(plain(instructions)))] if instructions else []
    turns = _turns(response.get("output"))
    last = turns[-1] if turns else None
    usage = as_dict(response.get("usage"))
    said_in_full = {key for key, value in (("instructions", instructions), ("input", items)) if _is_plain(value)}
    sampling = {key: value for key, value in last.sampling.items() if _is_numbers(value)} if last else {}
    if params := {key: item for key, item in request.items() if key not in NOT_PARAMETERS | ABOUT_THE_EPISODE}:
        sampling["params"] = params
    return Reading(
        input=opening + [turn.message for turn in _turns(items)],
        output=[turn.message for turn in turns],
        finish_reason=_finish(response, turns),
        tokens_in=count(usage.get("input_tokens")),
        tokens_out=count(usage.get("output_tokens")),
        tokens_cached=count(as_dict(usage.get("input_tokens_details")).get("cached_tokens")),
        sampling=sampling,
        kept={key: value for key, value in request.items() if key not in said_in_full},
    )


def _turns(items: Any) -> list[Turn]:
    """Turns of these items, or of those that can be read. What was told before is named, not repeated."""
    if not isinstance(items, str):
        items = [item for item in rows(items) if item.get("type") != "item_reference"]
    try:
        return openai_responses.turns_of(Row({"items": plain(items)}), "items")
    except FormatError:
        return [turn for item in items for turn in _turns([item])] if len(items) > 1 else []


def _is_plain(value: Any) -> bool:
    """Whether messages say all of it: a text, or messages that are texts."""
    if isinstance(value, str):
        return True
    items = value if isinstance(value, list) else [None]
    return all(
        isinstance(item, dict) and item.keys() <= {"type", "role", "content"} and isinstance(item.get("content"), str)
        for item in items
    )


def _is_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )


def _finish(response: dict[str, Any], turns: Sequence[Turn]) -> str:
    """In the words of chat completions where they have one."""
    status = text(response.get("status"))
    if why := text(as_dict(response.get("incomplete_details")).get("reason")):
        return why
    if status != "completed":
        return status
    return "tool_calls" if any(turn.message.tool_calls for turn in turns) else "stop"


def streamed(pieces: Sequence[Frame]) -> Answer:
    """The events of a stream put together: what the last one repeats, or as far as it came."""
    answer = Answer()
    whole: dict[str, Any] = {}
    items: dict[int, dict[str, Any]] = {}
    unread: list[str] = []
    for at, data in events(pieces):
        event = json_object(data.encode())
        kind = text(event.get("type"))
        if not event and data.strip() != "[DONE]":
            unread.append(data)
        if isinstance(event.get("response"), dict):
            whole = event["response"]
        if kind == "error" or event.get("error"):
            answer.error = reason(event.get("error") or event)
        if kind == "response.failed":
            answer.error = reason(whole.get("error")) or "failed"
        answer.is_whole = answer.is_whole or kind in ENDS
        if kind.endswith(".delta") and answer.first_token is None:
            answer.first_token = at
        _add(items, kind, event)
    if items and not whole.get("output"):
        whole = {**whole, "output": [items[index] for index in sorted(items)]}
    answer.completion = whole
    answer.text = "\n".join(unread)
    return answer


def _add(items: dict[int, dict[str, Any]], kind: str, event: dict[str, Any]) -> None:
    """Add what one event says of one item of the answer."""
    index, added = count(event.get("output_index")) or 0, event.get("delta")
    if kind in ("response.output_item.added", "response.output_item.done") and isinstance(event.get("item"), dict):
        items[index] = event["item"]
    elif kind == "response.function_call_arguments.delta" and isinstance(added, str):
        item = items.setdefault(index, {"type": "function_call"})
        item["arguments"] = text(item.get("arguments")) + added
    elif kind in _PARTS and isinstance(added, str):
        of, place, part_kind, name = _PARTS[kind]
        item = items.setdefault(index, {"type": of, **({"role": "assistant"} if of == "message" else {})})
        parts = rows(item.get(place))
        if not parts or parts[-1].get("type") != part_kind:
            parts.append({"type": part_kind})
        parts[-1][name] = text(parts[-1].get(name)) + added
        item[place] = parts
