"""One call as it happens: a file that is written ahead of what the client sees, so that `kill -9` loses nothing of it.

    journal = Journal.begin({"id": …, "project": …})
    journal.write(REQUEST, body); journal.write(CHUNK, piece); …; journal.end({"how": "complete"})

Each piece is one `write`, which outlives the process but not the machine: no piece is flushed to the disk (a flush was
measured at 4 to 12 ms, a write at 0.01), since the store's commit follows in milliseconds. What has to wait longer is
flushed then (`keep`). A flock says that somebody is at the file; the kernel takes it away with the process.

Where no file can be written, or the disk is nearly full (the database lives there too), the call is kept in memory;
when there is no room either, it is not recorded, and counted.
"""

import contextlib
import fcntl
import json
import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings

log = logging.getLogger(__name__)

HEAD, REQUEST, RESPONSE, CHUNK, END = b"H", b"Q", b"R", b"C", b"E"
FRAME = struct.Struct(">cdI")
SUFFIX = ".exchange"
ANSWER_MAX = 32 * 2**20
"""Bytes of an answer; what goes on for longer is cut off."""
DISK_SPARED = 512 * 2**20
"""Bytes that stay free for everything else on the disk."""
HEAD_MAX = 64 * 2**10
"""Bytes within which a journal says whose it is."""
YOUNG_S = 2.0
"""Seconds in which nobody but its own process looks at a file."""
MEMORY_MAX = 64 * 2**20
"""Bytes of the calls that are kept in memory, together."""


@dataclass(frozen=True, slots=True)
class Frame:
    kind: bytes
    at: float
    """Seconds since 1970."""
    body: bytes


