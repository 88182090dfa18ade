"""What GenAI conventions, old and new, and OpenInference say, as steps and traces."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import Tracer

from flywheel.core.digests import canonical
from flywheel.core.traces import Message, Trace
from flywheel.trajectories.formats.semantics import otlp_traces
from tests.trajectories.formats.sending import both, envelope, record, span

TOOLS = [
    {
        "type": "function",
        "name": "send_mail",
        "description": "Send a mail",
        "parameters": {"type": "object", "properties": {"to": {"type": "string"}}},
        "x-unsafe": True,
    }
]
ASKED = [{"role": "user", "parts": [{"type": "text", "content": "Mail Ann"}]}]
CALLED = [
    {
        "role": "assistant",
        "parts": [
            {"type": "reasoning", "content": "She has an address"},
            {"type": "tool_call", "id": "c1", "name": "send_mail", "arguments": {"to": "ann@x.org"}},
        ],
        "finish_reason": "tool_call",
    }
]
ANSWERED = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "sent"}]}
DONE = [{"role": "assistant", "parts": [{"type": "text", "content": "Done."}], "finish_reason": "stop"}]


def agent_run(tracer: Tracer) -> None:
    """A run as current instrumentation sends it: an agent's span around two model calls and a tool execution."""
    with tracer.start_as_current_span("invoke_agent mailer") as root:
        root.set_attributes(
            {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": "mailer",
                "gen_ai.agent.version": "7",
                "gen_ai.conversation.id": "s-1",
                "user.id": "u-1",
                "gen_ai.usage.input_tokens": 999,
                "gen_ai.output.messages": json.dumps(DONE),
                "flywheel.outcome": "success",
                "flywheel.meta.wording": "short",
                "flywheel.meta.state": json.dumps({"people": ["Ann"]}),
            }
        )
        with tracer.start_as_current_span("chat m") as call:
            call.set_attributes(
                {
                    "gen_ai.operation.name": "chat",
                    "gen_ai.request.model": "m",
                    "gen_ai.response.model": "m-1",
                    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief"}]),
                    "gen_ai.input.messages": json.dumps(ASKED),
                    "gen_ai.output.messages": json.dumps(CALLED),
                    "gen_ai.tool.definitions": json.dumps(TOOLS),
                    "gen_ai.usage.input_tokens": 10,
                    "gen_ai.usage.output_tokens": 5,
                    "gen_ai.usage.cache_read.input_tokens": 3,
                    "gen_ai.response.finish_reasons": ["tool_call"],
                }
            )
        with tracer.start_as_current_span("execute_tool send_mail") as tool:
            tool.set_attributes(
                {
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": "send_mail",
                    "gen_ai.tool.call.id": "c1",
                    "gen_ai.tool.call.arguments": '{"to": "ann@x.org"}',
                    "gen_ai.tool.call.result": "sent",
                }
            )
            tool.add_event("flywheel.intervention", {"kind": "edited", "by": "kim", "note": "wrong Ann"})
        with tracer.start_as_current_span("chat m") as call:
            call.set_attributes(
                {
                    "gen_ai.operation.name": "chat",
                    "gen_ai.input.messages": json.dumps([*ASKED, *CALLED, ANSWERED]),
                    "gen_ai.output.messages": json.dumps(DONE),
                }
            )


def test_a_run_reads_the_same_from_both_encodings_and_as_one_conversation() -> None:
    proto, plain = both(record(agent_run, deployment_environment_name="production"))
    assert proto == plain
    (trace,) = proto.traces
    assert [step.kind for step in trace.steps] == ["agent", "assistant", "tool", "assistant"]
    assert [(m.role, m.content) for m in trace.conversation()] == [
        ("system", "Be brief"),
        ("user", "Mail Ann"),
        ("assistant", ""),
        ("tool", "sent"),
        ("assistant", "Done."),
    ]
    assert trace.conversation()[2].reasoning == "She has an address"


