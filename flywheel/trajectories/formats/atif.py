"""ATIF, the Agent Trajectory Interchange Format (Harbor's RFC 0001), versions 1.0 to 1.8.

An agent step becomes an `assistant` step whose output message has the tool calls, and each observation result a `tool`
step after it. Ids are deterministic, so that sending a file twice stores it once.
"""

import re
from typing import Any

from flywheel.core.traces import Kind, Message, Step, ToolCall, Trace
from flywheel.trajectories.formats import shapes
from flywheel.trajectories.formats.reading import FormatError, Row, plain, quote

SOURCES: dict[str, Kind] = {"system": "system", "user": "user", "agent": "assistant"}
_VERSION = re.compile(r"ATIF-v1\.[0-8]")
_KEPT = ("notes", "final_metrics", "continued_trajectory_ref", "schema_version")


def detect(row: dict[str, Any]) -> bool:
    version = row.get("schema_version")
    return isinstance(version, str) and version.startswith("ATIF") and "steps" in row


def parse(value: dict[str, Any]) -> Trace:
    """Raises FormatError, naming the field and what would be right."""
    root = Row(plain(value))
    version = root.text("schema_version", required=True)
    if not _VERSION.fullmatch(version):
        raise FormatError(f"schema_version: {quote(version)} is not one of ATIF-v1.0 to ATIF-v1.8")
    if not root.list("steps", required=True):
        raise FormatError("steps: empty, at least one step is wanted")
    agent = root.row("agent")
    model = agent.text("model_name")
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
        name = sub.row("agent").text("name")
        steps.append(Step(f"subagent-{index}", "agent", name, raw=sub.value))
    session, own = root.text("session_id"), root.text("trajectory_id")
    extra = root.row("extra").value
    outcome = extra.get("outcome")
    return Trace(
        trace_id=shapes.trace_id(own, session, content=value),
        steps=steps,
        agent=agent.text("name"),
        version=agent.text("version"),
        session_id=session,
        tools=shapes.tool_definitions(agent.list("tool_definitions")),
        outcome=outcome if outcome in ("success", "failed") else None,
        metadata=extra | {key: root.value[key] for key in _KEPT if root.value.get(key) not in (None, "", {})},
    )


def _steps(row: Row, span_id: str, model: str) -> list[Step]:
    source = row.choice("source", tuple(SOURCES))
    message = row.value.get("message")
    if message is not None and not isinstance(message, str | list):
        raise FormatError(f"{row.at('message')}: {quote(message)} is neither a string nor a list of parts")
    calls = tuple(_call(call) for call in row.rows("tool_calls"))
    metrics = row.row("metrics")
    kind = SOURCES[source]
    step = Step(
        span_id=span_id,
        kind=kind,
        started_at=row.time("timestamp"),
        model=row.text("model_name") or (model if kind == "assistant" else ""),
        output=[
            Message(
                role="assistant" if kind == "assistant" else "user" if kind == "user" else "system",
                content=shapes.content(message),
                tool_calls=calls,
                reasoning=row.text("reasoning_content"),
            )
        ],
        tokens_in=metrics.count("prompt_tokens"),
        tokens_out=metrics.count("completion_tokens"),
        tokens_cached=metrics.count("cached_tokens"),
        cost_usd=metrics.cost("cost_usd"),
        raw=row.value,
    )
    return [step, *_observations(row, span_id, {call.id: call for call in calls}, calls)]


def _call(row: Row) -> ToolCall:
    given = row.value.get("arguments")
    return ToolCall(row.text("tool_call_id"), row.text("function_name", required=True), shapes.arguments(given))


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
                result=shapes.content(result.value.get("content")),
                raw=result.value,
            )
        )
    return steps
