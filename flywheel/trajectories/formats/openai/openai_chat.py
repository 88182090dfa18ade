"""OpenAI chat JSONL: `{"messages": […], "tools": […]}`, with an optional `id` and `metadata`.

Each message becomes a step of its own. `metadata` may say `agent`, `version`, `session_id`, `user_id`, `environment`,
`outcome` (success or failed) and `tags`; whatever else it says is kept as it is. `flywheel` is what `dump` adds for
what chat messages cannot say: token ids, times, span ids.
"""

from typing import Any

from flywheel.core.traces import Conversation, Trace, speaking
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.messages.message_turns import outcome_of, read_turns, steps_of
from flywheel.trajectories.formats.values.hostile_json import FormatError, Row, plain
from flywheel.trajectories.formats.values.residual import residual, restore

FIELDS = ("agent", "version", "session_id", "user_id", "environment", "outcome", "tags")
"""What `metadata` says about the trace itself."""


def detect(row: dict[str, Any]) -> bool:
    messages = row.get("messages")
    return isinstance(messages, list) and all(isinstance(item, dict) and "role" in item for item in messages)


def parse(value: dict[str, Any]) -> Trace:
    """Raises FormatError, naming the field and what would be right."""
    root = Row(plain(value))
    rest = root.row("flywheel")
    return restore(_base(root, value) if rest.value else _parse(root, value), rest)


def _base(root: Row, value: dict[str, Any]) -> Trace:
    """Parse an export of ours without its residual, which says all that this format cannot."""
    try:
        return _parse(root, value)
    except FormatError:
        return Trace(message_shapes.trace_id(root.text("id"), content=value))


def _parse(root: Row, value: dict[str, Any]) -> Trace:
    if not root.list("messages", required=True):
        raise FormatError("messages: empty, expected at least one message")
    trace = Trace(
        trace_id=message_shapes.trace_id(root.text("id"), content=value),
        steps=steps_of(read_turns(root, "messages")),
        tools=message_shapes.tool_definitions(root.list("tools")),
    )
    describe(trace, root.row("metadata"))
    return trace


def describe(trace: Trace, metadata: Row) -> None:
    """Take from `metadata` what it says about the trace as a whole."""
    trace.outcome = outcome_of(metadata.value.get("outcome"), metadata.at("outcome"))
    trace.tags = [tag for tag in metadata.list("tags") if isinstance(tag, str)]
    trace.agent, trace.version = metadata.text("agent"), metadata.text("version")
    trace.session_id, trace.user_id = metadata.text("session_id"), metadata.text("user_id")
    trace.environment = metadata.text("environment")
    trace.metadata = {key: item for key, item in metadata.value.items() if key not in FIELDS}


def dump(trace: Trace, *, bare: bool = False) -> dict[str, Any]:
    """A row that `parse` reads back into the same trajectory; `bare` leaves out what fine-tuning services refuse."""
    messages = [
        {**message.to_openai(), **({"reasoning_content": message.reasoning} if message.reasoning else {})}
        for message in trace.conversation()
    ]
    row: dict[str, Any] = {"messages": messages or [{"role": "assistant", "content": ""}]}
    if trace.tools:
        row["tools"] = [message_shapes.as_function(tool) for tool in trace.tools]
    if bare:
        return row
    said = {key: getattr(trace, key) for key in FIELDS}
    metadata = {**trace.metadata, **{key: item for key, item in said.items() if item}}
    row = {"id": trace.trace_id, **row, **({"metadata": metadata} if metadata else {})}
    if rest := residual(trace, _base(Row(plain(row)), row), _became(trace)):
        row["flywheel"] = rest
    return row


def _became(trace: Trace) -> list[str]:
    """Which message step each step of the trace is read back as."""
    talk = Conversation()
    speakers = {id(step) for step in speaking(trace.steps)}
    places = []
    for step in trace.steps:
        added = talk.add(step) if id(step) in speakers else []
        places.append(f"m{len(talk.messages) - 1}" if added else "")
    return places