def test_a_run_says_who_when_and_how_it_went() -> None:
    (trace,) = both(record(agent_run, deployment_environment_name="production"))[0].traces
    assert (trace.agent, trace.version, trace.session_id, trace.user_id) == ("mailer", "7", "s-1", "u-1")
    assert (trace.environment, trace.outcome) == ("production", "success")
    assert trace.metadata == {"wording": "short", "state": {"people": ["Ann"]}}
    assert trace.tools == [{key: value for key, value in TOOLS[0].items() if key != "type"}]
    (intervention,) = trace.interventions
    assert (intervention.kind, intervention.by, intervention.note) == ("edited", "kim", "wrong Ann")
    assert intervention.step == trace.steps[2].span_id
    assert intervention.at.endswith("+00:00")


def test_usage_is_counted_on_model_calls_only() -> None:
    (trace,) = both(record(agent_run))[0].traces
    assert [step.tokens_in for step in trace.steps] == [None, 10, None, None]
    call = trace.steps[1]
    assert (call.tokens_out, call.tokens_cached, call.model, call.finish_reason) == (5, 3, "m-1", "tool_call")


def test_a_tool_execution_has_its_name_arguments_and_result() -> None:
    (trace,) = both(record(agent_run))[0].traces
    tool = trace.steps[2]
    assert (tool.tool_name, tool.tool_call_id, tool.result) == ("send_mail", "c1", "sent")
    assert tool.arguments == {"to": "ann@x.org"}


def one(**fields: Any) -> Trace:
    (trace,) = otlp_traces.traces_of(otlp_traces.decode(envelope(span(**fields)), otlp_traces.JSON)).traces
    return trace


def event(name: str, **attributes: str) -> dict[str, Any]:
    pairs = [{"key": key.replace("__", "."), "value": {"stringValue": value}} for key, value in attributes.items()]
    return {"name": name, "timeUnixNano": "1700000000000000000", "attributes": pairs}


def test_numbered_attributes_of_the_old_conventions() -> None:
    trace = one(
        attributes={
            "gen_ai.system": "openai",
            "llm.request.type": "chat",
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "Mail Ann",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.finish_reason": "tool_calls",
            "gen_ai.completion.0.tool_calls.0.id": "c1",
            "gen_ai.completion.0.tool_calls.0.name": "send_mail",
            "gen_ai.completion.0.tool_calls.0.arguments": '{"to": "ann"}',
            "gen_ai.usage.prompt_tokens": "12",
            "llm.request.functions.0.name": "send_mail",
            "llm.request.functions.0.parameters": '{"type": "object"}',
        }
    )
    (step,) = trace.steps
    assert (step.kind, step.finish_reason, step.tokens_in) == ("assistant", "tool_calls", 12)
    assert step.input == [Message("user", "Mail Ann")]
    assert [(call.id, call.name, call.arguments) for call in step.tool_calls()] == [("c1", "send_mail", {"to": "ann"})]
    assert trace.tools == [{"name": "send_mail", "description": "", "parameters": {"type": "object"}}]


def test_message_events_of_the_old_conventions() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}
    trace = one(
        attributes={"gen_ai.operation.name": "chat"},
        events=[
            event("gen_ai.system.message", content="Be brief"),
            event("gen_ai.user.message", content="Find it"),
            event("gen_ai.assistant.message", tool_calls=json.dumps([call])),
            event("gen_ai.tool.message", id="c1", content="nothing"),
            event(
                "gen_ai.choice", index="0", finish_reason="stop", message='{"role": "assistant", "content": "Gone."}'
            ),
        ],
    )
    talk = trace.conversation()
    assert [message.role for message in talk] == ["system", "user", "assistant", "tool", "assistant"]
    assert talk[2].tool_calls[0].arguments == {"q": 1}
    assert talk[3].tool_call_id == "c1"
    assert talk[4].content == "Gone."
    assert trace.steps[0].finish_reason == "stop"


def test_content_may_come_in_the_details_event() -> None:
    details = {
        "gen_ai__input__messages": json.dumps(ASKED),
        "gen_ai__output__messages": json.dumps(DONE),
    }
    trace = one(
        attributes={"gen_ai.operation.name": "chat"},
        events=[event("gen_ai.client.inference.operation.details", **details)],
    )
    assert [message.content for message in trace.conversation()] == ["Mail Ann", "Done."]


