"""A version asked at this installation's vLLM server: its adapter loaded, the server tested before it is believed."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from django.db import connections

from flywheel.accounts.project_settings.server_addresses import key_of
from flywheel.agents import artifacts
from flywheel.agents.models import Version
from flywheel.agents.weights import chosen_bases
from flywheel.core.envs import Environment, Task
from flywheel.core.envs.policy_rollouts import ChatRequest, Sampling
from flywheel.core.network.key_hosts import VLLM_KEY
from flywheel.edge.jobs import Lease
from flywheel.evals.models import EvalRun
from flywheel.evals.serving import loaded_adapters, version_isolation
from workers.engines.isolation import check_isolation
from workers.engines.process_engine import READER, ProcessEngine
from workers.engines.vllm_engine import VllmEngine

REQUESTS, TOKENS = 3, 24
"""Of the self-test: tasks whose beginnings are asked, and tokens of an answer."""


class NotIsolated(RuntimeError):
    """The server answers for one version with another's adapter, or with none. Nothing that it says counts."""

    kind = "isolation"


def open_served(lease: Lease, run: EvalRun, environment: Environment, tasks: Sequence[Task]) -> VllmEngine:
    """The engine of the run's version, after the server has shown that it keeps adapters apart; once more when it
    was started anew. What it showed is kept with the run.

    Raises ServerError, NotServable, EngineError and NotIsolated.
    """
    beside = version_isolation.beside(run)
    sampling = Sampling(max_tokens=min(TOKENS, run.sampling["max_tokens"]))
    requests = [
        ChatRequest(tuple(environment.reset(task, number)), sampling, number, tuple(environment.tools))
        for number, task in enumerate(tasks[:REQUESTS])
    ]

    def engine(again: Callable[[], None], reader: ProcessEngine | None = None) -> VllmEngine:
        name = loaded_adapters.name_of(run.version)
        settings = run.version.endpoint.get("chat_template_kwargs")
        return VllmEngine(
            chosen_bases.address_of(run.version),
            name,
            key_of(VLLM_KEY),
            again=again,
            reader=reader,
            chat_template_kwargs=settings,
        )

    def test() -> None:
        arms, probes = loaded_adapters.load_arms(run.version, beside)
        lease.update(isolation={"arms": arms})  # in use until it is told what came of it
        report = check_isolation(
            engine(lambda: _load(run.version, beside)), arms, probes, requests, loaded_adapters.SLOTS
        )
        lease.update(isolation=report)
        if not report["passed"]:
            raise NotIsolated(_why(report))
        many = f"{report['answers']} answers in shared batches were those given alone"
        lease.log(f"the server keeps adapters apart: {many}")

    lease.progress(lease.job.done, lease.job.total, "testing that the server keeps adapters apart")
    test()
    assert run.version.weights is not None, "`check` refused it"
    reader = ProcessEngine({"kind": READER, "path": str(artifacts.local(run.version.weights))})
    return engine(Loader(run.version, test), reader)


class Loader:
    """Has a server that was started anew load what it has forgotten and tested again, when the first of several threads
    finds out and before any of them goes on: it may have been started otherwise."""

    def __init__(self, version: Version, test: Callable[[], None]) -> None:
        self._version, self._test, self._lock = version, test, threading.Lock()

    def __call__(self) -> None:
        try:
            with self._lock:
                if not loaded_adapters.has(self._version):
                    self._test()
        finally:
            connections.close_all()  # this thread's own, which nobody else would close


def _load(version: Version, beside: Sequence[Version]) -> None:
    """For a thread of its own."""
    try:
        loaded_adapters.load_arms(version, beside)
    finally:
        connections.close_all()


def _why(report: dict[str, Any]) -> str:
    if not report["evidence"]:
        return f"the server does not apply adapters: {', '.join(report['untouched'])} answers as the probe does"
    first = report["evidence"][0]
    many = f"{report['different']} of {report['answers']} answers in shared batches were not those given alone"
    return (
        f"the server mixes adapters up: {many}. "
        f"{first['arm']} said {first['alone']!r} alone and {first['among_others']!r} among others"
    )
