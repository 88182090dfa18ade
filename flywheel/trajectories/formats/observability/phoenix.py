"""Spans as Phoenix's client and API give them: one an object, `{"context": {"trace_id", "span_id"}, "attributes": …}`,
or a row of its data frame with flat names (`context.trace_id`, `attributes.llm.model_name`).

They are turned into OTLP and read by the same code as telemetry. Exports that are OTLP already need none of this.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from flywheel.trajectories.formats.otlp.any_value import attributes
from flywheel.trajectories.formats.values.hostile_json import FormatError, Row, plain, quote, structured
from flywheel.trajectories.formats.values.times import microseconds, moment

_CODES = {"OK": 1, "ERROR": 2}
_AS_JSON = {"metadata", "llm.invocation_parameters", "input.value", "output.value", "tool.parameters"}
"""Attributes whose value is JSON text, which data frames decode."""


def detect(row: dict[str, Any]) -> bool:
    context = row.get("context")
    if isinstance(context, dict) and {"trace_id", "span_id"} <= set(context):
        return "start_time" in row
    return {"context.trace_id", "context.span_id", "start_time"} <= set(row)


def envelope(value: dict[str, Any]) -> dict[str, Any]:
    """The span as an OTLP request. Raises FormatError, naming the field and what would be right."""
    root = Row(plain(_nested(value)))
    context = root.row("context")
    said = dict(pair for key, item in root.row("attributes").value.items() for pair in _flat(key, item))
    if (kind := root.value.get("span_kind")) and isinstance(kind, str):
        said.setdefault("openinference.span.kind", kind)
    span = {
        "traceId": context.text("trace_id", required=True),
        "spanId": context.text("span_id", required=True),
        "parentSpanId": root.text("parent_id"),
        "name": root.text("name"),
        "startTimeUnixNano": _ns(root, "start_time"),
        "endTimeUnixNano": _ns(root, "end_time"),
        "status": {"code": _CODES.get(root.text("status_code"), 0), "message": root.text("status_message")},
        "attributes": attributes(said),
        "events": [
            {
                "name": event.text("name"),
                "timeUnixNano": _ns(event, "timestamp"),
                "attributes": attributes(event.row("attributes").value),
            }
            for event in root.rows("events")
        ],
    }
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


def _nested(value: dict[str, Any]) -> dict[str, Any]:
    """A data frame's row with its two levels of names."""
    if "context.trace_id" not in value:
        return value
    row: dict[str, Any] = {"context": {}, "attributes": {}}
    for key, item in value.items():
        place, _, rest = key.partition(".")
        if rest and place in ("context", "attributes"):
            row[place][rest] = item
        elif key != "attributes":
            row[key] = item
    if isinstance(row.get("events"), str):
        row["events"] = structured(row["events"])
    return row


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """OpenInference's flattened names again, out of the nested lists and objects that the export makes of them."""
    if value is None:
        return
    if key in _AS_JSON and isinstance(value, dict | list):
        yield key, json.dumps(value, ensure_ascii=False)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flat(f"{key}.{name}", item)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            yield from _flat(f"{key}.{index}", item)
    else:
        yield key, value


def _ns(row: Row, key: str) -> str:
    value = row.value.get(key)
    if value is None:
        return "0"
    at = moment(value)
    if at is None:
        raise FormatError(f"{row.at(key)}: {quote(value)} is not a time such as 2026-01-31T12:00:00Z")
    return str(microseconds(at) * 1000)
