"""A scripted engine, and eval runs that are over without a model."""

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Artifact, Version
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.edge.jobs import Lease
from flywheel.environments.models import TaskSet
from flywheel.evals.models import Engine, EvalRun
from flywheel.evals.runs import submission
from flywheel.evals.serving.loaded_adapters import name_of
from tests.conftest import Build
from workers.jobs import eval_runs

Answer = Callable[[ChatRequest], ChatResponse]


def right(request: ChatRequest) -> ChatResponse:
    """The call that the builder's tasks want: `Meet Person7 on friday`."""
    person = request.messages[-1].content.split()[1]
    return say(person)


def wrong(request: ChatRequest) -> ChatResponse:
    return say("Nobody")


def say(person: str, day: str = "friday", **fields: Any) -> ChatResponse:
    text = json.dumps({"tool": "calendar.create_event", "arguments": {"person": person, "day": day}})
    return ChatResponse(text=text, tokens_in=20, tokens_out=10, latency_ms=5.0, finish_reason="stop", **fields)


class FakeEngine:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[ChatRequest] = []
        self.is_closed = False

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
        self.asked.extend(requests)
        return [self.answer(request) for request in requests]

    def close(self) -> None:
        self.is_closed = True


def submit(build: Build, task_set: TaskSet | None = None, version: Version | None = None, **fields: Any) -> EvalRun:
    about = {name: fields.pop(name) for name in ("split", "is_final") if name in fields}
    run, made = submission.submit(
        key=uuid.uuid4(),
        version=version or build.version(),
        task_set=task_set or build.task_set(),
        actor=Actor(build.cast.builder),
        settings=submission.RunSettings(**{"samples": 2, **fields}),
        **about,
    )
    assert made
    return run


def adapted(build: Build, number: int | None, base: int = 0, **fields: Any) -> Version:
    """A version of a base, with the adapter of this number or with none: as rows, without files."""

    def artifact(kind: str, count: int) -> Artifact:
        digest = f"{count:08x}".ljust(64, kind[0])
        return Artifact.objects.get_or_create(digest=digest, defaults={"kind": kind, "manifest": {}, "size": 0})[0]

    adapter = None if number is None else artifact("adapter", number)
    return build.version(weights=artifact("model", base), adapter=adapter, **fields)


def on_vllm(run: EvalRun, *beside: Version, **found: Any) -> EvalRun:
    """As if it had been asked on vLLM, after a self-test of its version beside these."""
    arms = [name_of(version) for version in (run.version, *beside)]
    run.engine, run.isolation = Engine.VLLM, {"passed": True, "arms": arms, "answers": 24, **found}
    run.save()
    return run


def carry_out(run: EvalRun, monkeypatch: Any, answer: Answer = right, **engine: Any) -> FakeEngine:
    """Do what a worker does with the run, with this engine behind the version."""
    fake = FakeEngine(answer)
    monkeypatch.setattr(eval_runs, "open_version", lambda _: fake)
    work(run)
    return fake


def work(run: EvalRun) -> None:
    lease = claim(run)
    with lease:
        eval_runs.evaluate(lease)
    run.refresh_from_db()


def claim(run: EvalRun) -> Lease:
    lease = EvalRun.claim(run.pk)
    assert lease is not None
    return lease


class QuietLease(Lease):
    """A lease without its thread and its clock, for tests that live in one transaction and only want the rows."""

    @property
    def lost(self) -> bool:
        return False

    @contextmanager
    def guard(self) -> Iterator[None]:
        with transaction.atomic():
            yield


def finished(build: Build, monkeypatch: Any, answer: Answer = right, **fields: Any) -> EvalRun:
    run = submit(build, **fields)
    monkeypatch.setattr(eval_runs, "open_version", lambda _: FakeEngine(answer))
    claimed = claim(run)
    eval_runs.evaluate(QuietLease(claimed.job, claimed.fence, 0.0))
    run.refresh_from_db()
    assert run.state == "succeeded", run.error
    return run
