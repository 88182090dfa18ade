"""OTLP's protobuf, and what can still be read of a body that protobuf refuses.

Most attributes of a span say what those of others said: which model, which operation. So protobuf leaves them as bytes
(`_MESSAGES`), and equal bytes are read once. Python would otherwise make three objects of each.
"""

import base64
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from flywheel.trajectories.formats.otlp import request_bounds
from flywheel.trajectories.formats.otlp.spans import STATUSES, Decoded, Event, Span, scope
from flywheel.trajectories.formats.values.hostile_json import FormatError, plain, quote, text

PROTOBUF, JSON = "application/x-protobuf", "application/json"
SHORT = 96
"""Bytes of an attribute that may come again."""
MOST = 4096
"""Attributes that are remembered."""


def _messages() -> dict[str, Any]:
    """OTLP's messages, whose bytes are the same, but for `Span.attributes`: each is the bytes of a `KeyValue`."""
    file = descriptor_pb2.FileDescriptorProto.FromString(trace_pb2.DESCRIPTOR.serialized_pb)
    (span,) = (message for message in file.message_type if message.name == "Span")
    (field,) = (field for field in span.field if field.name == "attributes")
    field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
    field.ClearField("type_name")
    pool = DescriptorPool()
    for known in (common_pb2.DESCRIPTOR, resource_pb2.DESCRIPTOR):
        pool.AddSerializedFile(known.serialized_pb)
    pool.Add(file)
    names = [message.name for message in file.message_type]
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}")) for name in names
    }


_MESSAGES = _messages()


def is_protobuf(content_type: str) -> bool:
    """Whether a body is protobuf, or else JSON. Raises FormatError for what is neither."""
    media = content_type.partition(";")[0].strip().lower()
    if media not in (PROTOBUF, "application/protobuf", JSON):
        raise FormatError(f"Content-Type {quote(content_type)} is neither {PROTOBUF} nor {JSON}")
    return media != JSON


def decode(body: bytes) -> Decoded:
    """The spans of a body. Raises FormatError when it is no trace request."""
    if request_bounds.is_crowded(body):
        return _salvage(body)
    try:
        decoded = _read(_MESSAGES["TracesData"].FromString(body))
    except DecodeError:
        if (other := other_signal(body, "traces")) is not None:
            raise FormatError(other) from None
        return _salvage(body)
    if decoded.rejected and not decoded.spans and (other := other_signal(body, "traces")) is not None:
        decoded.rejected = [replace(item, reason=f"{item.reason}; {other}") for item in decoded.rejected]
    return decoded


def _read(request: Any) -> Decoded:
    """Raises DecodeError for an attribute that cannot be read."""
    decoded = Decoded(says_more=has_rest(request))
    for group in request.resource_spans:
        resource = attributes(group.resource.attributes)
        if _repeats(group.resource.attributes):
            decoded.says_more = True
        for scoped in group.scope_spans:
            _bounded(decoded.received + len(scoped.spans))
            named = scope(scoped.scope.name, scoped.scope.version, attributes(scoped.scope.attributes))
            if _repeats(scoped.scope.attributes):
                decoded.says_more = True
            for span in scoped.spans:
                _keep(span, resource, named, group, scoped, decoded)
    return decoded


def _keep(
    span: Any, resource: dict[str, Any], scoped: dict[str, Any], group: Any, scope_spans: Any, decoded: Decoded
) -> None:
    try:
        made = _span(span, resource, scoped, decoded)
        decoded.spans.append(made)
        if len(made.attributes) != len(span.attributes):
            decoded.says_more = True
        if (made.events or made.links) and any(_repeats(each.attributes) for each in (*span.events, *span.links)):
            decoded.says_more = True
        if made.links and any(link.trace_state for link in span.links):
            decoded.says_more = True
    except FormatError as error:
        decoded.reject(str(error), functools.partial(_alone, span, group, scope_spans))


def _bounded(spans: int) -> None:
    if spans > request_bounds.SPANS:
        raise FormatError(f"more than {request_bounds.SPANS} spans in one request; {request_bounds.SPLIT}")


