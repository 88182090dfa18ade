"""Limits on what one process takes at a time, so that ingest never eats the memory or the threads of everything else.

Who finds no place is told to come back (503 with Retry-After), which every OTLP client does. The places are few because
Python works on one request at a time anyway: more of them would only make each slower.
"""

import ctypes
import gc
import random
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

AT_WORK = 4
"""Requests that are read and stored at once."""
WAITING = 12
"""Requests that may wait for a place."""
PATIENCE_S = 2.0
"""How long one waits."""
BYTES = 48 * 1024 * 1024
"""Of bodies at once, as they came and decompressed; a single one may always come in."""
LARGE = 1024 * 1024
"""Bytes of a body after which memory is given back."""
BODY_S = 30.0
"""How long a body may take to arrive, and as much again as its size wants at the slowest useful rate."""
BYTES_A_SECOND = 64 * 1024
READING = 16
"""Bodies that are waited for at once: half of a process's threads."""
GRACE_S = 2.0
"""How long a sender is left alone even then."""


class Busy(Exception):
    """There is no place now."""


class Door:
    """Admits a bounded number of requests, with a bounded number of bytes."""

    def __init__(self, at_work: int = AT_WORK, waiting: int = WAITING, budget: int = BYTES) -> None:
        self._places = threading.Semaphore(at_work)
        self._lock = threading.Lock()
        self._limit = at_work + waiting
        self._budget = budget
        self._inside = self._bytes = 0

    @contextmanager
    def admit(self) -> Iterator[None]:
        """A place to work at. Raises Busy when too many wait, or none got free in time."""
        with self._lock:
            if self._inside >= self._limit:
                raise Busy
            self._inside += 1
        try:
            if not self._places.acquire(timeout=PATIENCE_S):
                raise Busy
            try:
                yield
            finally:
                self._places.release()
        finally:
            with self._lock:
                self._inside -= 1

    @contextmanager
    def room(self) -> Iterator["Room"]:
        """Room for what one request brings, asked for as it comes: who promises much and sends little holds little."""
        room = Room(self)
        try:
            yield room
        finally:
            with self._lock:
                self._bytes -= room.size
            if room.size >= LARGE:
                let_go()

    def _add(self, room: "Room", size: int) -> None:
        with self._lock:
            if self._bytes > room.size and self._bytes + size > self._budget:
                raise Busy
            self._bytes += size
            room.size += size


class Room:
    """The memory that one request holds."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self.size = 0
        """In bytes."""

    def take(self, size: int) -> None:
        """So many bytes more. Raises Busy when the other requests leave no room for them."""
        self._door._add(self, size)


door = Door()


def let_go() -> None:
    """Give back to the system what a large request took: objects that hold each other, which are otherwise collected
    much later, and free pages between those that stay."""
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc has it
        trim(0)


def retry_after() -> int:
    """Seconds, not the same for everyone, so that they do not all come back at once."""
    return random.randint(1, 4)


class Watch:
    """Cuts senders off that take too long: a thread that waits for their next byte would wait for ever.

    When many are waited for at once, whoever has taken longest makes room, so that slow senders never hold all threads.
    """

    def __init__(self, at_once: int = READING) -> None:
        self._lock = threading.Lock()
        self._at_once = at_once
        self._due: dict[socket.socket, float] = {}
        self._cut_off: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    @contextmanager
    def over(self, sender: socket.socket | None, seconds: float = BODY_S, since: float | None = None) -> Iterator[None]:
        """Read from the sender within this; afterwards its end is cut, and reading finds nothing more.

        `since` (monotonic) is when its sender began, when this is not its first part.
        """
        if sender is None:
            yield
            return
        with self._lock:
            now = time.monotonic()
            self._due[sender] = (now if since is None else since) + seconds
            self._make_room(now)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._look, name="watch", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._due.pop(sender, None)

    def has_cut(self, sender: socket.socket | None) -> bool:
        """Whether what it sent is short because we would not wait any longer."""
        return sender is not None and sender in self._cut_off

    def _make_room(self, now: float) -> None:
        while len(self._due) > self._at_once:
            first, due = min(self._due.items(), key=lambda item: item[1])
            if due - now > BODY_S - GRACE_S:
                return
            self._cut(first)

    def _look(self) -> None:
        while True:
            time.sleep(1)
            now = time.monotonic()
            with self._lock:
                for sender in [sender for sender, due in self._due.items() if due < now]:
                    self._cut(sender)
                self._make_room(now)

    def _cut(self, sender: socket.socket) -> None:
        self._due.pop(sender)
        self._cut_off.add(sender)
        with suppress(OSError):  # it may have gone by itself
            sender.shutdown(socket.SHUT_RD)


watch = Watch()


class Patient:
    """Reads a body as gunicorn's reader does, for as long as it comes at a useful rate."""

    def __init__(self, reader: Any, sender: socket.socket) -> None:
        self._reader = reader
        self._sender = sender
        self._since: float | None = None
        self._read = 0

    def read(self, size: int) -> bytes:
        if self._since is None:
            self._since = time.monotonic()
        with watch.over(self._sender, BODY_S + self._read / BYTES_A_SECOND, self._since):
            found: bytes = self._reader.read(size)
        self._read += len(found)
        return found
