"""The action that the agent took at a step, and the one that it should have taken."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.core.traces import Message, ToolCall, Trace, episodes, tooling
from flywheel.trajectories.models import Step, Trajectory
from flywheel.trajectories.store.stored_traces import complete, step_of

LAST = 30
"""Steps at the end among which the agent's last call is looked for."""
LONG = 20_000
"""Characters of an agent's own text that a form is filled with."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The right action, and who says so."""

    action: dict[str, Any]
    """As `Failure.corrected` stores it, in one of the forms of `core.traces.corrections`."""
    said_by: str


def own_call(trajectory: Trajectory, step: str) -> dict[str, Any] | None:
    """Return the agent's action at the step, else its last one: a call, or the text it wrote."""
    at_step = list(trajectory.steps.filter(span_id=step)) if step else []
    found = done_in(trajectory, at_step)
    return found or done_in(trajectory, list(trajectory.steps.order_by("-position")[:LAST])[::-1])


def own_message(trajectory: Trajectory, step: str) -> Message | None:
    """Return what the agent wrote and called at the step, with all its calls; else at the last step with a call, or
    with words. A tool's execution is its call. None where the agent did nothing."""
    at_step = list(trajectory.steps.filter(span_id=step)) if step else []
    done = _messages_of(trajectory, at_step)
    if not done:
        last = list(trajectory.steps.order_by("-position")[:LAST])[::-1]
        done = _messages_of(trajectory, last)
        done = [message for message in done if tooling.calls_of(message)] or done
    return done[-1] if done else None


def _messages_of(trajectory: Trajectory, rows: Sequence[Step]) -> list[Message]:
    complete(rows, [trajectory])
    found = []
    for step in map(step_of, rows):
        found += [message for message in step.output if message.role == "assistant"]
        if step.kind == "tool" and step.tool_name and not step.output:
            arguments = {} if step.arguments is None else step.arguments
            found.append(Message("assistant", "", (ToolCall(step.tool_call_id, step.tool_name, arguments),)))
    return found


def done_in(trajectory: Trajectory, rows: Sequence[Step]) -> dict[str, Any] | None:
    """The last call in these steps, else the text that the agent wrote."""
    complete(rows, [trajectory])
    episode = episodes.read(Trace("", [step_of(row) for row in rows]))
    if episode.calls:
        call = episode.calls[-1]
        if isinstance(call.arguments, str):
            return {"text": call.arguments[:LONG]}
        return {"tool": call.name, "arguments": call.arguments}
    return None if episode.last is None else {"text": episode.last.text[:LONG]}


def aligned(actual: Mapping[str, Any] | None, action: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The action with its arguments in the order of the actual ones, so that a difference shows what differs."""
    if not action or not actual or "arguments" not in action or not isinstance(actual.get("arguments"), Mapping):
        return dict(action) if action else None
    given, wanted = actual["arguments"], action["arguments"]
    order = [*(name for name in given if name in wanted), *(name for name in wanted if name not in given)]
    return {"tool": action["tool"], "arguments": {name: wanted[name] for name in order}}


def expected_of(trajectory: Trajectory, failure: Any) -> Expected | None:
    """Return a person's correction, else the target of the task that it attempted or that was made of it."""
    if failure is not None and failure.corrected:
        return Expected(failure.corrected, f"{failure.labelled_by}'s correction")
    attempt = getattr(trajectory, "result", None)
    task = attempt.task if attempt is not None else trajectory.tasks.filter(retired_at=None).first()
    return Expected(task.target, f"the target of task {task}") if task is not None else None
