"""Logs of Inspect: `.json`, the samples of an `.eval` archive, and single samples.

Each sample becomes a trajectory under its own id. Its messages are the steps; the model's and the tools' events say
when they came about, what they cost and which settings they were sampled with. Scores that agree give the outcome, and
samples of one task and input share a session over their epochs, so that they are never split.
"""

from collections.abc import Iterator
from typing import Any

from flywheel.core.traces import Outcome, Trace
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.messages.message_turns import Turn, agreed, read_turns, steps_of
from flywheel.trajectories.formats.messages.sampling import logprobs, sampling, settings
from flywheel.trajectories.formats.values.hostile_json import FormatError, Row, as_dict, as_list, plain
from flywheel.trajectories.formats.values.times import moment

_ATTACHMENT = "attachment://"
_ABOUT = (
    "target", "metadata", "choices", "epoch", "model_usage", "total_time", "working_time", "limit", "error_retries",
)  # fmt: skip


def detect(row: dict[str, Any]) -> bool:
    if isinstance(row.get("eval"), dict) and ("samples" in row or "status" in row):
        return True
    return {"id", "epoch", "input", "target"} <= set(row) and bool({"messages", "output", "scores"} & set(row))


def parse(value: dict[str, Any]) -> tuple[list[Trace], list[str]]:
    """The samples, and what is wrong with those that cannot be read. Raises FormatError for what is no log."""
    if not isinstance(value.get("eval"), dict):
        return [_sample(value, {}, "")], []
    found: list[Trace] = []
    problems: list[str] = []
    samples = value.get("samples")
    if not isinstance(samples, list):
        raise FormatError("samples: missing, a list; a log of the header alone holds no trajectories")
    for index, sample in enumerate(samples):
        try:
            if not isinstance(sample, dict):
                raise FormatError("not an object")
            found.append(_sample(sample, value["eval"], f"samples[{index}]"))
        except FormatError as error:
            message = str(error)
            problems.append(message if message.startswith("samples[") else f"samples[{index}]: {message}")
    return found, problems


def _sample(value: dict[str, Any], header: dict[str, Any], path: str) -> Trace:
    root = Row(_resolved(plain(value)), path)
    turns = read_turns(root, "messages") or read_turns(root, "input")
    if not turns:
        raise FormatError(f"{root.at('messages')}: empty, expected at least one message")
    model = _annotate(turns, root)
    scores = {
        name: item.get("value") if isinstance(item, dict) else item for name, item in root.row("scores").value.items()
    }
    if "score" in root.value and isinstance(root.value["score"], dict):  # logs before scores had names
        scores.setdefault("score", root.value["score"].get("value"))
    about = plain(header)
    run = {
        key: about[key] for key in ("task", "task_id", "run_id", "eval_id", "model", "task_version") if about.get(key)
    }
    trace = Trace(
        trace_id=_trace_id(root, run, value),
        steps=steps_of(turns),
        agent=message_shapes.as_text(run.get("task")).rpartition("/")[2],
        version=message_shapes.as_text(run.get("model")) or model,
        session_id=_session(root, run),
        tools=_tools(root),
        outcome=_outcome(scores, root),
        tags=[tag for tag in about.get("tags") or [] if isinstance(tag, str)],
    )
    trace.metadata = {
        "sample": root.value.get("id"),
        **run,
        **{key: root.value[key] for key in _ABOUT if root.value.get(key)},
    }
    if scores:
        trace.metadata["scores"] = scores
        trace.metadata["score_details"] = root.row("scores").value
    _failed(trace, root)
    return trace


def _trace_id(root: Row, run: dict[str, Any], value: Any) -> str:
    if own := root.text("uuid"):
        return message_shapes.trace_id(own, content=["inspect", own])
    if run:
        names = [run.get(key) for key in ("eval_id", "run_id", "task_id")]
        return message_shapes.trace_id(content=["inspect", *names, root.value.get("id"), root.value.get("epoch")])
    return message_shapes.trace_id(content=value)


def _session(root: Row, run: dict[str, Any]) -> str:
    """Attempts at one input, over epochs and runs of the task."""
    task = message_shapes.as_text(run.get("task")).rpartition("/")[2]
    return f"{task or 'sample'}-{message_shapes.as_text(root.value.get('id'))}"


