"""Exports of Langfuse: a trace with its observations (API, *Download JSON*), rows of the tables of traces, observations
and scores (JSON, JSON Lines, CSV), and pages of the API (`{"data": […]}`).

An observation becomes a step; rows of one trace may stand in any order and in several files. A trace's own input and
output speak only where no model call does. Names are read in camelCase and, as blob exports have them, in snake_case.
Usage stands in buckets that exclude each other, which `dialects.langfuse` adds up.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flywheel.core.traces import Kind, Message, Step, Trace, count
from flywheel.trajectories.formats.dialects.langfuse import tokens_of
from flywheel.trajectories.formats.messages import message_shapes
from flywheel.trajectories.formats.messages.message_turns import agreed
from flywheel.trajectories.formats.messages.sampling import sampling, settings
from flywheel.trajectories.formats.semantics.trace_notes import ENDS, Note
from flywheel.trajectories.formats.values.hostile_json import FormatError, Row, as_dict, cost, plain, quote, structured
from flywheel.trajectories.formats.values.times import moment

KINDS: dict[str, Kind] = {
    "GENERATION": "assistant",
    "TOOL": "tool",
    "AGENT": "agent",
    "RETRIEVER": "retrieval",
    **dict.fromkeys(("SPAN", "EVENT", "CHAIN", "EVALUATOR", "EMBEDDING", "GUARDRAIL"), "other"),
}
_SOURCES = {"ANNOTATION": "human", "EVAL": "model", "API": "code"}
_TRACE_ONLY = {
    "sessionId", "userId", "release", "bookmarked", "observations", "htmlPath", "public", "observationCount",
}  # fmt: skip
_KNOWN = {
    "id", "timestamp", "name", "input", "output", "sessionId", "userId", "release", "version", "metadata", "tags",
    "environment", "observations", "scores", "projectId", "createdAt", "updatedAt", "externalId",
}  # fmt: skip


def detect(row: dict[str, Any]) -> bool:
    if isinstance(row.get("trace"), dict) and isinstance(row.get("observations"), list):
        return True
    if isinstance(row.get("data"), list) and row["data"] and isinstance(row["data"][0], dict) and "meta" in row:
        return detect(row["data"][0])
    given = _camel(row)
    return _is_observation(given) or _is_score(given) or _is_trace(given)


def parse(value: dict[str, Any]) -> tuple[list[Trace], list[Note]]:
    """Raises FormatError, naming the field and what would be right."""
    if isinstance(value.get("data"), list) and "meta" in value:
        traces: list[Trace] = []
        notes: list[Note] = []
        for index, item in enumerate(value["data"]):
            if not isinstance(item, dict):
                raise FormatError(f"data[{index}]: {quote(item)} is not an object")
            found, said = parse(item)
            traces, notes = traces + found, notes + said
        return traces, notes
    if isinstance(value.get("trace"), dict):
        inner = {key: value[key] for key in ("observations", "scores") if isinstance(value.get(key), list)}
        return parse({**value["trace"], **inner})
    given = plain(_camel(value))
    root = Row(given)
    if _is_score(given):
        return [], [_note(root)]
    if _is_observation(given):
        trace = Trace(_trace_id(root.text("traceId", required=True)), steps=[_step(root)])
        _shared(trace, root)
        return [trace], []
    return _trace(root)


def _camel(row: Mapping[str, Any]) -> dict[str, Any]:
    return {re.sub(r"_([a-z])", lambda found: found[1].upper(), str(key)): item for key, item in row.items()}


def _is_observation(row: Mapping[str, Any]) -> bool:
    return "traceId" in row and "id" in row and str(row.get("type", "")).upper() in KINDS and "startTime" in row


def _is_score(row: Mapping[str, Any]) -> bool:
    return "traceId" in row and {"name", "value"} <= set(row) and bool({"dataType", "source"} & set(row))


def _is_trace(row: Mapping[str, Any]) -> bool:
    return {"id", "timestamp", "name"} <= set(row) and bool(_TRACE_ONLY & set(row)) and "messages" not in row


def _trace_id(given: str) -> str:
    return message_shapes.trace_id(given, content=["langfuse", given])


# A trace


def _trace(root: Row) -> tuple[list[Trace], list[Note]]:
    own = root.text("id", required=True)
    trace = Trace(_trace_id(own), agent=_text(root, "name"))
    _shared(trace, root)
    for row in _rows(root, "observations"):
        trace.steps.append(_step(Row(_camel(row.value), row.path)))
    trace.steps.sort(key=lambda step: (step.started_at is None, step.started_at or 0, step.span_id))
    said, answered = structured(root.value.get("input")), structured(root.value.get("output"))
    if said is not None or answered is not None or not trace.steps:
        whole = Step("trace", "agent", _text(root, "name"), started_at=moment(root.value.get("timestamp")))
        whole.input, whole.output = _messages(said, "user"), _messages(answered, "assistant")
        whole.raw = {key: item for key, item in root.value.items() if key not in ("observations", "scores")}
        trace.steps.insert(0, whole)
    scores = root.value.get("scores")
    notes: list[Note] = []
    if isinstance(scores, list):
        said_of = [Row(_camel(row.value), row.path) for row in root.rows("scores") if "name" in row.value]
        _scored(trace, {row.text("name"): _value(row) for row in said_of if not row.value.get("observationId")})
        notes = [_note(row, own) for row in said_of]
    elif isinstance(scores, Mapping):
        _scored(trace, dict(scores))
    return [trace], notes


def _shared(trace: Trace, root: Row) -> None:
    """Set the fields of the whole that rows of traces and of observations alike state."""
    trace.session_id, trace.user_id = _text(root, "sessionId"), _text(root, "userId")
    trace.version = _text(root, "release") or _text(root, "version")
    environment = _text(root, "environment")
    trace.environment = "" if environment == "default" else environment
    tags = structured(root.value.get("tags", root.value.get("traceTags")))
    trace.tags = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    trace.agent = trace.agent or _text(root, "traceName")
    if "traceId" not in root.value:
        rest = {key: item for key, item in root.value.items() if key not in _KNOWN and item not in (None, "")}
        trace.metadata = {**as_dict(structured(root.value.get("metadata"))), **rest}


def _scored(trace: Trace, scores: dict[str, Any]) -> None:
    if not scores:
        return
    trace.metadata["scores"] = scores
    ends = [item for key, item in scores.items() if key in ENDS]
    trace.outcome = agreed(item[0] if isinstance(item, list) and len(item) == 1 else item for item in ends)


def _value(row: Row) -> Any:
    """Categorical and boolean scores have their word beside the number."""
    word = row.value.get("stringValue")
    value = row.value.get("value")
    return word if word not in (None, "") and not isinstance(value, str) else value


def _note(row: Row, trace: str = "") -> Note:
    own = _text(row, "traceId") or trace
    if not own:
        raise FormatError(f"{row.at('traceId')}: missing, a string; scores of whole sessions are not read")
    number, value = _number(row.value.get("value")), _value(row)
    if row.value.get("dataType") == "BOOLEAN" and number in (0, 1):
        value = bool(number)
    elif number is not None and value == row.value.get("value"):
        value = number  # CSV writes it as text
    return Note(
        key=row.text("name", required=True),
        value=value,
        trace_id=_trace_id(own),
        span_id=_text(row, "observationId"),
        score=float(number) if number is not None and isinstance(value, str) else None,
        comment=_text(row, "comment"),
        source=_SOURCES.get(_text(row, "source").upper(), "code"),
        by=_text(row, "authorUserId") or "langfuse",
        at=moment(row.value.get("updatedAt")) or moment(row.value.get("timestamp")),
        identity=_text(row, "id"),
    )


# An observation


def _step(row: Row) -> Step:
    kind = KINDS.get(row.text("type").upper(), "other")
    given, answered = structured(row.value.get("input")), structured(row.value.get("output"))
    level = _text(row, "level")
    step = Step(
        span_id=row.text("id", required=True),
        kind=kind,
        name=_text(row, "name"),
        parent_id=_text(row, "parentObservationId"),
        started_at=moment(row.value.get("startTime")),
        ended_at=moment(row.value.get("endTime")),
        status="error" if level == "ERROR" else "unset",
        error=_text(row, "statusMessage") if level == "ERROR" else "",
        model=_text(row, "model") or _text(row, "providedModelName"),
        raw=row.value,
    )
    if kind in ("assistant", "agent"):
        step.input, step.output = _messages(given, "user"), _messages(answered, "assistant")
        step.finish_reason = message_shapes.as_text(as_dict(answered).get("finish_reason"))
    if kind == "assistant":
        step.sampling = sampling(params=settings(structured(row.value.get("modelParameters"))))
        _usage(step, row)
    if kind == "tool":
        step.tool_name = step.name
        step.tool_call_id = message_shapes.as_text(given.get("id")) if "name" in as_dict(given) else ""
    if kind in ("tool", "retrieval"):
        step.arguments, step.result = message_shapes.arguments(given), answered
    return step


def _usage(step: Step, row: Row) -> None:
    old = structured(row.value.get("usage"))
    usage, old = as_dict(structured(row.value.get("usageDetails")) or old), as_dict(old)

    def first(*values: Any) -> int | None:
        return next((found for value in values if (found := count(value)) is not None), None)

    given = row.value
    came_in, out, step.tokens_cached = tokens_of(usage)
    step.tokens_in = first(came_in, old.get("input"), given.get("promptTokens"), given.get("inputUsage"))
    step.tokens_out = first(out, old.get("output"), given.get("completionTokens"), given.get("outputUsage"))
    total = as_dict(structured(given.get("costDetails"))).get("total")
    costs = [cost(_number(value)) for value in (total, given.get("totalCost"), given.get("calculatedTotalCost"))]
    step.cost_usd = next((each for each in costs if each is not None), None)


def _number(value: Any) -> int | float | None:
    """CSV writes numbers as text."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return value if isinstance(value, int | float) else None


