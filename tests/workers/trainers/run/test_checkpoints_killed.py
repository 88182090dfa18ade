"""Wherever a trainer is killed, the run that goes on is the run that was not killed: three points in the suite, and by
`FLYWHEEL_TEST_KILLS=20` as many of each algorithm."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.workers.trainers.cast import NAMES, Make, Start, task
from tests.workers.trainers.killing import POINTS, mortal, points, same_run, watched

FIELDS: dict[str, dict[str, Any]] = {
    "grpo": {"keep_attempts": 100, "settings": {"dynamic_sampling": True, "max_resamples": 1, "curriculum": True}},
    "sft": {"settings": {"batch_size": 3}},
    "ppo": {"keep_attempts": 100},
}
SHORT = POINTS <= 3


@pytest.mark.parametrize("algorithm", list(FIELDS)[: 1 if SHORT else None])
def test_wherever_it_is_killed_a_run_is_the_run_that_was_not(
    algorithm: str, make: Make, start: Start, trained: Path
) -> None:
    fields: dict[str, Any] = {
        "on": trained,
        "steps": 6,
        "checkpoint_every": 2,
        "eval_every": 3,
        "validation": [task(name) for name in NAMES[6:8]],
        **FIELDS[algorithm],
    }
    whole = make(algorithm, name="whole", **fields)
    assert start(whole, hook=watched, given=str(whole.path)).wait() == 0, whole.errors()
    for number, point in enumerate(points(whole, POINTS)):
        broken = make(algorithm, name=f"broken-{number}", **fields)
        ended = start(broken, hook=mortal, given=(str(broken.path), point)).wait()
        assert ended in (-signal.SIGKILL, -signal.SIGPROF), (point, ended, broken.errors())
        assert start(broken).wait() == 0, (point, broken.errors())
        same_run(broken, whole)
