"""Training rows as a provider's fine-tuning takes them: OpenAI's JSONL for SFT, DPO and reinforcement.

A row has `prompt` and `completion`, or `prompt`, `chosen` and `rejected`: lists of chat messages. It may have `tools`,
definitions in our shape. Names of tools become those that such an API takes, calls get ids where they have none.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from flywheel.core.traces import openai_messages, tooling

Row = Mapping[str, Any]
Written = dict[str, Any]

_KEPT = ("role", "content", "tool_calls", "tool_call_id")


def sft(row: Row) -> Written:
    """`{"messages", "tools", "parallel_tool_calls"}`; of what the assistant said, the completion alone is learnt."""
    before = [
        {**message, "weight": 0} if message["role"] == "assistant" else message for message in _messages(row["prompt"])
    ]
    return {"messages": [*before, *_messages(row["completion"], len(before))], **_tools(row, row["completion"])}


def dpo(row: Row) -> Written:
    """`{"input": {"messages", "tools", "parallel_tool_calls"}, "preferred_output", "non_preferred_output"}`."""
    before = _messages(row["prompt"])
    return {
        "input": {"messages": before, **_tools(row, row["chosen"])},
        "preferred_output": _messages(row["chosen"], len(before)),
        "non_preferred_output": _messages(row["rejected"], len(before)),
    }


def rft(row: Row) -> Written | None:
    """`{"messages", "tools", "reference_answer", "reference_calls"}`, both of which a grader reads as `item.…`; None
    where the last message is not a user's, after which reinforcement lets the model speak."""
    before = _messages(row["prompt"])
    if not before or before[-1]["role"] != "user":
        return None
    said = _messages(row["completion"], len(before))
    calls = [call["function"] for message in said for call in message.get("tool_calls", ())]
    return {
        "messages": before,
        **{name: value for name, value in _tools(row, row["completion"]).items() if name == "tools"},
        "reference_answer": "\n".join(message["content"] for message in said if message.get("content")),
        "reference_calls": calls,
    }


FORMATS: dict[str, tuple[str, str, Callable[[Row], Written | None]]] = {
    "sft": ("sft", "Supervised (chat examples with tools)", sft),
    "dpo": ("pairs", "Preferences (DPO)", dpo),
    "rft": ("sft", "Reinforcement (RFT items)", rft),
}
"""Kind of dataset whose rows it is made of, label, and what writes a row, by name."""


def lines(name: str, rows: Iterable[Row], tools: Sequence[Mapping[str, Any]] = ()) -> Iterator[bytes]:
    """The file of this format, a line a row. `tools` are the definitions for rows that bring none.

    Raises ValueError where two tools would have one name at the provider.
    """
    openai_messages.names(tools)
    _, _, write = FORMATS[name]
    for row in rows:
        written = write(row if "tools" in row or not tools else {**row, "tools": tools})
        if written is not None:
            yield json.dumps(written, ensure_ascii=False).encode() + b"\n"


def _messages(messages: Iterable[Mapping[str, Any]], place: int = 0) -> list[Written]:
    """Chat messages with the fields that the API knows; `place` numbers the calls that have no id."""
    found: list[Written] = []
    last_ids: list[str] = []
    for at, message in enumerate(messages, place):
        row = {key: message[key] for key in _KEPT if message.get(key) is not None}
        if message.get("tool_calls"):
            row["tool_calls"] = [_call(call, f"call_{at}_{nth}") for nth, call in enumerate(message["tool_calls"])]
            last_ids = [call["id"] for call in row["tool_calls"]]
            if not row.get("content"):
                row.pop("content", None)
        elif row["role"] == "tool" and not row.get("tool_call_id") and last_ids:
            row["tool_call_id"] = last_ids.pop(0)  # results follow in the order of the calls
        found.append(row)
    return found


def _call(call: Mapping[str, Any], fallback: str) -> Written:
    function = call.get("function") or call
    arguments = function.get("arguments") or {}
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    name = openai_messages.outside(str(function["name"]))
    return {"id": call.get("id") or fallback, "type": "function", "function": {"name": name, "arguments": written}}


def _tools(row: Row, answer: Iterable[Mapping[str, Any]]) -> Written:
    """`tools` and `parallel_tool_calls`, where the row has tools."""
    given = tooling.definitions(list(row.get("tools") or ()))
    if not given:
        return {}
    own = [tooling.plain(tool) | {"name": openai_messages.outside(tool["name"])} for tool in given]
    several = any(len(message.get("tool_calls") or ()) > 1 for message in answer)
    return {"tools": [{"type": "function", "function": tool} for tool in own], "parallel_tool_calls": several}
