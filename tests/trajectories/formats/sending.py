"""What an agent's telemetry sends, made by the real OpenTelemetry SDK and its encoder."""

import base64
import json
from collections.abc import Callable
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from flywheel.trajectories.formats.semantics import otlp_traces


def record(act: Callable[[Tracer], None], **resource: str) -> ExportTraceServiceRequest:
    """The export request of what `act` does with a tracer. Resource keys have `_` where OpenTelemetry has dots."""
    exporter = InMemorySpanExporter()
    named = {key.replace("_", "."): value for key, value in resource.items()}
    provider = TracerProvider(resource=Resource.create({"service.name": "support-bot", **named}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    act(provider.get_tracer("tests", "1.0"))
    request = encode_spans(exporter.get_finished_spans())
    assert isinstance(request, ExportTraceServiceRequest)
    return request


def as_json(request: ExportTraceServiceRequest) -> dict[str, Any]:
    """The request in OTLP's own JSON: protobuf's JSON with hexadecimal ids and numbers for enums."""
    body: dict[str, Any] = MessageToDict(request, use_integers_for_enums=True)

    def hexed(node: Any) -> None:
        if isinstance(node, list):
            for item in node:
                hexed(item)
        elif isinstance(node, dict):
            for key, value in node.items():
                if key in ("traceId", "spanId", "parentSpanId"):
                    node[key] = base64.b64decode(value).hex()
                else:
                    hexed(value)

    hexed(body)
    return body


def both(request: ExportTraceServiceRequest) -> list[otlp_traces.Batch]:
    """The request as it is read from protobuf and from JSON."""
    return [
        otlp_traces.traces_of(otlp_traces.decode(request.SerializeToString(), otlp_traces.PROTOBUF)),
        otlp_traces.traces_of(otlp_traces.decode(json.dumps(as_json(request)).encode(), otlp_traces.JSON)),
    ]


def span(**fields: Any) -> dict[str, Any]:
    """One span in OTLP JSON; `attributes` as a plain dict of strings."""
    pairs = [{"key": key, "value": {"stringValue": value}} for key, value in fields.pop("attributes", {}).items()]
    base = {"traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331", "name": "work"}
    return {**base, "attributes": pairs, **fields}


def envelope(*spans: Any) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}).encode()
