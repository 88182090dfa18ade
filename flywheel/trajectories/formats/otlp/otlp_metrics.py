"""OTLP metrics, which are taken and not kept: only whether a body is what it says it is."""

from google.protobuf.message import DecodeError
from opentelemetry.proto.metrics.v1 import metrics_pb2

from flywheel.trajectories.formats.otlp import otlp_json, otlp_protobuf, request_bounds
from flywheel.trajectories.formats.values.hostile_json import FormatError, load


def check(body: bytes, content_type: str) -> None:
    """Raises FormatError for a body that is no OTLP metric request."""
    if otlp_protobuf.is_protobuf(content_type):
        _check_protobuf(body)
        return
    request_bounds.check_json(body)
    for group in otlp_json.request_of(load(body), "metrics").rows("resourceMetrics"):
        for scoped in group.rows("scopeMetrics"):
            for _ in scoped.rows("metrics"):
                pass


def _check_protobuf(body: bytes) -> None:
    if request_bounds.is_crowded(body):
        raise FormatError(f"too many points and attributes in one request; {request_bounds.SPLIT}")
    if not body or otlp_protobuf.reads_without_rest(metrics_pb2.MetricsData(), body):
        return
    if (other := otlp_protobuf.other_signal(body, "metrics")) is not None:
        raise FormatError(other)
    try:  # a newer sender may say more than is known here
        metrics_pb2.MetricsData.FromString(body)
    except DecodeError as error:
        raise FormatError(f"not an OTLP metric request: {error}") from None