def _alone(span: Any, group: Any, scope_spans: Any) -> bytes:
    """A request of its own that holds just this span."""
    request = _MESSAGES["TracesData"]()
    alone = request.resource_spans.add(resource=group.resource)
    alone.scope_spans.add(scope=scope_spans.scope, spans=[span])
    alone_bytes: bytes = request.SerializeToString()
    return alone_bytes


def _span(span: Any, resource: dict[str, Any], scoped: dict[str, Any], decoded: Decoded) -> Span:
    """Asks for each field once, and for what is below it only when there is something: every question costs."""
    status, events, links = span.status, span.events, span.links
    code, message, state = status.code, status.message, span.trace_state
    return Span(
        identity(span.trace_id, "trace_id", 16),
        identity(span.span_id, "span_id", 8),
        identity(span.parent_span_id, "parent_span_id", 8, required=False),
        text(span.name),
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        STATUSES[code] if 0 <= code < len(STATUSES) else "unset",
        text(message) if message else "",
        text(state) if state else "",
        _attributes(span.attributes, decoded),
        [Event(text(e.name), e.time_unix_nano, attributes(e.attributes)) for e in events] if events else [],
        [_link(link) for link in links] if links else [],
        resource,
        scoped,
    )


def _link(link: Any) -> dict[str, Any]:
    return {
        "trace_id": identity(link.trace_id, "links.trace_id", 16),
        "span_id": identity(link.span_id, "links.span_id", 8),
        "attributes": attributes(link.attributes),
    }


def identity(value: bytes, name: str, size: int, required: bool = True) -> str:
    """An id of this many bytes in hex; empty when there is none and none is required."""
    if any(value):
        if len(value) != size:
            raise FormatError(f"{name}: {len(value)} bytes, expected {size}")
        return value.hex()
    if required:
        raise FormatError(f"{name}: {'all zero' if value else 'missing'}, expected {size} bytes")
    return ""


def _attributes(pairs: Iterable[bytes], decoded: Decoded) -> dict[str, Any]:
    """As `attributes`, of pairs in bytes. Raises DecodeError."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, value = _known.get(pair) or _pair(pair, decoded)
        found[key] = value if value.__class__ is not list else value.copy()
    return found


_known: dict[bytes, tuple[str, Any]] = {}


def _pair(pair: bytes, decoded: Decoded) -> tuple[str, Any]:
    read = common_pb2.KeyValue.FromString(pair)
    value: Any = read.value.string_value
    read.DiscardUnknownFields()
    is_whole = read.ByteSize() == len(pair)
    if not value:
        value = plain(any_value(read.value))
        is_whole = is_whole and not _repeats_within(read.value)
    elif "\x00" in value:
        value = text(value)
    made = text(read.key), value
    if not is_whole:
        decoded.says_more = True
    elif len(pair) <= SHORT and not _is_nested(value):
        if len(_known) >= MOST:
            _known.clear()
        _known[pair] = made
    return made


def _is_nested(value: Any) -> bool:
    """Whether a copy of it would share something that can be changed."""
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict | list) for item in value))


def attributes(pairs: Iterable[common_pb2.KeyValue]) -> dict[str, Any]:
    """As `hostile_json.plain` makes it. A string of protobuf is UTF-8, so only NUL has to be looked for in it."""
    found: dict[str, Any] = {}
    for pair in pairs:
        value = pair.value
        # Only one of its members is set, and the others read as empty: nearly always it is one of the first two.
        if said := value.string_value:
            found[pair.key] = text(said) if "\x00" in said else said
        elif number := value.int_value:
            found[pair.key] = number
        else:
            found[pair.key] = plain(any_value(value))
    return {text(key): value for key, value in found.items()} if "\x00" in "".join(found) else found


def _repeats(pairs: Sequence[common_pb2.KeyValue]) -> bool:
    """Whether the first of two equal keys is lost, here or within a value."""
    return len({pair.key for pair in pairs}) != len(pairs) or any(_repeats_within(pair.value) for pair in pairs)


def _repeats_within(value: common_pb2.AnyValue) -> bool:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return any(_repeats_within(item) for item in value.array_value.values)
    return kind == "kvlist_value" and _repeats(value.kvlist_value.values)


def any_value(value: common_pb2.AnyValue) -> Any:
    """Recursion is bounded by protobuf's own limit of 100 nested messages."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [any_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: any_value(pair.value) for pair in value.kvlist_value.values}
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    return getattr(value, kind) if kind else None


