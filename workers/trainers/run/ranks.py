"""The processes that share a run, as `torchrun` starts them: each learns from its part of a batch, and their gradients
are averaged. The first, rank 0, owns the run directory: it alone evaluates, tells events and saves what is made."""

import os
from typing import TypeVar

T = TypeVar("T")

WAIT_S = 6 * 3600
"""Time that a process waits for the others, as while the first one evaluates. Who died is noticed at once."""


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def world() -> int:
    """The number of processes that share the run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def agreed(value: T) -> T:
    """The first process's value, in all of them: what each finds out by itself, such as whether somebody asked to stop,
    may differ by a moment."""
    if world() == 1:
        return value
    from torch import distributed

    values = [value]
    distributed.broadcast_object_list(values, src=0)
    return values[0]


def wait() -> None:
    """Wait until all processes are here."""
    if world() > 1:
        from torch import distributed

        distributed.barrier()
