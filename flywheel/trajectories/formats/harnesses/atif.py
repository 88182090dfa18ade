"""ATIF, the Agent Trajectory Interchange Format (Harbor's RFC 0001), versions 1.0 to 1.8, in and out.

An agent step becomes an `assistant` step whose output message has the tool calls, and each observation result a `tool`
step after it. Ids are deterministic, so that sending a file twice stores it once. A subagent's trajectory becomes a
trajectory of its own in the same session, and an `agent` step in its parent's. Parts that are no text (images, files)
are named in the message and kept whole in the step's raw form.
"""

import re
from collections import Counter
from typing import Any

from flywheel.core.traces import Conversation, Intervention, Kind, Message, Step, ToolCall, Trace, speaking
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.messages.message_turns import of_reward
from flywheel.trajectories.formats.messages.sampling import sampling, settings
from flywheel.trajectories.formats.values.hostile_json import FormatError, Row, as_list, plain, quote
from flywheel.trajectories.formats.values.residual import residual, restore

VERSION = "ATIF-v1.7"
"""What is written."""
SOURCES: dict[str, Kind] = {"system": "system", "user": "user", "agent": "assistant"}
_NAMES = {"system": "system", "user": "user", "assistant": "agent"}
_VERSION = re.compile(r"ATIF-v1\.[0-8]")
_KEPT = ("notes", "final_metrics", "continued_trajectory_ref", "schema_version")
_OWN = ("outcome", "interventions", "tags", "user_id", "environment", "flywheel")
"""What `extra` says about the trajectory itself."""


def detect(row: dict[str, Any]) -> bool:
    version = row.get("schema_version")
    return isinstance(version, str) and version.startswith("ATIF") and "steps" in row


def parse_all(value: dict[str, Any]) -> list[Trace]:
    """The trajectory, and those of its subagents. Raises FormatError, naming the field and what would be right."""
    main = parse(value)
    found = [main]
    for index, sub in enumerate(Row(plain(value)).rows("subagent_trajectories")):
        try:
            below = parse_all({"schema_version": value["schema_version"], **sub.value})
        except FormatError as error:
            raise FormatError(f"subagent_trajectories[{index}].{error}") from None
        for trace in below:
            trace.session_id = main.session_id or main.trace_id
            trace.metadata.setdefault("parent_trajectory", main.trace_id)
        found += below
    return found


def parse(value: dict[str, Any]) -> Trace:
    """Raises FormatError, naming the field and what would be right."""
    root = Row(plain(value))
    rest = root.row("extra").row("flywheel")
    return restore(_base(root, value) if rest.value else _parse(root, value), rest)


def _base(root: Row, value: dict[str, Any]) -> Trace:
    """Parse an export of ours without its residual, which says all that this format cannot."""
    try:
        return _parse(root, value)
    except FormatError:
        return Trace(message_shapes.trace_id(root.text("trajectory_id"), content=value))


def _parse(root: Row, value: dict[str, Any]) -> Trace:
    version = root.text("schema_version", required=True)
    if not _VERSION.fullmatch(version):
        raise FormatError(f"schema_version: {quote(version)} is not one of ATIF-v1.0 to ATIF-v1.8")
    if not root.list("steps", required=True):
        raise FormatError("steps: empty, expected at least one step")
    agent, extra = root.row("agent"), root.row("extra")
    session, own = root.text("session_id"), root.text("trajectory_id")
    kept = {key: root.value[key] for key in _KEPT if root.value.get(key) not in (None, "", {})}
    if agent.value.get("extra"):
        kept["agent_extra"] = agent.value["extra"]
    steps = _all_steps(root, agent.text("model_name"))
    interventions = [_intervention(row, "") for row in extra.rows("interventions")]
    interventions += [item for row in root.rows("steps") for item in _interventions(row)]
    return Trace(
        trace_id=message_shapes.trace_id(own, session, content=value),
        steps=steps,
        agent=agent.text("name"),
        version=agent.text("version"),
        session_id=session,
        user_id=extra.value["user_id"] if isinstance(extra.value.get("user_id"), str) else "",
        environment=extra.value["environment"] if isinstance(extra.value.get("environment"), str) else "",
        tools=message_shapes.tool_definitions(agent.list("tool_definitions")),
        outcome=_outcome(extra.value),
        interventions=interventions,
        tags=[tag for tag in as_list(extra.value.get("tags")) if isinstance(tag, str)],
        metadata={key: item for key, item in extra.value.items() if key not in _OWN} | kept,
    )


