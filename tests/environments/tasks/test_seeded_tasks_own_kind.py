"""A kind of one's own, a counterpart that answers: what stands in the guide is all that it takes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.core.envs import Say, Table, Task, always, token_limit_of
from flywheel.core.envs.kinds import KINDS, Kind
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.core.traces import Message, Trace
from flywheel.core.verifiers import Verdict, Verify, guarded
from flywheel.environments.models import Split
from flywheel.environments.task_sets.frozen_sets import freeze
from flywheel.training.datasets.dataset_builder import build as build_dataset
from tests.conftest import Build, Cast
from tests.environments.tasks.test_seeded_tasks import asked, made, work
from tests.evals.fake import finished

pytestmark = pytest.mark.django_db(transaction=True)

HIGHEST = 100


class Guess:
    """The policy guesses a number, and whoever thought of it says higher or lower."""

    max_turns = 7
    tools: list[dict[str, Any]] = []

    def __init__(self, config: Mapping[str, Any], verifier: Mapping[str, Any]) -> None:
        self.token_limit = token_limit_of(config)

    def reset(self, task: Task, seed: int) -> list[Message]:
        return [Message("user", task.prompt)]

    def respond(self, task: Task, messages: Sequence[Message], seed: int) -> list[Message]:
        said, wanted = messages[-1].content, task.target["number"]
        if said == str(wanted):
            return []
        return [Message("user", "higher" if said.isdecimal() and int(said) < wanted else "lower")]

    def verifier(self, task: Task) -> Verify:
        def verify(trace: Trace, target: Mapping[str, Any]) -> Verdict:
            said = [message.content for message in trace.conversation() if message.role == "assistant"]
            return Verdict(float(said[-1:] == [str(target["number"])]), f"{len(said)} guesses")

        return guarded(verify)

    def solve(self, task: Task, messages: Sequence[Message]) -> Message:
        return Message("assistant", str(task.target["number"]))

    def state(self, task: Task, messages: Sequence[Message]) -> list[Table]:
        return []

    def probes(self, task: Task) -> dict[str, Say]:
        return {"empty": always(""), "constant": always("0"), "echo": always(task.prompt)}


def numbers(count: int, *, seed: int) -> Iterator[Task]:
    for at in range(count):
        number = (at * 37 + seed) % HIGHEST + 1
        yield Task(
            f"guess-{at}", f"Guess my number from 1 to {HIGHEST}; it is my {at}.", {"number": number}, {}, f"c{at}"
        )


def halve(request: ChatRequest) -> ChatResponse:
    """The policy that asks for the middle of what is left."""
    low, high = 1, HIGHEST
    spoken = [message for message in request.messages if message.role != "system"]
    for said, reply in zip(spoken[1::2], spoken[2::2], strict=True):
        low, high = (int(said.content) + 1, high) if reply.content == "higher" else (low, int(said.content) - 1)
    return ChatResponse(str((low + high) // 2), finish_reason="stop", tokens_in=5, tokens_out=1, latency_ms=1.0)


def test_a_kind_is_a_class_and_an_entry(
    cast: Cast, build: Build, sign_in: Callable[[User], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        KINDS, "guess", Kind("Guess", "A number by halves.", "Never.", Guess, numbers, tells_unsafe=False)
    )
    environment = made(cast, "guess")
    assert work(asked(cast, environment, 30)).made == 30
    assert not environment.tasks.filter(is_proved=False).exists()
    task_set = freeze(environment=environment, name="guess", actor=Actor(cast.builder))

    run = finished(build, monkeypatch, halve, task_set=task_set, split=Split.TRAIN, samples=1)
    assert set(run.results.values_list("success", flat=True)) == {True}
    longest = max(run.results.all(), key=lambda result: result.tokens_out or 0)
    assert longest.trajectory is not None
    assert longest.trajectory.steps.filter(kind="user").count() > 2

    dataset = build_dataset(name="guess", kind="sft", task_set=task_set, actor=Actor(cast.builder), rollouts=run)
    assert dataset.rows > run.results.count()
    page = sign_in(cast.builder).get(reverse("environments:environment", args=["acme", environment.name]))
    assert page.status_code == 200
