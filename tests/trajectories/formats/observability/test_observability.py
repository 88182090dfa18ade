"""What observability tools export: Langfuse, Phoenix, TensorZero."""

from flywheel.trajectories.formats.semantics.trace_notes import Note
from tests.trajectories.formats.exports import SPAN, TRACE, inference, observation, of_bytes, parsed, read, said

# Langfuse


def test_a_trace_of_langfuse_with_its_observations() -> None:
    found = parsed(TRACE)
    trace = found[0].trace
    assert trace is not None
    assert [(step.span_id, step.kind, step.status) for step in trace.steps] == [
        ("trace", "agent", "unset"),
        ("ob-1", "assistant", "unset"),
        ("ob-2", "tool", "unset"),
        ("ob-3", "other", "error"),
    ]
    answer = trace.steps[1]
    assert (answer.tokens_in, answer.tokens_out, answer.tokens_cached, answer.cost_usd) == (16, 3, 4, 0.003)
    assert answer.sampling == {"params": {"temperature": 0.2}}
    assert (trace.steps[2].arguments, trace.steps[2].result) == ({"q": 1}, "none")
    assert said(trace) == [
        ("user", "Find it"),
        ("assistant", "None."),
        ("tool", "none"),
    ]
    assert (trace.session_id, trace.user_id, trace.version, trace.environment) == ("s", "u", "v7", "production")
    assert (trace.tags, trace.outcome, trace.metadata["scores"]) == (["vip"], "success", {"success": "True"})
    assert [item.note.key for item in found if item.note] == ["success", "tone"]


def test_rows_of_langfuse_belong_together_wherever_they_stand() -> None:
    whole = read({**TRACE, "scores": []}, "langfuse")
    alone = read(observation(), "langfuse")
    snake = {"id": "ob-1", "trace_id": "lf-1", "type": "GENERATION", "start_time": "2026-01-31 12:00:00", "input": "[]"}
    assert whole.trace_id == alone.trace_id == read(snake, "langfuse").trace_id
    assert len(whole.trace_id) == 32
    (note,) = parsed(
        {"id": "sc", "traceId": "lf-1", "name": "success", "value": 0, "dataType": "BOOLEAN", "source": "API"}
    )
    assert note.note == Note("success", False, whole.trace_id, by="langfuse", identity="sc")
    assert note.note.outcome == "failed"
    page = parsed({"data": [observation(), observation(id="ob-9", traceId="lf-2")], "meta": {"page": 1}})
    assert len({item.trace.trace_id for item in page if item.trace}) == 2


def test_langfuse_rows_of_a_table_are_read_without_a_mapping() -> None:
    cells = [
        "ob-1,lf-1,GENERATION,a,2026-01-31T12:00:00Z",
        '"[{""role"": ""user"", ""content"": ""Find it""}]"',
        'None.,"{""input"": 12}"',
    ]
    text = f"id,traceId,type,name,startTime,input,output,usageDetails\n{','.join(cells)}\n"
    (found,) = of_bytes(text.encode())
    assert found.format == "langfuse"
    assert found.trace is not None
    assert said(found.trace) == [("user", "Find it"), ("assistant", "None.")]
    assert found.trace.steps[0].tokens_in == 12


# Phoenix


def test_spans_of_phoenix_are_read_as_spans() -> None:
    (found,) = parsed(SPAN)
    trace = found.trace
    assert trace is not None
    assert found.format == "phoenix"
    assert found.spans[0].start_ns == 1769860800123456000
    assert said(trace) == [("user", "Find it"), ("assistant", "None.")]
    assert (trace.session_id, trace.steps[0].tokens_in, trace.steps[0].status) == ("s", 12, "error")


def test_rows_of_phoenix_s_data_frame_are_the_same_spans() -> None:
    row = {
        "name": "ChatCompletion",
        "span_kind": "LLM",
        "parent_id": None,
        "start_time": 1769860800123,
        "end_time": 1769860801000,
        "status_code": "OK",
        "status_message": "",
        "events": [],
        "context.span_id": "b7ad6b7169203331",
        "context.trace_id": "0af7651916cd43dd8448eb211c80319c",
        "attributes.llm.model_name": "m",
        "attributes.llm.input_messages": [{"message.role": "user", "message.content": "Find it"}],
        "attributes.llm.output_messages": [{"message.role": "assistant", "message.content": "None."}],
        "attributes.llm.token_count.prompt": 12.0,
        "attributes.metadata": {"plan": "pro"},
        "attributes.retrieval.documents": None,
    }
    trace = read(row, "phoenix")
    assert said(trace) == [("user", "Find it"), ("assistant", "None.")]
    assert (trace.steps[0].model, trace.steps[0].tokens_in) == ("m", 12)


# TensorZero


def test_inferences_of_tensorzero_make_an_episode() -> None:
    trace = read(inference(), "tensorzero")
    assert trace.trace_id == "0196368f1ae77e219027f120f73d8ce0"
    assert said(trace) == [
        ("system", "Be brief."),
        ("user", "Find it"),
        ("assistant", ""),
        ("tool", "none"),
        ("assistant", "None."),
    ]
    (step,) = trace.steps
    assert step.sampling == {"params": {"temperature": 0.5, "seed": 7}}
    assert step.duration_ms == 1500
    assert (trace.agent, trace.version, trace.metadata) == ("find", "gpt", {"plan": "pro"})
    assert said(read(inference(output={"raw": '{"a": 1}', "parsed": {"a": 1}}), "tensorzero"))[-1][1] == '{"a": 1}'


def test_feedback_of_tensorzero_names_its_target() -> None:
    (found,) = parsed({"id": "f", "target_id": "0196368f-1ae7", "metric_name": "success", "value": True, "tags": {}})
    assert found.note is not None
    assert (found.note.target, found.note.key, found.note.value) == ("0196368f-1ae7", "success", True)
