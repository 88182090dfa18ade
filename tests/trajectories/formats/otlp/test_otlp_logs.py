"""OTLP logs: the events that are kept, what is let go, and what is wrong with a body."""

import json
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from flywheel.trajectories.formats.otlp import otlp_logs
from flywheel.trajectories.formats.otlp.otlp_logs import LogEvent, Logs
from flywheel.trajectories.formats.otlp.spans import Span
from flywheel.trajectories.formats.semantics import otlp_traces, span_meaning
from flywheel.trajectories.formats.values.hostile_json import FormatError
from tests.trajectories.formats.dialects.test_dialects_golden import fixture

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def record(name: str = "gen_ai.user.message", **fields: Any) -> dict[str, Any]:
    return {
        "traceId": TRACE,
        "spanId": SPAN,
        "timeUnixNano": "5",
        "eventName": name,
        "body": {"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": "Hi"}}]}},
        **fields,
    }


def envelope(*records: Any) -> dict[str, Any]:
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": list(records)}]}]}


def decode(*records: Any) -> Logs:
    return otlp_logs.decode(json.dumps(envelope(*records)).encode(), "application/json; charset=utf-8")


def protobuf(*records: Any) -> LogsData:
    """The same records as protobuf, whose own JSON wants ids in base64."""
    data = LogsData()
    listed = data.resource_logs.add().scope_logs.add().log_records
    for row in records:
        ids = ("traceId", "spanId")
        message = ParseDict({key: value for key, value in row.items() if key not in ids}, listed.add())
        message.trace_id, message.span_id = (bytes.fromhex(row.get(key, "")) for key in ids)
    return data


def test_an_event_says_when_where_and_what() -> None:
    expected = LogEvent(TRACE, SPAN, "gen_ai.user.message", 5, {}, {"content": "Hi"})
    assert decode(record()).events == [expected]
    assert otlp_logs.decode(protobuf(record()).SerializeToString(), "application/x-protobuf").events == [expected]


def test_the_name_may_stand_among_the_attributes() -> None:
    named = record("", attributes=[{"key": "event.name", "value": {"stringValue": "gen_ai.choice"}}])
    assert [(event.name, event.attributes) for event in decode(named).events] == [("gen_ai.choice", {})]


def test_an_event_without_a_time_has_that_of_its_observation() -> None:
    assert decode(record(timeUnixNano="0", observedTimeUnixNano="7")).events[0].time_ns == 7


def test_other_records_are_accepted_and_let_go() -> None:
    plain = {"severityText": "INFO", "body": {"stringValue": "started"}}
    read = decode(plain, record(), record("app.click"))
    assert (len(read.events), read.received, read.rejected) == (1, 3, [])
    read = otlp_logs.decode(protobuf(plain, record()).SerializeToString(), "application/x-protobuf")
    assert (len(read.events), read.received, read.rejected) == (1, 2, [])


def test_a_request_may_be_empty() -> None:
    assert otlp_logs.decode(b"{}", "application/json") == Logs()
    assert otlp_logs.decode(b"", "application/x-protobuf") == Logs()


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (record(traceId=""), "logRecord.traceId: missing, expected 32 hex digits"),
        (record(traceId="CvdlGRbNQ92ESOshHIAxnA=="), "base64 is protobuf's own JSON"),
        (record(spanId="12"), 'logRecord.spanId: "12" is not 16 hex digits'),
        (record(timeUnixNano="soon"), "timeUnixNano"),
        (record(body="Hi"), 'logRecord.body: "Hi" is not an object'),
        (record(attributes={"a": 1}), "logRecord.attributes"),
        (3, "logRecord: 3 is not an object"),
        ({"startTimeUnixNano": "1", "name": "work"}, "this is a span; send traces to /v1/traces"),
    ],
)
def test_a_bad_record_costs_no_sibling(odd: Any, reason: str) -> None:
    read = decode(record(), odd, record())
    assert len(read.events) == 2
    assert read.received == 3
    assert [item.index for item in read.rejected] == [1]
    assert reason in read.rejected[0].reason


def test_a_record_about_the_whole_trajectory_names_no_span() -> None:
    assert decode(record("gen_ai.evaluation.result", spanId="")).events[0].span_id == ""


def test_a_string_that_is_not_utf_8_costs_one_record() -> None:
    body = protobuf(record(), record(), record()).SerializeToString()
    at = body.index(b"Hi", body.index(b"Hi") + 1)
    read = otlp_logs.decode(body[:at] + b"\xff\xfe" + body[at + 2 :], "application/x-protobuf")
    assert (len(read.events), [item.index for item in read.rejected]) == (2, [1])
    assert "not UTF-8" in read.rejected[0].reason


