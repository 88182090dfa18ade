"""Formats of other tools, in the shapes that they really write; `files/` holds what the tools themselves wrote."""

import io
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flywheel.core.traces import Trace
from flywheel.trajectories.formats import FORMATS, Parsed, parse_file, parse_jsonl
from flywheel.trajectories.formats.notes import Note
from tests.trajectories.formats.samples import FILES

CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}


def parsed(row: Any, format: str = "auto") -> list[Parsed]:
    return list(parse_jsonl([json.dumps(row).encode()], format))


def read(row: Any, expected: str) -> Trace:
    (found,) = parsed(row)
    assert found.trace is not None, found.error
    assert found.format == expected
    return found.trace


def of_file(name: str) -> list[Parsed]:
    with (FILES / name).open("rb") as file:
        return list(parse_file(file))


def said(trace: Trace) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in trace.conversation()]


# Raw calls


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


def test_a_raw_call_keeps_its_log_probabilities() -> None:
    trace = read(exchange(), "openai-requests")
    assert said(trace) == [("user", "1+2?"), ("assistant", "3")]
    answer = trace.steps[1]
    assert answer.sampling == {"prompt_token_ids": [1, 2], "logprobs": [-1e-05], "params": {"temperature": 0.5}}
    assert (answer.model, answer.finish_reason, answer.tokens_in, answer.tokens_cached) == ("m-2026", "stop", 5, 2)
    assert (trace.agent, trace.metadata) == ("adder", {"client_id": "shop"})
    assert trace.steps[0].started_at is not None
    assert [tool["name"] for tool in trace.tools] == ["find"]


def test_a_call_without_an_answer_is_an_error() -> None:
    trace = read(exchange(response={"error": {"message": "overloaded"}}), "openai-requests")
    assert (trace.steps[-1].status, trace.steps[-1].error) == ("error", "overloaded")


def test_a_call_whose_parts_are_json_text_is_read() -> None:
    row = exchange()
    text = {**row, "request": json.dumps(row["request"]), "response": json.dumps(row["response"])}
    assert said(read(text, "openai-requests")) == [("user", "1+2?"), ("assistant", "3")]


# Responses


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


def test_items_of_a_response_become_turns() -> None:
    row = {
        "id": "resp_1",
        "object": "response",
        "model": "m",
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Find it"}]}],
        "output": OUTPUT,
        "temperature": 1.0,
        "status": "completed",
        "usage": {"input_tokens": 9, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 3}},
    }
    trace = read(row, "responses")
    assert [step.kind for step in trace.steps] == ["system", "user", "assistant", "tool", "assistant", "assistant"]
    asked, told, searched, answer = trace.steps[2:]
    assert (asked.output[0].reasoning, asked.output[0].tool_calls[0].arguments) == ("Search.", {"q": 1})
    assert (told.tool_name, told.result, told.arguments) == ("find", "none", {"q": 1})
    assert answer.output[0].content == "There is none."
    assert searched.output[0].tool_calls[0].name == "web_search"
    assert answer.sampling == {"logprobs": [-0.5], "params": {"temperature": 1.0}}
    assert (answer.tokens_in, answer.tokens_out, answer.tokens_cached) == (9, 4, 3)


def test_nemo_gym_rollouts_keep_token_ids() -> None:
    tokens = {"prompt_token_ids": [1, 2], "generation_token_ids": [3, 4], "generation_log_probs": [-0.25, -0.0]}
    output = [*OUTPUT[:1], {**OUTPUT[1], **tokens}, OUTPUT[2], OUTPUT[4]]
    row = {
        "responses_create_params": {"input": [{"role": "user", "content": "Find it"}], "tools": [], "temperature": 1.0},
        "response": {"id": "resp", "object": "response", "model": "m", "output": output, "tools": []},
        "reward": 1.0,
        "_ng_task_index": 7,
        "_ng_rollout_index": 2,
        "expected": "none",
    }
    trace = read(row, "nemo-gym")
    assert trace.steps[1].sampling == {
        "prompt_token_ids": [1, 2],
        "token_ids": [3, 4],
        "logprobs": [-0.25, -0.0],
        "params": {"temperature": 1.0},
    }
    assert (trace.outcome, trace.session_id) == ("success", "task-7")
    assert trace.metadata["_ng_rollout_index"] == 2
    assert trace.metadata["expected"] == "none"
    assert read({**row, "reward": 0.4}, "nemo-gym").outcome is None


@pytest.mark.parametrize(("reward", "outcome"), [(None, None), (0.0, "failed"), (1.0, "success")])
def test_what_nemo_gym_could_not_score_is_no_failure(reward: float | None, outcome: str | None) -> None:
    row = {
        "responses_create_params": {"input": "Find it"},
        "response": {"output": OUTPUT},
        "_ng_failure_class": "model_server_unreachable",
        "reward": reward,
    }
    trace = read({key: value for key, value in row.items() if value is not None}, "nemo-gym")
    assert (trace.outcome, trace.steps[-1].error) == (outcome, "model_server_unreachable")


