"""A realistic trace, made just now: an agent that asks a model, calls a tool and asks again."""

import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, Status

SPANS = 4
SENT_BY = "manage.py send_test_trace"
MS = 1_000_000


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": content}]}


def _value(item: Any) -> AnyValue:
    if isinstance(item, int):
        return AnyValue(int_value=item)
    return AnyValue(string_value=item if isinstance(item, str) else json.dumps(item, ensure_ascii=False))


FOUND = {"status": "shipped", "arrives": "Friday"}
SAID = [_message("system", "You help customers."), _message("user", "Is my order A-17 on its way?")]
CALL = {"type": "tool_call", "id": "call_1", "name": "orders.find", "arguments": {"order": "A-17"}}
ASKED = {"role": "assistant", "parts": [CALL], "finish_reason": "tool_calls"}
TOLD = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_1", "response": FOUND}]}
ANSWER = {**_message("assistant", "Yes. It was shipped and arrives on Friday."), "finish_reason": "stop"}
TOOL = {"type": "function", "name": "orders.find", "description": "Find an order.", "parameters": {"type": "object"}}
MODEL = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "test", "gen_ai.request.model": "test-model"}
AGENT = {
    "gen_ai.operation.name": "invoke_agent",
    "gen_ai.agent.name": "test-agent",
    "gen_ai.agent.version": "1",
    "flywheel.outcome": "success",
    "flywheel.meta.sent_by": SENT_BY,
}
FIRST = {
    **MODEL,
    "gen_ai.input.messages": SAID,
    "gen_ai.output.messages": [ASKED],
    "gen_ai.tool.definitions": [TOOL],
    "gen_ai.usage.input_tokens": 61,
    "gen_ai.usage.output_tokens": 17,
    "gen_ai.response.finish_reasons": ["tool_calls"],
}
LOOKUP = {
    "gen_ai.operation.name": "execute_tool",
    "gen_ai.tool.name": "orders.find",
    "gen_ai.tool.call.id": "call_1",
    "gen_ai.tool.call.arguments": {"order": "A-17"},
    "gen_ai.tool.call.result": FOUND,
}
SECOND = {
    **MODEL,
    "gen_ai.input.messages": [*SAID, ASKED, TOLD],
    "gen_ai.output.messages": [ANSWER],
    "gen_ai.usage.input_tokens": 96,
    "gen_ai.usage.output_tokens": 12,
    "gen_ai.response.finish_reasons": ["stop"],
}


def episode() -> tuple[ExportTraceServiceRequest, str]:
    """The request, and its trace id."""
    trace_id, spans = secrets.token_bytes(16), [secrets.token_bytes(8) for _ in range(SPANS)]
    start = time.time_ns() - 2_400 * MS

    def span(number: int, name: str, at_ms: int, took_ms: int, attributes: Mapping[str, Any]) -> Span:
        return Span(
            trace_id=trace_id,
            span_id=spans[number],
            parent_span_id=spans[0] if number else b"",
            name=name,
            kind=Span.SPAN_KIND_CLIENT if name.startswith("chat") else Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=start + at_ms * MS,
            end_time_unix_nano=start + (at_ms + took_ms) * MS,
            attributes=[KeyValue(key=key, value=_value(value)) for key, value in attributes.items()],
            status=Status(code=Status.STATUS_CODE_OK),
        )

    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.append(KeyValue(key="service.name", value=_value("test-agent")))
    agent = {**AGENT, "gen_ai.conversation.id": f"test-{trace_id.hex()[:8]}"}
    episode_spans = [
        span(0, "invoke_agent test-agent", 0, 2_400, agent),
        span(1, "chat test-model", 10, 900, FIRST),
        span(2, "execute_tool orders.find", 950, 300, LOOKUP),
        span(3, "chat test-model", 1_300, 1_050, SECOND),
    ]
    resource.scope_spans.append(ScopeSpans(spans=episode_spans))
    return request, trace_id.hex()


def to_json(request: ExportTraceServiceRequest) -> dict[str, Any]:
    """OTLP's own JSON, whose ids are in hexadecimal."""
    body: dict[str, Any] = MessageToDict(request, use_integers_for_enums=True)
    spans = [span for part in request.resource_spans for scope in part.scope_spans for span in scope.spans]
    rows = [row for part in body["resourceSpans"] for scope in part["scopeSpans"] for row in scope["spans"]]
    for span, row in zip(spans, rows, strict=True):
        row["traceId"], row["spanId"] = span.trace_id.hex(), span.span_id.hex()
        if span.parent_span_id:
            row["parentSpanId"] = span.parent_span_id.hex()
    return body
