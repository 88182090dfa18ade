"""Several that want to write at the same time write in one transaction: what it costs beside its rows is paid once.

Who finds nobody writing and nobody coming begins at once. Who comes meanwhile waits for the next turn, which takes all
that wait, and gives those who are coming a moment. Each gets its own answer, after the commit. When a turn fails, for
whatever reason, none of it is stored and each tries alone, so that one is never refused for what another has sent.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

COMPANY_S = 0.03
"""How long a turn waits for those who are coming."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Waiting(Generic[T, R]):
    what: T
    done: R | None = None
    leads: bool = False
    """Whether the next turn is this one's to carry out."""
    woken: threading.Event = field(default_factory=threading.Event)


class Together(Generic[T, R]):
    """`work` does all of a turn or raises; `fits` says whether one more may join those of a turn."""

    def __init__(self, work: Callable[[Sequence[T]], Sequence[R]], fits: Callable[[Sequence[T], T], bool]) -> None:
        self._work = work
        self._fits = fits
        self._lock = threading.Condition()
        self._coming: set[int] = set()
        """Threads."""
        self._queue: list[_Waiting[T, R]] = []
        self._is_led = False

    @contextmanager
    def coming(self) -> Iterator[None]:
        """Announce that this thread will `do` or `leave`, so that a turn may wait for it."""
        with self._lock:
            self._coming.add(threading.get_ident())
        try:
            yield
        finally:
            self.leave()

    def leave(self) -> None:
        """Nobody needs to wait for this thread."""
        with self._lock:
            self._coming.discard(threading.get_ident())
            self._lock.notify_all()

    def do(self, what: T) -> R | None:
        """Carry this out in a turn and return the result; None when the turn failed."""
        mine = _Waiting[T, R](what)
        with self._lock:
            self._queue.append(mine)
            mine.leads, self._is_led = not self._is_led, True
        self.leave()
        if not mine.leads:
            mine.woken.wait()
        if mine.leads:
            self._lead(mine)
        return mine.done

    def _lead(self, mine: _Waiting[T, R]) -> None:
        turn = self._turn(mine)
        try:
            for each, done in zip(turn, self._work([each.what for each in turn]), strict=True):
                each.done = done
        except Exception as error:
            # Part of normal work: two processes meet at a trajectory. What fails alone too is logged where it is tried.
            log.debug("%s requests are stored one by one: %s", len(turn), type(error).__name__)
        finally:
            self._hand_on()
            for each in turn[1:]:
                each.woken.set()

    def _turn(self, mine: _Waiting[T, R]) -> list[_Waiting[T, R]]:
        """Take it, and whatever else that waits fits to it, out of the queue."""
        with self._lock:
            self._lock.wait_for(lambda: not self._coming, COMPANY_S)
            turn = [mine]
            for each in self._queue:
                if each is not mine and self._fits([one.what for one in turn], each.what):
                    turn.append(each)
            self._queue = [each for each in self._queue if each not in turn]
            return turn

    def _hand_on(self) -> None:
        with self._lock:
            self._is_led = bool(self._queue)
            if self._queue:
                self._queue[0].leads = True
                self._queue[0].woken.set()
