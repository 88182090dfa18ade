"""Training rows as trajectories: OpenAI's preferences, TRL's `prompt`/`chosen`/`rejected` and `prompt`/`completion`.

A preference row becomes two trajectories with one session, so that they are never split between training and held-out,
tagged `preferred` and `rejected`. Which one is preferred says nothing of success, so neither has an outcome.
"""

from typing import Any

from flywheel.core.traces import Trace
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.messages.message_turns import Turn, read_turns, steps_of
from flywheel.trajectories.formats.openai.openai_chat import describe
from flywheel.trajectories.formats.values.hostile_json import FormatError, Row, plain

PAIRS = (("preferred_output", "non_preferred_output"), ("chosen", "rejected"))


def detect(row: dict[str, Any]) -> bool:
    if any(good in row and bad in row for good, bad in PAIRS):
        return True
    return set(row) >= {"prompt", "completion"} and isinstance(row["completion"], str | list)


def parse(value: dict[str, Any]) -> list[Trace]:
    """Raises FormatError, naming the field and what would be right."""
    root = Row(plain(value))
    pair = next(((good, bad) for good, bad in PAIRS if good in root.value and bad in root.value), None)
    prompt = _prompt(root)
    if pair is None:
        return [_trace(root, value, prompt, "completion")]
    traces = []
    for key, tag in zip(pair, ("preferred", "rejected"), strict=True):
        trace = _trace(root, value, prompt, key)
        trace.tags = [*trace.tags, tag]
        trace.session_id = trace.session_id or message_shapes.trace_id(content=value)
        traces.append(trace)
    return traces


def _prompt(root: Row) -> list[Turn]:
    if isinstance(root.value.get("input"), dict):
        return read_turns(root.row("input"), "messages")
    return read_turns(root, "input" if "input" in root.value else "prompt")


def _trace(root: Row, value: dict[str, Any], prompt: list[Turn], key: str) -> Trace:
    said = read_turns(root, key, "assistant")
    # TRL also takes pairs without a prompt, whose common beginning is in both.
    turns = said if not prompt else [*prompt, *said]
    if not said:
        raise FormatError(f"{root.at(key)}: empty, expected at least one message")
    inner = root.row("input").value if isinstance(root.value.get("input"), dict) else {}
    trace = Trace(
        trace_id=message_shapes.trace_id(content=[key, value]),
        steps=steps_of(turns),
        tools=message_shapes.tool_definitions(inner.get("tools") or root.value.get("tools")),
    )
    describe(trace, root.row("metadata"))
    known = {"prompt", "input", "tools", "metadata", "completion", *PAIRS[0], *PAIRS[1]}
    trace.metadata |= {name: item for name, item in root.value.items() if name not in known and item is not None}
    return trace
