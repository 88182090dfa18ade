"""A journal as part of a trajectory: one model call, one step. Total: whatever the upstream said, there is a step."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from flywheel.core.traces import Step, Trace
from flywheel.core.traces.call_prices import Price
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.values.hostile_json import as_dict
from flywheel.trajectories.ingest.gateway.journals import responses_answers
from flywheel.trajectories.ingest.gateway.journals.journal import Frame
from flywheel.trajectories.ingest.gateway.journals.journal_contents import (
    NOT_PARAMETERS,
    Answer,
    Reading,
    Seen,
    count,
    events,
    json_object,
    reason,
    rows,
    text,
)

OVERRIDES = "gateway.overrides"
"""Key of a trajectory's metadata and attributes: names of what callers say otherwise than the version."""
SHADOW_OF = "gateway.shadow_of"
OUR_END = "cut off: the gateway's process ended while the answer was on its way"
"""The error of a call that says nothing of the server that was asked."""
SHOWN = 20_000
"""Characters that are kept of an answer which cannot be read."""


def trace_of(seen: Seen) -> Trace:
    """The part of a trajectory that the call is."""
    head, request = seen.head, json_object(seen.request)
    answer = _answer(seen)
    tools = request.get("tools") or request.get("functions")
    outcome, host = head.get("outcome"), head.get("host", "")
    is_alone = head["trace"] == head["id"]
    return Trace(
        trace_id=head["trace"],
        steps=[_step(seen, request, answer)],
        agent=head.get("agent", ""),
        version=head.get("version", ""),
        session_id=head.get("session", ""),
        user_id=head.get("user", "") or text(request.get("user")),
        environment=head.get("environment", ""),
        tools=message_shapes.tool_definitions(tools) if isinstance(tools, list) else [],
        outcome=outcome if outcome in ("success", "failed") else None,
        metadata={**as_dict(request.get("metadata")), **_overrides(head), **_shadow(head), "gateway.upstream": host},
        # Who says nothing of the episode has only the history to tell which one it is.
        thread=f"gateway {head.get('key')}" if is_alone else "",
        follows=f"{host} {follows}" if is_alone and (follows := text(head.get("follows"))) else "",
        answer_id=f"{host} {named}" if seen.is_response and (named := text(answer.completion.get("id"))) else "",
    )


