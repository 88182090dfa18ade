"""Work that takes what the others leave of the processor, and all of it when they want none.

Linux keeps niceness for each thread, and only the superuser may lower it again: so such work gets a thread of its own,
and the process that asked for it goes on as it was.
"""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from django.db import connections

T = TypeVar("T")

NICENESS = 15


def humbly(work: Callable[[], T]) -> T:
    """The result of `work`, done in a thread that lets everybody else go first. Raises what it raises."""

    def done() -> T:
        if sys.platform == "linux":  # elsewhere threads have no niceness of their own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        try:
            return work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1, "humble") as thread:
        return thread.submit(done).result()


class Crowd:
    """Competition for the processor, as this thread has felt it since it last asked."""

    def __init__(self) -> None:
        self._ran, self._waited = _scheduled()

    def share(self) -> float:
        """Return the share of this thread's possible working time that others took."""
        ran, waited = _scheduled()
        since = ran - self._ran + waited - self._waited
        share = (waited - self._waited) / since if since else 0.0
        self._ran, self._waited = ran, waited
        return share


def _scheduled() -> tuple[int, int]:
    """Nanoseconds that this thread had a processor, and waited for one; zero where the system does not say."""
    try:
        ran, waited, _ = Path("/proc/thread-self/schedstat").read_text().split()
    except OSError:
        return 0, 0
    return int(ran), int(waited)
