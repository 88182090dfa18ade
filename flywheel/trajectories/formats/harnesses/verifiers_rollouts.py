"""Rollouts of verifiers and prime-rl: `results.jsonl` of the classic API, and episodes or traces of `verifiers.v1`.

A v1 trace is a graph of messages, each with the token ids that it adds; a node becomes a step, under its own parent, so
that concatenating a path's token ids gives what the model saw. Log-probabilities are written for sampled tokens only;
here they stand one a token, 0.0 where nothing was sampled, as verifiers' own `Branch.logprobs` has them.
A reward of at least 1 is success, of at most 0 failure; what lies between has no outcome. The reward is metadata.
"""

from collections.abc import Iterator
from typing import Any

from flywheel.core.traces import Step, Trace
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.messages.message_turns import Turn, of_reward, read_message, read_turns, steps_of
from flywheel.trajectories.formats.messages.sampling import sampling, settings
from flywheel.trajectories.formats.values.hostile_json import FormatError, Row, as_dict, as_list, count, plain
from flywheel.trajectories.formats.values.times import moment

_CLASSIC = ("prompt", "completion", "trajectory", "task", "prompt_ids", "completion_ids", "completion_logprobs")


def detect(row: dict[str, Any]) -> bool:
    if "task" in row and any(isinstance(row.get(key), list) for key in ("nodes", "traces")):
        return True
    return "prompt" in row and "completion" in row and bool({"reward", "example_id", "rollout_id"} & set(row))


def parse(value: dict[str, Any]) -> list[Trace]:
    """Raises FormatError, naming the field and what would be right."""
    root = Row(plain(value))
    if "nodes" in root.value:
        return [_v1(root, value, {})]
    if "traces" in root.value:
        return list(_episode(root, value))
    return [_classic(root, value)]


# verifiers.v1


def _episode(root: Row, value: dict[str, Any]) -> Iterator[Trace]:
    """Every agent's trace of an episode, all of one session."""
    episode = root.text("id")
    run = root.row("run")
    shared = {
        "episode": episode,
        "env": root.row("env").text("id"),
        "run": run.text("id"),
        "work": run.value.get("work"),
        "group": root.row("group").value.get("id"),
    }
    for row, own in zip(root.rows("traces"), as_list(value.get("traces")), strict=True):
        trace = _v1(row, own, {key: item for key, item in shared.items() if item})
        trace.session_id = trace.session_id or episode
        yield trace


def _v1(root: Row, value: Any, metadata: dict[str, Any]) -> Trace:
    nodes = list(root.rows("nodes"))
    calls = {node: row for row in root.rows("calls") if isinstance(node := row.value.get("node"), int)}
    steps = steps_of([_node(row, calls.get(index)) for index, row in enumerate(nodes)], "n")
    for step, row in zip(steps, nodes, strict=True):
        parent = row.value.get("parent")
        if isinstance(parent, int) and 0 <= parent < len(nodes):
            step.parent_id = f"n{parent}"
    agent, task = root.row("agent"), root.row("task")
    rewards = {name: _score(item) for name, item in root.row("rewards").value.items()}
    scored = [item for item in rewards.values() if item is not None]
    reward = sum(scored) if scored else None
    errors = [message_shapes.as_text(row.value.get("message")) for row in root.rows("errors")]
    if errors and steps:
        steps[-1].status, steps[-1].error = "error", errors[-1]
    about = {
        "task": task.value.get("key") or task.value.get("hash"),
        "task_type": task.value.get("type"),
        "task_data": task.value.get("data"),
        "stop_condition": root.value.get("stop_condition"),
        "metrics": root.value.get("metrics"),
        "info": root.value.get("info"),
        "rewards": root.value.get("rewards"),
        "reward": reward,
        "trainable": agent.value.get("trainable"),
    }
    tools: Any = root.value.get("tools") or next((row.value["tools"] for row in nodes if row.value.get("tools")), [])
    return Trace(
        trace_id=message_shapes.trace_id(root.text("id"), content=value),
        steps=steps,
        agent=agent.text("name"),
        version=agent.row("config").text("model"),
        tools=message_shapes.tool_definitions(tools),
        outcome=of_reward(reward),
        metadata={**metadata, **{key: item for key, item in about.items() if item not in (None, {}, "")}},
    )