# Preferences


@pytest.mark.parametrize(
    "row",
    [
        {
            "input": {"messages": [{"role": "user", "content": "Hi"}], "tools": []},
            "preferred_output": [{"role": "assistant", "content": "Hello"}],
            "non_preferred_output": [{"role": "assistant", "content": "What"}],
        },
        {"prompt": "Hi", "chosen": "Hello", "rejected": "What"},
        {
            "prompt": [{"role": "user", "content": "Hi"}],
            "chosen": [{"role": "assistant", "content": "Hello"}],
            "rejected": [{"role": "assistant", "content": "What"}],
            "score_chosen": 8.5,
        },
    ],
)
def test_a_preference_is_two_trajectories_of_one_session(row: dict[str, Any]) -> None:
    good, bad = parsed(row)
    assert good.trace is not None
    assert bad.trace is not None
    assert said(good.trace) == [("user", "Hi"), ("assistant", "Hello")]
    assert said(bad.trace) == [("user", "Hi"), ("assistant", "What")]
    assert (good.trace.tags, bad.trace.tags) == (["preferred"], ["rejected"])
    assert good.trace.session_id == bad.trace.session_id != ""
    assert good.trace.outcome is None
    assert good.trace.trace_id != bad.trace.trace_id


def test_a_completion_row_is_a_trajectory() -> None:
    assert said(read({"prompt": "Hi", "completion": "Hello"}, "preferences")) == [
        ("user", "Hi"),
        ("assistant", "Hello"),
    ]


# verifiers


def test_an_episode_of_verifiers_keeps_every_token() -> None:
    (found,) = of_file("verifiers_episode.json")
    trace = found.trace
    assert trace is not None
    assert found.format == "verifiers"
    assert [step.sampling["token_ids"] for step in trace.steps] == [[1, 2, 3], [4, 5], [6, 7, 8, 9], [10, 11], [12, 13]]
    asked = trace.steps[2]
    assert asked.sampling["mask"] == [False, True, True, True]
    assert [str(value) for value in asked.sampling["logprobs"]] == ["0.0", "-0.1235", "-0.0", "-0.0"]
    assert (asked.finish_reason, asked.tokens_in, asked.tokens_cached, asked.parent_id) == ("tool_calls", 6, 2, "n1")
    assert asked.output[0].reasoning == "Use add."
    assert trace.steps[3].arguments == {"x": 1, "y": 2}
    assert (trace.outcome, trace.agent, trace.version) == ("success", "solver", "tiny")
    assert (trace.metadata["reward"], trace.metadata["rewards"]["style"], trace.metadata["env"]) == (1.0, None, "add")
    assert trace.session_id == "1af7651916cd43dd8448eb211c80319c"
    assert [tool["name"] for tool in trace.tools] == ["add"]


def test_classic_results_keep_tokens_of_each_turn() -> None:
    def tokens(first: int) -> dict[str, Any]:
        return {
            "tokens": {
                "prompt_ids": [first],
                "completion_ids": [first + 1],
                "completion_mask": [1],
                "completion_logprobs": [-0.5],
            }
        }

    row = {
        "example_id": 3,
        "prompt": [{"role": "user", "content": "Find it"}],
        "completion": [
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "none"},
            {"role": "assistant", "content": "None."},
        ],
        "answer": "none",
        "task": "search",
        "reward": 0.0,
        "metrics": {"correct": 0.0},
        "trajectory": [tokens(1), tokens(5)],
    }
    trace = read(row, "verifiers")
    assert (trace.outcome, trace.session_id, trace.metadata["answer"]) == ("failed", "search-3", "none")
    assert [step.sampling.get("token_ids") for step in trace.steps] == [None, [2], None, [6]]
    assert trace.steps[3].sampling["mask"] == [1]


# Langfuse


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
    assert (answer.tokens_in, answer.tokens_out, answer.tokens_cached, answer.cost_usd) == (12, 3, 4, 0.003)
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


def of_bytes(content: bytes, **more: Any) -> list[Parsed]:
    return list(parse_file(io.BytesIO(content), **more))


# Phoenix


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


# Inspect


@pytest.mark.parametrize("name", ["inspect.eval", "inspect.json"])
def test_a_log_of_inspect_is_read_sample_by_sample(name: str) -> None:
    found = of_file(name)
    right, wrong = (item.trace or Trace("") for item in found)
    assert {item.format for item in found} == {"inspect"}
    assert [message.role for message in right.conversation()] == ["system", "user", "assistant", "tool", "assistant"]
    answer = right.steps[4]
    assert answer.sampling["logprobs"] == [-0.1, -1e-05]
    assert answer.sampling["params"] == {"temperature": 0.5, "seed": 1, "logprobs": True}
    assert (answer.finish_reason, answer.tokens_in, answer.model) == ("stop", 98, "mockllm/model")
    assert answer.ended_at is not None
    assert (right.steps[3].tool_name, right.steps[3].arguments) == ("add", {"x": 1, "y": 2})
    assert (right.outcome, wrong.outcome) == ("success", "failed")
    assert (right.metadata["scores"], right.metadata["metadata"]) == ({"includes": "C"}, {"level": 1})
    assert [tool["name"] for tool in right.tools] == ["add"]
    assert right.session_id == "task-add-1"


