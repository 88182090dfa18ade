"""OpenAI Responses: `{"input": …, "output": […]}`, whose items are messages, calls, their outputs and reasoning.

What the model wrote between two things that it was told is one turn: reasoning, text and calls together, as a chat
message has them. An item of a kind that is not known here becomes a call (`…_call`) or its output (`…_call_output`).
"""

from collections.abc import Iterable
from typing import Any

from flywheel.core.traces import Message, ToolCall, Trace
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.messages.message_turns import Turn, steps_of
from flywheel.trajectories.formats.messages.sampling import sampling, settings
from flywheel.trajectories.formats.values.hostile_json import FormatError, Row, as_dict, as_list, plain, quote
from flywheel.trajectories.formats.values.times import moment

_ADDRESS = ("id", "call_id", "type", "status", "role")


def detect(row: dict[str, Any]) -> bool:
    output = row.get("output")
    is_items = isinstance(output, list) and all(isinstance(item, dict) and "type" in item for item in output)
    return is_items and (row.get("object") == "response" or isinstance(row.get("input"), str | list))


def parse(value: dict[str, Any]) -> Trace:
    """Raises FormatError, naming the field and what would be right."""
    root = Row(plain(value))
    return exchange(root, root, value)


def exchange(request: Row, response: Row, value: Any, *ids: str) -> Trace:
    """A request and what came back as a trajectory; both may be one object."""
    said = request.value.get("instructions") or response.value.get("instructions")
    turns = [Turn(Message("system", message_shapes.content(said)))] if said else []
    turns += turns_of(request, "input")
    answers = turns_of(response, "output", sampled=True)
    if not turns and not answers:
        raise FormatError(f"{response.at('output')}: empty, expected at least one item")
    describe(answers, request, response)
    session = response.value.get("conversation", request.value.get("conversation"))
    return Trace(
        trace_id=message_shapes.trace_id(*ids, content=value),
        steps=steps_of([*turns, *answers]),
        tools=message_shapes.tool_definitions(request.value.get("tools") or response.value.get("tools")),
        session_id=message_shapes.as_text(session.get("id") if isinstance(session, dict) else session),
        user_id=message_shapes.as_text(request.value.get("user")),
        metadata=_metadata(request, response),
    )


def describe(answers: list[Turn], request: Row, response: Row) -> None:
    """Say of the sampled turns what the response says of itself. Its usage is a sum and stands at its last turn."""
    own = [turn for turn in answers if turn.message.role == "assistant"]
    if not own:
        return
    model = response.value.get("model") or request.value.get("model")
    params = {**settings(response.value), **settings(request.value)}
    for turn in own:
        turn.model = message_shapes.as_text(model)
        if params:
            turn.sampling["params"] = params
    last, usage = own[-1], response.row("usage")
    last.tokens_in = usage.count("input_tokens" if "input_tokens" in usage.value else "prompt_tokens")
    last.tokens_out = usage.count("output_tokens" if "output_tokens" in usage.value else "completion_tokens")
    last.tokens_cached = (usage.value.get("input_tokens_details") or {}).get("cached_tokens") if usage.value else None
    last.finish_reason = _finish(response, last)
    own[0].started_at = moment(response.value.get("created_at"))
    last.ended_at = moment(response.value.get("completed_at"))
    if (error := response.value.get("error")) or response.value.get("status") == "failed":
        last.error = message_shapes.as_text(error.get("message") if isinstance(error, dict) else error) or "failed"


def _finish(response: Row, last: Turn) -> str:
    details = response.value.get("incomplete_details")
    if isinstance(details, dict) and details.get("reason"):
        return message_shapes.as_text(details["reason"])
    if response.value.get("status") in (None, "completed"):
        return "tool_calls" if last.message.tool_calls else "stop" if response.value.get("status") else ""
    return message_shapes.as_text(response.value["status"])


def _metadata(request: Row, response: Row) -> dict[str, Any]:
    own = as_dict(response.value.get("metadata") or request.value.get("metadata"))
    ids = {"response_id": response.value.get("id"), "previous_response_id": request.value.get("previous_response_id")}
    return {**own, **{key: value for key, value in ids.items() if value}}


