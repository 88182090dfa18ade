"""A vLLM server that is given tokens and gives tokens: adapters come and go under names, and answers are sampled with
the log-probability that each token had. How likely it finds given tokens any such server tells, somebody else's too.

No text passes between: whoever learns from the answer learns from the very tokens that were sampled.
"""

import json
import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.core.envs.policy_rollouts import Sampling
from flywheel.core.traces import count
from workers.engines.openai_engine import Failed, OpenAIEngine
from workers.engines.vllm_engine import NOT_FOUND

COMPLETIONS, MODELS = "/completions", "/models"
LOAD, UNLOAD = "/load_lora_adapter", "/unload_lora_adapter"
NO_CHANCE = -9999.0
"""What vLLM writes for a token that the model could never say, since JSON has no minus infinity."""
ROUNDING = 1e-3
"""By how much a log-probability may be above 0."""


@dataclass(frozen=True, slots=True)
class Question:
    prompt: Sequence[int]
    sampling: Sampling
    seed: int


@dataclass(frozen=True, slots=True)
class Sampled:
    tokens: Sequence[int]
    """Up to the end of the answer, the token that ends it too."""
    logprobs: Sequence[float]
    """Of each token, at the temperature of the question."""


@dataclass(frozen=True, slots=True)
class Read:
    """Tokens as a model reads them, and what that took."""

    logprobs: Sequence[float]
    """Of each token but the first, in nats at temperature 1."""
    texts: Sequence[str | None]
    """Of each token but the first, by the server's tokenizer; None where it tells none."""
    tokens_in: int | None
    tokens_out: int | None
    cost_usd: float | None
    """None where a price or a count is unknown."""


