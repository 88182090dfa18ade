"""OTLP logs, of which the GenAI conventions' events are kept: what a model was given and wrote, and evaluations.

Instrumentation may send content as log records beside the spans instead of in them. `decode` reads a request, `joined`
puts the events of a span where the dialects look for them: among the span's own. Every other record is accepted and let
go. Errors are those of traces: a record that cannot be kept is rejected with its reason, its siblings are kept, a body
that cannot be read at all raises FormatError.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from opentelemetry.proto.logs.v1 import logs_pb2

from flywheel.trajectories.formats.otlp import otlp_json, otlp_protobuf, request_bounds
from flywheel.trajectories.formats.otlp.spans import Decoded, Event, Rejected, Span
from flywheel.trajectories.formats.values.hostile_json import FormatError, Row, load, plain, text

KEPT = frozenset(
    {
        "gen_ai.client.inference.operation.details",
        "gen_ai.system.message",
        "gen_ai.user.message",
        "gen_ai.assistant.message",
        "gen_ai.tool.message",
        "gen_ai.choice",
        "gen_ai.content.prompt",
        "gen_ai.content.completion",
        "gen_ai.evaluation.result",
    }
)


@dataclass(frozen=True, slots=True)
class LogEvent:
    trace_id: str
    """32 lower-case hex digits."""
    span_id: str
    """16 lower-case hex digits, or empty for an event about the whole trajectory."""
    name: str
    time_ns: int
    attributes: dict[str, Any]
    body: Any = None
    """Up to version 1.36 of the conventions the message itself: `{"content", "tool_calls", …}`."""

    def event(self) -> Event:
        """As an event of a span, the body's fields among the attributes."""
        if isinstance(self.body, dict):
            return Event(self.name, self.time_ns, {**self.attributes, **self.body})
        if self.body in (None, ""):
            return Event(self.name, self.time_ns, self.attributes)
        return Event(self.name, self.time_ns, {"content": self.body, **self.attributes})


@dataclass(slots=True)
class Logs:
    events: list[LogEvent] = field(default_factory=list)
    received: int = 0
    """All records: `events`, `rejected`, and those that were let go."""
    rejected: list[Rejected] = field(default_factory=list)
    _room: int = request_bounds.CONTENTS

    def reject(self, reason: str, alone: Callable[[], bytes] | None = None) -> None:
        """`alone` makes its content, as OTLP JSON, and is not asked when enough is kept."""
        content = alone() if alone is not None and self._room > 0 else b""
        self._room -= len(content)
        self.rejected.append(Rejected(text(reason)[:500], self.received, content))
        self.received += 1


def decode(body: bytes, content_type: str) -> Logs:
    """The events of an OTLP log request. Raises FormatError for a body that cannot be read."""
    if not otlp_protobuf.is_protobuf(content_type):
        request_bounds.check_json(body)
        return _json(load(body))
    if request_bounds.is_crowded(body):
        raise FormatError(f"too many records and attributes in one request; {request_bounds.SPLIT}")
    return _protobuf(body)


def joined(span: Span, events: Iterable[LogEvent]) -> Span:
    """The span with these events among its own, in order of time. What an exporter sent again counts once."""
    found: list[Event] = []
    for item in sorted(events, key=lambda item: item.time_ns):
        if (event := item.event()) not in found:
            found.append(event)
    return replace(span, events=[*span.events, *found]) if found else span


def _keep(logs: Logs, event: LogEvent | None) -> None:
    if event is not None:
        logs.events.append(event)
    logs.received += 1


def _alone(record: Any) -> bytes:
    """A request of its own that holds just this record, as OTLP JSON."""
    return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}).encode()


def _name(given: str, attributes: dict[str, Any]) -> str:
    """The name of an event that is kept, or nothing."""
    name = given or attributes.get("event.name")
    return name if isinstance(name, str) and name in KEPT else ""


def _named(attributes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if key != "event.name"}


# JSON


