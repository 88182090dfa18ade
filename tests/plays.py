"""Handlers that tests can steer, in the worker of `tests/worker.py`.

An EvalRun whose `sampling` has a `play` is carried out by that play instead of the real handler, a TrainingRun by the
`play` in its `settings`:

- `{"play": "count", "steps": n, "pause": s}` writes n progress marks, resuming where the row stands;
- `{"play": "raise", "text": t}` fails; `{"play": "die"}` kills its own process.
"""

import os
import signal
import time
from typing import Any

from django.utils.module_loading import import_string

from flywheel.edge.jobs import Lease, State
from workers import tasks


def play(lease: Lease) -> None:
    part: dict[str, Any] = getattr(lease.job, "sampling", None) or getattr(lease.job, "settings", {})
    match part["play"]:
        case "count":
            _count(lease, part["steps"], part.get("pause", 0.05))
        case "raise":
            raise ValueError(part["text"])
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)


def _count(lease: Lease, steps: int, pause: float) -> None:
    lease.log(f"attempt {lease.job.attempt} starts at {lease.job.done}")
    for step in range(lease.job.done + 1, steps + 1):
        time.sleep(pause)
        if lease.lost:
            return
        if lease.cancelled:
            lease.finish(State.CANCELLED)
            return
        lease.progress(step, steps)


def _steerable(label: str) -> str:
    real = tasks.HANDLERS[label]

    def carry_out(lease: Lease) -> None:
        steered = "play" in getattr(lease.job, "sampling", {}) or "play" in getattr(lease.job, "settings", {})
        (play if steered else import_string(real))(lease)

    globals()[name := label.replace(".", "_")] = carry_out
    return f"{__name__}.{name}"


for label in list(tasks.HANDLERS):
    tasks.HANDLERS[label] = _steerable(label)
