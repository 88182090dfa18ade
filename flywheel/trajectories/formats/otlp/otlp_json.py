"""OTLP's JSON: hexadecimal ids, 64-bit integers as strings, unknown fields ignored."""

import base64
import functools
import json
import string
from typing import Any

from flywheel.core.traces import Status
from flywheel.trajectories.formats.otlp.spans import STATUSES, Decoded, Event, Span, scope
from flywheel.trajectories.formats.values.hostile_json import MAX_DEPTH, FormatError, Row, plain, quote, text

_MAX_NS = 2**64
_HEX = frozenset(string.hexdigits)
_SCALARS = {"stringValue": str, "boolValue": bool}
_DROPPED = "droppedAttributesCount"
_GROUP = {"resource", "scopeSpans", "schemaUrl"}
_RESOURCE = {"attributes", _DROPPED}
_SCOPE_SPANS = {"scope", "spans", "schemaUrl"}
_SCOPE = {"name", "version", "attributes", _DROPPED}
_SPAN = {
    "traceId", "spanId", "parentSpanId", "traceState", "flags", "name", "kind", "startTimeUnixNano", "endTimeUnixNano",
    "attributes", _DROPPED, "events", "droppedEventsCount", "links", "droppedLinksCount", "status",
}  # fmt: skip
_EVENT = {"name", "timeUnixNano", "attributes", _DROPPED}
_LINK = {"traceId", "spanId", "flags", "attributes", _DROPPED}
"""Without its trace state, which is not kept."""
_STATUS = {"code", "message"}
_PAIR = {"key", "value"}
"""The fields of OTLP; others are passed over."""
_MAX_NESTED = 200
"""Far deeper than what is kept, far less deep than Python's own limit."""


def decode(value: Any) -> Decoded:
    """The spans of a decoded body. Raises FormatError when it is no trace request."""
    body = request_of(value, "traces")
    decoded = Decoded(says_more=not body.value.keys() <= {"resourceSpans"})
    for item in body.list("resourceSpans"):
        try:
            group = Row(item, "resourceSpans")
            resource = attributes(group.row("resource"), decoded)
            scopes = group.list("scopeSpans")
        except FormatError as error:
            decoded.reject(str(error))
            continue
        if not item.keys() <= _GROUP or not group.row("resource").value.keys() <= _RESOURCE:
            decoded.says_more = True
        for inner in scopes:
            _scope_spans(inner, resource, item.get("resource"), decoded)
    return decoded


def request_of(value: Any, signal: str) -> Row:
    """The request in a decoded body. Raises FormatError when it is none of this signal, naming what it is."""
    request, wanted = Row(value, "" if isinstance(value, dict) else "the body"), f"resource{_SIGNALS[signal]}"
    if wanted not in request.value:
        for other, key in _SIGNALS.items():
            if f"resource{key}" in request.value:
                raise FormatError(f"resource{key}: these are not {signal}; send them to /v1/{other}")
        if (snake := f"resource_{_SIGNALS[signal].lower()}") in request.value:
            raise FormatError(f"{snake}: OTLP JSON names are in lowerCamelCase, expected {wanted}")
    return request


_SIGNALS = {"traces": "Spans", "logs": "Logs", "metrics": "Metrics"}


def _scope_spans(value: Any, resource: dict[str, Any], sent: Any, decoded: Decoded) -> None:
    try:
        group = Row(value, "scopeSpans")
        named = group.row("scope")
        named_scope = scope(named.text("name"), named.text("version"), attributes(named, decoded))
        spans = group.list("spans")
    except FormatError as error:
        decoded.reject(str(error))
        return
    if not group.value.keys() <= _SCOPE_SPANS or not named.value.keys() <= _SCOPE:
        decoded.says_more = True
    for item in spans:
        try:
            decoded.spans.append(_span(Row(item, "span"), resource, named_scope, decoded))
            if not item.keys() <= _SPAN:
                decoded.says_more = True
        except FormatError as error:
            decoded.reject(str(error), functools.partial(_alone, item, sent, group.value.get("scope")))
        except RecursionError:
            decoded.reject("span: nested too deep to be read")


def _alone(span: Any, resource: Any, scoped: Any) -> bytes:
    """A request of its own that holds just this span."""
    scope_spans = {"spans": [span]} if scoped is None else {"scope": scoped, "spans": [span]}
    group = {"scopeSpans": [scope_spans]} if resource is None else {"resource": resource, "scopeSpans": [scope_spans]}
    return json.dumps({"resourceSpans": [group]}).encode()


def _span(row: Row, resource: dict[str, Any], scoped: dict[str, Any], decoded: Decoded) -> Span:
    if "severityText" in row.value or "severityNumber" in row.value:
        raise FormatError("span: this is a log record; send logs to /v1/logs")
    trace_id, span_id = identity(row, "traceId", 16), identity(row, "spanId", 8)
    status = row.row("status")
    if not status.value.keys() <= _STATUS:
        decoded.says_more = True
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=identity(row, "parentSpanId", 8, required=False),
        name=text(row.text("name")),
        kind=_int(row, "kind", 2**31),
        start_ns=nanoseconds(row, "startTimeUnixNano"),
        end_ns=nanoseconds(row, "endTimeUnixNano"),
        status=_status(status),
        status_message=text(status.text("message")),
        trace_state=text(row.text("traceState")),
        attributes=attributes(row, decoded),
        events=[_event(event, decoded) for event in row.rows("events")],
        links=[_link(link, decoded) for link in row.rows("links")],
        resource=resource,
        scope=scoped,
    )


