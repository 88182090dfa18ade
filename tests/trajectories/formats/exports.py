"""What other tools write, a row or a file of each, and how it is read."""

import io
import json
from typing import Any

from flywheel.core.traces import Trace
from flywheel.trajectories.formats.files.file_formats import Parsed, parse_file, parse_jsonl
from tests.trajectories.formats.samples import FILES

CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}


def parsed(row: Any, format: str = "auto") -> list[Parsed]:
    return list(parse_jsonl([json.dumps(row).encode()], format))


def read(row: Any, expected: str) -> Trace:
    (found,) = parsed(row)
    assert found.trace is not None, found.error
    assert found.format == expected
    return found.trace


def of_bytes(content: bytes, **more: Any) -> list[Parsed]:
    return list(parse_file(io.BytesIO(content), **more))


def of_file(name: str) -> list[Parsed]:
    with (FILES / name).open("rb") as file:
        return list(parse_file(file))


def chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}]}


def first_messages(read: list[Parsed]) -> list[str]:
    return [item.trace.conversation()[0].content for item in read if item.trace]


def said(trace: Trace) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in trace.conversation()]


def exchange(**fields: Any) -> dict[str, Any]:
    answer = {"role": "assistant", "content": "3", "refusal": None}
    logprobs = {"content": [{"token": "3", "logprob": -1e-05, "bytes": [51], "top_logprobs": []}]}
    return {
        "timestamp": 1790000000,
        "workload_id": "adder",
        "client_id": "shop",
        "request": {
            "model": "m",
            "messages": [{"role": "user", "content": "1+2?"}],
            "temperature": 0.5,
            "tools": [{"type": "function", "function": {"name": "find", "parameters": {}}}],
        },
        "response": {
            "id": "chatcmpl-1",
            "created": 1790000001,
            "model": "m-2026",
            "choices": [{"index": 0, "message": answer, "finish_reason": "stop", "logprobs": logprobs}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}},
            "prompt_token_ids": [1, 2],
        },
        **fields,
    }


OUTPUT: list[dict[str, Any]] = [
    {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Search."}], "content": []},
    {"type": "function_call", "id": "f", "call_id": "c1", "name": "find", "arguments": '{"q": 1}'},
    {"type": "function_call_output", "call_id": "c1", "output": "none"},
    {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "There is none.", "logprobs": [{"token": "T", "logprob": -0.5}]}],
    },
]  # fmt: skip


def observation(**fields: Any) -> dict[str, Any]:
    return {
        "id": "ob-1",
        "traceId": "lf-1",
        "type": "GENERATION",
        "name": "answer",
        "startTime": "2026-01-31T12:00:00.000Z",
        "endTime": "2026-01-31T12:00:01.500Z",
        "model": "m",
        "modelParameters": {"temperature": 0.2},
        "input": [{"role": "user", "content": "Find it"}],
        "output": {"role": "assistant", "content": "None."},
        "level": "DEFAULT",
        "statusMessage": None,
        "parentObservationId": None,
        "usageDetails": {"input": 12, "output": 3, "total": 15, "input_cached_tokens": 4},
        "costDetails": {"input": 0.001, "output": 0.002, "total": 0.003},
        **fields,
    }


def score(**fields: Any) -> dict[str, Any]:
    return {
        "id": "sc",
        "traceId": "lf-1",
        "name": "success",
        "value": 1,
        "dataType": "BOOLEAN",
        "source": "API",
        **fields,
    }


TRACE = {
    "id": "lf-1",
    "timestamp": "2026-01-31T12:00:00.000Z",
    "name": "assistant",
    "input": "Find it",
    "output": "None.",
    "sessionId": "s",
    "release": "v7",
    "version": None,
    "userId": "u",
    "metadata": {"plan": "pro"},
    "tags": ["vip"],
    "environment": "production",
    "observations": [
        observation(),
        observation(
            id="ob-2",
            type="TOOL",
            name="find",
            input={"q": 1},
            output="none",
            parentObservationId="ob-1",
            startTime="2026-01-31T12:00:00.500Z",
        ),
        observation(id="ob-3", type="SPAN", level="ERROR", statusMessage="broke", startTime="2026-01-31T12:00:02Z"),
    ],
    "scores": [
        score(stringValue="True"),
        score(id="sd", observationId="ob-1", name="tone", value=0.5, dataType="NUMERIC", source="ANNOTATION"),
    ],
}


SPAN: dict[str, Any] = {
    "id": "U3Bhbjox",
    "name": "ChatCompletion",
    "context": {"trace_id": "0af7651916cd43dd8448eb211c80319c", "span_id": "b7ad6b7169203331"},
    "span_kind": "LLM",
    "parent_id": None,
    "start_time": "2026-01-31T12:00:00.123456+00:00",
    "end_time": "2026-01-31T12:00:01+00:00",
    "status_code": "ERROR",
    "status_message": "slow",
    "attributes": {
        "openinference.span.kind": "LLM",
        "llm.model_name": "m",
        "llm.invocation_parameters": '{"temperature": 0.5}',
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "Find it",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": "None.",
        "llm.token_count.prompt": 12,
        "session.id": "s",
    },
    "events": [],
}

TOOL_CALL = {"type": "tool_call", "id": "c", "name": "find", "arguments": '{"q": 1}'}


def inference(**fields: Any) -> dict[str, Any]:
    return {
        "id": "0196368f-1ae8-7551-b5df-9a61593eb307",
        "function_name": "find",
        "variant_name": "gpt",
        "episode_id": "0196368f-1ae7-7e21-9027-f120f73d8ce0",
        "input": json.dumps(
            {
                "system": "Be brief.",
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "Find it"}]},
                    {"role": "assistant", "content": [TOOL_CALL]},
                    {"role": "user", "content": [{"type": "tool_result", "id": "c", "name": "find", "result": "none"}]},
                ],
            }
        ),
        "output": json.dumps([{"type": "text", "text": "None."}]),
        "inference_params": json.dumps({"chat_completion": {"temperature": 0.5, "seed": 7}}),
        "processing_time_ms": 1500,
        "timestamp": "2026-01-31T12:00:01Z",
        "tags": {"plan": "pro"},
        **fields,
    }
