"""Parts of a trajectory that another format cannot say, kept beside it, so that an export can be read back exactly.

`residual` compares a trajectory with what its export would be read back as, and returns only the difference: fields of
the whole, and for each step the step it came from (`of`) and the fields that it does not say (`set`). `restore` puts
them back. `Step.raw` is not compared: it shows what arrived, and what arrives next time is the export.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_args

from flywheel.core.digests import canonical
from flywheel.core.traces import Intervention, Kind, Message, Role, Status, Step, ToolCall, Trace
from flywheel.trajectories.formats.values.hostile_json import FormatError, Row, plain, quote

_TRACE = [item.name for item in fields(Trace) if item.name not in ("steps", "interventions")]
_STEP = [item.name for item in fields(Step) if item.name != "raw"]
_BLANK = Step("", "other")


def residual(trace: Trace, back: Trace, became: list[str]) -> dict[str, Any]:
    """Return the parts of `trace` that `back` lacks; empty when none. `became` names, for each step of `trace`, the
    step in `back` that says most of it, or is empty."""
    said = trace_row(back)
    whole = {name: value for name, value in trace_row(trace).items() if not _same(value, said[name])}
    known = {step.span_id: step_row(step) for step in back.steps}
    blank = step_row(_BLANK)
    steps = []
    for step, place in zip(trace.steps, became, strict=True):
        like = known.get(place, blank)
        changed = {name: value for name, value in step_row(step).items() if not _same(value, like[name])}
        steps.append({**({"of": place} if place in known else {}), **({"set": changed} if changed else {})})
    is_same = [item.get("of") for item in steps] == [*known] and not any("set" in item for item in steps)
    return {**({"trace": whole} if whole else {}), **({} if is_same else {"steps": steps})}


def restore(trace: Trace, rest: Row) -> Trace:
    """`trace` as it was before the export. Raises FormatError when `rest` was not made by `residual`."""
    if "steps" in rest.value:
        known = {step.span_id: step for step in trace.steps}
        steps = [_step(row, known) for row in rest.rows("steps")]
        if len({step.span_id for step in steps}) < len(steps):
            raise FormatError(f"{rest.at('steps')}: a span id stands there twice")
        trace.steps = steps
    whole = rest.row("trace")
    for name in whole.value:
        if name in _WHOLE and (name != "trace_id" or whole.text(name)):
            setattr(trace, name, _WHOLE[name](whole, name))
    return trace


# As JSON


def trace_row(trace: Trace) -> dict[str, Any]:
    row = {name: getattr(trace, name) for name in _TRACE}
    return {**row, "interventions": [item.to_json() for item in trace.interventions]}


def step_row(step: Step) -> dict[str, Any]:
    """All of a step but `raw`."""
    row = {name: getattr(step, name) for name in _STEP}
    for name in ("started_at", "ended_at"):
        row[name] = row[name].isoformat() if row[name] else None
    for name in ("input", "output"):
        row[name] = [message.to_json() for message in row[name]]
    return row


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON, so that 0.0 is not -0.0 and true is not 1."""
    if one is other:
        return True
    if isinstance(one, str | None) or isinstance(other, str | None):
        return bool(one == other)
    return canonical(plain(one)) == canonical(plain(other))


# Back from JSON


def _step(row: Row, known: dict[str, Step]) -> Step:
    base = known.get(row.text("of"))
    if base is None and row.value.get("of"):
        raise FormatError(f"{row.at('of')}: {quote(row.value['of'])} is no step of this trajectory")
    base = base or _BLANK
    step = Step(**{item.name: getattr(base, item.name) for item in fields(Step)})
    given = row.row("set")
    for name in given.value:
        if name in _OF_STEP:
            setattr(step, name, _OF_STEP[name](given, name))
    if not step.span_id:
        raise FormatError(f"{row.at('set.span_id')}: missing, a string")
    return step


def _message(row: Row) -> Message:
    role: Role = row.choice("role", get_args(Role))  # type: ignore[assignment]
    calls = []
    for call in row.rows("tool_calls"):
        given = _arguments(call)
        calls.append(ToolCall(call.text("id"), call.text("name"), "" if given is None else given))
    texts = {name: row.text(name) for name in ("content", "tool_call_id", "name", "reasoning")}
    return Message(role=role, tool_calls=tuple(calls), **texts)


def _arguments(row: Row) -> dict[str, Any] | str | None:
    value = row.value.get("arguments")
    if value is not None and not isinstance(value, dict | str):
        raise FormatError(f"{row.at('arguments')}: {quote(value)} is neither an object nor a string")
    return value


def _intervention(row: Row) -> Intervention:
    return Intervention(row.text("step"), row.text("kind"), row.text("by"), row.text("note"), row.text("at"))


_OF_STEP: dict[str, Callable[[Row, str], Any]] = {
    **dict.fromkeys(("span_id", "name", "parent_id", "error", "model"), Row.text),
    **dict.fromkeys(("tool_name", "tool_call_id", "finish_reason"), Row.text),
    **dict.fromkeys(("tokens_in", "tokens_out", "tokens_cached"), Row.count),
    **dict.fromkeys(("started_at", "ended_at"), Row.time),
    **dict.fromkeys(("input", "output"), lambda row, name: [_message(message) for message in row.rows(name)]),
    "cost_usd": Row.cost,
    "kind": lambda row, name: row.choice(name, get_args(Kind)),
    "status": lambda row, name: row.choice(name, get_args(Status)),
    "sampling": lambda row, name: row.row(name).value,
    "arguments": lambda row, _: _arguments(row),
    "result": lambda row, name: row.value[name],
}
_WHOLE: dict[str, Callable[[Row, str], Any]] = {
    **dict.fromkeys(("trace_id", "agent", "version", "session_id", "user_id", "environment"), Row.text),
    "outcome": lambda row, name: row.choice(name, ("success", "failed")) if row.value[name] is not None else None,
    "metadata": lambda row, name: row.row(name).value,
    "tools": lambda row, name: [item.value for item in row.rows(name)],
    "tags": lambda row, name: [tag for tag in row.list(name) if isinstance(tag, str)],
    "interventions": lambda row, name: [_intervention(each) for each in row.rows(name)],
}
