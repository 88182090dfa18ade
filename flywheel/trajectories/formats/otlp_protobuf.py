"""OTLP's protobuf, and what can still be read of a body that protobuf refuses."""

import base64
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from flywheel.trajectories.formats.reading import FormatError, plain, text
from flywheel.trajectories.formats.spans import STATUSES, Decoded, Event, Rejected, Span, scope


def decode(body: bytes) -> Decoded:
    """The spans of a body. Raises FormatError when it is no trace request."""
    request = trace_pb2.TracesData()
    try:
        request.ParseFromString(body)
    except DecodeError:
        if (other := _other_signal(body)) is not None:
            raise FormatError(other) from None
        return _salvage(body)
    decoded = Decoded()
    for group in request.resource_spans:
        resource = _attributes(group.resource.attributes)
        for scoped in group.scope_spans:
            named = scope(scoped.scope.name, scoped.scope.version, _attributes(scoped.scope.attributes))
            for span in scoped.spans:
                _keep(span, resource, named, decoded)
    if decoded.rejected and not decoded.spans and (other := _other_signal(body)) is not None:
        decoded.rejected = [Rejected(f"{item.reason}; {other}", item.index) for item in decoded.rejected]
    return decoded


def _keep(span: trace_pb2.Span, resource: dict[str, Any], scoped: dict[str, Any], decoded: Decoded) -> None:
    try:
        decoded.spans.append(_span(span, resource, scoped))
    except FormatError as error:
        decoded.reject(str(error))


def _span(span: trace_pb2.Span, resource: dict[str, Any], scoped: dict[str, Any]) -> Span:
    return Span(
        trace_id=_id(span.trace_id, "trace_id", 16),
        span_id=_id(span.span_id, "span_id", 8),
        parent_id=_id(span.parent_span_id, "parent_span_id", 8, required=False),
        name=text(span.name),
        kind=span.kind,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        status=STATUSES[span.status.code] if 0 <= span.status.code < len(STATUSES) else "unset",
        status_message=text(span.status.message),
        trace_state=text(span.trace_state),
        attributes=_attributes(span.attributes),
        events=[Event(text(e.name), e.time_unix_nano, _attributes(e.attributes)) for e in span.events],
        links=[
            {
                "trace_id": _id(link.trace_id, "links.trace_id", 16),
                "span_id": _id(link.span_id, "links.span_id", 8),
                "attributes": _attributes(link.attributes),
            }
            for link in span.links
        ],
        resource=resource,
        scope=scoped,
    )


def _id(value: bytes, name: str, size: int, required: bool = True) -> str:
    if not any(value):
        if required:
            raise FormatError(f"{name}: {'all zero' if value else 'missing'}, {size} bytes are wanted")
        return ""
    if len(value) != size:
        raise FormatError(f"{name}: {len(value)} bytes, {size} are wanted")
    return value.hex()


def _attributes(pairs: Iterable[common_pb2.KeyValue]) -> dict[str, Any]:
    result: dict[str, Any] = plain({pair.key: _value(pair.value) for pair in pairs})
    return result


def _value(value: common_pb2.AnyValue) -> Any:
    """Recursion is bounded by protobuf's own limit of 100 nested messages."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: _value(pair.value) for pair in value.kvlist_value.values}
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    return getattr(value, kind) if kind else None


_OTHER: tuple[tuple[type[Message], str], ...] = (
    (ExportLogsServiceRequest, "these look like OTLP logs; send them to /v1/logs"),
    (ExportMetricsServiceRequest, "these look like OTLP metrics; send them to /v1/metrics"),
)


def _other_signal(body: bytes) -> str | None:
    """What the body is when it was sent to the wrong address: it then reads without a rest as another signal."""
    for kind, hint in _OTHER:
        request = kind()
        try:
            request.ParseFromString(body)
        except DecodeError:
            continue
        size = request.ByteSize()
        request.DiscardUnknownFields()
        if size and request.ByteSize() == size:
            return hint
    return None


def _salvage(body: bytes) -> Decoded:
    """Read a body that protobuf refuses span by span, so that one broken span does not cost its siblings.

    The usual cause is a string that is not UTF-8: some senders do not check.
    """
    decoded = Decoded()
    for number, group in _fields(body):
        if number != 1:
            continue
        parts = list(_fields(group))
        resource = _resource([raw for inner, raw in parts if inner == 1])
        for inner, scope_spans in parts:
            if inner == 2:
                for field, span in _fields(scope_spans):
                    if field == 2:
                        _salvage_span(span, resource, decoded)
    if not decoded.received:
        raise FormatError("not an OTLP trace request: the protobuf holds no spans")
    return decoded


def _resource(parts: list[bytes]) -> dict[str, Any]:
    resource = resource_pb2.Resource()
    try:
        resource.ParseFromString(b"".join(parts))
    except DecodeError:
        return {}
    return _attributes(resource.attributes)


def _salvage_span(body: bytes, resource: dict[str, Any], decoded: Decoded) -> None:
    span = trace_pb2.Span()
    try:
        span.ParseFromString(body)
    except DecodeError:
        decoded.reject("span: its protobuf cannot be read (a string that is not UTF-8, or a broken field)")
        return
    _keep(span, resource, {}, decoded)


def _fields(body: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a protobuf message. Raises FormatError where the message breaks off."""
    at = 0
    while at < len(body):
        tag, at = _varint(body, at)
        wire = tag & 7
        if wire == 0:
            _, at = _varint(body, at)
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        elif wire == 2:
            size, at = _varint(body, at)
            if at + size > len(body):
                raise FormatError(f"not an OTLP trace request: the protobuf breaks off at byte {len(body)}")
            yield tag >> 3, body[at : at + size]
            at += size
        else:
            raise FormatError(f"not an OTLP trace request: no protobuf at byte {at}")
    if at > len(body):
        raise FormatError(f"not an OTLP trace request: the protobuf breaks off at byte {len(body)}")


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(body):
            raise FormatError(f"not an OTLP trace request: the protobuf breaks off at byte {len(body)}")
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise FormatError(f"not an OTLP trace request: no protobuf at byte {at}")
