"""Rows of TensorZero's tables: `ChatInference` and `JsonInference`, and the feedback on them.

Rows of one episode make one trajectory, each inference a step of it; they may come in any order and in several files.
Feedback names an episode or an inference; what it says of an inference finds its trajectory in the store.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from flywheel.core.traces import Message, Step, Trace
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.messages.sampling import sampling, settings
from flywheel.trajectories.formats.semantics.trace_notes import Note
from flywheel.trajectories.formats.values.hostile_json import FormatError, Row, as_dict, plain, structured
from flywheel.trajectories.formats.values.times import moment

_KNOWN = (
    "id", "inference_id", "episode_id", "input", "output", "tool_params", "inference_params", "processing_time_ms",
    "timestamp", "tags", "function_name", "variant_name", "output_schema", "ttft_ms", "type",
)  # fmt: skip


def detect(row: dict[str, Any]) -> bool:
    return {"function_name", "variant_name", "episode_id", "input"} <= set(row) or is_feedback(row)


def is_feedback(row: dict[str, Any]) -> bool:
    if "value" not in row:
        return False
    if "target_id" in row:
        return bool({"metric_name", "target_type"} & set(row))
    return "inference_id" in row and set(row) <= {"id", "inference_id", "value", "tags", "timestamp", "type"}


def parse(value: dict[str, Any]) -> tuple[list[Trace], list[Note]]:
    """Raises FormatError, naming the field and what would be right."""
    root = Row(plain(value))
    if is_feedback(value):
        return [], [_note(root)]
    return [_trace(root)], []


def _note(root: Row) -> Note:
    target = root.text("target_id") or root.text("inference_id")
    if not target:
        raise FormatError("target_id: missing, a string")
    key = root.text("metric_name") or ("demonstration" if "inference_id" in root.value else "comment")
    value = root.value.get("value")
    tags = as_dict(structured(root.value.get("tags")))
    is_episode = root.value.get("target_type") == "episode"
    return Note(
        key=key,
        # What a comment or a demonstration says are words, whatever they look like.
        value=value if root.text("metric_name") else None,
        trace_id=trace_of(target) if is_episode else "",
        target="" if is_episode else target,
        comment="" if root.text("metric_name") else message_shapes.as_text(value),
        source="human" if tags.get("tensorzero::human_feedback") else "code",
        by="tensorzero",
        at=moment(root.value.get("timestamp")) or _of_uuid(root.text("id")),
        identity=root.text("id"),
    )


def trace_of(episode: str) -> str:
    """The id under which an episode is stored."""
    return message_shapes.trace_id(episode, content=["tensorzero", episode])


def _trace(root: Row) -> Trace:
    own = root.text("id") or root.text("inference_id")
    episode = root.text("episode_id") or own
    if not own:
        raise FormatError("id: missing, a string")
    tools = as_dict(structured(root.value.get("tool_params")))
    metadata = {key: item for key, item in root.value.items() if key not in _KNOWN and item not in (None, "", {}, [])}
    return Trace(
        trace_id=trace_of(episode),
        steps=[_step(root, own)],
        agent=root.text("function_name"),
        version=root.text("variant_name"),
        tools=message_shapes.tool_definitions(
            tools.get("tools_available") or tools.get("available_tools") or tools.get("dynamic_tools")
        ),
        metadata={**metadata, **as_dict(structured(root.value.get("tags")))},
    )


def _step(root: Row, own: str) -> Step:
    given = structured(root.value.get("input"))
    if not isinstance(given, dict):
        raise FormatError("input: expected an object with messages")
    asked = Row(given, "input")
    said: list[Message] = []
    if system := asked.value.get("system"):
        words = message_shapes.as_text if isinstance(system, dict) else message_shapes.content
        said.append(Message("system", words(system)))
    for row in asked.rows("messages"):
        row.choice("role", tuple(message_shapes.ROLES))
        said += message_shapes.parts_messages(row.value)
    params = as_dict(structured(root.value.get("inference_params")))
    ended = moment(root.value.get("timestamp")) or _of_uuid(own)
    ms: Any = root.value.get("processing_time_ms")
    is_known = isinstance(ms, int | float) and not isinstance(ms, bool) and 0 <= ms < 1e10
    took = timedelta(milliseconds=ms if is_known else 0)
    return Step(
        span_id=own,
        kind="assistant",
        name=root.text("function_name"),
        started_at=ended - took if ended else None,
        ended_at=ended,
        model=root.text("model_name") or root.text("variant_name"),
        input=said,
        output=_output(structured(root.value.get("output"))),
        sampling=sampling(params=settings(next(iter(params.values()), {}))),
        raw=root.value,
    )


def _output(value: Any) -> list[Message]:
    if isinstance(value, list):
        return [
            Message("assistant", message.content, message.tool_calls, "", "", message.reasoning)
            for message in message_shapes.parts_messages({"role": "assistant", "parts": value})
        ]
    if isinstance(value, dict) and "raw" in value:
        return [Message("assistant", message_shapes.as_text(value["raw"]))]
    return [Message("assistant", message_shapes.as_text(value))] if value else []


def _of_uuid(identity: str) -> datetime | None:
    """The time in a UUIDv7."""
    digits = identity.replace("-", "")
    if len(digits) == 32 and digits[12] == "7":
        try:
            return datetime.fromtimestamp(int(digits[:12], 16) / 1000, UTC)
        except (ValueError, OverflowError, OSError):
            return None
    return None