def test_openinference_is_unflattened() -> None:
    prefix = "llm.output_messages.0.message"
    trace = one(
        attributes={
            "openinference.span.kind": "LLM",
            "llm.model_name": "m",
            "llm.input_messages.0.message.role": "system",
            "llm.input_messages.0.message.content": "Be brief",
            "llm.input_messages.1.message.role": "user",
            "llm.input_messages.1.message.contents.0.message_content.type": "text",
            "llm.input_messages.1.message.contents.0.message_content.text": "Find it",
            "llm.input_messages.10.message.role": "user",
            "llm.input_messages.10.message.content": "last",
            f"{prefix}.role": "assistant",
            f"{prefix}.tool_calls.0.tool_call.id": "c1",
            f"{prefix}.tool_calls.0.tool_call.function.name": "find",
            f"{prefix}.tool_calls.0.tool_call.function.arguments": '{"q": "it"}',
            "llm.tools.0.tool.json_schema": json.dumps({"type": "function", "function": {"name": "find"}}),
            "llm.token_count.prompt": "9",
            "session.id": "s",
            "metadata": '{"plan": "pro"}',
        }
    )
    (step,) = trace.steps
    assert step.kind == "assistant"
    assert [message.content for message in step.input] == ["Be brief", "Find it", "last"]
    assert step.tool_calls()[0].arguments == {"q": "it"}
    assert (step.model, step.tokens_in, trace.session_id) == ("m", 9, "s")
    assert trace.tools[0]["name"] == "find"
    assert trace.metadata == {"plan": "pro"}


def test_openinference_tools_and_retrievers() -> None:
    tool = one(
        attributes={
            "openinference.span.kind": "TOOL",
            "tool.name": "find",
            "input.value": '{"q": "it"}',
            "output.value": "found",
        }
    ).steps[0]
    assert (tool.kind, tool.tool_name, tool.arguments, tool.result) == ("tool", "find", {"q": "it"}, "found")
    retriever = one(
        attributes={
            "openinference.span.kind": "RETRIEVER",
            "input.value": "refunds",
            "retrieval.documents.0.document.content": "30 days",
        }
    ).steps[0]
    assert (retriever.kind, retriever.arguments) == ("retrieval", {"query": "refunds"})
    assert retriever.result == [{"content": "30 days"}]


def test_each_tool_response_of_one_message_becomes_a_message() -> None:
    parts = [{"type": "tool_call_response", "id": f"c{n}", "result": {"n": n}} for n in (1, 2)]
    trace = one(
        attributes={
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": json.dumps([{"role": "user", "parts": parts}]),
        }
    )
    assert trace.conversation() == [Message("tool", '{"n": 1}', (), "c1"), Message("tool", '{"n": 2}', (), "c2")]


def test_what_is_not_text_is_named_in_the_conversation() -> None:
    parts = [{"type": "text", "content": "See"}, {"type": "blob", "mime_type": "image/png", "content": "AAAA"}]
    messages = json.dumps([{"role": "user", "parts": parts}])
    trace = one(attributes={"gen_ai.operation.name": "chat", "gen_ai.input.messages": messages})
    assert trace.conversation()[0].content == "See\n[blob: image/png]"


@pytest.mark.parametrize(
    ("label", "outcome"), [("pass", "success"), ("Passed", "success"), ("fail", "failed"), ("maybe", None)]
)
def test_the_outcome_may_come_as_an_evaluation(label: str, outcome: str | None) -> None:
    named = {"gen_ai__evaluation__name": "outcome", "gen_ai__evaluation__score__label": label}
    batch = otlp_traces.traces_of(
        otlp_traces.decode(envelope(span(events=[event("gen_ai.evaluation.result", **named)])), otlp_traces.JSON)
    )
    assert batch.traces[0].outcome == outcome
    assert bool(batch.warnings) == (outcome is None)


def test_another_evaluation_is_no_outcome() -> None:
    named = {"gen_ai__evaluation__name": "politeness", "gen_ai__evaluation__score__label": "fail"}
    assert one(events=[event("gen_ai.evaluation.result", **named)]).outcome is None


