"""Whoever is killed in a run whose rewards are an LLM judge's: it goes on, each attempt is judged and paid once, and
the dollars are right."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from flywheel.accounts.models import ModelPrice
from flywheel.edge.jobs import State
from flywheel.environments.models import JudgeMemory
from flywheel.training.models import TrainingRun
from tests.conftest import Build
from tests.worker import Worker
from tests.workers.jobs.training.test_run_broker import server
from tests.workers.jobs.training.test_training_runs import Launch, is_alive, launched, log_of, steps_of, trainer_of
from tests.workers.judge_server import JudgeServer
from tests.workers.judging.test_project_judges import books, judged
from tests.workers.trainers.killing import POINTS

__all__ = ["launched", "server"]

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.worker,
    pytest.mark.skipif(POINTS <= 3, reason="three trainers and two workers, by hand: FLYWHEEL_TEST_KILLS=20"),
]

STEPS = 12
"""With a checkpoint every second."""
CANARIES = 10
DOLLARS = 110 / 1e6
"""Of a request, at a dollar for a million tokens."""


class Gate:
    """A judge that keeps who asks waiting while it is shut."""

    def __init__(self) -> None:
        self.open, self.lock = threading.Event(), threading.Lock()
        self.open.set()
        self.answered = self.waiting = 0

    def __call__(self, data: dict[str, Any], body: dict[str, Any]) -> int:
        if self.open.is_set():
            with self.lock:
                self.answered += 1
            return books(data, body)
        with self.lock:
            self.waiting += 1
        self.open.wait(60)
        return 503  # to nobody


def test_whoever_is_killed_no_judgement_is_paid_twice_and_the_dollars_are_right(
    start_worker: Callable[..., Worker], launched: Launch, build: Build, server: JudgeServer
) -> None:
    gate = Gate()
    server.mark = gate
    ModelPrice.objects.create(project=build.cast.project, model="m", price_in=1, price_out=1)
    judged(build)
    first = start_worker("-c", "1")
    run = launched(algorithm="grpo", steps=STEPS, budget={"usd": 1.0}, settings={"learning_rate": 1e-6})

    def until(step: int, worker: Worker) -> None:
        def there() -> bool:
            run.refresh_from_db()
            assert not run.is_finished, run.error
            return run.done >= step

        worker.wait_until(there, f"{run} comes to step {step}")

    def settled() -> int:
        found: int = TrainingRun.objects.get(pk=run.pk).outside_calls["judges"]["right"]["requests"]
        return found

    until(3, first)
    os.kill(trainer_of(run), signal.SIGKILL)
    until(5, first)
    gate.open.clear()
    first.wait_until(lambda: gate.waiting > 0 and settled() == gate.answered, "the judge is asked, and waited for")
    orphan = trainer_of(run)
    first.kill9()
    gate.open.set()
    second = start_worker("-c", "1")
    second.wait_until(lambda: not is_alive(orphan), "the trainer ends with its worker")
    second.finish(run)

    assert run.state == State.SUCCEEDED, run.error
    assert (run.attempt, steps_of(run)) == (2, list(range(1, STEPS + 1)))
    assert log_of(run).count("training from step") == 2
    report = run.outside_calls["judges"]["right"]
    assert report["requests"] == gate.answered
    assert report["cost_usd"] == pytest.approx(gate.answered * DOLLARS)
    assert report["remembered"] > 0, "the trainers made attempts again"
    assert gate.answered - report["judged"] == report["canaries"] >= 2 * CANARIES
    assert report["judged"] == JudgeMemory.objects.count(), "no attempt was judged twice"
