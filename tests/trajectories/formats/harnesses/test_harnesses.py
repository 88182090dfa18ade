"""What harnesses write of their rollouts: Inspect, NeMo Gym, verifiers."""

import json
from typing import Any

import pytest

from flywheel.core.traces import Trace
from flywheel.core.traces.call_prices import Price
from tests.trajectories.formats.exports import CALL, OUTPUT, of_file, read, said
from tests.trajectories.formats.samples import FILES

# NeMo Gym


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


def test_what_inspect_takes_off_for_the_cache_came_in_too() -> None:
    sample = json.loads((FILES / "inspect.json").read_text())["samples"][0]
    usage = {"input_tokens": 6000, "output_tokens": 5, "input_tokens_cache_read": 4000, "input_tokens_cache_write": 10}
    for event in sample["events"]:
        if event["event"] == "model":
            event["output"]["usage"] = usage
    answer = next(step for step in read(sample, "inspect").steps if step.tokens_cached)
    assert (answer.tokens_in, answer.tokens_cached) == (10_010, 4000)
    assert Price(1.0, 1.0, 0.1).cost(10_000, 0, 4000) == pytest.approx((6000 + 400) / 1e6)


def test_errors_and_limits_of_inspect_are_shown() -> None:
    sample = json.loads((FILES / "inspect.json").read_text())["samples"][1]
    failed = read({**sample, "scores": {}, "error": {"message": "no network", "traceback": ""}}, "inspect")
    assert (failed.outcome, failed.steps[-1].status, failed.steps[-1].error) == ("failed", "error", "no network")
    limited = read({**sample, "limit": {"type": "token", "limit": 100}}, "inspect")
    assert limited.steps[-1].finish_reason == "limit: token"
    long = {"messages": [{"role": "user", "content": "attachment://ab"}], "attachments": {"ab": "Long"}}
    attached = read({**sample, **long}, "inspect")
    assert said(attached) == [("user", "Long")]