def turns_of(root: Row, key: str, *, sampled: bool = False) -> list[Turn]:
    """The items under `key` as turns. A bare text is what the user said."""
    value = root.value.get(key)
    if isinstance(value, str):
        return [Turn(Message("user", value), {"role": "user", "content": value})]
    turns: list[Turn] = []
    waiting: list[Row] = []
    for row in root.rows(key):
        kind = _kind(row)
        if kind == "answer" or (kind == "message" and row.value.get("role", "assistant") != "assistant"):
            turns += _model_turns(waiting)
            waiting = []
            turns.append(_input_turn(row, kind))
        else:
            if kind == "message" and any(_kind(item) in ("message", "call") for item in waiting):
                turns += _model_turns(waiting)
                waiting = []
            waiting.append(row)
    return turns + _model_turns(waiting)


def _kind(row: Row) -> str:
    kind = row.value.get("type", "message")
    if not isinstance(kind, str):
        raise FormatError(f"{row.at('type')}: {quote(kind)} is not a string")
    if kind in ("message", "reasoning"):
        return kind
    return "answer" if kind.endswith("_output") else "call"


def _input_turn(row: Row, kind: str) -> Turn:
    if kind == "answer":
        said = row.value.get("output")
        text = message_shapes.content(said) if isinstance(said, list) else message_shapes.as_text(said)
        return Turn(Message("tool", text, (), row.text("call_id")), row.value)
    row.choice("role", tuple(message_shapes.ROLES))
    return Turn(message_shapes.openai_message(row.value), row.value)


def _model_turns(rows: list[Row]) -> list[Turn]:
    """One turn of the model out of its items."""
    if not rows:
        return []
    texts, thoughts = [], []
    calls: list[ToolCall] = []
    for row in rows:
        kind = _kind(row)
        if kind == "message":
            texts.append(_text(row.value.get("content")))
        elif kind == "reasoning":
            thoughts += [message_shapes.content(row.value.get(key)) for key in ("content", "summary")]
        else:
            calls.append(_call(row))
    message = Message(
        "assistant", "\n".join(filter(None, texts)), tuple(calls), reasoning="\n".join(filter(None, thoughts))
    )
    raw = rows[0].value if len(rows) == 1 else {"items": [row.value for row in rows]}
    return [Turn(message, raw, sampling=_tokens(rows))]


def _text(content: Any) -> str:
    if isinstance(content, list):
        refused = [part.get("refusal") for part in content if isinstance(part, dict) and part.get("type") == "refusal"]
        rest = [part for part in content if not (isinstance(part, dict) and part.get("type") == "refusal")]
        return "\n".join(filter(None, [message_shapes.content(rest), *map(message_shapes.as_text, refused)]))
    return message_shapes.content(content)


def _call(row: Row) -> ToolCall:
    kind = row.value["type"]
    name = row.text("name")
    if kind in ("function_call", "custom_tool_call", "mcp_call") and not name:
        raise FormatError(f"{row.at('name')}: missing, a string")
    given = row.value.get("arguments", row.value.get("input"))
    if given is None and not name:
        given = {key: item for key, item in row.value.items() if key not in _ADDRESS}
    identity = row.value.get("call_id") or row.value.get("id")
    return ToolCall(
        message_shapes.as_text(identity), name or kind.removesuffix("_call"), message_shapes.arguments(given)
    )


def _tokens(rows: Iterable[Row]) -> dict[str, Any]:
    """Token ids as NeMo Gym adds them to the item that ends a turn, and log-probabilities as OpenAI sends them."""
    found: dict[str, Any] = {}
    plain_logprobs: list[Any] = []
    for row in rows:
        given = row.value
        found |= sampling(
            prompt=given.get("prompt_token_ids"),
            tokens=given.get("generation_token_ids"),
            logprobs=given.get("generation_log_probs"),
        )
        for part in as_list(given.get("content")):
            if isinstance(part, dict) and isinstance(part.get("logprobs"), list):
                plain_logprobs += [item.get("logprob") for item in part["logprobs"] if isinstance(item, dict)]
    if plain_logprobs and "logprobs" not in found:
        found["logprobs"] = plain_logprobs
    return found
