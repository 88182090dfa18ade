"""Tool calls as chat templates are shown them, and as Qwen and Hermes models write them into their text: one writing
and one reading for engines and trainers, so that what is learnt is what is asked and an answer is worth the same
everywhere."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flywheel.core.envs.policy_rollouts import ChatResponse
from flywheel.core.traces import ToolCall

_TOOL_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


def read_tool_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Split an answer into its text and its `<tool_call>{"name", "arguments"}</tool_call>` blocks. A block that
    does not parse stays text."""
    calls: list[ToolCall] = []

    def take(match: re.Match[str]) -> str:
        try:
            value = json.loads(match[1])
            call = ToolCall(f"call-{len(calls)}", value["name"], value["arguments"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return match[0]
        if not isinstance(call.name, str) or not isinstance(call.arguments, dict):
            return match[0]
        calls.append(call)
        return ""

    rest = _TOOL_CALL.sub(take, text)
    return (rest.strip() if calls else text), tuple(calls)


def answer_of(
    tokenizer: Any, tokens: Sequence[int], ends: Collection[int], tokens_in: int, latency_ms: float
) -> ChatResponse:
    """Read the answer in generated tokens, up to the first of `ends`; without one the answer was cut off."""
    end = next((place for place, token in enumerate(tokens) if token in ends), None)
    kept = tokens[:end]
    text, calls = read_tool_calls(tokenizer.decode(kept, skip_special_tokens=True))
    return ChatResponse(
        text=text,
        tool_calls=calls,
        finish_reason="length" if end is None else "stop",
        tokens_in=tokens_in,
        tokens_out=len(kept) + (end is not None),
        latency_ms=latency_ms,
    )


def templated(tokenizer: Any) -> Any:
    """The tokenizer, whose chat template is from now on shown calls and tools as templates expect them, whoever asks.

    Arguments are an object: a text of JSON, as in the OpenAI shape and in the rows of datasets, would be written as a
    quoted text, which nobody reads as a call. Tools are functions, as servers show them.
    """
    apply = tokenizer.apply_chat_template

    def apply_chat_template(conversation: Any, tools: Any = None, **options: Any) -> Any:
        return apply(_shown(conversation), tools=[_function(tool) for tool in tools or ()] or None, **options)

    tokenizer.apply_chat_template = apply_chat_template
    return tokenizer


def _shown(conversation: Sequence[Any]) -> list[Any]:
    """A conversation, or many of them."""
    return [_shown(row) if isinstance(row, list) else _message(row) for row in conversation]


def _message(row: Mapping[str, Any]) -> Mapping[str, Any]:
    calls = row.get("tool_calls") or ()
    return {**row, "tool_calls": [{**call, "function": _called(call["function"])} for call in calls]} if calls else row


def _called(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function["arguments"]
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):  # what a model wrote there is no JSON: it is shown as it stands
        value = None
    return {**function, "arguments": value if isinstance(value, dict) else arguments}


def _function(tool: Any) -> Any:
    is_bare = isinstance(tool, Mapping) and "function" not in tool
    return {"type": "function", "function": dict(tool)} if is_bare else tool
