"""OpenAI's chat completions, as weights that are served here take and answer them.

What cannot be done as it is asked for is refused with the field's name: an answer that was drawn in another way would
look like the one that was wanted.
"""

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flywheel.agents.version_content import DEFAULT_SAMPLING, MAX_TOKENS
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, Sampling
from flywheel.core.traces import Message, ToolCall, openai_messages

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
STOPS, STOP_LENGTH = 16, 200
IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
"""They are for the server of somebody else, and change no answer."""
ONLY: dict[str, tuple[Any, ...]] = {
    "n": (1,), "logprobs": (False,), "top_logprobs": (0,), "frequency_penalty": (0,), "presence_penalty": (0,),
    "logit_bias": ({},), "response_format": ({"type": "text"},), "tool_choice": ("auto", "none"),
    "parallel_tool_calls": (True,), "modalities": (["text"],),
}  # fmt: skip
"""What may be said only so, or not at all."""
KNOWN = {
    "model", "messages", "tools", "stream", "stream_options", "seed", "stop", "temperature", "top_p", "max_tokens",
    "max_completion_tokens", "chat_template_kwargs",
}  # fmt: skip


class Refused(Exception):
    """A request that gets no answer; the rest is what OpenAI's error says."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str = "") -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code or None}}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it was understood."""

    model: str
    request: ChatRequest
    stop: tuple[str, ...] = ()
    is_streamed: bool = False
    has_usage: bool = False
    """Whether a stream ends with the count of its tokens."""
    template: Mapping[str, Any] | None = None
    """Settings of the chat template that the caller wants."""
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))


def read(body: Any) -> Asked:
    """Raises Refused."""
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    for name, value in body.items():
        if value is None or name in KNOWN or name in IGNORED:
            continue
        if name not in ONLY:
            raise _wrong(name, "is not known here", code="unknown_parameter")
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in ONLY[name]):
            allowed = " or ".join(json.dumps(one) for one in ONLY[name])
            raise _wrong(name, f"can only be {allowed} for weights that Flywheel serves itself")
    given = {name: value for name, value in body.items() if value is not None}
    if not isinstance(given.get("model"), str):
        raise _wrong("model", "must be a string")
    options = given.get("stream_options", {})
    if not isinstance(options, dict):
        raise _wrong("stream_options", "must be an object")
    template = given.get("chat_template_kwargs")
    if template is not None and not isinstance(template, dict):
        raise _wrong("chat_template_kwargs", "must be an object")
    has_tools = given.get("tool_choice") != "none"
    request = ChatRequest(
        _messages(given.get("messages")),
        _sampling(given),
        _seed(given),
        _tools(given.get("tools")) if has_tools else (),
    )
    return Asked(
        given["model"],
        request,
        _stop(given.get("stop", ())),
        _flag(given, "stream"),
        _flag(options, "include_usage", "stream_options."),
        template,
    )


def _wrong(param: str, problem: str, code: str = "") -> Refused:
    return Refused(400, f"{param} {problem}", param=param, code=code)


def _flag(given: Mapping[str, Any], name: str, inside: str = "") -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise _wrong(f"{inside}{name}", "must be true or false")
    return value


def _seed(given: Mapping[str, Any]) -> int:
    seed = given.get("seed")
    if seed is None:
        return secrets.randbelow(2**31)
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise _wrong("seed", "must be a whole number of 64 bits")
    return seed


def _sampling(given: Mapping[str, Any]) -> Sampling:
    """The settings, where they are not given as an eval has them."""
    values = dict(DEFAULT_SAMPLING)
    for name, most in {"temperature": 5.0, "top_p": 1.0}.items():
        value = given.get(name, values[name])
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            raise _wrong(name, f"must be a number from 0 to {most:g}")
        values[name] = float(value)
    if not values["top_p"]:
        raise _wrong("top_p", "must be above 0; for greedy answers use temperature 0")
    for name in ("max_tokens", "max_completion_tokens"):  # the latter is the newer name, and wins
        value = given.get(name, values["max_tokens"])
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TOKENS:
            raise _wrong(name, f"must be a whole number from 1 to {MAX_TOKENS}")
        values["max_tokens"] = value
    return Sampling(values["temperature"], values["top_p"], int(values["max_tokens"]))


def _stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list | tuple) or len(stops) > STOPS:
        raise _wrong("stop", f"must be a string, or a list of at most {STOPS}")
    if not all(isinstance(stop, str) and 0 < len(stop) <= STOP_LENGTH for stop in stops):
        raise _wrong("stop", f"must be of strings with 1 to {STOP_LENGTH} characters")
    return tuple(stops)