class Journal:
    """The record of one call so far. Used by one thread at a time; no method raises for a disk's sake."""

    _lock = threading.Lock()
    in_memory = 0
    """Bytes that this process keeps in memory."""
    lost = 0
    """Calls that this process could not keep at all."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.file = -1
        self.memory: bytearray | None = None
        self.size = 0
        """Bytes that are in the file."""
        self.held = b""
        """What is written with the next piece, to save a call of the system."""
        self.is_lost = False
        self.is_awaited = False
        """Somebody waits for it to be recorded."""
        self.ended = False

    @classmethod
    def begin(cls, head: dict[str, Any], request: bytes) -> "Journal":
        journal = cls()
        journal.is_awaited = bool(head.get("attempt"))
        first = _frame(HEAD, json.dumps(head).encode()) + _frame(REQUEST, request)
        try:
            journal.path = settings.GATEWAY_DIR / f"{head['id']}{SUFFIX}"
            journal.file = _create(journal.path)
            fcntl.flock(journal.file, fcntl.LOCK_EX)
            _write(journal.file, first)
            journal.size = len(first)
        except OSError as error:
            log.warning("a gateway call is kept in memory: %s", error)
            journal._into_memory(first)
        return journal

    @property
    def is_off(self) -> bool:
        """The caller did not want the call recorded: nothing is written."""
        return self.path is None and self.memory is None

    def write(self, kind: bytes, body: bytes, *, hold: bool = False) -> None:
        """Add a frame; with `hold`, only when the next one is added."""
        frame = self.held + _frame(kind, body)
        self.held = frame if hold else b""
        if hold:
            return
        if self.memory is not None:
            self._remember(frame)
        elif self.file >= 0:
            try:
                _write(self.file, frame)
                self.size += len(frame)
            except OSError as error:
                log.warning("a gateway call goes on in memory: %s", error)
                self._into_memory(os.pread(self.file, self.size, 0) + frame)

    def end(self, how: dict[str, Any]) -> None:
        """Say how it ended; only the first one counts."""
        if not self.ended:
            self.ended = True
            self.write(END, json.dumps(how).encode())

    def __len__(self) -> int:
        return self.size if self.memory is None else len(self.memory)

    def content(self) -> bytes:
        if self.memory is not None:
            return bytes(self.memory)
        return os.pread(self.file, self.size, 0)

    def keep(self) -> None:
        """Flush what has to wait, and let others take it. What is in memory stays there."""
        if self.file >= 0:
            try:
                os.fsync(self.file)
            except OSError:
                log.warning("%s could not be flushed", self.path, exc_info=True)
            self.close()

    def done(self) -> None:
        """It is recorded; forget it."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        self.close()
        self._forget()

    def put_aside(self) -> None:
        """It cannot be recorded as things are: kept in `bad/` for a person to look at, and for `second_chance`; what
        is in memory is lost."""
        if self.path is None:
            self.lose("it cannot be recorded, and is on no disk")
            return
        with contextlib.suppress(OSError):
            (self.path.parent / "bad").mkdir(mode=0o700, exist_ok=True)
            self.path.rename(self.path.parent / "bad" / self.path.name)
        self.close()

    def lose(self, why: str) -> None:
        """Give it up, and count it once."""
        if self.is_lost:
            return
        with Journal._lock:
            Journal.lost += 1
        log.error("a gateway call is not recorded: %s (%s so far)", why, Journal.lost)
        self._forget()
        self.is_lost = True

    def _into_memory(self, content: bytes) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        self.close()
        self.path, self.memory = None, bytearray()
        self._remember(content)

    def _remember(self, frame: bytes) -> None:
        assert self.memory is not None
        if self.is_lost:
            return
        with Journal._lock:
            fits = Journal.in_memory + len(frame) <= MEMORY_MAX
            if fits:
                Journal.in_memory += len(frame)
                self.memory += frame
        if not fits:
            self.lose("neither disk nor memory has room")

    def _forget(self) -> None:
        if self.memory:
            with Journal._lock:
                Journal.in_memory -= len(self.memory)
            self.memory = bytearray()

    def close(self) -> None:
        """Let others take it, as it lies on the disk."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def second_chance() -> None:
    """Retry what could not be recorded, once for each process that starts: it may know better."""
    with contextlib.suppress(OSError):
        for path in (settings.GATEWAY_DIR / "bad").glob(f"*{SUFFIX}"):
            path.rename(settings.GATEWAY_DIR / path.name)


def forget_old(kept: Callable[[int], timedelta], now: float | None = None) -> int:
    """Delete what lies in `bad/` for longer than its project keeps what was rejected (0 where it does not say whose it
    is), since it is not redacted. Returns how many files went."""
    now, gone = now or time.time(), 0
    for path in (settings.GATEWAY_DIR / "bad").glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < now - kept(_project_of(path)).total_seconds():
                path.unlink()
                gone += 1
    return gone


def _project_of(path: Path) -> int:
    with path.open("rb") as file:
        first = next(frames(file.read(HEAD_MAX)), None)
    try:
        project = json.loads(first.body)["project"] if first is not None and first.kind == HEAD else 0
    except (ValueError, KeyError, TypeError):
        return 0
    return project if isinstance(project, int) else 0


def left_lying(limit: int) -> Iterator[Journal]:
    """Journals that nobody is at, oldest first, each of them ours from then on."""
    folder = settings.GATEWAY_DIR
    found = []
    with contextlib.suppress(OSError):
        for path in folder.glob(f"*{SUFFIX}"):
            with contextlib.suppress(OSError):
                found.append((path.stat().st_mtime, path))
    # One that is younger may not have its lock yet.
    for at, path in sorted(found)[:limit]:
        if at < time.time() - YOUNG_S and (journal := _take(path)):
            yield journal


def _take(path: Path) -> Journal | None:
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_there = os.fstat(file).st_nlink > 0
    except OSError:
        is_there = False
    if not is_there:
        os.close(file)
        return None
    journal = Journal()
    journal.path, journal.file, journal.size = path, file, os.fstat(file).st_size
    if journal.size == 0:  # killed before the first word
        journal.done()
        return None
    return journal


def frames(content: bytes) -> Iterator[Frame]:
    """The frames; one that was cut off by the end of its process is left out."""
    place = 0
    while place + FRAME.size <= len(content):
        kind, at, length = FRAME.unpack_from(content, place)
        place += FRAME.size
        if place + length > len(content):
            return
        yield Frame(kind, at, content[place : place + length])
        place += length


def _frame(kind: bytes, body: bytes) -> bytes:
    return FRAME.pack(kind, time.time(), len(body)) + body


def _create(path: Path) -> int:
    _spare_the_disk(path.parent)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        return os.open(path, flags, 0o600)


_disk_seen_at = 0.0


def _spare_the_disk(folder: Path) -> None:
    """Once a second, look whether there is room. Raises OSError when there is too little."""
    global _disk_seen_at
    now = time.monotonic()
    if now - _disk_seen_at < 1:
        return
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    disk = os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize < DISK_SPARED:
        raise OSError(f"less than {DISK_SPARED >> 20} MiB are free on its disk")
    _disk_seen_at = now


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
