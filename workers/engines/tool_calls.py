"""Tool calls that a model writes into its text, as Qwen and Hermes models do."""

import json
import re

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
