"""Trainer and sampler are killed in every mode, each at a point of the run's life: what goes on learns from each group
once. One trial of each mode in the suite, and by `FLYWHEEL_TEST_KILLS=20` so many in all."""

import hashlib
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flywheel.core import recipes
from tests.benching.processes import free_port
from tests.workers.trainers.attempts.served_policy import BASE, serve, served
from tests.workers.trainers.attempts.test_remote_policy import LORA, at
from tests.workers.trainers.cast import Directory, Make, Start
from tests.workers.trainers.killing import POINTS, Point, kept, mortal, points, same_record, same_run, watched
from workers.trainers.attempts.live_engine import TURN_BITS, folded
from workers.trainers.attempts.sampled_groups import FOLDER
from workers.trainers.run.run_directory import Run

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


def dying(given: tuple[str, int]) -> None:
    """A hook: the trainer is killed when it has learnt in this step, before it tells."""
    url, last = given
    at(url)
    tell = Run.event

    def event(self: Run, event: str, **fields: Any) -> None:
        if (event, fields.get("step")) == ("step", last):
            os.kill(os.getpid(), signal.SIGKILL)
        tell(self, event, **fields)

    Run.event = event  # type: ignore[method-assign]


def seeds(group: int) -> set[int]:
    """Those of a group's questions, by the rule that a resumed run draws the same."""
    salts = [f"1 {group // 2} {group % 2} {number}" for number in range(4)]
    return {folded(int.from_bytes(hashlib.sha256(salt.encode()).digest()[:5]) << TURN_BITS) for salt in salts}


@pytest.mark.parametrize("mode", [{"execution": "sync"}, {"execution": "fully_async", "max_staleness": 2}], ids=str)
def test_what_had_ended_at_a_kill_is_asked_of_nobody_again(
    mode: dict[str, Any], make: Make, start: Start, trained: Path
) -> None:
    fields: dict[str, Any] = {
        "on": trained, "settings": {"rollouts": "vllm", "max_completion_length": 16, **mode}, "tuning": LORA,
        "served_base": BASE, "held_out": False, "steps": STEPS, "checkpoint_every": 2,
    }  # fmt: skip
    run = make("grpo", **fields)
    with served(trained) as server:
        assert start(run, hook=dying, given=(server.url, 3)).wait() == -signal.SIGKILL
        made_anew = {row["step"]: row["groups"] for row in run.events("attempts")}[2]
        had_ended = list((run.path / FOLDER).glob("group-*.json"))
        before = len(server.asked)
        assert start(run, hook=at, given=server.url).wait() == 0, run.errors()
    (row,) = run.events("taken_up")
    assert row["step"] == 2
    assert set(row["groups"]) >= set(made_anew)
    assert len(had_ended) >= len(row["groups"]) + row["again"]
    asked = {body["seed"] for body in server.asked[before:]}
    assert not asked & {seed for group in row["groups"] for seed in seeds(group)}
    learnt = {row["step"]: row["groups"] for row in run.events("attempts")}
    assert sorted(group for groups in learnt.values() for group in groups) == list(range(STEPS * 2))
    assert all(row["oldest"] <= 2 for row in run.events("attempts"))