_SIGNALS: dict[str, type[Message]] = {
    "traces": trace_pb2.TracesData,
    "logs": logs_pb2.LogsData,
    "metrics": metrics_pb2.MetricsData,
}


def other_signal(body: bytes, wanted: str) -> str | None:
    """Return a hint for a body sent to the wrong address: one that reads without a rest as another signal."""
    for name, kind in _SIGNALS.items():
        if name != wanted and reads_without_rest(kind(), body):
            return f"these look like OTLP {name}; send them to /v1/{name}"
    return None


def reads_without_rest(request: Message, body: bytes) -> bool:
    """Whether the body is a message of this kind, and nothing in it is unknown."""
    try:
        request.ParseFromString(body)
    except DecodeError:
        return False
    return bool(request.ByteSize()) and not has_rest(request)


def has_rest(request: Message) -> bool:
    """Whether something in it is unknown, which is gone from it then."""
    size = request.ByteSize()
    request.DiscardUnknownFields()
    return bool(request.ByteSize() != size)


def _salvage(body: bytes) -> Decoded:
    """Read a body that protobuf refuses span by span, so that one broken span does not cost its siblings.

    The usual cause is a string that is not UTF-8: some senders do not check. What stands beside the spans is passed
    over.
    """
    decoded = Decoded(says_more=True)
    for number, group in fields(body):
        if number != 1:
            continue
        parts = list(fields(group))
        group_alone = _resource([raw for inner, raw in parts if inner == 1])
        resource = attributes(group_alone.resource.attributes)
        for inner, scope_spans in parts:
            if inner == 2:
                for field, span in fields(scope_spans):
                    if field == 2:
                        _bounded(decoded.received + 1)
                        _salvage_span(span, resource, group_alone, decoded)
    if not decoded.received:
        raise FormatError("not an OTLP trace request: the protobuf holds no spans")
    return decoded


def _resource(parts: list[bytes]) -> Any:
    """A group without spans, of this resource; of none when the resource cannot be read."""
    group = _MESSAGES["ResourceSpans"]()
    try:
        group.resource.ParseFromString(b"".join(parts))
    except DecodeError:
        group.resource.Clear()
    return group


def _salvage_span(body: bytes, resource: dict[str, Any], group: Any, decoded: Decoded) -> None:
    if request_bounds.is_crowded_span(body):
        decoded.reject(f"span: more than {request_bounds.FIELDS} attributes, events and links")
        return
    try:
        _keep(_MESSAGES["Span"].FromString(body), resource, {}, group, _MESSAGES["ScopeSpans"](), decoded)
    except DecodeError:
        reason = "span: its protobuf cannot be read (a string that is not UTF-8, or a broken field)"
        resource_bytes = group.resource.SerializeToString()
        decoded.reject(reason, lambda: message(1, message(1, resource_bytes) + message(2, message(2, body))))


def message(number: int, body: bytes) -> bytes:
    """A length-delimited field of protobuf."""
    size, length = len(body), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + body


def fields(body: bytes, signal: str = "trace") -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a protobuf message. Raises FormatError where the message breaks off."""
    at = 0
    while at < len(body):
        tag, at = _varint(body, at, signal)
        wire = tag & 7
        if wire == 0:
            _, at = _varint(body, at, signal)
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        elif wire == 2:
            size, at = _varint(body, at, signal)
            if at + size > len(body):
                raise FormatError(f"not an OTLP {signal} request: the protobuf breaks off at byte {len(body)}")
            yield tag >> 3, body[at : at + size]
            at += size
        else:
            raise FormatError(f"not an OTLP {signal} request: no protobuf at byte {at}")
    if at > len(body):
        raise FormatError(f"not an OTLP {signal} request: the protobuf breaks off at byte {len(body)}")


def _varint(body: bytes, at: int, signal: str) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(body):
            raise FormatError(f"not an OTLP {signal} request: the protobuf breaks off at byte {len(body)}")
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise FormatError(f"not an OTLP {signal} request: no protobuf at byte {at}")
