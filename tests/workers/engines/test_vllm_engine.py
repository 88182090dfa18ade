"""What the vLLM engine asks and how it reads; the server is a fake. A real one is asked by `make test-serve`."""

import json
from pathlib import Path
from typing import Any

import pytest

from flywheel.agents.models import Version
from flywheel.core.envs.policy_rollouts import ChatRequest, EngineError, Sampling
from flywheel.core.traces import Message, ToolCall
from flywheel.evals.serving import loaded_adapters
from tests.workers.engines.test_engine_endpoints import Reply, always, completion, serving
from tests.workers.engines.test_tool_calls import ARGUMENTS, CALL, TEMPLATES, TOOL, answered, tokenizer_with
from workers.engines.process_engine import READER, ProcessEngine
from workers.engines.vllm_engine import VllmEngine
from workers.policies.vllm_policies import Loader, NotIsolated

TOKENS = {
    "logprobs": {
        "content": [
            {"logprob": -0.25, "top_logprobs": [{"logprob": -0.25}, {"logprob": -2.0}]},
            {"logprob": -0.5, "top_logprobs": [{"logprob": -0.5}]},
        ]
    },
    "token_ids": [7, 8],
}


def ask(seed: int = 0, tools: tuple[dict[str, Any], ...] = ()) -> ChatRequest:
    return ChatRequest((Message("user", "hi"),), Sampling(0.7, 0.9, 5), seed, tools)


def engine(url: str, loads: list[str], **options: Any) -> VllmEngine:
    more = {"backoff_s": 0.001, "patience_s": 1, "timeout_s": 5}
    return VllmEngine(url.removesuffix("/v1"), "a-v1-12345678", again=lambda: loads.append("again"), **more | options)


def trail(body: dict[str, Any], count: int) -> Reply:
    value = {"choices": [{"message": {"content": f"as {body['model']}"}} | TOKENS]}
    return 200, {}, json.dumps(value).encode()


def with_tokens(text: str, prompt: list[int], tokens: list[int], finish: str = "stop") -> Reply:
    """An answer as vLLM gives it where tokens are wanted; its text lacks what stands in special tokens."""
    choice = {"message": {"content": text}, "finish_reason": finish, "token_ids": tokens}
    return 200, {}, json.dumps({"choices": [choice], "prompt_token_ids": prompt, "usage": {}}).encode()


@pytest.mark.parametrize("template", ["qwen3", "llama3_1", "glm4moe", "gptoss"])
def test_answers_are_read_by_the_bases_own_chat_template(tmp_path: Path, template: str) -> None:
    tokenizer = tokenizer_with(TEMPLATES[template].read_text())
    tokenizer.save_pretrained(tmp_path)
    calls = with_tokens("lost", *answered(tokenizer, {"role": "assistant", "content": "", "tool_calls": [CALL]}))
    words = with_tokens("Nothing.", *answered(tokenizer, {"role": "assistant", "content": "Nothing is on friday."}))
    reader = ProcessEngine({"kind": READER, "path": str(tmp_path)})
    with serving(lambda body, _: calls if body["seed"] == 0 else words) as server:
        asked = engine(server.url, [], reader=reader)
        called, said = asked.chat([ask(0, tools=(TOOL,)), ask(1, tools=(TOOL,))])
        asked.close()
    assert (called.tool_calls, called.error) == ((ToolCall("call-0", "look_up", ARGUMENTS),), "")
    assert (said.text.strip(), said.tool_calls) == ("Nothing is on friday.", ())
    for body in server.seen:
        assert body["tools"] == [{"type": "function", "function": TOOL}], "as policies were trained"
        assert (body["tool_choice"], body["return_token_ids"]) == ("none", True)