def _overrides(head: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata that tells without the steps that a caller said something else than the version."""
    return {OVERRIDES: " ".join(overrides)} if (overrides := head.get("overrides")) else {}


def _shadow(head: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata of a copy: the trace of the call that it is a copy of."""
    return {SHADOW_OF: shadow["of"]} if (shadow := as_dict(head.get("shadow"))) else {}


def _step(seen: Seen, request: dict[str, Any], answer: Answer) -> Step:
    head = seen.head
    error = _error(seen, answer)
    read = (responses_answers.reading if seen.is_response else _reading)(request, answer)
    model = text(answer.completion.get("model")) or text(request.get("model"))
    price = Price.from_json(head["price"]) if head.get("price") else None
    cost_usd = price.cost(read.tokens_in, read.tokens_out, read.tokens_cached) if price else None
    return Step(
        span_id=head["id"][:16],
        parent_id=head.get("parent", ""),
        kind="assistant",
        name=f"chat {model}".strip(),
        started_at=datetime.fromtimestamp(head["started"], UTC),
        ended_at=datetime.fromtimestamp(seen.ended, UTC),
        status="error" if error else "ok",
        error=error,
        model=model,
        input=read.input,
        output=[message for message in read.output if message.content or message.tool_calls or message.reasoning],
        finish_reason=read.finish_reason,
        tokens_in=read.tokens_in,
        tokens_out=read.tokens_out,
        tokens_cached=read.tokens_cached,
        cost_usd=cost_usd,
        priced_by=price.origin if price and cost_usd is not None else "",
        answered_by=text(head.get("answered_by")),
        sampling=read.sampling,
        raw=_raw(seen, read, answer),
    )


def _reading(request: dict[str, Any], answer: Answer) -> Reading:
    completion = answer.completion
    choices = [choice for choice in rows(completion.get("choices")) if isinstance(choice.get("message"), dict)]
    first = choices[0] if choices else {}
    usage = as_dict(completion.get("usage"))
    is_plain = all(isinstance(row.get("content"), str | None) for row in rows(request.get("messages")))
    return Reading(
        input=[message_shapes.openai_message(message) for message in rows(request.get("messages"))],
        output=[message_shapes.openai_message({**choice["message"], "role": "assistant"}) for choice in choices],
        finish_reason=text(first.get("finish_reason")),
        tokens_in=count(usage.get("prompt_tokens")),
        tokens_out=count(usage.get("completion_tokens")),
        tokens_cached=count(as_dict(usage.get("prompt_tokens_details")).get("cached_tokens")),
        sampling=_sampling(request, completion, first),
        # Messages are repeated only where reading them left something out.
        kept={key: value for key, value in request.items() if key != "messages" or not is_plain},
    )


def _error(seen: Seen, answer: Answer) -> str:
    end = seen.end or {}
    if seen.status is not None and seen.status >= 400:
        return f"{seen.status}: {answer.error or 'no reason given'}"
    if answer.error:
        return answer.error
    if end.get("how") == "left" and answer.is_whole:
        return ""  # the caller had all it wanted, and hung up before the connection's own end
    if end.get("error"):
        return text(end["error"])
    if seen.end is None and not answer.is_whole:
        return OUR_END
    if not answer.completion:
        return f"the upstream's answer is not a {'response' if seen.is_response else 'chat completion'}"
    return ""


def _sampling(request: Mapping[str, Any], completion: Mapping[str, Any], choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampled tokens, their log-probabilities and the settings: only what was stated."""
    found: dict[str, Any] = {}
    for key, value in (
        ("prompt_token_ids", completion.get("prompt_token_ids") or choice.get("prompt_token_ids")),
        ("token_ids", choice.get("token_ids")),
    ):
        if isinstance(value, list) and value and all(count(item) is not None for item in value):
            found[key] = value
    tokens = rows(as_dict(choice.get("logprobs")).get("content"))
    logprobs = [token.get("logprob") for token in tokens]
    if logprobs and all(isinstance(value, int | float) and not isinstance(value, bool) for value in logprobs):
        found["logprobs"] = [float(value) for value in logprobs if value is not None]
    if params := {key: value for key, value in request.items() if key not in NOT_PARAMETERS}:
        found["params"] = params
    return found


def _raw(seen: Seen, read: Reading, answer: Answer) -> dict[str, Any]:
    """Return all that the step's own fields lack."""
    facts: dict[str, Any] = {
        "upstream": seen.head.get("host", ""),
        "status": seen.status,
        "asked_for": seen.head.get("asked", ""),
        "request_id": seen.headers.get("x-request-id", ""),
        "ended": (seen.end or {"how": "killed"}).get("how"),
    }
    # What the gateway knows of who answered, and what its caller says of it.
    version, _, digest = text(seen.head.get("answered_by")).rpartition(":")
    known: dict[str, Any] = {name: seen.head.get(name) for name in ("claimed", "arm", "overrides")}
    known |= {"version": version, "digest": digest}
    facts |= {key: value for key, value in known.items() if value}
    if answer.first_token is not None:
        facts["first_token_ms"] = round((answer.first_token - seen.head["started"]) * 1000, 1)
    raw: dict[str, Any] = {"gateway": facts, "request": read.kept}
    if answer.completion:
        raw["response"] = answer.completion
    if answer.text:
        raw["response_text"] = answer.text[:SHOWN]
    return raw


# Answers


def _answer(seen: Seen) -> Answer:
    body = seen.body
    kind = seen.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "text/event-stream" or (not kind and body.startswith((b"data:", b"event:"))):
        return responses_answers.streamed(seen.pieces) if seen.is_response else _streamed(seen.pieces)
    value = json_object(body)
    error = reason(value.get("error"))
    if seen.status is not None and seen.status >= 400:
        shown = error or reason(value.get("detail")) or body[:500].decode(errors="replace")
        return Answer(error=shown, completion=value, is_whole=True)
    if isinstance(value.get("output" if seen.is_response else "choices"), list) or error:
        return Answer(completion=value, error=error, is_whole=True)
    return Answer(text=body.decode(errors="replace"))


def _streamed(pieces: Sequence[Frame]) -> Answer:
    """The events of a stream put together."""
    answer = Answer()
    whole: dict[str, Any] = {"object": "chat.completion"}
    choices: dict[int, dict[str, Any]] = {}
    unread: list[str] = []
    for at, data in events(pieces):
        if data.strip() == "[DONE]":
            answer.is_whole = True
            continue
        event = json_object(data.encode())
        if not event:
            unread.append(data)
            continue
        if event.get("error"):
            answer.error = reason(event["error"])
        for key, value in event.items():
            if key not in ("choices", "object") and value is not None:
                whole[key] = value
        for row in rows(event.get("choices")):
            if _add(choices, row) and answer.first_token is None:
                answer.first_token = at
    if choices:
        whole["choices"] = [choices[index] for index in sorted(choices)]
        answer.is_whole = answer.is_whole or all(choice.get("finish_reason") for choice in choices.values())
    answer.completion = whole if len(whole) > 1 else {}
    answer.text = "\n".join(unread)
    return answer


def _add(choices: dict[int, dict[str, Any]], row: dict[str, Any]) -> bool:
    """Add one event's part of one choice. Returns whether it holds something of the answer."""
    index = count(row.get("index")) or 0
    choice = choices.setdefault(index, {"index": index, "message": {"role": "assistant"}})
    message, delta = choice["message"], as_dict(row.get("delta"))
    spoke = False
    for key, value in delta.items():
        if key == "tool_calls":
            for part in rows(value):
                spoke = True
                _add_call(message.setdefault("tool_calls", []), part)
        elif key == "function_call":
            spoke = True
            _extend(message.setdefault("function_call", {}), as_dict(value))
        elif isinstance(value, str) and key != "role":
            spoke = spoke or bool(value)
            message[key] = message.get(key, "") + value if isinstance(message.get(key, ""), str) else value
        elif value is not None and key != "role":
            message[key] = value
    for key, value in row.items():
        if key == "logprobs" and isinstance(value, dict):
            kept = choice.setdefault("logprobs", {})
            for name, tokens in value.items():
                if isinstance(tokens, list):
                    kept[name] = (kept.get(name) or []) + tokens
        elif key == "token_ids" and isinstance(value, list):
            choice["token_ids"] = choice.get("token_ids", []) + value
        elif key not in ("delta", "index") and value is not None:
            choice[key] = value
    return spoke


def _add_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """Parts of a call come by its index; some servers leave the index out and send each call whole."""
    index = count(part.get("index"))
    known = next((call for call in calls if call.get("index") == index), None) if index is not None else None
    if known is None:
        known = {"index": len(calls) if index is None else index, "type": "function", "function": {}}
        calls.append(known)
    if isinstance(part.get("id"), str) and part["id"]:
        known["id"] = part["id"]
    _extend(known["function"], as_dict(part.get("function")))


def _extend(function: dict[str, Any], part: Mapping[str, Any]) -> None:
    if isinstance(part.get("name"), str) and not function.get("name"):
        function["name"] = part["name"]
    if isinstance(part.get("arguments"), str):
        function["arguments"] = function.get("arguments", "") + part["arguments"]