def _messages(value: Any, role: str) -> list[Message]:
    """Read messages from whatever the application logged: messages, an object with messages, or any value."""
    if value in (None, "", [], {}):
        return []
    if isinstance(value, Mapping):
        for key in ("messages", "choices"):
            if isinstance(value.get(key), list) and value[key]:
                inner = [item.get("message", item) if isinstance(item, Mapping) else item for item in value[key]]
                return _messages(inner, role)
        if isinstance(value.get("message"), Mapping):
            return _messages(value["message"], role)
        if "role" in value or (role == "assistant" and ("content" in value or "tool_calls" in value)):
            return _as(message_shapes.parts_messages({"role": role, **value}), role)
        if "role" in value or "parts" in value:
            return _as(message_shapes.parts_messages(value), role)
    if isinstance(value, list) and all(
        isinstance(item, Mapping) and ("role" in item or "content" in item) for item in value
    ):
        read = [message for item in value for message in message_shapes.parts_messages({"role": role, **item})]
        return _as(read, role)
    return [Message(message_shapes.ROLES[role], message_shapes.as_text(value))]


def _as(messages: list[Message], role: str) -> list[Message]:
    """Mark messages that a model wrote as the assistant's, whatever role the application logged."""
    if role == "user":
        return messages
    return [item if item.role in ("assistant", "tool") else replace(item, role="assistant") for item in messages]


def _rows(root: Row, key: str) -> list[Row]:
    given = root.value.get(key)
    if isinstance(given, list) and given and not isinstance(given[0], dict):
        return []  # the API's list of traces gives ids only
    return list(root.rows(key)) if isinstance(given, list) else []


def _text(row: Row, key: str) -> str:
    value = row.value.get(key)
    return value if isinstance(value, str) else ""