def test_an_answer_that_was_cut_off_keeps_its_last_token(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(TEMPLATES["qwen3"].read_text())
    tokenizer.save_pretrained(tmp_path)
    prompt, _ = answered(tokenizer, {"role": "assistant", "content": "Nothing."})
    reply = with_tokens("Nothi", prompt, tokenizer.encode("Nothi"), "length")
    with serving(always(reply)) as server:
        asked = engine(server.url, [], reader=ProcessEngine({"kind": READER, "path": str(tmp_path)}))
        (answer,) = asked.chat([ask()])
        asked.close()
    assert (answer.text, answer.finish_reason) == ("Nothi", "length")


def test_a_server_that_gives_no_tokens_leaves_the_answer_unscored(tmp_path: Path) -> None:
    tokenizer_with(TEMPLATES["qwen3"].read_text()).save_pretrained(tmp_path)
    with serving(always(completion({"content": "hi"}))) as server:
        asked = engine(server.url, [], reader=ProcessEngine({"kind": READER, "path": str(tmp_path)}))
        (answer,) = asked.chat([ask()])
        asked.close()
    assert answer.error == "the server gives no token ids, by which calls are read: KeyError('prompt_token_ids')"


def test_without_a_reader_an_answer_is_words_and_tools_are_left_alone_where_there_are_none() -> None:
    with serving(always(completion({"content": "hi"}))) as server:
        (answer,) = engine(server.url, []).chat([ask()])
    assert (answer.text, "tool_choice" in server.seen[0]) == ("hi", False)


def test_a_name_that_the_server_forgot_is_loaded_again_once() -> None:
    def answer(body: dict[str, Any], count: int) -> Reply:
        return completion({"content": "hi"}) if loads else (404, {}, b"no such model")

    loads: list[str] = []
    with serving(answer) as server:
        (response,) = engine(server.url, loads).chat([ask()])
    assert (response.text, loads) == ("hi", ["again"])

    with (
        serving(always((404, {}, b"no such model"))) as server,
        pytest.raises(EngineError, match=r"a-v1-12345678 at .* cannot be asked: .* 404"),
    ):
        engine(server.url, loads).chat([ask()])
    assert len(server.seen) == 2


def test_a_server_that_was_started_anew_is_tested_before_anybody_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(loaded_adapters, "has", lambda _: bool(done))

    def answer(body: dict[str, Any], count: int) -> Reply:
        return completion({"content": "hi"}) if done else (404, {}, b"no such model")

    def test() -> None:
        done.append("loaded and tested")

    with serving(answer) as server:
        asked = VllmEngine(server.url.removesuffix("/v1"), "a-v1-12345678", again=Loader(Version(), test), retries=0)
        assert [response.text for response in asked.chat([ask(seed) for seed in range(8)])] == ["hi"] * 8
    assert done == ["loaded and tested"]

    def fails() -> None:
        raise NotIsolated("the server mixes adapters up")

    done.clear()
    with serving(answer) as server, pytest.raises(NotIsolated):
        VllmEngine(server.url.removesuffix("/v1"), "a-v1-12345678", again=Loader(Version(), fails)).chat([ask()])


def test_a_full_server_is_asked_again_by_this_engine_too() -> None:
    def answer(body: dict[str, Any], count: int) -> Reply:
        return completion({"content": "hi"}) if count > 6 else (503, {}, b"full")

    with serving(answer) as server:
        responses = engine(server.url, [], retries=0, patience_s=20).chat([ask(seed) for seed in range(4)])
    assert [response.text for response in responses] == ["hi"] * 4
    assert len(server.seen) == 28


def test_trails_are_greedy_of_the_model_that_is_named_and_of_nothing_remembered() -> None:
    with serving(trail) as server:
        trails = engine(server.url, []).trails([("x", ask(3)), ("y", ask(4))])
    assert [found.text for found in trails] == ["as x", "as y"]
    assert (trails[0].tokens, trails[0].logprobs, trails[0].leads) == ((7, 8), (-0.25, -0.5), (1.75, float("inf")))
    for body in server.seen:
        assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.0, 1.0, 5)
        assert (body["logprobs"], body["top_logprobs"], body["return_token_ids"]) == (True, 2, True)
    assert server.seen[0]["cache_salt"] != server.seen[1]["cache_salt"]


def test_a_server_that_gives_no_probabilities_cannot_be_tested() -> None:
    with (
        serving(always(completion({"content": "hi"}))) as server,
        pytest.raises(EngineError, match="gives no token ids and probabilities"),
    ):
        engine(server.url, []).trails([("x", ask())])
