"""Trainers and workers are killed at random, by `FLYWHEEL_TEST_KILLS=20` as often as that: each run gives the weights
of the run that nobody killed, every step is in the database once, and no trainer is left. Three single places stand in
`test_training_runs`."""

import fcntl
import os
import random
import signal
import time
import uuid
from collections.abc import Callable

import pytest

from flywheel.accounts.actors import Actor
from flywheel.edge.jobs import State
from flywheel.evals.models import EvalRun
from flywheel.training.models import TrainingRun
from flywheel.training.runs import run_repeats
from tests.conftest import Cast
from tests.worker import Worker
from tests.workers.jobs.training.test_training_runs import STEPS, Launch, is_alive, launched, steps_of, trainer_of
from tests.workers.trainers.killing import POINTS

__all__ = ["launched"]
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.worker,
    pytest.mark.skipif(POINTS <= 3, reason="by hand: FLYWHEEL_TEST_KILLS=20"),
]


def test_whoever_is_killed_a_run_gives_what_it_would_have_given(
    start_worker: Callable[..., Worker], launched: Launch, cast: Cast
) -> None:
    worker, chance, left = start_worker("-c", "1"), random.Random(1), POINTS
    whole = launched()
    worker.finish(whole)
    assert whole.state == State.SUCCEEDED, whole.error
    runs = 1
    while left:
        runs += 1
        run, _ = run_repeats.repeat(whole, key=uuid.uuid4(), actor=Actor(cast.trainer))
        begun = 0
        # A run that loses its worker three times is given up, and one whose trainer dies three times at one step.
        for who in chance.sample(["trainer", "trainer", "worker", "worker"], min(4, left)):
            begun += chance.randint(3, 30)
            if not came(worker, run, begun):
                break
            time.sleep(chance.uniform(0, 0.5))
            left -= 1
            if who == "trainer":
                end(trainer_of(run))
            else:
                orphan = trainer_of(run)
                worker.kill9()
                worker = start_worker("-c", "1")
                worker.wait_until(lambda pid=orphan: not is_alive(pid), "the trainer ends with its worker")  # type: ignore[misc]
        worker.finish(run)
        assert run.state == State.SUCCEEDED, run.error
        assert steps_of(run) == list(range(1, STEPS + 1))
        assert run.trained is not None
        assert whole.trained is not None
        assert run.trained.digest == whole.trained.digest
        assert run.produced == whole.produced
        assert EvalRun.objects.filter(version=run.produced).count() == runs
        with (run.directory / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody holds it


def came(worker: Worker, run: TrainingRun, step: int) -> bool:
    """Wait until the run is so far, and say whether it goes on."""

    def there() -> bool:
        run.refresh_from_db()
        return run.is_finished or run.done >= step

    worker.wait_until(there, f"{run} comes to step {step}")
    return not run.is_finished


def end(pid: int) -> None:
    if is_alive(pid):
        os.kill(pid, signal.SIGKILL)
