"""OpenAI's chat completions, as weights that are served here take and answer them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.core.traces import Message, ToolCall, openai_messages
from workers.policies.small_weights import served_calls
from workers.policies.small_weights.served_calls import Asked, Only, Pieces, Refused, event, wrong

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
STOPS, STOP_LENGTH = 16, 200
ONLY: Only = {
    "n": (1,), "logprobs": (False,), "top_logprobs": (0,), "frequency_penalty": (0,), "presence_penalty": (0,),
    "logit_bias": ({},), "response_format": ({"type": "text"},), "tool_choice": ("auto", "none"),
    "parallel_tool_calls": (True,), "modalities": (["text"],),
}  # fmt: skip
TAKEN = {
    "model", "messages", "tools", "stream", "stream_options", "seed", "stop", "temperature", "top_p", "max_tokens",
    "max_completion_tokens", "chat_template_kwargs",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChatCompletion(Asked):
    CONVERSATION: ClassVar[str] = "messages"

    has_usage: bool = False
    """Whether a stream ends with the count of its tokens."""
    id: str = field(default_factory=lambda: served_calls.named("chatcmpl-"))

    def whole(self, answer: ChatResponse) -> dict[str, Any]:
        calls = served_calls.written_calls(answer)
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or (None if calls else "")}
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _why(answer)}
        return self._frame("chat.completion") | {"choices": [choice], "usage": _usage(answer)}

    def events(self, pieces: Pieces) -> Iterator[bytes]:
        usage = {"usage": None} if self.has_usage else {}
        yield event(self._piece({"role": "assistant", "content": ""}) | usage)
        answer = ChatResponse()
        try:
            for text, end in pieces:
                if text:
                    yield event(self._piece({"content": text}) | usage)
                answer = end or answer
        except Refused as refused:
            yield event(refused.body())
            raise
        if calls := [{"index": place, **call} for place, call in enumerate(served_calls.written_calls(answer))]:
            yield event(self._piece({"tool_calls": calls}) | usage)
        yield event(self._piece({}, _why(answer)) | usage)
        if self.has_usage:
            yield event(self._frame("chat.completion.chunk") | {"choices": [], "usage": _usage(answer)})
        yield b"data: [DONE]\n\n"

    def _piece(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self._frame("chat.completion.chunk") | {"choices": [choice]}

    def _frame(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def read(body: Any) -> ChatCompletion:
    """Raises Refused."""
    given = served_calls.fields_of(body, TAKEN, ONLY)
    options = given.get("stream_options", {})
    if not isinstance(options, dict):
        raise wrong("stream_options", "must be an object")
    has_tools = given.get("tool_choice") != "none"
    request = ChatRequest(
        _messages(given.get("messages")),
        served_calls.sampling(given, ("max_tokens", "max_completion_tokens")),  # the latter is the newer name
        served_calls.seed(given),
        _tools(given.get("tools")) if has_tools else (),
    )
    return ChatCompletion(
        given["model"],
        request,
        _stop(given.get("stop", ())),
        served_calls.flag(given, "stream"),
        served_calls.template(given),
        has_usage=served_calls.flag(options, "include_usage", "stream_options."),
    )


def _stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list | tuple) or len(stops) > STOPS:
        raise wrong("stop", f"must be a string, or a list of at most {STOPS}")
    if not all(isinstance(stop, str) and 0 < len(stop) <= STOP_LENGTH for stop in stops):
        raise wrong("stop", f"must be of strings with 1 to {STOP_LENGTH} characters")
    return tuple(stops)


def _tools(value: Any) -> tuple[dict[str, Any], ...]:
    tools = [] if value is None else value
    if not isinstance(tools, list):
        raise wrong("tools", "must be a list")
    for place, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type", "function") != "function":
            raise wrong(f"tools[{place}]", 'must be {"type": "function", "function": {"name", "parameters"}}')
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise wrong(f"tools[{place}].function.name", "must be a string")
    return tuple(tools)


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise wrong("messages", "must be a list of at least one message")
    return tuple(_message(f"messages[{place}]", row) for place, row in enumerate(value))


def _message(at: str, row: Any) -> Message:
    if not isinstance(row, dict):
        raise wrong(at, "must be an object")
    role = ROLES.get(row["role"]) if isinstance(row.get("role"), str) else None
    if role is None:
        raise wrong(f"{at}.role", f"must be one of {', '.join(ROLES)}")
    content = row.get("content")
    is_empty = content is None and role == "assistant"
    said = "" if is_empty else served_calls.words(f"{at}.content", content, "text")
    calls = tuple(_call(f"{at}.tool_calls[{place}]", call) for place, call in enumerate(_calls(at, row)))
    texts = {name: served_calls.string(at, row, name) for name in ("tool_call_id", "name")}
    return Message(role, said, calls, **texts)  # type: ignore[arg-type]


def _calls(at: str, row: Mapping[str, Any]) -> list[Any]:
    calls = row.get("tool_calls") or []
    if not isinstance(calls, list) or (calls and row["role"] != "assistant"):
        raise wrong(f"{at}.tool_calls", "must be a list, in a message of the assistant")
    return calls


def _call(at: str, row: Any) -> ToolCall:
    function = row.get("function") if isinstance(row, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise wrong(at, 'must be {"id", "type": "function", "function": {"name", "arguments"}}')
    return ToolCall(str(row.get("id", "")), function["name"], openai_messages.arguments(function.get("arguments")))


def _why(answer: ChatResponse) -> str:
    return "tool_calls" if answer.tool_calls and answer.finish_reason == "stop" else answer.finish_reason


def _usage(answer: ChatResponse) -> dict[str, int]:
    prompt, completion = answer.tokens_in or 0, answer.tokens_out or 0
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
