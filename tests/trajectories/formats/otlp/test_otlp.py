"""The wire: ids, times, values, broken spans beside good ones, and bodies that nobody can read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.trace import Link, Status, StatusCode, Tracer

from flywheel.core.digests import canonical
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.formats.values.hostile_json import FormatError
from tests.trajectories.formats.sending import as_json, both, envelope, record, span


def everything(tracer: Tracer) -> None:
    with tracer.start_as_current_span("root") as root:
        root.set_attribute("s", "grüße\x00")
        root.set_attributes({"i": -(2**63), "f": 1.5, "b": True, "l": ["a", "b"], "nan": float("nan")})
        root.add_event("seen", {"n": 3})
        with tracer.start_as_current_span("child", links=[Link(root.get_span_context(), {"why": "test"})]) as child:
            child.set_status(Status(StatusCode.ERROR, "it broke"))


def test_protobuf_and_json_read_the_same() -> None:
    proto, plain = both(record(everything, deployment_environment_name="staging"))
    assert proto == plain
    assert proto.received == 2
    assert proto.rejected == []


def test_the_span_comes_back_as_it_was_sent() -> None:
    (trace,) = both(record(everything))[0].traces
    root, child = trace.steps
    assert (root.name, child.name, child.parent_id) == ("root", "child", root.span_id)
    assert root.raw["attributes"] == {
        "s": "grüße\u2400",
        "i": -(2**63),
        "f": 1.5,
        "b": True,
        "l": ["a", "b"],
        "nan": "NaN",
    }
    assert root.raw["events"][0]["attributes"] == {"n": 3}
    assert root.raw["resource"]["service.name"] == "support-bot"
    assert root.raw["scope"] == {"name": "tests", "version": "1.0"}
    assert child.raw["links"][0]["span_id"] == root.span_id
    assert (child.status, child.error) == ("error", "it broke")
    assert child.duration_ms is not None
    assert child.duration_ms >= 0


def test_an_empty_request_is_valid() -> None:
    assert otlp_traces.traces_of(otlp_traces.decode(b"", otlp_traces.PROTOBUF)) == otlp_traces.Batch()
    assert otlp_traces.traces_of(otlp_traces.decode(b"{}", "application/json; charset=utf-8")) == otlp_traces.Batch()


def test_json_ids_are_hex_in_any_case_and_unknown_fields_are_ignored() -> None:
    row = span(traceId="0AF7651916CD43DD8448EB211C80319C", spanId="B7AD6B7169203331", newField={"a": 1})
    (trace,) = otlp_traces.traces_of(otlp_traces.decode(envelope(row), otlp_traces.JSON)).traces
    assert trace.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert trace.steps[0].span_id == "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"traceId": "abc"}, 'span.traceId: "abc" is not 32 hex digits'),
        ({"spanId": "zzzzzzzzzzzzzzzz"}, "span.spanId"),
        ({"spanId": "0000000000000000"}, "span.spanId: all zero, expected 16 hex digits"),
        ({"traceId": "Cvdl6RbNQ92ESOshHIAxnA=="}, "base64"),
        ({"traceId": None}, "span.traceId: missing"),
        ({"parentSpanId": "12"}, "span.parentSpanId"),
        ({"name": 5}, "span.name: 5 is not a string"),
        ({"startTimeUnixNano": "soon"}, "span.startTimeUnixNano"),
        ({"startTimeUnixNano": str(2**64)}, "span.startTimeUnixNano"),
        ({"endTimeUnixNano": -1}, "span.endTimeUnixNano"),
        ({"status": {"code": 7}}, "span.status.code: 7 is not 0, 1 or 2"),
        ({"status": {"code": True}}, "span.status.code"),
        ({"attributes": {"a": 1}}, "span.attributes"),
        ({"attributes": [{"key": "a", "value": {"stringValue": 1}}]}, "stringValue: 1 is not a str"),
        ({"attributes": [{"key": "a", "value": {"intValue": "1.5"}}]}, "intValue"),
        ({"attributes": [{"key": "a", "value": 1}]}, "is not an object"),
        ({"attributes": [{"value": {}}]}, "span.attributes[0].key: missing"),
        ({"events": [1]}, "span.events[0]"),
        ({"links": [{"traceId": "x"}]}, "span.links[0].traceId"),
        ({"severityText": "INFO"}, "/v1/logs"),
    ],
)
def test_a_bad_span_is_rejected_with_its_reason_and_its_siblings_are_kept(bad: dict[str, Any], reason: str) -> None:
    batch = otlp_traces.traces_of(
        otlp_traces.decode(envelope(span(), {**span(), **bad}, span(spanId="00000000000000aa")), otlp_traces.JSON)
    )
    assert batch.received == 3
    assert [step.span_id for step in batch.traces[0].steps] == ["00000000000000aa", "b7ad6b7169203331"]
    (rejected,) = batch.rejected
    assert rejected.index == 1
    assert reason in rejected.reason


@pytest.mark.parametrize("bad", [None, 1, "span", []])
def test_something_else_than_a_span_is_rejected_beside_good_ones(bad: Any) -> None:
    batch = otlp_traces.traces_of(otlp_traces.decode(envelope(bad, span()), otlp_traces.JSON))
    assert (len(batch.rejected), len(batch.traces)) == (1, 1)


def test_wrong_id_lengths_in_protobuf_are_rejected() -> None:
    request = record(everything)
    request.resource_spans[0].scope_spans[0].spans[0].trace_id = b"short"
    batch = otlp_traces.traces_of(otlp_traces.decode(request.SerializeToString(), otlp_traces.PROTOBUF))
    assert [item.reason for item in batch.rejected] == ["trace_id: 5 bytes, expected 16"]
    assert batch.received == 2


def test_a_string_that_is_not_utf8_costs_its_span_and_not_its_siblings() -> None:
    body = record(everything).SerializeToString().replace("grüße".encode(), b"gr\xff\xffe\xff\xff")
    batch = otlp_traces.traces_of(otlp_traces.decode(body, otlp_traces.PROTOBUF))
    assert batch.received == 2
    assert "UTF-8" in batch.rejected[0].reason
    assert [step.name for step in batch.traces[0].steps] == ["child"]
    assert batch.traces[0].agent == "support-bot"


def test_what_many_spans_say_is_read_once_and_belongs_to_each() -> None:
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for number in range(3):
        sent = spans.add(trace_id=b"\1" * 16, span_id=bytes([9] * 7 + [number + 1]))
        sent.attributes.add(key="model").value.string_value = "gpt"
        sent.attributes.add(key="a\0b").value.string_value = "c\0"
        sent.attributes.add(key="tags").value.array_value.values.add(string_value="x")
        sent.attributes.add(key="deep").value.kvlist_value.values.add(key="n").value.int_value = 7
        sent.attributes.add(key="model").value.bool_value = False
    first, second, third = (
        each.attributes for each in otlp_traces.decode(request.SerializeToString(), otlp_traces.PROTOBUF).spans
    )
    assert list(first.items()) == [("model", False), ("a\u2400b", "c\u2400"), ("tags", ["x"]), ("deep", {"n": 7})]
    first["tags"].append("y")
    first["deep"]["n"] = 8
    first["model"] = "other"
    assert second == third == {"model": False, "a\u2400b": "c\u2400", "tags": ["x"], "deep": {"n": 7}}


def test_logs_and_metrics_sent_to_traces_are_called_by_their_name() -> None:
    logs = ExportLogsServiceRequest()
    log = logs.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=5, severity_text="INFO")
    log.body.string_value = "hello"
    metrics = ExportMetricsServiceRequest()
    metric = metrics.resource_metrics.add().scope_metrics.add().metrics.add(name="latency", unit="ms")
    metric.gauge.data_points.add(as_double=1.0)
    for body, path in ((logs.SerializeToString(), "/v1/logs"), (metrics.SerializeToString(), "/v1/metrics")):
        assert path in why_refused(body)
    with pytest.raises(FormatError, match="/v1/logs"):
        otlp_traces.traces_of(otlp_traces.decode(b'{"resourceLogs": []}', otlp_traces.JSON))


def why_refused(body: bytes) -> str:
    try:
        batch = otlp_traces.traces_of(otlp_traces.decode(body, otlp_traces.PROTOBUF))
    except FormatError as error:
        return str(error)
    assert batch.traces == []
    return batch.rejected[0].reason


@pytest.mark.parametrize(
    ("body", "content_type", "message"),
    [
        (b"{", otlp_traces.JSON, "not valid JSON"),
        (b"", otlp_traces.JSON, "not valid JSON"),
        (b"\xff\xfe", otlp_traces.JSON, "not UTF-8: byte 0 is 0xff"),
        (b"[]", otlp_traces.JSON, "the body: [] is not an object"),
        (b'{"resourceSpans": 3}', otlp_traces.JSON, "resourceSpans: 3 is not a list"),
        (b'{"resource_spans": []}', otlp_traces.JSON, "lowerCamelCase"),
        (b"[" * 200_000, otlp_traces.JSON, "nested too deep"),
        (b'{"resourceSpans": ' + b"9" * 5000 + b"}", otlp_traces.JSON, "not valid JSON"),
        (b"hello", otlp_traces.PROTOBUF, "not an OTLP trace request"),
        (b"\x0a\xff", otlp_traces.PROTOBUF, "not an OTLP trace request: the protobuf breaks off at byte 2"),
        (b"<html>", "text/html", "neither application/x-protobuf nor application/json"),
    ],
)
def test_a_body_that_cannot_be_read_says_why(body: bytes, content_type: str, message: str) -> None:
    with pytest.raises(FormatError) as raised:
        otlp_traces.traces_of(otlp_traces.decode(body, content_type))
    assert message in str(raised.value)


def test_every_truncation_is_read_in_part_or_refused() -> None:
    whole = record(everything).SerializeToString()
    text = json.dumps(as_json(record(everything))).encode()
    for body, content_type in ((whole, otlp_traces.PROTOBUF), (text, otlp_traces.JSON)):
        for size in range(1, len(body)):
            with pytest.raises(FormatError):
                otlp_traces.traces_of(otlp_traces.decode(body[:size], content_type))


def test_hostile_values_come_out_as_json_that_postgresql_takes() -> None:
    deep: dict[str, Any] = {"stringValue": "end"}
    for _ in range(100):
        deep = {"arrayValue": {"values": [deep]}}
    row = span(
        attributes={"nul": "a\x00b", "lone": "\ud800x", "pair": "\U0001f600"},
    )
    row["attributes"] += [
        {"key": "deep", "value": deep},
        {"key": "inf", "value": {"doubleValue": "-Infinity"}},
        {"key": "huge", "value": {"intValue": str(2**63)}},
        {"key": "\x00key", "value": {"boolValue": True}},
        {"key": "none", "value": {}},
        {"key": "bytes", "value": {"bytesValue": "AAE="}},
        {"key": "map", "value": {"kvlistValue": {"values": [{"key": "k", "value": {"intValue": 7}}]}}},
    ]
    (trace,) = otlp_traces.traces_of(otlp_traces.decode(envelope(row), otlp_traces.JSON)).traces
    attributes = trace.steps[0].raw["attributes"]
    canonical(attributes)
    assert attributes["nul"] == "a\u2400b"
    assert attributes["lone"] == "\ufffdx"
    assert attributes["pair"] == "\U0001f600"
    assert attributes["inf"] == "-Infinity"
    assert attributes["huge"] == str(2**63)
    assert attributes["\u2400key"] is True
    assert attributes["none"] is None
    assert attributes["bytes"] == "AAE="
    assert attributes["map"] == {"k": 7}
    assert "nested deeper than 64 levels" in json.dumps(attributes["deep"])


def test_spans_of_many_traces_in_any_order_become_traces_in_order_of_start() -> None:
    other = "ffffffffffffffffffffffffffffffff"
    batch = otlp_traces.traces_of(
        otlp_traces.decode(
            envelope(
                span(spanId="000000000000000b", startTimeUnixNano="20", parentSpanId="000000000000000c"),
                span(traceId=other),
                span(spanId="000000000000000c", startTimeUnixNano="20"),
                span(spanId="000000000000000a", startTimeUnixNano=10),
            ),
            otlp_traces.JSON,
        )
    )
    first, second = batch.traces
    assert [step.span_id[-1] for step in first.steps] == ["a", "c", "b"]
    assert second.trace_id == other
    assert batch.received == 4


@given(st.binary(max_size=200), st.sampled_from([otlp_traces.PROTOBUF, otlp_traces.JSON]))
def test_random_bytes_raise_nothing_but_format_error(body: bytes, content_type: str) -> None:
    parse_or_refuse(body, content_type)


@given(st.data())
def test_flipped_bytes_raise_nothing_but_format_error(data: st.DataObject) -> None:
    body = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    parse_or_refuse(bytes(body), otlp_traces.PROTOBUF)


KEYS = st.sampled_from(
    [
        "traceId",
        "spanId",
        "parentSpanId",
        "name",
        "kind",
        "status",
        "code",
        "attributes",
        "key",
        "value",
        "stringValue",
        "intValue",
        "arrayValue",
        "values",
        "kvlistValue",
        "events",
        "links",
        "timeUnixNano",
        "startTimeUnixNano",
        "resource",
        "scope",
        "spans",
        "scopeSpans",
    ]
)
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(JSONS, max_size=3))
def test_json_of_the_wrong_types_raises_nothing_but_format_error(items: list[Any]) -> None:
    for value in (
        {"resourceSpans": items},
        {"resourceSpans": [{"scopeSpans": items}]},
        {"resourceSpans": [{"scopeSpans": [{"spans": items}]}]},
        {"resourceSpans": [{"scopeSpans": [{"spans": [*map(spoil, items)]}]}]},
    ):
        parse_or_refuse(json.dumps(value).encode(), otlp_traces.JSON)


def spoil(value: Any) -> Any:
    return {**span(), **value} if isinstance(value, dict) else value


def parse_or_refuse(body: bytes, content_type: str) -> None:
    try:
        batch = otlp_traces.traces_of(otlp_traces.decode(body, content_type))
    except FormatError:
        return
    kept = [step for trace in batch.traces for step in trace.steps]
    assert batch.received == len(kept) + len(batch.rejected)
    for step in kept:
        canonical(step.raw)


WHOLE = record(everything).SerializeToString()


def test_the_request_type_is_the_one_that_exporters_send() -> None:
    assert ExportTraceServiceRequest.FromString(WHOLE).resource_spans
