"""Trainers that die at a chosen point of their life, and what must be the same when they have gone on.

A life is measured in what it does and not in seconds, so that a point means the same on a busy machine: operations on
files of the run directory, after one of which the trainer kills itself; and processor time, after which the kernel ends
it wherever it is, in the middle of a library too.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.workers.trainers.cast import Directory

POINTS = int(os.environ.get("FLYWHEEL_TEST_KILLS", "3"))
"""Points of a trial: few in the suite, as many as one likes by hand."""
OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
TIMES = {"step_time_s", "peak_memory", "learner_idle", "sampler_idle"}
LIFE = "life.json"


@dataclass(frozen=True)
class Point:
    """One of these; none of them is the end of a life."""

    operation: int = 0
    seconds: float = 0.0
    """Of processor time."""


def points(run: Directory, count: int) -> list[Point]:
    """Points at random in the life of a run that was watched, by turns after an operation and in between."""
    operations, seconds = json.loads((run.path / LIFE).read_text())
    chance = random.Random(1)
    return [
        Point(seconds=chance.uniform(0, seconds)) if number % 2 else Point(operation=chance.randint(1, operations))
        for number in range(count)
    ]


def watched(place: str) -> None:
    """A hook: the trainer tells in `life.json` how far it has come."""
    told, count, began = os.open(os.path.join(place, LIFE), os.O_WRONLY | os.O_CREAT, 0o644), 0, time.process_time()

    def tell() -> None:
        nonlocal count
        count += 1
        os.pwrite(told, b"[%8d, %8.3f]" % (count, time.process_time() - began), 0)

    _at_each_operation(place, tell)


def mortal(given: tuple[str, Point]) -> None:
    """A hook: the trainer dies at that point."""
    place, point = given
    if point.seconds:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # nobody catches it
        signal.setitimer(signal.ITIMER_PROF, point.seconds)
        return
    left = point.operation

    def count() -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    _at_each_operation(place, count)


def _at_each_operation(place: str, tell: Callable[[], None]) -> None:
    inside = os.path.join(os.path.realpath(place), "")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in OPERATIONS or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        name = os.path.realpath(os.fsdecode(arguments[0]))
        is_read = event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)
        # The heartbeat goes by seconds.
        if name.startswith(inside) and "heartbeat" not in name and not is_read:
            tell()

    sys.addaudithook(hook)


def same_run(broken: Directory, whole: Directory) -> None:
    """See that a run which was killed and went on is the run that was not: its weights bit by bit, its metrics, and the
    attempts that were kept."""
    assert broken.result["digest"] == whole.result["digest"]
    same_record(broken, whole)
    assert _untimed(broken) == _untimed(whole)
    assert kept(broken) == kept(whole)


def same_record(broken: Directory, whole: Directory) -> None:
    """See that of each step, evaluation and checkpoint there is what there would be, and nothing is left behind."""
    assert broken.result["status"] == "completed"
    for kind in ("step", "eval", "validation", "checkpoint"):
        assert {row["step"] for row in broken.events(kind)} == {row["step"] for row in whole.events(kind)}, kind
    assert broken.steps_kept == whole.steps_kept
    left = {path.name for path in broken.path.iterdir()} - {path.name for path in whole.path.iterdir()}
    # Whoever dies between the result and the end has left them to the worker, who sweeps them.
    assert left <= {"work", "best"}


def kept(run: Directory) -> dict[str, list[tuple[str, int, float | None]]]:
    """The attempts that wait to be stored, by step."""
    files = sorted((run.path / "attempts").glob("step-*.jsonl"))
    rows = {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in files}
    return {
        name: [(json.dumps(row["messages"]), row["seed"], row["reward"]) for row in own] for name, own in rows.items()
    }


def _untimed(run: Directory) -> dict[int, dict[str, float]]:
    return {
        step: {name: value for name, value in metrics.items() if name not in TIMES}
        for step, metrics in run.metrics().items()
    }
