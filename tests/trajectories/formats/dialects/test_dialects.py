"""Shapes of dialects that no fixture holds: older versions, other frameworks, other settings."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.core.traces import Message, Step, ToolCall
from flywheel.trajectories.formats.dialects import payloads
from flywheel.trajectories.formats.otlp.spans import Content, Event, Span
from flywheel.trajectories.formats.semantics import otlp_traces, span_meaning

CALL = ToolCall("c1", "find", {"q": 1})
CALLED = Message("assistant", "", (CALL,))
OPENAI_CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}


def step(attributes: dict[str, Any], **fields: Any) -> Step:
    sent = {key: json.dumps(value) if isinstance(value, dict) else value for key, value in attributes.items()}
    return otlp_traces.step_of(Span("1" * 32, "2" * 16, attributes=sent, **fields))


def test_vercel_4_says_args_and_result() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Find it"}, {"type": "image", "mimeType": "image/png"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "reasoning", "text": "hm"},
                {"type": "tool-call", "toolCallId": "c1", "toolName": "find", "args": {"q": 1}},
            ],
        },
        {"role": "tool", "content": [{"type": "tool-result", "toolCallId": "c1", "toolName": "find", "result": [1]}]},
    ]
    read = step(
        {
            "ai.operationId": "ai.streamText.doStream",
            "ai.prompt.messages": json.dumps(messages),
            "ai.response.text": "Found",
            "ai.usage.promptTokens": 3,
            "ai.settings.maxTokens": 9,
        }
    )
    assert [message.role for message in read.input] == ["user", "assistant", "tool"]
    assert read.input[0].content.startswith("Find it\n[image")
    assert (read.input[1].tool_calls, read.input[1].reasoning) == ((CALL,), "hm")
    assert read.input[2] == Message("tool", "[1]", (), "c1", "find")
    assert read.output == [Message("assistant", "Found")]
    assert (read.kind, read.tokens_in, read.sampling) == ("assistant", 3, {"params": {"max_tokens": 9}})


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("ai.generateObject", "agent"),
        ("ai.generateObject.doGenerate", "assistant"),
        ("ai.embed", "other"),
        ("ai.embed.doEmbed", "other"),
        ("ai.toolCall", "tool"),
        ("ai", "other"),
    ],
)
def test_vercel_names_what_it_does(operation: str, kind: str) -> None:
    read = step({"ai.operationId": operation, "ai.usage.inputTokens": 5, "ai.usage.outputTokens": 5})
    assert read.kind == kind
    assert (read.tokens_in is not None) == (kind == "assistant")


def test_a_vercel_call_around_the_model_shows_question_and_answer() -> None:
    read = step(
        {
            "ai.operationId": "ai.generateText",
            "ai.prompt": {"system": "Be brief", "prompt": "Hi"},
            "ai.response.object": {"mood": "good"},
            "ai.telemetry.functionId": "greeter",
        }
    )
    assert read.input == [Message("system", "Be brief"), Message("user", "Hi")]
    assert read.output == [Message("assistant", '{"mood": "good"}')]


def test_langchain_messages_are_read_as_langsmith_sends_them() -> None:
    def made(kind: str, **fields: Any) -> dict[str, Any]:
        return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", kind], "kwargs": fields}

    asked = [made("SystemMessage", content="Be brief"), made("HumanMessage", content="Find it")]
    calls = [{"name": "find", "args": {"q": 1}, "id": "c1", "type": "tool_call"}]
    answer = made("AIMessage", content="", tool_calls=calls)
    read = step(
        {
            "langsmith.span.kind": "llm",
            "gen_ai.operation.name": "chat",
            "gen_ai.prompt": {"messages": [asked]},
            "gen_ai.completion": {"generations": [[{"text": "", "message": answer}]]},
        }
    )
    assert read.input == [Message("system", "Be brief"), Message("user", "Find it")]
    assert read.output == [Message("assistant", "", (CALL,))]


def test_langsmith_takes_the_outermost_chain_for_the_agent() -> None:
    said = {"langsmith.span.kind": "chain", "gen_ai.operation.name": "chain", "gen_ai.prompt": {"question": "Find it"}}
    assert step(said).kind == "agent"
    assert step(said).input == [Message("user", "Find it")]
    assert step(said, parent_id="3" * 16).kind == "other"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"choices": [{"message": {"role": "assistant", "tool_calls": [OPENAI_CALL]}}]}, CALLED),
        ({"role": "assistant", "content": [{"type": "text", "text": "Hi"}]}, Message("assistant", "Hi")),
        ({"content": [{"type": "tool_use", "id": "c1", "name": "find", "input": {"q": 1}}]}, CALLED),
        ({"output": [{"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"q": 1}'}]}, CALLED),
        ({"message": {"content": "Hi"}}, Message("assistant", "Hi")),
        ([{"type": "ai", "content": "Hi"}], Message("assistant", "Hi")),
        ({"messages": [{"type": "ai", "data": {"content": "Hi"}}]}, Message("assistant", "Hi")),
        ("Hi", Message("assistant", "Hi")),
        ('"Hi"', Message("assistant", "Hi")),
        ({"score": 1}, Message("assistant", '{"score": 1}')),
        ({"text": "Hi"}, Message("assistant", "Hi")),
    ],
)
def test_an_answer_is_read_in_every_shape(answer: Any, expected: Message) -> None:
    assert payloads.answered(json.dumps(answer) if not isinstance(answer, str) else answer) == [expected]


@pytest.mark.parametrize(
    "asked",
    [
        {"messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]},
        [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}],
        {"system": "Be brief", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        {"instructions": "Be brief", "input": "Hi"},
        {"instructions": "Be brief", "input": [{"role": "user", "content": "Hi"}]},
        {"instructions": "Be brief", "prompt": "Hi"},
    ],
)
def test_a_question_is_read_in_every_shape(asked: Any) -> None:
    assert payloads.input_messages(json.dumps(asked)) == [Message("system", "Be brief"), Message("user", "Hi")]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"args": ["Find it"], "kwargs": {}}, "Find it"),
        ({"args": [], "kwargs": {"question": "Find it"}}, "Find it"),
        ({"question": "Find it"}, "Find it"),
        ({"messages": [{"role": "user", "content": "Find it"}]}, "Find it"),
        ({"args": [["Find it", "Send it"]], "kwargs": {}}, "Find it\nSend it"),
        ({"a": 1, "b": 2}, '{"a": 1, "b": 2}'),
    ],
)
def test_an_agent_that_is_a_function_is_asked_by_its_argument(value: Any, text: str) -> None:
    assert payloads.called(json.dumps(value)) == [Message("user", text)]


def test_tools_are_found_in_a_request_wherever_they_stand() -> None:
    tool = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
    seen = payloads.Definitions()
    for request in (
        {"tools": [tool], "messages": []},
        {"messages": [{"role": "user", "content": '{"tools": [{"name": "no"}]}'}], "tools": [tool]},
    ):
        for compact in (None, (",", ":")):
            assert [found["name"] for found in seen.within(json.dumps(request, separators=compact))] == ["find"]
    assert seen.within(json.dumps({"tools": [tool, {"name": "send"}]}))[1]["name"] == "send"
    assert seen.within('{"tools": [{"name": "cut') == []
    assert seen.within(None) == []


def test_langfuse_says_what_a_call_cost() -> None:
    usage = {"input": 7, "output": 2, "input_cached_tokens": 3, "total": 12}
    fields = {"langfuse.observation.usage_details": usage, "langfuse.observation.cost_details": {"total": 0.5}}
    read = step({"langfuse.observation.type": "generation", "langfuse.observation.model.name": "m", **fields})
    assert (read.model, read.tokens_in, read.tokens_out, read.tokens_cached, read.cost_usd) == ("m", 10, 2, 3, 0.5)
    for kind in ("span", "agent", "tool", "embedding"):
        assert step({"langfuse.observation.type": kind, **fields}).tokens_in is None


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"input": 6000, "input_cached_tokens": 4000, "output": 5, "output_reasoning_tokens": 2}, (10_000, 7, 4000)),
        ({"input": 6000, "cache_read_input_tokens": 4000, "cache_creation_input_tokens": 10}, (10_010, None, 4000)),
        ({"prompt_tokens": 10_000, "prompt_tokens_details": {"cached_tokens": 4000}}, (10_000, None, 4000)),
        ({"input_cached_tokens": 3}, (None, None, 3)),
    ],
)
def test_langfuses_buckets_exclude_each_other(usage: dict[str, Any], tokens: tuple[Any, ...]) -> None:
    read = step({"langfuse.observation.type": "generation", "langfuse.observation.usage_details": usage})
    assert (read.tokens_in, read.tokens_out, read.tokens_cached) == tokens


def test_a_span_that_langfuse_only_labels_keeps_its_own_dialect() -> None:
    read = step(
        {
            "langfuse.observation.type": "span",
            "openinference.span.kind": "LLM",
            "llm.token_count.prompt": 4,
            "llm.output_messages.0.message.content": "Hi",
        }
    )
    assert (read.kind, read.tokens_in, read.output) == ("assistant", 4, [Message("assistant", "Hi")])


def test_an_open_span_of_logfire_is_no_model_call() -> None:
    read = step({"logfire.span_type": "pending_span", "gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 4})
    assert (read.kind, read.tokens_in) == ("other", None)


def test_a_streamed_call_that_failed_is_a_model_call() -> None:
    fields = {"request_data": {"model": "m"}, "gen_ai.operation.name": "chat", "logfire.span_type": "span"}
    scope = {"name": "logfire.openai"}
    assert step(fields, scope=scope).kind == "other"
    assert step(fields, scope=scope, status="error").kind == "assistant"


def test_a_pydantic_agent_without_model_calls_speaks_for_itself() -> None:
    said = [
        {"role": "user", "parts": [{"type": "text", "content": "Hi"}]},
        {"role": "assistant", "parts": [{"type": "text", "content": "Hello"}]},
    ]
    system = json.dumps([{"type": "text", "content": "Be brief"}])
    read = step(
        {"agent_name": "greeter", "pydantic_ai.all_messages": json.dumps(said), "gen_ai.system_instructions": system}
    )
    assert (read.kind, read.input, read.output) == (
        "agent",
        [Message("system", "Be brief"), Message("user", "Hi")],
        [Message("assistant", "Hello")],
    )
    assert step({"agent_name": "greeter", "final_result": "Hello"}).output == [Message("assistant", "Hello")]


def test_traceloop_reads_what_langchain_gave() -> None:
    read = step(
        {
            "traceloop.span.kind": "tool",
            "traceloop.entity.name": "find",
            "traceloop.entity.input": json.dumps({"input_str": "{'q': 1}", "inputs": {"q": 1}, "metadata": {}}),
            "traceloop.entity.output": json.dumps({"output": "none", "kwargs": {}}),
        }
    )
    assert (read.tool_name, read.arguments, read.result) == ("find", {"q": 1}, "none")


def test_a_streamed_answer_of_mlflow_is_put_together() -> None:
    deltas: list[dict[str, Any]] = [
        {"content": "Wait", "tool_calls": [{"index": 0, "id": "c1", "function": {"name": "find", "arguments": '{"q'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '": 1}'}}, {"index": 1, "id": "c2", "function": {}}]},
    ]
    chunks = [{"choices": [{"delta": delta}]} for delta in deltas]
    events = [
        Event(f"mlflow.chunk.item.{index}", index, {"mlflow.chunk.value": json.dumps(chunk)})
        for index, chunk in enumerate([*chunks, {"choices": [{"finish_reason": "tool_calls", "delta": None}]}, {}])
    ]
    read = step({"mlflow.spanType": '"LLM"', "mlflow.spanOutputs": {"choices": []}}, events=events)
    assert read.output == [Message("assistant", "Wait", (CALL, ToolCall("c2", "", {})))]
    assert read.finish_reason == "tool_calls"


NAMES = ("role", "content", "messages", "choices", "generations", "message", "output", "input", "type", "id", "kwargs")
names = st.sampled_from([*NAMES, "args", "tools", "text", "data", "system"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=500)
@given(values)
def test_payloads_take_everything(value: Any) -> None:
    for given_value in (value, json.dumps(value)):
        for read in (payloads.input_messages, payloads.answered, payloads.called):
            for message in read(given_value):
                assert isinstance(message.content, str)
                assert isinstance(message.role, str)
        payloads.arguments(given_value)
        payloads.result(given_value)
        payloads.take(Content(), "agent", given_value, given_value)
        payloads.Definitions().within(given_value)
    for mark in ("mlflow.spanType", "langfuse.observation.type", "ai.operationId", "traceloop.span.kind"):
        span_meaning.facts(Span("1" * 32, "2" * 16, attributes={mark: value}))
