"""OpenAI's Responses API, as weights that are served here take and answer it.

Nothing is kept between calls: each brings its whole conversation, and the same conversation gets the same tokens as in
a chat completion.
"""

import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from flywheel.core.digests import DEEPEST, is_deep
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.core.traces import Message, ToolCall, openai_messages
from workers.policies.small_weights import served_calls
from workers.policies.small_weights.served_calls import Asked, Only, Pieces, Refused, event, wrong

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
ONLY: Only = {
    "background": (False,), "parallel_tool_calls": (True,), "reasoning": ({}, {"effort": "none"}),
    "text": ({}, {"format": {"type": "text"}}), "tool_choice": ("auto", "none"), "top_logprobs": (0,),
    "truncation": ("disabled",),
}  # fmt: skip
TAKEN = {
    "model", "input", "instructions", "tools", "stream", "seed", "temperature", "top_p", "max_output_tokens",
    "include", "chat_template_kwargs",
    "max_tool_calls", "stream_options",  # the calls that it limits and the padding that it asks for are not made here
}  # fmt: skip
HELD_ELSEWHERE = {
    "previous_response_id": "names a response, and none are kept here: send the whole conversation in input",
    "conversation": "is not kept here: send the whole conversation in input",
    "prompt": "names a prompt, and none are kept here: send its text in instructions",
}
LOGPROBS = "message.output_text.logprobs"
"""The one thing to include that could be part of an answer here; the others are of tools and of encrypted reasoning."""
SHOWN = ("name", "description", "parameters")
"""What the chat template is shown of a tool."""
PAIRS, PAIR_LENGTH = 16, 512
"""Metadata is repeated, and so has OpenAI's limits."""


