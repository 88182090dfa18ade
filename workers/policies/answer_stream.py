"""Asking a policy in a thread of its own while the run that wants its answers judges and stores the earlier ones.

The thread goes chunk by chunk, and only so far ahead of what was taken as it is allowed to: whoever stores slowly is
asked for less. A run that fails, loses its lease or is cancelled closes the engine. What was not sent by then is not
asked at all, and what was answered by then is still given out, since it is paid for.
"""

import gc
import queue
import sys
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from django.db import connections

from flywheel.core.envs.policy_rollouts import Engine
from flywheel.edge.jobs import Lease

T = TypeVar("T")

AHEAD = 2
"""Chunks that may be asked beyond the one that is being stored."""
LOOK_S = 0.2
"""How often whoever waits for answers looks whether the run is still wanted."""
SWITCH_S = 0.001
"""How long a thread may compute while another wants to. Python's own 5 ms would hold up every answer of a server behind
whatever is being stored; a fifth of this would have the two of them change places so often that it costs as much."""
HEAD_START_S = 0.015
"""What the next questions get to be sent before the answers to the last ones are given out. Both begin at one moment,
and whoever stores would hold up every question under Python's one lock; afterwards it has the time the server takes."""
COLLECT_AFTER = 50_000, 20, 20
"""Objects: a chunk that is stored makes thousands, none of them in a circle, and a full collection looks at all that a
model's libraries have loaded."""


class Asking(Generic[T]):
    """`ask(number)` for each of `count` chunks, in a thread. Use it as a context manager; the engine is closed at its
    end."""

    def __init__(self, lease: Lease, engine: Engine, ask: Callable[[int], T], count: int, ahead: int = AHEAD) -> None:
        self._lease, self._engine, self._ask, self._count = lease, engine, ask, count
        self._room = threading.Semaphore(ahead)
        self._answered: queue.SimpleQueue[T | BaseException | None] = queue.SimpleQueue()
        self._stopped, self._ended = threading.Event(), threading.Event()
        self._head_start_s = HEAD_START_S if ahead else 0.0
        self._switch_s, self._collect_after = sys.getswitchinterval(), gc.get_threshold()

    def __enter__(self) -> "Asking[T]":
        sys.setswitchinterval(SWITCH_S)
        gc.set_threshold(*COLLECT_AFTER)
        # Nobody waits for it at the end: a worker that is told to stop stops.
        threading.Thread(target=self._carry_out, name="eval-asking", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        sys.setswitchinterval(self._switch_s)
        gc.set_threshold(*self._collect_after)
        self._stop()

    def next(self) -> T | None:
        """The next chunk's answers; None when no more is asked. Raises what asking raised."""
        self._room.release()
        is_behind = not self._answered.empty()
        while True:
            try:
                found = self._answered.get(timeout=LOOK_S)
            except queue.Empty:
                if not self._is_wanted and not self._stopped.is_set():
                    self._stop()
                continue
            if isinstance(found, BaseException):
                raise found
            if not is_behind:
                self._ended.wait(self._head_start_s)
            return found

    @property
    def _is_wanted(self) -> bool:
        return not (self._stopped.is_set() or self._lease.cancelled or self._lease.lost)

    def _stop(self) -> None:
        self._stopped.set()
        self._room.release()
        self._engine.close()

    def _carry_out(self) -> None:
        try:
            for number in range(self._count):
                self._room.acquire()
                if not self._is_wanted:
                    break
                self._answered.put(self._ask(number))
            self._answered.put(None)
        except BaseException as error:
            self._answered.put(error)
        finally:
            self._ended.set()
            connections.close_all()  # this thread's own, which nobody else would close
