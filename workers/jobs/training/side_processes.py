"""Processes that do something beside a run, each in a directory of its own that looks like a run's."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings

from flywheel.edge.jobs import Lease, LeaseLost
from workers.jobs.training import trainer_process
from workers.jobs.training.trainer_process import TrainingFailed

POLL_S = 0.1


@contextmanager
def directory(lease: Lease, name: str) -> Iterator[Path]:
    """The path of a directory for this work, which is removed when it ends, as are those of owners before.

    It is this owner's alone: one that went silent and comes back removes its own, and not its successor's.
    """
    runs = Path(settings.RUNS_DIR)
    for left in runs.glob(f"{name}-{lease.job.pk}-*"):
        shutil.rmtree(left, ignore_errors=True)
    place = runs / f"{name}-{lease.job.pk}-{lease.fence}"
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def result(lease: Lease, module: str, place: Path) -> dict[str, Any]:
    """Have the module work on the directory, and return the result when it has completed.

    Raises TrainingFailed with its reason, Cancelled and LeaseLost.
    """
    process = trainer_process.start(module, place)
    try:
        while process.is_alive():
            lease.go_on()
            if lease.lost:
                raise LeaseLost(f"{lease.job} has another owner")
            time.sleep(POLL_S)
    finally:
        process.stop()
    found = trainer_process.result_of(place)
    if found.get("status") != "completed":
        died = f"its process died: {trainer_process.last_words(place)}"
        raise TrainingFailed(found.get("kind", "process_died"), found.get("message", died))
    return found
