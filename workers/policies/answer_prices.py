"""Costs of a version's answers: hosted models by their tokens, own weights by the seconds of the device."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flywheel.accounts.project_settings import model_prices
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, Engine
from flywheel.evals.models import EvalRun, runs


def with_price(endpoint: Mapping[str, Any], project_id: int) -> dict[str, Any]:
    """The endpoint with the prices of its model's tokens, its own or the project's, where anybody has named them."""
    price = model_prices.price_of(project_id, endpoint.get("model", ""), endpoint)
    return {**endpoint, **price.options()} if price else dict(endpoint)


def by_the_hour(engine: Engine, project_id: int) -> Engine:
    """The engine of own weights, its answers with their cost where the project says what a device-hour costs."""
    usd_per_hour = model_prices.hour_of(project_id)
    return engine if usd_per_hour is None else DeviceHours(engine, usd_per_hour)


def hour_of(run: EvalRun) -> dict[str, float]:
    """The dollars of a device-hour by which the run's answers cost what they cost, as its summary has them: evals made
    at different ones cannot be compared by cost. Empty where none was."""
    is_own = run.engine == runs.Engine.VLLM or run.version.endpoint.get("kind") == "transformers"
    usd_per_hour = model_prices.hour_of(run.project_id) if is_own else None
    return {} if usd_per_hour is None else {"usd_per_hour": usd_per_hour}


class DeviceHours:
    """An engine whose answers cost the time that the device had for them. It is asked by one thread at a time.

    A server answers many at once: what they took together is divided among them by how long each took.
    """

    def __init__(self, engine: Engine, usd_per_hour: float) -> None:
        self._engine, self._usd_per_hour = engine, usd_per_hour

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
        began = time.perf_counter()
        answers = self._engine.chat(requests)
        usd = (time.perf_counter() - began) / 3600 * self._usd_per_hour
        took_ms = sum(answer.latency_ms or 0.0 for answer in answers)
        return [
            answer
            if answer.latency_ms is None or not took_ms
            else replace(answer, cost_usd=usd * answer.latency_ms / took_ms)
            for answer in answers
        ]

    def close(self) -> None:
        self._engine.close()
