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
from workers.judging.call_report import CallReport
from workers.judging.llm_judge import engine_of

TOKENS = 4096
"""Of an answer."""


class ModelSimulator:
    """`Runners.simulator` of one run. Safe for many threads."""

    def __init__(self, endpoints: Mapping[str, Mapping[str, Any]], report: Mapping[str, Any] | None = None) -> None:
        """`endpoints` by the names that settings have for them; `report` is what an earlier owner of the run left."""
        self._endpoints = endpoints
        self._lock = threading.Lock()
        self._engines: dict[tuple[str, str], Engine] = {}
        self._calls = CallReport(report)

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

    def close(self) -> None:
        """Ask nothing more, also where an answer is waited for."""
        with self._lock:
            for engine in self._engines.values():
                engine.close()

    @property
    def report(self) -> dict[str, Any]:
        """Who answered, and what it took; empty while nothing was asked. JSON."""
        return self._calls.to_json()

    def _engine(self, settings: Mapping[str, Any]) -> Engine:
        key = (settings["endpoint"], settings["model"])
        with self._lock:
            if key not in self._engines:
                self._engines[key] = engine_of(settings, self._endpoints.get(settings["endpoint"], {}))
            return self._engines[key]

    def _count(self, response: ChatResponse) -> None:
        if response.error:
            self._calls.failed(response.tokens_in, response.tokens_out)
        else:
            self._calls.answered(response.model, response.tokens_in, response.tokens_out, response.cost_usd)