def _event(row: Row, decoded: Decoded) -> Event:
    if not row.value.keys() <= _EVENT:
        decoded.says_more = True
    return Event(text(row.text("name")), nanoseconds(row, "timeUnixNano"), attributes(row, decoded))


def _link(row: Row, decoded: Decoded) -> dict[str, Any]:
    if not row.value.keys() <= _LINK:
        decoded.says_more = True
    return {
        "trace_id": identity(row, "traceId", 16),
        "span_id": identity(row, "spanId", 8),
        "attributes": attributes(row, decoded),
    }


def identity(row: Row, key: str, size: int, required: bool = True) -> str:
    """An id of this many bytes in lower-case hex; empty when there is none and none is required."""
    value = row.text(key)
    if not value or not value.strip("0"):
        if required:
            raise FormatError(f"{row.at(key)}: {'all zero' if value else 'missing'}, expected {size * 2} hex digits")
        return ""
    if len(value) != size * 2 or not _HEX.issuperset(value):
        hint = "; base64 is protobuf's own JSON, OTLP wants hex" if _is_base64(value, size) else ""
        raise FormatError(f"{row.at(key)}: {quote(value)} is not {size * 2} hex digits{hint}")
    return value.lower()


def _is_base64(value: str, size: int) -> bool:
    try:
        return len(base64.b64decode(value, validate=True)) == size
    except ValueError:
        return False


def nanoseconds(row: Row, key: str) -> int:
    return _int(row, key, _MAX_NS)


def _int(row: Row, key: str, limit: int) -> int:
    """An integer as a number or, as 64-bit integers come in JSON, as a string; 0 when it is missing."""
    value = row.value.get(key, 0)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        value = int(value)
    if value is None or isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < limit:
        raise FormatError(f"{row.at(key)}: {quote(value)} is not an integer from 0 to {limit - 1}")
    return value


def _status(row: Row) -> Status:
    code = row.value.get("code", 0)
    if isinstance(code, str):
        code = {"STATUS_CODE_UNSET": 0, "STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2}.get(code)
    if isinstance(code, bool) or not isinstance(code, int) or not 0 <= code < len(STATUSES):
        raise FormatError(f"{row.at('code')}: {quote(row.value.get('code'))} is not 0, 1 or 2")
    return STATUSES[code]


def attributes(row: Row, decoded: Decoded) -> dict[str, Any]:
    """`[{key, value: {…Value}}]` as a plain object; the last of equal keys wins.

    `decoded` is told when something of it is lost.
    """
    found = {}
    sent = 0
    for item in row.rows("attributes"):
        sent += 1
        key = item.text("key", required=True)
        value = item.value.get("value")
        if not item.value.keys() <= _PAIR:
            decoded.says_more = True
        found[key] = None if value is None else any_value(Row(value, f"{row.at('attributes')}[{quote(key)}]"), decoded)
    result: dict[str, Any] = plain(found)
    if len(result) != sent:
        decoded.says_more = True
    return result


def any_value(row: Row, decoded: Decoded, depth: int = 0) -> Any:
    """An AnyValue: `{"stringValue" | "intValue" | …}`. `decoded` is told when something of it is lost."""
    if depth > _MAX_NESTED:
        raise FormatError(f"{row.path[:200]}: nested deeper than {_MAX_NESTED} levels")
    if len(row.value) > 1 or depth == MAX_DEPTH:
        decoded.says_more = True
    for key, value in row.value.items():
        if key in _SCALARS:
            if not isinstance(value, _SCALARS[key]):
                raise FormatError(f"{row.at(key)}: {quote(value)} is not a {_SCALARS[key].__name__}")
            return value
        if key == "intValue":
            return _integer(row, value)
        if key == "doubleValue":
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                raise FormatError(f"{row.at(key)}: {quote(value)} is not a number")
            return _double(value)
        if key == "arrayValue":
            return [
                None if item == {} else any_value(Row(item, row.path), decoded, depth + 1)
                for item in _values(row.row(key), decoded)
            ]
        if key == "kvlistValue":
            pairs = [Row(item, row.path) for item in _values(row.row(key), decoded)]
            made = {
                pair.text("key", required=True): any_value(
                    Row(pair.value.get("value") or {}, row.path), decoded, depth + 1
                )
                for pair in pairs
            }
            if len(made) != len(pairs) or not all(pair.value.keys() <= _PAIR for pair in pairs):
                decoded.says_more = True
            return made
        if key == "bytesValue":
            return value
    if row.value:
        decoded.says_more = True
    return None


def _values(row: Row, decoded: Decoded) -> list[Any]:
    """Return the values of an array or a kvlist."""
    if not row.value.keys() <= {"values"}:
        decoded.says_more = True
    return row.list("values")


def _integer(row: Row, value: Any) -> int:
    try:
        if isinstance(value, str) and len(value) <= 20:
            return int(value)
    except ValueError:
        pass
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise FormatError(f"{row.at('intValue')}: {quote(value)} is not an integer")
    return value


def _double(value: float | str) -> float | str:
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise FormatError(f"doubleValue: {quote(value)} is not a number") from None