def _json(value: Any) -> Logs:
    logs = Logs()
    for item in otlp_json.request_of(value, "logs").list("resourceLogs"):
        for group in _groups(logs, item, "resourceLogs", "scopeLogs"):
            for record in _groups(logs, group, "scopeLogs", "logRecords"):
                try:
                    _keep(logs, _json_event(Row(record, "logRecord")))
                except FormatError as error:
                    logs.reject(str(error), partial(_alone, record))
                except RecursionError:
                    logs.reject("logRecord: nested too deep to be read")
    return logs


def _groups(logs: Logs, value: Any, path: str, key: str) -> list[Any]:
    try:
        return Row(value, path).list(key)
    except FormatError as error:
        logs.reject(str(error))
        return []


def _json_event(row: Row) -> LogEvent | None:
    if "startTimeUnixNano" in row.value:
        raise FormatError("logRecord: this is a span; send traces to /v1/traces")
    rest = Decoded()  # not asked: a request of logs is never kept as it came
    attributes = otlp_json.attributes(row, rest)
    if not (name := _name(row.text("eventName"), attributes)):
        return None
    body = row.value.get("body")
    return LogEvent(
        trace_id=otlp_json.identity(row, "traceId", 16),
        span_id=otlp_json.identity(row, "spanId", 8, required=False),
        name=name,
        time_ns=otlp_json.nanoseconds(row, "timeUnixNano") or otlp_json.nanoseconds(row, "observedTimeUnixNano"),
        attributes=_named(attributes),
        body=None if body is None else plain(otlp_json.any_value(Row(body, row.at("body")), rest)),
    )


# Protobuf


def _protobuf(body: bytes) -> Logs:
    request = logs_pb2.LogsData()
    try:
        request.ParseFromString(body)
    except DecodeError:
        if (other := otlp_protobuf.other_signal(body, "logs")) is not None:
            raise FormatError(other) from None
        return _salvaged(body)
    logs, is_odd = Logs(), False
    for group in request.resource_logs:
        for record in (record for scoped in group.scope_logs for record in scoped.log_records):
            is_odd = is_odd or len(record.trace_id) not in (0, 16) or len(record.span_id) not in (0, 8)
            _keep_protobuf(logs, record)
    if is_odd and not logs.events and (other := otlp_protobuf.other_signal(body, "logs")) is not None:
        raise FormatError(other)
    return logs


def _keep_protobuf(logs: Logs, record: logs_pb2.LogRecord) -> None:
    try:
        _keep(logs, _protobuf_event(record))
    except FormatError as error:
        logs.reject(str(error), partial(_protobuf_alone, record))


def _protobuf_alone(record: logs_pb2.LogRecord) -> bytes:
    row = MessageToDict(record, use_integers_for_enums=True)
    ids = {"traceId": record.trace_id.hex(), "spanId": record.span_id.hex()}
    return _alone({**row, **{name: value for name, value in ids.items() if value}})


def _protobuf_event(record: logs_pb2.LogRecord) -> LogEvent | None:
    attributes = otlp_protobuf.attributes(record.attributes)
    if not (name := _name(record.event_name, attributes)):
        return None
    return LogEvent(
        trace_id=otlp_protobuf.identity(record.trace_id, "trace_id", 16),
        span_id=otlp_protobuf.identity(record.span_id, "span_id", 8, required=False),
        name=name,
        time_ns=record.time_unix_nano or record.observed_time_unix_nano,
        attributes=_named(attributes),
        body=plain(otlp_protobuf.any_value(record.body)) if record.HasField("body") else None,
    )


_BROKEN = "logRecord: its protobuf cannot be read (a string that is not UTF-8, or a broken field)"


def _salvaged(body: bytes) -> Logs:
    """Record by record, so that one with a string that is not UTF-8 does not cost its siblings."""
    logs = Logs()
    for number, group in otlp_protobuf.fields(body, "log"):
        for inner, scoped in otlp_protobuf.fields(group, "log") if number == 1 else ():
            for field_number, raw in otlp_protobuf.fields(scoped, "log") if inner == 2 else ():
                if field_number != 2:
                    continue
                record = logs_pb2.LogRecord()
                try:
                    record.ParseFromString(raw)
                except DecodeError:
                    logs.reject(_BROKEN)
                else:
                    _keep_protobuf(logs, record)
    if not logs.received:
        raise FormatError("not an OTLP log request: the protobuf holds no log records")
    return logs
