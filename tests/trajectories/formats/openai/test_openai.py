"""OpenAI's shapes as files: raw calls, responses, preferences."""

import json
from typing import Any

import pytest

from tests.trajectories.formats.exports import OUTPUT, exchange, parsed, read, said

# Raw calls


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