class TokenReader(OpenAIEngine):
    def read(self, model: str, tokens: Sequence[int]) -> Read:
        """Let the model read these tokens. Raises Failed, also for an answer about other tokens or without a finite
        log-probability of each."""
        with self._patience():
            return self._read(model, tokens)

    def score(self, model: str, answers: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """The log-probability, in nats at temperature 1, that the model gives each token of an answer to a prompt, in
        order. Raises Failed."""
        with self._patience(), ThreadPoolExecutor(self.concurrency, thread_name_prefix="token-reader") as pool:
            told = pool.map(lambda answer: self._read(model, [*answer[0], *answer[1]]).logprobs, answers)
            return [list(each[len(prompt) - 1 :]) for each, (prompt, _) in zip(told, answers, strict=True)]

    def _read(self, model: str, tokens: Sequence[int]) -> Read:
        body: dict[str, Any] = {"model": model, "prompt": list(tokens), "max_tokens": 1, "prompt_logprobs": 0}
        body["return_token_ids"] = True  # by which newer servers show the first token too
        try:
            answer = json.loads(self._completed(model, json.dumps(body).encode()))
            if answer["model"] != model:
                raise ValueError(f"{model} was asked, and {answer['model']} answered")
            choice = answer["choices"][0]
            if choice.get("prompt_token_ids", body["prompt"]) != body["prompt"]:
                raise ValueError("the server was asked in other tokens than it was given")
            told = choice["prompt_logprobs"]
            rows = [each[str(token)] for token, each in zip(tokens[1:], told[1:], strict=True)]
            logprobs = [float(row["logprob"]) for row in rows]
            if not all(NO_CHANCE < value <= ROUNDING for value in logprobs):
                raise ValueError("some log-probabilities are no numbers below 0")
            usage = answer.get("usage") or {}
            tokens_in, tokens_out = (count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
            cached = count((usage.get("prompt_tokens_details") or {}).get("cached_tokens"))
            return Read(
                logprobs,
                [text if isinstance(text := row.get("decoded_token"), str) else None for row in rows],
                tokens_in,
                tokens_out,
                self._cost(tokens_in, tokens_out, cached),
            )
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            raise Failed(f"{self.base_url} tells no log-probabilities of given tokens: {error!r:.300}") from error

    def _completed(self, model: str, body: bytes) -> bytes:
        """The server's answer to a prompt of tokens. Raises Failed."""
        return self._exchange(body, COMPLETIONS)[0]

    def most_tokens(self, model: str) -> int | None:
        """Tokens that the model takes at once, with those that it writes; None where the server does not say. Raises
        Failed."""
        with self._patience():
            content, _ = self._exchange(None, MODELS)
        try:
            rows = {row["id"]: row for row in json.loads(content)["data"]}
            return count(rows.get(model, {}).get("max_model_len"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None  # a list of another form says nothing of it


class VllmSampler(TokenReader):
    """An adapter that a server started anew has forgotten is loaded again when it is asked."""

    def __init__(self, url: str, api_key: str = "", *, ends: Sequence[int] = (), **options: Any) -> None:
        """`ends`: tokens that end an answer."""
        super().__init__(f"{url}/v1", "", api_key, **options)
        self._ends = list(ends)
        self._loaded: dict[str, Path] = {}
        self._loading = threading.Lock()

    def models(self) -> list[dict[str, Any]]:
        """List its base by name, with `max_model_len`, and the adapters that it has, each with its `parent`. Raises
        Failed."""
        with self._patience():
            content, _ = self._exchange(None, MODELS)
        try:
            rows = json.loads(content)["data"]
            return [{name: row[name] for name in ("id", "parent", "max_model_len")} for row in rows]
        except (ValueError, KeyError, TypeError) as error:
            raise Failed(f"{self.base_url}{MODELS} does not answer as vLLM does: {error!r}") from error

    def load(self, name: str, place: Path) -> None:
        """Have the server answer for the adapter in this directory, under a name that it does not know yet. Raises
        Failed."""
        with self._patience():
            self._exchange(json.dumps({"lora_name": name, "lora_path": str(place)}).encode(), LOAD)
        self._loaded[name] = place

    def unload(self, name: str) -> None:
        """Have it forget the name; that it has forgotten already is no failure. Raises Failed."""
        self._loaded.pop(name, None)
        try:
            with self._patience():
                self._exchange(json.dumps({"lora_name": name}).encode(), UNLOAD)
        except Failed as failure:
            if failure.status != NOT_FOUND:
                raise

    def sample(self, name: str, questions: Sequence[Question]) -> list[Sampled]:
        """The answers of this adapter, in order. Raises Failed."""
        with self._patience(), ThreadPoolExecutor(self.concurrency, thread_name_prefix="vllm-sampler") as pool:
            return list(pool.map(lambda question: self._sampled(name, question), questions))

    def _sampled(self, name: str, question: Question) -> Sampled:
        body = {
            "model": name,
            "prompt": list(question.prompt),
            "temperature": question.sampling.temperature,
            "top_p": question.sampling.top_p,
            "max_tokens": question.sampling.max_tokens,
            "seed": question.seed,
            "stop_token_ids": self._ends,
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }
        try:
            choice = self._choice(body)
            tokens, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            if len(tokens) != len(logprobs) or not all(map(math.isfinite, logprobs)):
                raise ValueError(f"{len(tokens)} tokens have {len(logprobs)} log-probabilities, or some are no numbers")
            return Sampled([int(token) for token in tokens], [float(logprob) for logprob in logprobs])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise Failed(f"{self.base_url} gives no tokens with log-probabilities: {error!r}") from error

    def _choice(self, body: dict[str, Any]) -> dict[str, Any]:
        """The one answer to a prompt in tokens. Raises Failed, and for what vLLM does not answer what reading it
        raises."""
        answer = json.loads(self._completed(body["model"], json.dumps(body).encode()))
        choice: dict[str, Any] = answer["choices"][0]
        if answer["model"] != body["model"]:
            raise ValueError(f"{body['model']} was asked, and {answer['model']} answered")
        if choice["prompt_token_ids"] != body["prompt"]:
            raise ValueError("the server was asked in other tokens than it was given")
        return choice

    def _completed(self, model: str, body: bytes) -> bytes:
        try:
            return super()._completed(model, body)
        except Failed as failure:
            if failure.status != NOT_FOUND or model not in self._loaded:
                raise
        with self._loading:  # all that are under way find out at once
            if model not in {row["id"] for row in self.models()}:
                self.load(model, self._loaded[model])
        return super()._completed(model, body)
