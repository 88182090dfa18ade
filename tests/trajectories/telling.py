"""What comes beside the spans of `talking`: log records, and requests of them."""

from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs

from tests.trajectories.talking import MS, START_NS, TRACE


def any_value(item: Any) -> AnyValue:
    if isinstance(item, dict):
        pairs = [KeyValue(key=key, value=any_value(value)) for key, value in item.items()]
        return AnyValue(kvlist_value=KeyValueList(values=pairs))
    if isinstance(item, list):
        return AnyValue(array_value=ArrayValue(values=[any_value(value) for value in item]))
    if isinstance(item, bool):
        return AnyValue(bool_value=item)
    if isinstance(item, int):
        return AnyValue(int_value=item)
    return AnyValue(double_value=item) if isinstance(item, float) else AnyValue(string_value=str(item))


def record(
    name: str,
    span: int | None = 1,
    at_ms: int = 5,
    trace: str = TRACE,
    body: Any = None,
    **attributes: Any,
) -> LogRecord:
    """A log record; attribute names have `__` where OpenTelemetry has dots."""
    return LogRecord(
        trace_id=bytes.fromhex(trace),
        span_id=b"" if span is None else span.to_bytes(8, "big"),
        event_name=name,
        time_unix_nano=START_NS + at_ms * MS,
        attributes=[KeyValue(key=key.replace("__", "."), value=any_value(item)) for key, item in attributes.items()],
        body=None if body is None else any_value(body),
    )


def evaluation(name: str, span: int | None = 1, at_ms: int = 70, **result: Any) -> LogRecord:
    """`label`, `value` (the score) and `explanation` are the result."""
    names = {"label": "score__label", "value": "score__value"}
    given = {f"gen_ai__evaluation__{names.get(key, key)}": item for key, item in result.items()}
    return record("gen_ai.evaluation.result", span, at_ms, gen_ai__evaluation__name=name, **given)


def logs_of(records: list[LogRecord]) -> ExportLogsServiceRequest:
    return ExportLogsServiceRequest(resource_logs=[ResourceLogs(scope_logs=[ScopeLogs(log_records=records)])])


def body_of(records: list[LogRecord]) -> bytes:
    return bytes(logs_of(records).SerializeToString())


def said(at_ms: int = 2, span: int = 10, question: str = "Where is my parcel?") -> list[LogRecord]:
    """The messages of one model call, one event each."""
    system = {"gen_ai__system": "openai"}
    call = {"id": "c9", "type": "function", "function": {"name": "parcels.find", "arguments": '{"id": 7}'}}
    return [
        record("gen_ai.system.message", span, at_ms, body={"content": "Help."}, **system),
        record("gen_ai.user.message", span, at_ms + 1, body={"content": question}, **system),
        record(
            "gen_ai.choice",
            span,
            at_ms + 2,
            body={"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "tool_calls": [call]}},
            **system,
        ),
    ]