def _tools(value: Any) -> tuple[dict[str, Any], ...]:
    tools = [] if value is None else value
    if not isinstance(tools, list):
        raise _wrong("tools", "must be a list")
    for place, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type", "function") != "function":
            raise _wrong(f"tools[{place}]", 'must be {"type": "function", "function": {"name", "parameters"}}')
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise _wrong(f"tools[{place}].function.name", "must be a string")
    return tuple(tools)


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise _wrong("messages", "must be a list of at least one message")
    return tuple(_message(f"messages[{place}]", row) for place, row in enumerate(value))


def _message(at: str, row: Any) -> Message:
    if not isinstance(row, dict):
        raise _wrong(at, "must be an object")
    role = ROLES.get(row["role"]) if isinstance(row.get("role"), str) else None
    if role is None:
        raise _wrong(f"{at}.role", f"must be one of {', '.join(ROLES)}")
    content = row.get("content")
    parts = content if isinstance(content, list) else []
    for place, part in enumerate(parts):
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise _wrong(f"{at}.content[{place}]", 'must be {"type": "text", "text"}: these weights read text alone')
    calls = tuple(_call(f"{at}.tool_calls[{place}]", call) for place, call in enumerate(_calls(at, row)))
    if not isinstance(content, str | list) and not (content is None and role == "assistant"):
        raise _wrong(f"{at}.content", "must be a string, or a list of texts")
    texts = {name: row.get(name) or "" for name in ("tool_call_id", "name")}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise _wrong(f"{at}.{name}", "must be a string")
    return Message(role, openai_messages.text(content), calls, **texts)  # type: ignore[arg-type]


def _calls(at: str, row: Mapping[str, Any]) -> list[Any]:
    calls = row.get("tool_calls") or []
    if not isinstance(calls, list) or (calls and row["role"] != "assistant"):
        raise _wrong(f"{at}.tool_calls", "must be a list, in a message of the assistant")
    return calls


def _call(at: str, row: Any) -> ToolCall:
    function = row.get("function") if isinstance(row, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _wrong(at, 'must be {"id", "type": "function", "function": {"name", "arguments"}}')
    return ToolCall(str(row.get("id", "")), function["name"], openai_messages.arguments(function.get("arguments")))


# Answers --------------------------------------------------------------------------------------------------------------


def refusal_of(answer: ChatResponse) -> Refused | None:
    """Why there is no answer; None where there is one. So is one that makes a call in a way that nobody reads here: its
    words are given as they stand."""
    if not answer.error or answer.tokens_out is not None:
        return None
    if answer.is_too_long:
        return Refused(400, answer.error, param="messages", code="context_length_exceeded")
    return Refused(400, answer.error, param="messages")


def whole(asked: Asked, answer: ChatResponse) -> dict[str, Any]:
    """The answer in one piece."""
    calls = _written_calls(answer)
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or (None if calls else "")}
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _why(answer)}
    return _frame(asked, "chat.completion") | {"choices": [choice], "usage": _usage(answer)}


def opening(asked: Asked) -> dict[str, Any]:
    """The first piece of a stream."""
    return _piece(asked, {"role": "assistant", "content": ""})


def more(asked: Asked, text: str) -> dict[str, Any]:
    """The next words of a stream."""
    return _piece(asked, {"content": text})


def ending(asked: Asked, answer: ChatResponse) -> list[dict[str, Any]]:
    """The last pieces of a stream, after its words."""
    calls = [{"index": place, **call} for place, call in enumerate(_written_calls(answer))]
    pieces = [_piece(asked, {"tool_calls": calls})] if calls else []
    pieces.append(_piece(asked, {}, _why(answer)))
    if asked.has_usage:
        usage = _frame(asked, "chat.completion.chunk") | {"choices": [], "usage": _usage(answer)}
        pieces = [{**piece, "usage": None} for piece in pieces] + [usage]
    return pieces


def _frame(asked: Asked, kind: str) -> dict[str, Any]:
    return {"id": asked.id, "object": kind, "created": asked.created, "model": asked.model}


def _piece(asked: Asked, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return _frame(asked, "chat.completion.chunk") | {"choices": [choice]}


def _why(answer: ChatResponse) -> str:
    return "tool_calls" if answer.tool_calls and answer.finish_reason == "stop" else answer.finish_reason


def _usage(answer: ChatResponse) -> dict[str, int]:
    prompt, completion = answer.tokens_in or 0, answer.tokens_out or 0
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _written_calls(answer: ChatResponse) -> list[dict[str, Any]]:
    """The calls under ids of their own: those that a reader gives are the same in every answer."""
    rows: list[dict[str, Any]] = Message("assistant", "", answer.tool_calls).to_openai().get("tool_calls", [])
    return [{**row, "id": f"call_{secrets.token_hex(12)}"} for row in rows]
