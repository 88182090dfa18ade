"""Tokens in, tokens out; the server is a fake."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from flywheel.core.envs.policy_rollouts import Sampling
from tests.workers.engines.test_engine_endpoints import Reply, serving
from workers.engines.openai_engine import Failed
from workers.engines.vllm_sampler import Question, Read, Sampled, TokenReader, VllmSampler

ASKED = Question([3, 4], Sampling(0.7, 1.0, 5), 11)


def said(prompt: list[int], tokens: list[int], logprobs: list[float | None], by: str = "one") -> Reply:
    return chosen(prompt, by, token_ids=tokens, logprobs={"token_logprobs": logprobs})


def chosen(prompt: list[int], by: str = "one", **choice: Any) -> Reply:
    return 200, {}, json.dumps({"model": by, "choices": [{"prompt_token_ids": prompt, **choice}]}).encode()


def sampler(url: str, **options: Any) -> VllmSampler:
    more = {"backoff_s": 0.001, "patience_s": 5, "timeout_s": 5}
    return VllmSampler(url.removesuffix("/v1"), "key", ends=[9], **more | options)


def test_it_asks_in_tokens_and_is_answered_in_tokens() -> None:
    with serving(lambda body, _: said(body["prompt"], [7, 9], [-0.5, -0.25])) as server:
        assert sampler(server.url).sample("one", [ASKED]) == [Sampled([7, 9], [-0.5, -0.25])]
    (body,) = server.seen
    assert (body["_path"], body["model"], body["prompt"]) == ("/v1/completions", "one", [3, 4])
    assert (body["temperature"], body["max_tokens"], body["seed"], body["stop_token_ids"]) == (0.7, 5, 11, [9])
    assert (body["logprobs"], body["return_token_ids"]) == (0, True)
    assert server.headers[0]["Authorization"] == "Bearer key"


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (said([3, 5], [7], [-0.5]), "asked in other tokens than it was given"),
        (said([3, 4], [7], [-0.5], by="two"), "one was asked, and two answered"),
        (said([3, 4], [7, 8], [-0.5]), "2 tokens have 1 log-probabilities"),
        (said([3, 4], [7], [None]), "no tokens with log-probabilities"),
        ((200, {}, b'{"choices": [{"text": "hi"}]}'), "no tokens with log-probabilities"),
        ((400, {}, b"max_tokens is too large"), "400"),
    ],
)
def test_an_answer_that_could_not_be_learnt_from_is_none(reply: Reply, problem: str) -> None:
    with serving(lambda *_: reply) as server, pytest.raises(Failed, match=problem):
        sampler(server.url).sample("one", [ASKED])


def test_a_name_that_the_server_forgot_is_loaded_again_once_for_all_that_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there: list[str] = []
    loads: list[str] = []

    def answer(body: dict[str, Any], _: int) -> Reply:
        return said(body["prompt"], [7], [-0.5]) if body["model"] in there else (404, {}, b"no such model")

    with serving(answer) as server:
        asked = sampler(server.url)
        exchange = asked._exchange

        def spoken(body: bytes | None, path: str) -> tuple[bytes, float]:
            if path == "/models":
                return json.dumps(
                    {"data": [{"id": name, "parent": "b", "max_model_len": 1} for name in there]}
                ).encode(), 0
            if path == "/load_lora_adapter":
                there.append(json.loads(body or b"")["lora_name"])
                loads.append(there[-1])
                return b"", 0
            return exchange(body, path)

        monkeypatch.setattr(asked, "_exchange", spoken)
        asked.load("one", Path("/adapters/one"))
        there.clear()
        found = asked.sample("one", [Question([3, seed], Sampling(), seed) for seed in range(6)])
        assert [each.tokens for each in found] == [[7]] * 6
        with pytest.raises(Failed, match="404"):
            asked.sample("never-loaded", [ASKED])
    assert loads == ["one", "one"]


def test_a_server_that_comes_back_is_waited_for_and_that_is_told() -> None:
    told: list[str] = []

    def answer(body: dict[str, Any], count: int) -> Reply:
        return said(body["prompt"], [7], [-0.5]) if count > 3 else (503, {}, b"full")

    with serving(answer) as server:
        waiting = sampler(server.url, retries=0, on_wait=lambda failure: told.append(str(failure)))
        waiting._well_at = -1e9  # the last answer is long ago, as after a slow evaluation
        assert waiting.sample("one", [ASKED]) == [Sampled([7], [-0.5])]
    assert len(told) == 3
    assert "503" in told[0]


TOLD: list[Any] = [
    None,
    {"4": {"logprob": -9.0, "decoded_token": "a"}},
    {"7": {"logprob": -0.5}},
    {"8": {"logprob": -3.0}, "9": {"logprob": -0.25, "decoded_token": 5}},
]


def completion(prompt: list[int], by: str = "one", **choice: Any) -> Reply:
    usage = {"prompt_tokens": len(prompt), "completion_tokens": 1}
    return (
        200,
        {},
        json.dumps({"model": by, "choices": [{"prompt_token_ids": prompt, **choice}], "usage": usage}).encode(),
    )


def told(*rows: Any, by: str = "one") -> Reply:
    return completion([3, 4, 7], by, prompt_logprobs=[None, {"4": {"logprob": -1}}, *rows])


def reader(url: str, **options: Any) -> TokenReader:
    return TokenReader(url, "one", "key", **{"backoff_s": 0.001, "patience_s": 5, "timeout_s": 5} | options)


def test_it_tells_how_likely_given_tokens_are_and_of_the_prompt_nothing() -> None:
    with serving(lambda body, _: completion(body["prompt"], prompt_logprobs=TOLD[: len(body["prompt"])])) as server:
        assert reader(server.url).score("one", [([3, 4], [7, 9]), ([3, 4], [7])]) == [[-0.5, -0.25], [-0.5]]
    bodies = sorted(server.seen, key=lambda body: len(body["prompt"]))
    assert [body["prompt"] for body in bodies] == [[3, 4, 7], [3, 4, 7, 9]]
    assert {(body["model"], body["prompt_logprobs"], body["max_tokens"]) for body in bodies} == {("one", 0, 1)}
    assert {body["_path"] for body in bodies} == {"/v1/completions"}


def test_a_reading_has_the_servers_texts_and_what_it_took() -> None:
    with serving(lambda body, _: completion(body["prompt"], prompt_logprobs=TOLD)) as server:
        priced = reader(server.url, price_in=1.0, price_out=2.0)
        assert priced.read("one", [3, 4, 7, 9]) == Read([-9.0, -0.5, -0.25], ["a", None, None], 4, 1, 6e-6)
        assert reader(server.url).read("one", [3, 4, 7, 9]).cost_usd is None, "a price that nobody named is not 0"


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ((200, {}, b'{"model": "one", "choices": [{"text": "hi"}]}'), "given tokens: KeyError.'prompt_logprobs'"),
        ((200, {}, b"<html>"), "given tokens: JSONDecodeError"),
        (completion([3, 4, 7], prompt_logprobs=None), "tells no log-probabilities of given tokens: TypeError"),
        (told(), "log-probabilities of given tokens: Value"),
        (told({"9": {"logprob": -1}}), "given tokens: KeyError"),
        (told({"7": {"logprob": None}}), "given tokens: TypeError"),
        (told({"7": {"logprob": math.nan}}), "some .* are no numbers"),
        (told({"7": {"logprob": -9999.0}}), "some .* are no numbers"),
        (told({"7": {"logprob": 0.5}}), "some .* are no numbers below 0"),
        (completion([3, 5, 7], prompt_logprobs=TOLD[:3]), "asked in other tokens than it was given"),
        (told({"7": {"logprob": -1}}, by="two"), "one was asked, and two answered"),
    ],
)
def test_a_token_without_its_own_log_probability_has_none(reply: Reply, problem: str) -> None:
    with serving(lambda *_: reply) as server, pytest.raises(Failed, match=problem):
        reader(server.url).score("one", [([3, 4], [7])])


@pytest.mark.parametrize(
    ("rows", "room"),
    [
        ({"data": [{"id": "other"}, {"id": "one", "max_model_len": 512}]}, 512),
        ({"data": [{"id": "one"}]}, None),
        ({"data": "none"}, None),
        ([], None),
    ],
)
def test_the_room_is_what_the_server_says_of_the_model_if_anything(
    rows: Any, room: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = reader("http://127.0.0.1:1/v1")
    monkeypatch.setattr(asked, "_exchange", lambda *_: (json.dumps(rows).encode(), 0.0))
    assert asked.most_tokens("one") == room
