"""A vLLM server that is given tokens and gives tokens: adapters come and go under names, and answers are sampled with
the log-probability that each token had.

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
from workers.engines.openai_engine import Failed, OpenAIEngine
from workers.engines.vllm_engine import NOT_FOUND

COMPLETIONS, MODELS = "/completions", "/models"
LOAD, UNLOAD = "/load_lora_adapter", "/unload_lora_adapter"


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


class VllmSampler(OpenAIEngine):
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
        """The answers of this adapter, in order. One that a server started anew has forgotten is loaded again. Raises
        Failed."""
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

    def score(self, name: str, answers: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """The log-probability, at temperature 1, that this adapter gives each token of an answer to a prompt, in order.
        One that a server started anew has forgotten is loaded again. Raises Failed."""
        with self._patience(), ThreadPoolExecutor(self.concurrency, thread_name_prefix="vllm-scorer") as pool:
            return list(pool.map(lambda answer: self._scored(name, *answer), answers))

    def _scored(self, name: str, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
        tokens = [*prompt, *answer]
        body = {"model": name, "prompt": tokens, "max_tokens": 1, "prompt_logprobs": 0, "return_token_ids": True}
        try:
            told = self._choice(body)["prompt_logprobs"][len(prompt) :]
            found = [float(each[str(token)]["logprob"]) for token, each in zip(answer, told, strict=True)]
            if not all(map(math.isfinite, found)):
                raise ValueError("some log-probabilities are no numbers")
            return found
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise Failed(f"{self.base_url} tells no log-probabilities of given tokens: {error!r}") from error

    def _choice(self, body: dict[str, Any]) -> dict[str, Any]:
        """The one answer to a prompt in tokens. Raises Failed, and for what vLLM does not answer what reading it
        raises."""
        answer = json.loads(self._remembered(body["model"], json.dumps(body).encode()))
        choice: dict[str, Any] = answer["choices"][0]
        if answer["model"] != body["model"]:
            raise ValueError(f"{body['model']} was asked, and {answer['model']} answered")
        if choice["prompt_token_ids"] != body["prompt"]:
            raise ValueError("the server was asked in other tokens than it was given")
        return choice

    def _remembered(self, name: str, body: bytes) -> bytes:
        try:
            return self._exchange(body, COMPLETIONS)[0]
        except Failed as failure:
            if failure.status != NOT_FOUND or name not in self._loaded:
                raise
        with self._loading:  # all that are under way find out at once
            if name not in {row["id"] for row in self.models()}:
                self.load(name, self._loaded[name])
        return self._exchange(body, COMPLETIONS)[0]