def _all_steps(root: Row, model: str) -> list[Step]:
    steps: list[Step] = []
    seen: set[int] = set()
    for row in root.rows("steps"):
        number = row.value.get("step_id")
        if isinstance(number, bool) or not isinstance(number, int):
            raise FormatError(f"{row.at('step_id')}: {quote(number)} is not a whole number")
        if number in seen:
            raise FormatError(f"{row.at('step_id')}: {number} stands there twice")
        seen.add(number)
        steps += _steps(row, f"step-{number}", model)
    for index, sub in enumerate(root.rows("subagent_trajectories"), 1):
        steps.append(Step(f"subagent-{index}", "agent", sub.row("agent").text("name"), raw=sub.value))
    return steps


def _steps(row: Row, span_id: str, model: str) -> list[Step]:
    kind = SOURCES[row.choice("source", tuple(SOURCES))]
    message = row.value.get("message")
    if message is not None and not isinstance(message, str | list):
        raise FormatError(f"{row.at('message')}: {quote(message)} is neither a string nor a list of parts")
    calls = tuple(_call(call) for call in row.rows("tool_calls"))
    metrics = row.row("metrics")
    extra = row.row("extra").value
    # A step copied from an earlier trajectory was paid for there.
    is_counted = row.value.get("is_copied_context") is not True
    step = Step(
        span_id=span_id,
        kind=kind,
        started_at=row.time("timestamp"),
        model=row.text("model_name") or (model if kind == "assistant" else ""),
        output=[
            Message(
                role="assistant" if kind == "assistant" else "user" if kind == "user" else "system",
                content=message_shapes.content(message),
                tool_calls=calls,
                reasoning=row.text("reasoning_content"),
            )
        ],
        finish_reason=_finish(extra, metrics.row("extra").value),
        tokens_in=metrics.count("prompt_tokens") if is_counted else None,
        tokens_out=metrics.count("completion_tokens") if is_counted else None,
        tokens_cached=metrics.count("cached_tokens") if is_counted else None,
        cost_usd=metrics.cost("cost_usd") if is_counted else None,
        sampling=sampling(
            prompt=metrics.list("prompt_token_ids"),
            tokens=metrics.list("completion_token_ids"),
            logprobs=metrics.list("logprobs"),
            mask=metrics.row("extra").value.get("mask"),
            params={**settings(extra.get("sampling")), **settings(row.value)},
        ),
        raw=row.value,
    )
    return [step, *_observations(row, span_id, {call.id: call for call in calls}, calls)]


def _finish(*places: dict[str, Any]) -> str:
    return next(
        (row[key] for row in places for key in ("finish_reason", "stop_reason") if isinstance(row.get(key), str)), ""
    )


def _outcome(extra: dict[str, Any]) -> Any:
    outcome = extra.get("outcome")
    return outcome if outcome in ("success", "failed") else of_reward(extra.get("reward"))


def _interventions(row: Row) -> list[Intervention]:
    """`extra.interventions` of a step; `extra` is anybody's, so what has another shape is only kept."""
    place, span_id = row.at("extra.interventions"), f"step-{row.value['step_id']}"
    given = as_list(row.row("extra").value.get("interventions"))
    return [_intervention(Row(item, place), span_id) for item in given if isinstance(item, dict)]


def _intervention(row: Row, span_id: str) -> Intervention:
    texts = {key: row.value[key] for key in ("step", "kind", "by", "note", "at") if isinstance(row.value.get(key), str)}
    return Intervention(**{"step": span_id, "kind": "", **texts})


def _call(row: Row) -> ToolCall:
    given = row.value.get("arguments")
    return ToolCall(row.text("tool_call_id"), row.text("function_name", required=True), message_shapes.arguments(given))


def _observations(row: Row, span_id: str, by_id: dict[str, ToolCall], calls: tuple[ToolCall, ...]) -> list[Step]:
    steps = []
    for index, result in enumerate(row.row("observation").rows("results"), 1):
        source = result.text("source_call_id")
        call = by_id.get(source) or (calls[0] if len(calls) == 1 and not source else None)
        steps.append(
            Step(
                span_id=f"{span_id}-obs-{index}",
                kind="tool",
                name=call.name if call else "",
                parent_id=span_id,
                tool_name=call.name if call else "",
                tool_call_id=source or (call.id if call else ""),
                arguments=call.arguments if call else None,
                result=message_shapes.content(result.value.get("content")),
                raw=result.value,
            )
        )
    return steps


# Out


