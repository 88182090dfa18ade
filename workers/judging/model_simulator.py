"""Asking the model that stands in for what nobody recorded (`core.envs.replay.model_stand_in`), and what that took.

One for each run, at temperature 0 and under the attempt's seed. Only what the infrastructure failed is asked again, by
the engine; any answer stands. No Django here.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, Engine, EngineError, Sampling
from flywheel.core.envs.replay.model_stand_in import SCHEMA
from flywheel.core.traces import Message
from flywheel.core.verifiers import WorldError, judge_prompts
from workers.judging.llm_judge import engine_of

TOKENS = 4096
"""Of an answer."""
COUNTS = ("requests", "tokens_in", "tokens_out")


class ModelSimulator:
    """`Runners.simulator` of one run. Safe for many threads."""

    def __init__(self, endpoints: Mapping[str, Mapping[str, Any]], report: Mapping[str, Any] | None = None) -> None:
        """`endpoints` by the names that settings have for them; `report` is what an earlier owner of the run left."""
        before = report or {}
        self._endpoints = endpoints
        self._lock = threading.Lock()
        self._engines: dict[tuple[str, str], Engine] = {}
        self._models: list[str] = list(before.get("models", ()))
        self._counts: dict[str, int | None] = {key: before.get(key, 0) for key in COUNTS}
        """Tokens are None once an answer came that does not tell them: no budget of tokens is kept by halves."""
        self._cost_usd: float | None = before.get("cost_usd") if before else 0.0
        """None once an answer came whose cost nobody knows."""

    def __call__(self, settings: Mapping[str, Any], messages: Sequence[Message], seed: int) -> str:
        request = ChatRequest(tuple(messages), Sampling(temperature=0.0, max_tokens=TOKENS), seed, schema=SCHEMA)
        try:
            response = self._engine(settings).chat([request])[0]
        except EngineError as error:
            response = ChatResponse(error=str(error))
        self._count(response)
        if response.error:
            raise WorldError(judge_prompts.plain(f"the simulator did not answer: {response.error}"), "environment")
        if response.finish_reason == "length":
            raise WorldError(f"the simulator's answer was cut off after {TOKENS} tokens", "environment")
        return response.text

    @property
    def report(self) -> dict[str, Any]:
        """Who answered, and what it took; empty while nothing was asked. JSON."""
        with self._lock:
            return (
                {"models": list(self._models), **self._counts, "cost_usd": self._cost_usd}
                if self._counts["requests"]
                else {}
            )

    def _engine(self, settings: Mapping[str, Any]) -> Engine:
        key = (settings["endpoint"], settings["model"])
        with self._lock:
            if key not in self._engines:
                self._engines[key] = engine_of(settings, self._endpoints.get(settings["endpoint"], {}))
            return self._engines[key]

    def _count(self, response: ChatResponse) -> None:
        with self._lock:
            more = {"requests": 1, "tokens_in": response.tokens_in, "tokens_out": response.tokens_out}
            for name, number in more.items():
                known, taken = self._counts[name], 0 if response.error and number is None else number
                self._counts[name] = None if known is None or taken is None else known + taken
            if response.error:
                return
            before, paid = self._cost_usd, response.cost_usd
            self._cost_usd = None if before is None or paid is None else before + paid
            if (model := judge_prompts.plain(response.model)) not in self._models:
                self._models.append(model)
