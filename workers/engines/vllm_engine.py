"""A version asked at a vLLM server, under the name of its adapter.

The server renders the conversation with the base's own chat template, tools included, and is told to leave the answer
as it is and to give its tokens. They are read here by the same chat template, as those of weights that are asked
without a server, so that both engines read an answer alike. When the server does not know the name any more (it was
started anew) the adapter is loaded again.
"""

import json
import math
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, EngineError
from workers.engines.openai_engine import CHAT, Failed, OpenAIEngine
from workers.engines.process_engine import ProcessEngine
from workers.engines.tool_calls import Written

ALTERNATIVES = 2
NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class Trail:
    """A greedy answer, token by token: the text, each token's id and logarithm of its probability, and by how much the
    second best was behind it."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    leads: tuple[float, ...]


class VllmEngine(OpenAIEngine):
    is_foreign = False  # the template shows what policies were trained on, and their calls are read here

    def __init__(
        self,
        url: str,
        model: str,
        api_key: str = "",
        *,
        again: Callable[[], object],
        reader: ProcessEngine | None = None,
        **options: Any,
    ) -> None:
        """`again` has the server load the model; it is called from several threads. `reader` reads the answers, and is
        closed with this; without one they are words."""
        super().__init__(f"{url}/v1", model, api_key, **options)
        self._again, self._reader = again, reader

    def close(self) -> None:
        super().close()
        if self._reader is not None:
            self._reader.close()

    def trails(self, questions: Sequence[tuple[str, ChatRequest]], at_once: int = 1) -> list[Trail]:
        """The greedy answers of these models to these requests, `at_once` of them at a time, begun in the order given.

        Nothing that the server remembers of an earlier request is used. Raises EngineError.
        """
        self._well_at = time.monotonic()  # a server that is full now is waited for
        with ThreadPoolExecutor(at_once, thread_name_prefix="vllm-trails") as pool:
            return list(pool.map(lambda question: self._trail(*question), questions))

    def _trail(self, model: str, request: ChatRequest) -> Trail:
        greedy = replace(request, sampling=replace(request.sampling, temperature=0.0, top_p=1.0))
        more = {"model": model, "logprobs": True, "top_logprobs": ALTERNATIVES, "return_token_ids": True}
        try:
            reply, _ = self._exchange(
                json.dumps(self._body(greedy) | more | {"cache_salt": secrets.token_hex(16)}).encode()
            )
            choice = json.loads(reply)["choices"][0]
            steps = choice["logprobs"]["content"]
            return Trail(
                text=choice["message"].get("content") or "",
                tokens=tuple(choice["token_ids"]),
                logprobs=tuple(step["logprob"] for step in steps),
                leads=tuple(_lead(step) for step in steps),
            )
        except Failed as failure:
            raise EngineError(f"{model} at {self.base_url} cannot be asked: {failure}") from failure
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise EngineError(f"{self.base_url} gives no token ids and probabilities: {error!r}") from error

    def _exchange(self, body: bytes | None, path: str = CHAT) -> tuple[bytes, float]:
        try:
            return super()._exchange(body, path)
        except Failed as failure:
            if failure.status != NOT_FOUND:
                raise
            self._again()
            return super()._exchange(body, path)

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        body = super()._body(request) | ({"return_token_ids": True} if self._reader is not None else {})
        body |= {"logprobs": True} if request.tells_tokens and self._reader is not None else {}
        return body | {"tool_choice": "none"} if request.tools else body

    def _response(self, content: bytes, latency_ms: float, tools: tuple[dict[str, Any], ...]) -> ChatResponse:
        response = super()._response(content, latency_ms, tools)
        if self._reader is None:
            return response
        value = json.loads(content)
        try:
            written = Written(tuple(value["prompt_token_ids"]), tuple(value["choices"][0]["token_ids"]), tools)
        except (KeyError, TypeError) as error:
            raise Failed(f"the server gives no token ids, by which calls are read: {error!r}") from error
        (read,) = self._reader.read([written])
        response = replace(response, text=read.text, tool_calls=read.tool_calls, error=read.error)
        logprobs = _logprobs(value["choices"][0])
        return replace(response, token_ids=written.tokens, logprobs=logprobs) if logprobs else response


def _logprobs(choice: dict[str, Any]) -> tuple[float, ...]:
    """The log-probability of each token that was sampled; none where the server gives none, or others than the answer
    has tokens."""
    try:
        found = tuple(float(step["logprob"]) for step in choice["logprobs"]["content"])
    except (KeyError, TypeError, ValueError):
        return ()
    return found if len(found) == len(choice["token_ids"]) and all(map(math.isfinite, found)) else ()


def _lead(step: dict[str, Any]) -> float:
    best = sorted((other["logprob"] for other in step["top_logprobs"]), reverse=True)
    return float(best[0] - best[1]) if len(best) > 1 else float("inf")