def dump(trace: Trace) -> dict[str, Any]:
    """A document that `parse` reads back into the same trajectory."""
    metadata = dict(trace.metadata)
    version = metadata.pop("schema_version", None)
    root: dict[str, Any] = {
        "schema_version": version if isinstance(version, str) and _VERSION.fullmatch(version) else VERSION,
        "session_id": trace.session_id or trace.trace_id,
        "trajectory_id": trace.trace_id,
    }
    models = Counter(step.model for step in trace.steps if step.kind == "assistant" and step.model)
    agent = {
        "name": trace.agent,
        "version": trace.version,
        "model_name": models.most_common(1)[0][0] if models else "",
        "tool_definitions": [message_shapes.as_function(tool) for tool in trace.tools],
        "extra": metadata.pop("agent_extra", None),
    }
    root["agent"] = {key: item for key, item in agent.items() if item or key in ("name", "version")}
    root["steps"], became, subs = _written(trace, agent["model_name"])
    root |= {key: metadata.pop(key) for key in _KEPT if isinstance(metadata.get(key), dict | str) and metadata[key]}
    if subs:
        root["subagent_trajectories"] = subs
    said = {key: getattr(trace, key) for key in ("outcome", "tags", "user_id", "environment")}
    extra = metadata | {key: item for key, item in said.items() if item}
    root["extra"] = extra
    if rest := residual(trace, _base(Row(plain(root)), root), became):
        extra["flywheel"] = rest
    if not extra:
        del root["extra"]
    return root


def _written(trace: Trace, model: str) -> tuple[list[dict[str, Any]], list[str], list[dict[str, Any]]]:
    """The steps as ATIF has them, what each step of the trace is read back as, and the subagents' trajectories."""
    if all(_is_ours(step) for step in trace.steps):
        rows = [step.raw for step in trace.steps if "step_id" in step.raw]
        subs = [step.raw for step in trace.steps if step.span_id.startswith("subagent-")]
        if rows:
            return rows, [step.span_id for step in trace.steps], subs
    rows, became = [], []
    talk = Conversation()
    speakers = {id(step) for step in speaking(trace.steps)}
    for step in trace.steps:
        added = talk.add(step) if id(step) in speakers else []
        place = ""
        for message in added:
            place = _write(rows, message, step if message is added[-1] else None, model)
        became.append(place)
    return rows or [{"step_id": 1, "source": "agent", "message": ""}], became, []


def _is_ours(step: Step) -> bool:
    """Whether the step's raw form is what ATIF would have: it came as ATIF and can go as it came."""
    if step.span_id.startswith("subagent-"):
        return "steps" in step.raw
    return step.span_id == f"step-{step.raw.get('step_id')}" or "-obs-" in step.span_id


def _write(rows: list[dict[str, Any]], message: Message, step: Step | None, model: str) -> str:
    """Add a message; what its step says of it goes along. Returns the span id by which it is read back."""
    if message.role == "tool":
        if not rows or rows[-1]["source"] != "agent":
            rows.append({"step_id": len(rows) + 1, "source": "agent", "message": ""})
        results = rows[-1].setdefault("observation", {"results": []})["results"]
        source = {"source_call_id": message.tool_call_id} if message.tool_call_id else {}
        results.append({**source, "content": message.content})
        return f"step-{len(rows)}-obs-{len(results)}"
    row: dict[str, Any] = {"step_id": len(rows) + 1, "source": _NAMES[message.role], "message": message.content}
    if step and step.started_at:
        row["timestamp"] = step.started_at.isoformat()
    if step and step.model and step.model != model:
        row["model_name"] = step.model
    if message.reasoning:
        row["reasoning_content"] = message.reasoning
    if message.tool_calls:
        row["tool_calls"] = [
            {"tool_call_id": call.id, "function_name": call.name, "arguments": call.arguments}
            for call in message.tool_calls
        ]
    if step:
        row |= _metrics(step)
    rows.append(row)
    return f"step-{len(rows)}"


def _metrics(step: Step) -> dict[str, Any]:
    given = step.sampling
    metrics = {
        "prompt_tokens": step.tokens_in,
        "completion_tokens": step.tokens_out,
        "cached_tokens": step.tokens_cached,
        "cost_usd": step.cost_usd,
        "prompt_token_ids": given.get("prompt_token_ids"),
        "completion_token_ids": given.get("token_ids"),
        "logprobs": given.get("logprobs"),
        "extra": {"mask": given["mask"]} if given.get("mask") else None,
    }
    extra = {"finish_reason": step.finish_reason, "sampling": given.get("params")}
    parts = {"metrics": metrics, "extra": extra}
    clean = {
        name: {key: item for key, item in part.items() if item not in (None, "", [])} for name, part in parts.items()
    }
    return {name: part for name, part in clean.items() if part}