@dataclass(frozen=True, slots=True)
class Response(Asked):
    CONVERSATION: ClassVar[str] = "input"

    repeated: Mapping[str, Any] = field(default_factory=dict)
    """What the response says as the request did."""
    id: str = field(default_factory=lambda: served_calls.named("resp_"))

    def whole(self, answer: ChatResponse) -> dict[str, Any]:
        calls = _calls_of(answer)
        messages = [_message_item(answer.text, _status(answer, calls))] if answer.text or not calls else []
        return self._ended([*messages, *calls], answer)

    def events(self, pieces: Pieces) -> Iterator[bytes]:
        numbers = itertools.count()
        for value in self._events(pieces):
            yield event(value | {"sequence_number": next(numbers)})

    def _events(self, pieces: Pieces) -> Iterator[dict[str, Any]]:
        begun = self._frame("in_progress", [])
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        answer, message = ChatResponse(), _message_item("", "in_progress")
        texts: list[str] = []
        try:
            for text, end in pieces:
                if text:
                    if not texts:
                        yield from _opening(message)
                    texts.append(text)
                    yield {"type": "response.output_text.delta", "delta": text, "logprobs": [], **_place(message)}
                answer = end or answer
        except Refused as refused:
            output = [_message_item("".join(texts), "incomplete", message["id"])] if texts else []
            error = {"code": "server_error", "message": str(refused)}
            yield {"type": "response.failed", "response": self._frame("failed", output) | {"error": error}}
            # Clients raise an error for this one, and not for the one above.
            error = refused.body()["error"]
            yield {"type": "error", **{name: error[name] for name in ("code", "message", "param")}, "error": error}
            raise
        calls = _calls_of(answer)
        output = []
        if texts or not calls:
            if not texts:
                yield from _opening(message)
            output.append(_message_item("".join(texts), _status(answer, calls), message["id"]))
            yield from _closing(output[0])
        for call in calls:
            yield from _calling(call, len(output))
            output.append(call)
        ended = self._ended(output, answer)
        yield {"type": f"response.{ended['status']}", "response": ended}

    def _ended(self, output: list[dict[str, Any]], answer: ChatResponse) -> dict[str, Any]:
        status = _status(answer)
        is_whole = status == "completed"
        return self._frame(status, output) | {
            "completed_at": int(time.time()) if is_whole else None,
            "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
            "usage": _usage(answer),
        }

    def _frame(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        sampling = self.request.sampling
        return {
            "id": self.id, "object": "response", "created_at": self.created, "completed_at": None, "status": status,
            "model": self.model, "output": output, "error": None, "incomplete_details": None, "usage": None,
            "temperature": sampling.temperature, "top_p": sampling.top_p, "max_output_tokens": sampling.max_tokens,
            "background": False, "parallel_tool_calls": True, "previous_response_id": None, "store": False,
            "reasoning": {"effort": None, "summary": None}, "text": {"format": {"type": "text"}},
            "truncation": "disabled", **self.repeated,
        }  # fmt: skip


# Requests -------------------------------------------------------------------------------------------------------------


def read(body: Any) -> Response:
    """Raises Refused."""
    given = served_calls.fields_of(body, TAKEN | HELD_ELSEWHERE.keys(), ONLY)
    for name, problem in HELD_ELSEWHERE.items():
        if name in given:
            raise wrong(name, problem)
    if not isinstance(instructions := given.get("instructions"), str | None):
        raise wrong("instructions", "must be a string")
    include = given.get("include", [])
    if not isinstance(include, list) or LOGPROBS in include:
        raise wrong("include", f"must be a list, without {LOGPROBS} for weights that Flywheel serves itself")
    tools, choice = _tools(given.get("tools", [])), given.get("tool_choice", "auto")
    opening = [Message("system", instructions)] if instructions else []
    request = ChatRequest(
        (*opening, *_messages(given.get("input"))),
        served_calls.sampling(given, ["max_output_tokens"]),
        served_calls.seed(given),
        tuple({"type": "function", "function": tool} for tool in tools) if choice == "auto" else (),
    )
    flat = {"type": "function", "description": None, "parameters": None, "strict": False}
    return Response(
        given["model"],
        request,
        is_streamed=served_calls.flag(given, "stream"),
        template=served_calls.template(given),
        repeated={
            "instructions": instructions,
            "metadata": _metadata(given.get("metadata", {})),
            "tools": [flat | tool for tool in tools],
            "tool_choice": choice,
        },
    )


def _metadata(value: Any) -> dict[str, str]:
    if (
        not isinstance(value, dict)
        or len(value) > PAIRS
        or not all(isinstance(text, str) and len(text) <= PAIR_LENGTH for text in (*value, *value.values()))
    ):
        raise wrong("metadata", f"must be an object of at most {PAIRS} strings with {PAIR_LENGTH} characters each")
    return value


def _tools(value: Any) -> list[dict[str, Any]]:
    """The functions, as chat completions have them within a tool."""
    if not isinstance(value, list):
        raise wrong("tools", "must be a list")
    return [_tool(f"tools[{place}]", tool) for place, tool in enumerate(value)]


def _tool(at: str, tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise wrong(at, 'must be {"type": "function", "name", "parameters"}')
    if tool.get("type") != "function":
        raise wrong(f"{at}.type", 'can only be "function": what a server would carry out itself, such as a web search, '
                    "is not done here")  # fmt: skip
    if not served_calls.string(at, tool, "name"):
        raise wrong(f"{at}.name", "must be a string")
    served_calls.string(at, tool, "description")
    if not isinstance(tool.get("parameters"), dict | None):
        raise wrong(f"{at}.parameters", "must be a JSON schema")
    if is_deep(tool):
        raise wrong(at, f"has lists and objects more than {DEEPEST} deep in each other")
    return {name: tool[name] for name in tool if name in SHOWN and tool[name] is not None}


def _messages(value: Any) -> list[Message]:
    """The items as messages of a chat: what the model wrote at once is one."""
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    rows: list[tuple[Message, list[ToolCall]]] = []
    for place, item in enumerate(items if isinstance(items, list) else ()):
        at = f"input[{place}]"
        if not isinstance(item, dict):
            raise wrong(at, "must be an object")
        kind = item.get("type", "message")
        if kind == "message":
            rows.append((_message(at, item), []))
        elif kind == "function_call":
            if not rows or rows[-1][0].role != "assistant":
                rows.append((Message("assistant"), []))
            rows[-1][1].append(_call(at, item))
        elif kind == "function_call_output":
            output = served_calls.words(f"{at}.output", item.get("output"), "input_text")
            call_id, name = (served_calls.string(at, item, key) for key in ("call_id", "name"))
            rows.append((Message("tool", output, tool_call_id=call_id, name=name), []))
        elif kind == "item_reference":
            raise wrong(f"{at}.type", "names an item, and none are kept here: send the item itself")
        elif kind != "reasoning":
            raise wrong(f"{at}.type", "must be message, function_call, function_call_output or reasoning")
    if not rows:
        raise wrong("input", "must be a string, or a list of items with at least one message")
    return [replace(message, tool_calls=tuple(calls)) for message, calls in rows]


def _message(at: str, item: Mapping[str, Any]) -> Message:
    role = ROLES.get(item["role"]) if isinstance(item.get("role"), str) else None
    if role is None:
        raise wrong(f"{at}.role", f"must be one of {', '.join(ROLES)}")
    kind = "output_text" if role == "assistant" else "input_text"
    return Message(role, served_calls.words(f"{at}.content", item.get("content"), kind))  # type: ignore[arg-type]


def _call(at: str, item: Mapping[str, Any]) -> ToolCall:
    name, arguments = served_calls.string(at, item, "name"), item.get("arguments")
    if not name:
        raise wrong(f"{at}.name", "must be a string")
    if not isinstance(arguments, str):
        raise wrong(f"{at}.arguments", "must be a string")
    return ToolCall(served_calls.string(at, item, "call_id"), name, openai_messages.arguments(arguments))


# Answers --------------------------------------------------------------------------------------------------------------


def _status(answer: ChatResponse, after: list[dict[str, Any]] | None = None) -> str:
    """The status of a response, or of a message with calls after it, which is whole however the response ended."""
    return "incomplete" if answer.finish_reason == "length" and not after else "completed"


def _usage(answer: ChatResponse) -> dict[str, Any]:
    taken, drawn = answer.tokens_in or 0, answer.tokens_out or 0
    return {
        "input_tokens": taken,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": drawn,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": taken + drawn,
    }


def _message_item(text: str, status: str, id: str = "") -> dict[str, Any]:
    """A message of the answer; one in progress has no part yet."""
    parts = [] if status == "in_progress" else [_part(text)]
    named = id or served_calls.named("msg_")
    return {"id": named, "type": "message", "role": "assistant", "status": status, "content": parts}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _place(message: dict[str, Any]) -> dict[str, Any]:
    """The place of the one part of a message, which stands before all calls."""
    return {"item_id": message["id"], "output_index": 0, "content_index": 0}


def _calls_of(answer: ChatResponse) -> list[dict[str, Any]]:
    return [
        {"id": served_calls.named("fc_"), "type": "function_call", "status": "completed", "call_id": call["id"]}
        | call["function"]
        for call in served_calls.written_calls(answer)
    ]


def _opening(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"type": "response.output_item.added", "output_index": 0, "item": message}
    yield {"type": "response.content_part.added", "part": _part(""), **_place(message)}


def _closing(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    (part,) = message["content"]
    yield {"type": "response.output_text.done", "text": part["text"], "logprobs": [], **_place(message)}
    yield {"type": "response.content_part.done", "part": part, **_place(message)}
    yield {"type": "response.output_item.done", "output_index": 0, "item": message}


def _calling(call: dict[str, Any], place: int) -> Iterator[dict[str, Any]]:
    """The events of a call, which is there at once."""
    begun = call | {"status": "in_progress", "arguments": ""}
    at = {"item_id": call["id"], "output_index": place}
    yield {"type": "response.output_item.added", "output_index": place, "item": begun}
    yield {"type": "response.function_call_arguments.delta", "delta": call["arguments"], **at}
    yield {"type": "response.function_call_arguments.done", "arguments": call["arguments"], "name": call["name"], **at}
    yield {"type": "response.output_item.done", "output_index": place, "item": call}