def test_an_unknown_outcome_is_kept_as_a_warning() -> None:
    batch = otlp_traces.traces_of(
        otlp_traces.decode(envelope(span(attributes={"flywheel.outcome": "meh"})), otlp_traces.JSON)
    )
    assert batch.traces[0].outcome is None
    assert batch.warnings == ['flywheel.outcome: "meh" is not one of success, failed']


def test_a_service_name_stands_in_for_the_agent() -> None:
    (trace,) = both(record(lambda tracer: tracer.start_span("work").end(), service_version="2.1"))[0].traces
    assert (trace.agent, trace.version) == ("support-bot", "2.1")


def test_the_raw_view_has_the_message_that_could_not_be_understood() -> None:
    trace = one(attributes={"gen_ai.operation.name": "chat", "gen_ai.input.messages": "[{broken"})
    assert trace.steps[0].raw["attributes"]["gen_ai.input.messages"] == "[{broken"
    assert trace.steps[0].input == [Message("user", "[{broken")]


NAMES = st.sampled_from(
    [
        "gen_ai.operation.name",
        "openinference.span.kind",
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.tool.definitions",
        "gen_ai.system_instructions",
        "gen_ai.prompt.0.content",
        "gen_ai.prompt.0",
        "gen_ai.prompt.0.tool_calls.x",
        "gen_ai.completion.1",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
        "gen_ai.usage.input_tokens",
        "gen_ai.response.finish_reasons",
        "metadata",
        "llm.input_messages.0.message",
        "llm.input_messages.0.message.contents.0",
        "llm.output_messages.00.message.tool_calls.0",
        "llm.tools.0.tool",
        "llm.tools.0.tool.json_schema",
        "retrieval.documents.0",
        "tag.tags",
        "session.id",
        "flywheel.outcome",
        "flywheel.meta.",
        "message",
        "content",
        "tool_calls",
        "finish_reason",
        "gen_ai.prompt",
        "gen_ai.completion",
        "kind",
        "input.value",
    ]
)
VALUES = st.one_of(
    st.fixed_dictionaries({"stringValue": st.text(max_size=8)}),
    st.fixed_dictionaries(
        {
            "stringValue": st.sampled_from(
                [
                    "chat",
                    "LLM",
                    "TOOL",
                    "execute_tool",
                    "[[]]",
                    "[1]",
                    '[{"parts": [1, {}]}]',
                    '[{"parts": {}}]',
                    "[[[",
                    "{}",
                    '[{"role": ["x"], "parts": [{"type": ["y"]}]}]',
                    '[{"content": [{"type": 1, "text": 2}]}]',
                    '{"role": {"a": 1}, "tool_calls": [[], 3, {"function": 1}]}',
                    '[{"function": {"name": "a"}}]',
                ]
            )
        }
    ),
    st.fixed_dictionaries({"intValue": st.integers()}),
    st.fixed_dictionaries({"doubleValue": st.floats()}),
    st.just({"arrayValue": {"values": [{"stringValue": "{}"}, {"intValue": 1}, {}]}}),
    st.just({"kvlistValue": {"values": [{"key": "role", "value": {"boolValue": True}}]}}),
    st.just({}),
)
PAIRS = st.lists(st.fixed_dictionaries({"key": NAMES, "value": VALUES}), max_size=8)
EVENTS = st.sampled_from(
    [
        "gen_ai.choice",
        "gen_ai.tool.message",
        "gen_ai.content.prompt",
        "gen_ai.content.completion",
        "gen_ai.evaluation.result",
        "gen_ai.client.inference.operation.details",
        "flywheel.intervention",
        "exception",
    ]
)


@given(PAIRS, st.lists(st.fixed_dictionaries({"name": EVENTS, "attributes": PAIRS}), max_size=3))
def test_attributes_of_any_type_under_any_known_name_never_raise(pairs: Any, events: Any) -> None:
    batch = otlp_traces.traces_of(
        otlp_traces.decode(envelope({**span(), "attributes": pairs, "events": events}), otlp_traces.JSON)
    )
    assert (len(batch.traces), batch.rejected) == (1, [])
    trace = batch.traces[0]
    canonical([message.to_json() for message in trace.conversation()])
    canonical([trace.metadata, trace.tools, trace.tags, trace.steps[0].raw, trace.steps[0].result])
