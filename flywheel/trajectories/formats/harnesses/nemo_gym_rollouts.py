"""Rollouts of NVIDIA NeMo Gym: `{"responses_create_params": {…}, "response": {…}, "reward": …}`, one a line.

The response's output holds the whole episode: what the model wrote, its calls and what the tools answered. Token ids
and log-probabilities come with the item that ends a turn. Whatever else a row says (the task's fields, `_ng_…`) is
metadata.
"""

from typing import Any

from flywheel.core.traces import Trace
from flywheel.trajectories.formats.messages.message_turns import of_reward
from flywheel.trajectories.formats.openai import openai_responses
from flywheel.trajectories.formats.values.hostile_json import Row, plain


def detect(row: dict[str, Any]) -> bool:
    return "responses_create_params" in row and isinstance(row.get("response"), dict)


def parse(value: dict[str, Any]) -> Trace:
    """Raises FormatError, naming the field and what would be right."""
    root = Row(plain(value))
    trace = openai_responses.exchange(root.row("responses_create_params"), root.row("response"), value)
    task = root.value.get("_ng_task_index")
    trace.session_id = trace.session_id or (f"task-{task}" if task is not None else "")
    trace.outcome = of_reward(root.value.get("reward"))
    own = {key: item for key, item in root.value.items() if key not in ("responses_create_params", "response")}
    trace.metadata |= {key: item for key, item in own.items() if item is not None}
    if (failure := root.value.get("_ng_failure_class")) and trace.steps:
        # No outcome: what nobody scored, such as for want of a server, is no failure of the policy.
        trace.steps[-1].status, trace.steps[-1].error = "error", str(failure)
    return trace
