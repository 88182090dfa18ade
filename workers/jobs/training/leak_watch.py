"""Comparing a run's data with what measures it before anything is trained: the worker's side of `leak_refusals`."""

import time

from flywheel.edge.jobs import Lease, LeaseLost
from flywheel.training.launch import leak_refusals
from flywheel.training.models import TrainingRun

COMPARING = "comparing its data with held-out tasks"
LOOK_EVERY_S = 1.0
"""How often it sees whether it shall go on."""


def refusal(lease: Lease, run: TrainingRun) -> str:
    """Why the run may not train; empty when it may. Raises Cancelled and LeaseLost."""
    lease.update(message=COMPARING)
    looked_at = time.monotonic()

    def look() -> None:
        nonlocal looked_at
        if time.monotonic() - looked_at < LOOK_EVERY_S:
            return
        looked_at = time.monotonic()
        lease.go_on()
        if lease.lost:
            raise LeaseLost(f"{run} has another owner")

    problem = leak_refusals.refusal(run, look)
    lease.update(message="")
    if not problem:
        lease.log(f"compared the data with {run.task_set} and what guards {run.base.agent}: nothing forbids to train")
    return problem
