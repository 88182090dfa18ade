"""OTLP metrics, which are taken and not kept: only whether a body is what it says it is."""

from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from flywheel.trajectories.formats.otlp import otlp_protobuf, request_bounds
from flywheel.trajectories.formats.values.hostile_json import FormatError, Row, load, quote

_OTHER: tuple[tuple[type[Any], str], ...] = (
    (trace_pb2.TracesData, "these look like OTLP traces; send them to /v1/traces"),
    (logs_pb2.LogsData, "these look like OTLP logs; send them to /v1/logs"),
)


def check(body: bytes, content_type: str) -> None:
    """Raises FormatError for a body that is no OTLP metric request."""
    media = content_type.partition(";")[0].strip().lower()
    if media in ("application/x-protobuf", "application/protobuf"):
        _check_protobuf(body)
    elif media == "application/json":
        request_bounds.check_json(body)
        _check_json(load(body))
    else:
        raise FormatError(f"Content-Type {quote(content_type)} is neither application/x-protobuf nor application/json")


def _check_protobuf(body: bytes) -> None:
    if request_bounds.is_crowded(body):
        raise FormatError(f"too many points and attributes in one request; {request_bounds.SPLIT}")
    if not body or otlp_protobuf.reads_without_rest(metrics_pb2.MetricsData(), body):
        return
    for kind, hint in _OTHER:
        if otlp_protobuf.reads_without_rest(kind(), body):
            raise FormatError(hint)
    try:  # a newer sender may say more than is known here
        metrics_pb2.MetricsData.FromString(body)
    except DecodeError as error:
        raise FormatError(f"not an OTLP metric request: {error}") from None


def _check_json(value: Any) -> None:
    root = Row(value, "" if isinstance(value, dict) else "the body")
    if "resourceMetrics" not in root.value:
        for key, path in (("resourceSpans", "/v1/traces"), ("resourceLogs", "/v1/logs")):
            if key in root.value:
                raise FormatError(f"{key}: these are not metrics; send them to {path}")
        if "resource_metrics" in root.value:
            raise FormatError("resource_metrics: OTLP JSON names are in lowerCamelCase, resourceMetrics is wanted")
    for group in root.rows("resourceMetrics"):
        for scoped in group.rows("scopeMetrics"):
            for _ in scoped.rows("metrics"):
                pass