def test_errors_and_limits_of_inspect_are_shown() -> None:
    sample = json.loads((FILES / "inspect.json").read_text())["samples"][1]
    failed = read({**sample, "scores": {}, "error": {"message": "no network", "traceback": ""}}, "inspect")
    assert (failed.outcome, failed.steps[-1].status, failed.steps[-1].error) == ("failed", "error", "no network")
    limited = read({**sample, "limit": {"type": "token", "limit": 100}}, "inspect")
    assert limited.steps[-1].finish_reason == "limit: token"
    long = {"messages": [{"role": "user", "content": "attachment://ab"}], "attachments": {"ab": "Long"}}
    attached = read({**sample, **long}, "inspect")
    assert said(attached) == [("user", "Long")]


# TensorZero


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


# All of them


EXAMPLES = {
    "openai-requests": exchange(),
    "responses": {"input": "Hi", "output": OUTPUT},
    "nemo-gym": {"responses_create_params": {"input": "Hi"}, "response": {"output": OUTPUT}, "reward": 1},
    "preferences": {"prompt": "Hi", "chosen": "a", "rejected": "b"},
    "verifiers": json.loads((FILES / "verifiers_episode.json").read_text()),
    "langfuse": TRACE,
    "phoenix": SPAN,
    "inspect": json.loads((FILES / "inspect.json").read_text()),
    "tensorzero": inference(),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_is_detected_and_no_other_claims_it_first(name: str) -> None:
    assert {item.format for item in parsed(EXAMPLES[name])} == {name}


@pytest.mark.parametrize("name", EXAMPLES)
def test_ids_are_the_same_every_time(name: str) -> None:
    one, two = ([item.trace.trace_id for item in parsed(EXAMPLES[name]) if item.trace] for _ in range(2))
    assert one == two
    assert len(set(one)) == len(one)
    assert all(len(trace_id) == 32 for trace_id in one)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (exchange(request={"messages": [{"role": "robot"}]}), 'request.messages[0].role: "robot" is not one of'),
        (exchange(request={"messages": [], "input": 1}, response={"choices": []}), "request.messages: empty"),
        ({"input": "x", "output": [{"type": "function_call"}]}, "output[0].name: missing, a string"),
        ({"responses_create_params": 1, "response": {}}, "responses_create_params: 1 is not an object"),
        ({"prompt": "x", "chosen": [{"role": "robot"}], "rejected": ""}, 'chosen[0].role: "robot" is not one of'),
        ({"nodes": [{"message": {"role": "robot"}}], "task": {}}, 'nodes[0].message.role: "robot" is not one of'),
        ({"prompt": [], "completion": [], "reward": 1}, "completion: empty"),
        (observation(traceId=5), "traceId: 5 is not a string"),
        ({**SPAN, "start_time": "noon"}, 'start_time: "noon" is not a time'),
        ({**SPAN, "context": {"trace_id": "x", "span_id": "y"}}, 'span.traceId: "x" is not 32 hex digits'),
        (inference(input="[]"), "input: an object with messages is wanted"),
        ({"eval": {}, "status": "success"}, "samples: missing, a list"),
        ({"eval": {}, "samples": [{"messages": 5}]}, "samples[0].messages: 5 is not a list"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(row: Any, message: str) -> None:
    (found,) = parsed(row)
    assert found.trace is None
    assert message in found.error


def holes(value: Any) -> list[tuple[Any, ...]]:
    """The paths of everything in a JSON value."""
    if isinstance(value, dict):
        return [(), *((key, *rest) for key, item in value.items() for rest in holes(item))]
    if isinstance(value, list):
        return [(), *((index, *rest) for index, item in enumerate(value) for rest in holes(item))]
    return [()]


def put(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    if not path:
        return odd
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], odd)
    return copy


PLACES = [(name, path) for name, row in EXAMPLES.items() for path in holes(row)]
ODD: list[Any] = [None, True, -1, 2**70, 1.5, "", "x", "\x00", "\ud800", [], [1], [[]], {}, {"a": None}, [{}], [None]]


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(PLACES), st.sampled_from(ODD), st.booleans())
@example(("langfuse", ("scores", 0, "value")), [], False)
def test_anything_anywhere_is_a_trace_or_an_error(place: tuple[str, Any], odd: Any, is_named: bool) -> None:
    name, path = place
    row = put(EXAMPLES[name], path, odd)
    for found in parsed(row, name if is_named else "auto"):
        assert (found.trace is None and found.note is None) == bool(found.error)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "otlp"])
def test_an_empty_object_is_refused_by_every_format(name: str) -> None:
    (found,) = parsed({}, name)
    assert found.error
