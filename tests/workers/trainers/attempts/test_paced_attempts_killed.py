"""Trainer and sampler are killed in every mode, each at a point of the run's life: what goes on learns from each group
once. One trial of each mode in the suite, and by `FLYWHEEL_TEST_KILLS=20` so many in all."""

import multiprocessing
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flywheel.core import recipes
from tests.benching.processes import free_port
from tests.workers.trainers.attempts.served_policy import BASE, serve
from tests.workers.trainers.attempts.test_remote_policy import LORA, at
from tests.workers.trainers.cast import Directory, Make, Start
from tests.workers.trainers.killing import POINTS, Point, kept, mortal, points, same_record, same_run, watched

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning")

STEPS = 4
MODES: list[dict[str, Any]] = [
    {"execution": "sync"},
    {"execution": "one_step_off_async"},
    {"execution": "fully_async", "max_staleness": 2},
]


class Sampler:
    """The server in a process of its own, which may be killed and comes back to the same place."""

    def __init__(self, base: Path) -> None:
        self.base, self.port = base, free_port()
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = multiprocessing.get_context("forkserver").Process(
            target=serve, args=(self.base, self.port), daemon=True
        )
        self.process.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@pytest.fixture
def sampler(trained: Path) -> Iterator[Sampler]:
    it = Sampler(trained)
    yield it
    it.kill()


def hook(given: tuple[str, Callable[[Any], None] | None, Any]) -> None:
    """The operator's server is there, and the trainer is watched, or mortal."""
    url, more, of_more = given
    at(url)
    if more is not None:
        more(of_more)


@pytest.mark.parametrize("mode", MODES, ids=[mode["execution"] for mode in MODES])
def test_trainer_and_sampler_are_killed_and_no_group_is_learnt_from_twice(
    mode: dict[str, Any], make: Make, start: Start, trained: Path, sampler: Sampler
) -> None:
    fields: dict[str, Any] = {
        "on": trained,
        "steps": STEPS,
        "checkpoint_every": 2,
        "keep_attempts": 200,
        "held_out": False,
        "tuning": LORA,
        "served_base": BASE,
        "settings": {"rollouts": "vllm", "learning_rate": 3e-3, "max_completion_length": 16, **mode},
    }
    whole = make("grpo", name="whole", **fields)
    began = time.monotonic()
    assert start(whole, hook=hook, given=(sampler.url, watched, str(whole.path))).wait() == 0, whole.errors()
    lasted = time.monotonic() - began
    chance = random.Random(mode["execution"])
    for number, point in enumerate(points(whole, -(-POINTS // len(MODES)))):
        broken = make("grpo", name=f"broken-{number}", run=f"r-broken-{number}", **fields)
        trainer = start(broken, hook=hook, given=(sampler.url, mortal, (str(broken.path), point)))
        time.sleep(chance.uniform(0, lasted))
        sampler.kill()
        time.sleep(chance.uniform(0, 1))
        sampler.start()
        ended = trainer.wait()
        # A server that is away when the run wants to begin, for longer than it waits, ends it with the reason.
        is_away = ended == 1 and "see to the server, then resume" in broken.errors()
        assert is_away or ended in (-signal.SIGKILL, -signal.SIGPROF), (point, ended, broken.errors())
        resumed = start(broken, hook=hook, given=(sampler.url, None, None))
        assert resumed.wait() == 0, (point, broken.errors())
        check(broken, whole, point)


def check(broken: Directory, whole: Directory, point: Point) -> None:
    bound = recipes.staleness_bound(broken.spec["settings"])
    if not bound:
        same_run(broken, whole)
    same_record(broken, whole)
    attempts = {row["step"]: row for row in broken.events("attempts")}  # of a step that came again, the last
    size = broken.spec["settings"]["batch_size"] // broken.spec["settings"]["num_generations"]
    assert sorted(group for row in attempts.values() for group in row["groups"]) == list(range(STEPS * size)), point
    assert all(row["oldest"] <= bound for row in broken.events("attempts")), point
    seeds = [seed for rows in kept(broken).values() for _, seed, _ in rows]
    assert len(seeds) == len(set(seeds)) == STEPS * broken.spec["settings"]["batch_size"], point