def _outcome(scores: dict[str, Any], root: Row) -> Outcome | None:
    outcome = agreed(scores.values())
    return "failed" if outcome is None and root.value.get("error") else outcome


def _failed(trace: Trace, root: Row) -> None:
    """An error or a limit ended the sample: its last step says so."""
    error, limit = root.value.get("error"), root.value.get("limit")
    said = error.get("message") if isinstance(error, dict) else error
    if said and trace.steps:
        trace.steps[-1].status, trace.steps[-1].error = "error", message_shapes.as_text(said)
    elif isinstance(limit, dict) and limit.get("type"):
        for step in reversed(trace.steps):
            if step.kind == "assistant":
                step.finish_reason = f"limit: {limit['type']}"
                break


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _annotate(turns: list[Turn], root: Row) -> str:
    """Say of each message what its event says; returns the model."""
    events = {}
    for event in (row.value for row in root.rows("events")):
        if event.get("event") == "model":
            for choice in _choices(event.get("output")):
                message = choice.get("message")
                if isinstance(message, dict) and (own := _word(message.get("id"))):
                    events[own] = (event, choice)
        elif event.get("event") == "tool" and (own := _word(event.get("id"))):
            events[own] = (event, {})
    output = root.row("output").value
    final = next((turn for turn in reversed(turns) if turn.message.role == "assistant"), None)
    for turn in turns:
        identity = turn.raw.get("tool_call_id") if turn.message.role == "tool" else turn.raw.get("id")
        known = events.get(identity) if isinstance(identity, str) else None
        if known is None and turn is final and output.get("choices"):
            known = ({"output": output}, next(iter(_choices(output)), {}))
        if known:
            _tell(turn, *known)
        if turn.message.role == "assistant" and not turn.model:
            turn.model = message_shapes.as_text(turn.raw.get("model")) if turn.raw.get("source") == "generate" else ""
    return message_shapes.as_text(output.get("model"))


def _tell(turn: Turn, event: dict[str, Any], choice: dict[str, Any]) -> None:
    turn.started_at, turn.ended_at = moment(event.get("timestamp")), moment(event.get("completed"))
    if error := event.get("error"):
        turn.error = message_shapes.as_text(error.get("message") if isinstance(error, dict) else error)
    if turn.message.role != "assistant":
        return
    row = Row(as_dict(event.get("output")), "output")
    usage = row.row("usage")
    turn.model = message_shapes.as_text(row.value.get("model") or event.get("model"))
    turn.finish_reason = message_shapes.as_text(choice.get("stop_reason"))
    turn.tokens_in, turn.tokens_out = usage.count("input_tokens"), usage.count("output_tokens")
    turn.tokens_cached, turn.cost_usd = usage.count("input_tokens_cache_read"), usage.cost("total_cost")
    if turn.tokens_in is not None:
        # Inspect takes off what was read from a cache, whoever the provider is, and counts what was written apart.
        turn.tokens_in += (turn.tokens_cached or 0) + (usage.count("input_tokens_cache_write") or 0)
    turn.sampling = sampling(logprobs=logprobs(choice.get("logprobs")), params=settings(event.get("config")))
    if choice.get("logprobs"):
        turn.raw = {**turn.raw, "logprobs": choice["logprobs"]}


def _choices(output: Any) -> Iterator[dict[str, Any]]:
    for choice in as_list(as_dict(output).get("choices")):
        if isinstance(choice, dict):
            yield choice


def _tools(root: Row) -> list[dict[str, Any]]:
    named: dict[str, dict[str, Any]] = {}
    for event in (row.value for row in root.rows("events")):
        if event.get("event") == "model":
            named |= {tool["name"]: tool for tool in message_shapes.tool_definitions(event.get("tools"))}
    return list(named.values())


def _resolved(sample: dict[str, Any]) -> dict[str, Any]:
    """The sample with its attachments in place: long texts and images are kept apart and named by their hash."""
    attachments = sample.get("attachments")
    if not isinstance(attachments, dict) or not attachments:
        return sample

    def put(value: Any) -> Any:
        if isinstance(value, str):
            if value.startswith(_ATTACHMENT):
                return attachments.get(value[len(_ATTACHMENT) :], value)
            return value
        if isinstance(value, dict):
            return {key: put(item) for key, item in value.items()}
        if isinstance(value, list):
            return [put(item) for item in value]
        return value

    return {key: item if key == "attachments" else put(item) for key, item in sample.items()}