@pytest.mark.parametrize(
    ("body", "media", "reason"),
    [
        (b"{", "application/json", "not valid JSON"),
        (b"[]", "application/json", "the body: [] is not an object"),
        (b'{"resourceSpans": []}', "application/json", "these are not logs; send them to /v1/traces"),
        (b'{"resourceMetrics": []}', "application/json", "send them to /v1/metrics"),
        (b'{"resource_logs": []}', "application/json", "expected resourceLogs"),
        (b'{"resourceLogs": 1}', "application/json", "resourceLogs: 1 is not a list"),
        (b"{}", "text/plain", "is neither"),
        (b"\xff\xff\xff", "application/x-protobuf", "not an OTLP log request"),
        (b"hello world", "application/x-protobuf", "not an OTLP log request"),
    ],
)
def test_a_body_that_cannot_be_read_says_why(body: bytes, media: str, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        otlp_logs.decode(body, media)
    assert reason in str(caught.value)


def test_traces_are_told_from_logs() -> None:
    traces = TracesData()
    span = traces.resource_spans.add().scope_spans.add().spans.add(trace_id=b"1" * 16, span_id=b"2" * 8, name="work")
    span.attributes.add(key="a").value.string_value = "b"
    with pytest.raises(FormatError, match="these look like OTLP traces; send them to /v1/traces"):
        otlp_logs.decode(traces.SerializeToString(), "application/x-protobuf")


def test_events_speak_for_their_span() -> None:
    span = Span(TRACE, SPAN, attributes={"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"})
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello"}}
    events = [
        LogEvent(TRACE, SPAN, "gen_ai.choice", 3, {}, choice),
        LogEvent(TRACE, SPAN, "gen_ai.tool.message", 2, {}, {"id": "c1", "content": "found"}),
        LogEvent(TRACE, SPAN, "gen_ai.user.message", 1, {}, "Hi"),
    ]
    joined = otlp_logs.joined(span, [*events, *events])
    content = span_meaning.content(joined, "assistant")
    assert [(message.role, message.content) for message in content.input] == [("user", "Hi"), ("tool", "found")]
    assert content.input[1].tool_call_id == "c1"
    assert [message.content for message in content.output] == ["Hello"]
    assert span_meaning.facts(joined).finish_reason == "stop"
    assert otlp_logs.joined(span, []) is span


def test_an_evaluation_that_came_as_a_log_is_an_outcome() -> None:
    said = {"gen_ai.evaluation.name": "outcome", "gen_ai.evaluation.score.label": "pass"}
    joined = otlp_logs.joined(Span(TRACE, SPAN), [LogEvent(TRACE, SPAN, "gen_ai.evaluation.result", 1, said)])
    assert list(otlp_traces.outcomes(joined, [])) == [(1, "success")]


@pytest.mark.parametrize("name", ["openai-v2", "openai-v2-latest-event"])
def test_both_encodings_say_the_same(name: str) -> None:
    body = fixture(name)["logs"]
    records = [
        record for group in body["resourceLogs"] for scope in group["scopeLogs"] for record in scope["logRecords"]
    ]
    as_json = otlp_logs.decode(json.dumps(body).encode(), "application/json")
    as_protobuf = otlp_logs.decode(protobuf(*records).SerializeToString(), "application/x-protobuf")
    assert as_json.received == as_protobuf.received == len(records) == len(as_json.events)
    assert as_json.events == as_protobuf.events


@settings(max_examples=300)
@given(st.data())
def test_whatever_the_bytes_nothing_but_a_format_error_is_raised(data: st.DataObject) -> None:
    body = bytearray(protobuf(record(), record("gen_ai.choice")).SerializeToString())
    for _ in range(data.draw(st.integers(1, 6))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])
    for raw, media in (
        (cut, "application/x-protobuf"),
        (json.dumps(envelope(record())).encode()[: len(cut)], otlp_traces.JSON),
    ):
        try:
            read = otlp_logs.decode(raw, media)
        except FormatError:
            continue
        assert read.received >= len(read.events) + len(read.rejected)
        for event in read.events:
            span_meaning.content(otlp_logs.joined(Span(TRACE, SPAN), [event]), "assistant")


keys = st.sampled_from([*record(), "stringValue", "kvlistValue", "values", "key"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(list(record())), json_values), json_values)
def test_whatever_the_json_every_record_is_counted(fields: dict[str, Any], odd: Any) -> None:
    read = decode(record() | fields, odd)
    assert read.received == 2
    assert len(read.events) + len(read.rejected) <= 2
