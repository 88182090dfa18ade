"""OpenAI chat JSONL: `{"messages": […], "tools": […]}`, with an optional `id` and `metadata`.

Each message becomes a step of its own. `metadata` may say `agent`, `version`, `session_id`, `user_id`, `environment`,
`outcome` (success or failed) and `tags`; whatever else it says is kept as it is.
"""

from typing import Any

from flywheel.core.traces import Message, Step, ToolCall, Trace
from flywheel.trajectories.formats import shapes
from flywheel.trajectories.formats.reading import FormatError, Row, plain, quote

FIELDS = ("agent", "version", "session_id", "user_id", "environment", "outcome", "tags")
"""What `metadata` says about the trace itself."""


def detect(row: dict[str, Any]) -> bool:
    messages = row.get("messages")
    return isinstance(messages, list) and all(isinstance(item, dict) and "role" in item for item in messages)


def parse(value: dict[str, Any]) -> Trace:
    """Raises FormatError, naming the field and what would be right."""
    root = Row(plain(value))
    if not root.list("messages", required=True):
        raise FormatError("messages: empty, at least one message is wanted")
    steps: list[Step] = []
    calls: dict[str, ToolCall] = {}
    for index, row in enumerate(root.rows("messages")):
        message = _message(row)
        calls |= {call.id: call for call in message.tool_calls}
        steps.append(_step(f"m{index}", message, calls, row.value))
    metadata = root.row("metadata")
    outcome = metadata.value.get("outcome")
    if outcome not in (None, "success", "failed"):
        raise FormatError(f"metadata.outcome: {quote(outcome)} is not one of success, failed")
    tags = [tag for tag in metadata.list("tags") if isinstance(tag, str)]
    return Trace(
        trace_id=shapes.trace_id(root.text("id"), content=value),
        steps=steps,
        tools=shapes.tool_definitions(root.list("tools")),
        outcome=outcome,
        tags=tags,
        agent=metadata.text("agent"),
        version=metadata.text("version"),
        session_id=metadata.text("session_id"),
        user_id=metadata.text("user_id"),
        environment=metadata.text("environment"),
        metadata={key: item for key, item in metadata.value.items() if key not in FIELDS},
    )


def _message(row: Row) -> Message:
    row.choice("role", tuple(shapes.ROLES))
    content = row.value.get("content")
    if content is not None and not isinstance(content, str | list):
        raise FormatError(f"{row.at('content')}: {quote(content)} is neither a string nor a list of parts")
    for call in row.rows("tool_calls"):
        if not call.row("function").text("name") and not call.text("name"):
            raise FormatError(f"{call.at('function.name')}: missing, a string")
    return shapes.openai_message(row.value)


def _step(span_id: str, message: Message, calls: dict[str, ToolCall], raw: dict[str, Any]) -> Step:
    if message.role != "tool":
        return Step(span_id=span_id, kind=message.role, output=[message], raw=raw)
    call = calls.get(message.tool_call_id)
    name = message.name or (call.name if call else "")
    return Step(
        span_id=span_id,
        kind="tool",
        name=name,
        tool_name=name,
        tool_call_id=message.tool_call_id,
        arguments=call.arguments if call else None,
        result=message.content,
        raw=raw,
    )