def _score(item: Any) -> float | None:
    """The weighted value of one reward; None where scoring did not run."""
    if isinstance(item, dict):
        score, weight = item.get("score"), item.get("weight", 1.0)
        return score * weight if _is_number(score) and _is_number(weight) else None
    return item if _is_number(item) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _node(row: Row, call: Row | None) -> Turn:
    given = row.row("message")
    turn = Turn(read_message(given), row.value)
    mask = row.list("mask")
    turn.sampling = sampling(
        tokens=row.list("token_ids"),
        mask=mask,
        logprobs=_aligned(row.list("logprobs"), mask),
        params=settings(call.value.get("sampling")) if call else None,
    )
    if call:
        usage = call.row("usage")
        turn.model, turn.finish_reason = call.text("model"), call.text("finish_reason")
        turn.tokens_in, turn.tokens_out = usage.count("prompt_tokens"), usage.count("completion_tokens")
        turn.tokens_cached, turn.cost_usd = usage.count("cached_input_tokens"), usage.cost("cost")
        turn.started_at = moment(call.row("time").value.get("start"))
        turn.ended_at = moment(call.row("time").value.get("end"))
        turn.error = message_shapes.as_text(call.row("error").value.get("message"))
    else:
        turn.started_at = moment(row.value.get("timestamp"))
    return turn


def _aligned(logprobs: list[Any], mask: list[Any]) -> list[Any]:
    if not logprobs or len(logprobs) == len(mask) or len(logprobs) != sum(map(bool, mask)):
        return logprobs
    given = iter(logprobs)
    return [next(given) if sampled else 0.0 for sampled in mask]


# The classic API


def _classic(root: Row, value: dict[str, Any]) -> Trace:
    prompt = read_turns(root, "prompt")
    said = read_turns(root, "completion", "assistant")
    if not prompt and not said:
        raise FormatError("completion: empty, expected at least one message")
    steps = steps_of([*prompt, *said])
    own = [step for step in steps[len(prompt) :] if step.kind == "assistant"]
    _tokens(root, own)
    usage = root.value.get("token_usage")
    if own and isinstance(usage, dict):
        own[-1].tokens_in, own[-1].tokens_out = count(usage.get("input_tokens")), count(usage.get("output_tokens"))
    if (error := root.value.get("error")) and steps:
        steps[-1].status, steps[-1].error = "error", _error(error)
    tools = root.value.get("tool_defs") or root.value.get("oai_tools")
    tools = tools or as_dict(root.value.get("info")).get("oai_tools")
    task = root.value.get("task")
    metadata = {key: item for key, item in root.value.items() if key not in _CLASSIC and item not in (None, "", {}, [])}
    if task not in (None, "", {}):
        metadata["task"] = task
    example = root.value.get("example_id")
    return Trace(
        trace_id=message_shapes.trace_id(message_shapes.as_text(root.value.get("trajectory_id")), content=value),
        steps=steps,
        tools=message_shapes.tool_definitions(tools),
        # Attempts at one example belong together.
        session_id=f"{task if isinstance(task, str) else 'example'}-{example}" if example is not None else "",
        outcome=of_reward(root.value.get("reward")),
        metadata=metadata,
    )


def _error(value: Any) -> str:
    told = as_dict(value)
    return message_shapes.as_text(told.get("error_chain_str") or told.get("message") or told.get("error") or value)


def _tokens(root: Row, own: list[Step]) -> None:
    """Token ids of each turn (`trajectory`, also inside `state`), or of a single turn beside the row's own fields."""
    turns = root.value.get("trajectory")
    if not isinstance(turns, list):
        turns = as_dict(root.value.get("state")).get("trajectory")
    if isinstance(turns, list):
        for step, turn in zip(own, turns, strict=False):
            if isinstance(turn, dict):
                step.sampling = _turn_tokens(turn)
                step.raw = {**step.raw, "trajectory_step": turn}
        return
    if own:
        own[-1].sampling = _turn_tokens(root.value)


def _turn_tokens(turn: dict[str, Any]) -> dict[str, Any]:
    given = turn.get("tokens")
    row = given if isinstance(given, dict) else turn
    return sampling(
        prompt=row.get("prompt_ids"),
        tokens=row.get("completion_ids"),
        logprobs=row.get("completion_logprobs"),
        mask=row.get("completion_mask"),
        params=settings(turn.get("sampling_args")),
    )
