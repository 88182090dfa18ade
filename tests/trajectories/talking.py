"""An agent that talks: the spans of small episodes, as OTLP requests."""

import json
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

TRACE = "0af7651916cd43dd8448eb211c80319c"
START_NS = 1_780_000_000_000_000_000
MS = 1_000_000


def value(item: Any) -> AnyValue:
    if isinstance(item, int):
        return AnyValue(int_value=item)
    return AnyValue(string_value=item if isinstance(item, str) else json.dumps(item))


def span(
    number: int,
    parent: int | None = None,
    at_ms: int = 0,
    took_ms: int | None = 10,
    trace: str = TRACE,
    name: str = "work",
    error: str = "",
    **attributes: Any,
) -> Span:
    """A span; attribute names have `__` where OpenTelemetry has dots."""
    start = START_NS + at_ms * MS
    return Span(
        trace_id=bytes.fromhex(trace),
        span_id=number.to_bytes(8, "big"),
        parent_span_id=b"" if parent is None else parent.to_bytes(8, "big"),
        name=name,
        start_time_unix_nano=start,
        end_time_unix_nano=0 if took_ms is None else start + took_ms * MS,
        attributes=[KeyValue(key=key.replace("__", "."), value=value(item)) for key, item in attributes.items()],
        status=Status(code=Status.STATUS_CODE_ERROR, message=error) if error else None,
    )


def text(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": content}]}


def asked(name: str, arguments: dict[str, Any], call_id: str) -> dict[str, Any]:
    part = {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments}
    return {"role": "assistant", "parts": [part]}


def episode(trace: str = TRACE, calls: int = 2, request: str = "Where is my order?") -> list[Span]:
    """An agent's span over model calls that repeat their history and the tools between them."""
    history = [text("system", "Help."), text("user", request)]
    spans = []
    at = 1
    for index in range(calls):
        answer = asked("orders.find", {"order": f"A-{index}"}, f"c{index}")
        spans.append(
            span(
                10 + 2 * index,
                parent=1,
                at_ms=at,
                trace=trace,
                name="chat",
                gen_ai__operation__name="chat",
                gen_ai__input__messages=list(history),
                gen_ai__output__messages=[answer],
                gen_ai__usage__input_tokens=100,
                gen_ai__usage__output_tokens=10,
            )
        )
        spans.append(
            span(
                11 + 2 * index,
                parent=1,
                at_ms=at + 10,
                trace=trace,
                name="execute_tool orders.find",
                error="no such order" if index == 1 else "",
                gen_ai__operation__name="execute_tool",
                gen_ai__tool__name="orders.find",
                gen_ai__tool__call__id=f"c{index}",
                gen_ai__tool__call__arguments={"order": f"A-{index}"},
                gen_ai__tool__call__result={"status": f"shipped {index}"},
            )
        )
        response = {"type": "tool_call_response", "id": f"c{index}", "response": {"status": f"shipped {index}"}}
        history += [answer, {"role": "tool", "parts": [response]}]
        at += 20
    spans.append(
        span(
            2,
            parent=1,
            at_ms=at,
            trace=trace,
            name="chat",
            gen_ai__operation__name="chat",
            gen_ai__input__messages=list(history),
            gen_ai__output__messages=[text("assistant", "It comes on Friday.")],
            gen_ai__agent__name="sub-agent",
        )
    )
    root = span(
        1,
        at_ms=0,
        took_ms=at + 10,
        trace=trace,
        name="invoke_agent support",
        gen_ai__operation__name="invoke_agent",
        gen_ai__agent__name="support",
        gen_ai__conversation__id="conv-1",
        flywheel__outcome="success",
    )
    return [*spans, root]


def request_of(spans: list[Span]) -> ExportTraceServiceRequest:
    resource = Resource(attributes=[KeyValue(key="service.name", value=value("shop"))])
    return ExportTraceServiceRequest(
        resource_spans=[ResourceSpans(resource=resource, scope_spans=[ScopeSpans(spans=spans)])]
    )


def body_of(spans: list[Span]) -> bytes:
    return bytes(request_of(spans).SerializeToString())
