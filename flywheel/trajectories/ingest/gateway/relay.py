"""The upstream's answer on its way to the caller: each piece is written to the journal, then handed on as it is."""

import contextlib
import logging
import threading
from collections.abc import Callable

import urllib3
from urllib3.response import BaseHTTPResponse

from flywheel.trajectories.ingest.gateway import upstream_connection
from flywheel.trajectories.ingest.gateway.journals.journal import ANSWER_MAX, CHUNK, Journal

log = logging.getLogger(__name__)

PIECE = 64 * 1024


class Slots:
    """A limit on the calls under way in this process, so that pages and ingest always find a thread."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.taken = 0
        self._lock = threading.Lock()

    def take(self) -> bool:
        with self._lock:
            is_free = self.taken < self.count
            self.taken += is_free
            return is_free

    def give_back(self) -> None:
        with self._lock:
            self.taken -= 1


class Relay:
    """An iterator over the answer's pieces for the WSGI server, which calls `close` whatever happens.

        `done(journal)` is called once, after the last piece: at the end of the answer, when the upstream breaks off, or
        when the caller goes away. An answer that breaks off ends in a reset connection for the caller too: a proper end
    would say that it was complete. `after()` is called once the server has sent all of a complete answer, and
    `look(piece)` before a piece goes on.
    """

    def __init__(
        self,
        reply: BaseHTTPResponse,
        journal: Journal,
        done: Callable[[Journal], None],
        after: Callable[[], None] | None = None,
        look: Callable[[bytes], None] | None = None,
    ) -> None:
        self.reply, self.journal, self._done, self._after, self._look = reply, journal, done, after, look
        self.length = upstream_connection.length_of(reply)
        self.passed = 0
        self._is_over = False

    def __iter__(self) -> "Relay":
        return self

    def __next__(self) -> bytes:
        if self._is_over:
            raise StopIteration
        try:
            piece = self.reply.read1(PIECE, decode_content=False)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise self._broken(
                f"the upstream broke off after {self.passed} bytes: {upstream_connection.why(error)}"
            ) from None
        if not piece:
            if self.length is not None and self.passed < self.length:
                raise self._broken(f"the upstream broke off after {self.passed} of {self.length} bytes")
            self._complete()
            raise StopIteration
        self.passed += len(piece)
        if self.passed > ANSWER_MAX:
            raise self._broken(f"cut off: the answer is longer than {ANSWER_MAX >> 20} MiB")
        if self._look is not None:
            self._look(piece)
        is_last = self.passed == self.length
        self.journal.write(CHUNK, piece, hold=is_last)
        if is_last:
            self._complete()
        return piece

    def close(self) -> None:
        if not self._is_over:
            if self.length is not None and self.passed >= self.length:
                self._complete()
            else:
                self._cut_off("left", f"cut off: the caller went away after {self.passed} bytes of the answer")
        after, self._after = self._after, None
        if after is not None:
            after()

    def _complete(self) -> None:
        self.journal.end({"how": "complete"})
        self._over()

    def _cut_off(self, how: str, reason: str) -> None:
        self._after = None
        self.journal.end({"how": how, "error": reason})
        self._over()

    def _broken(self, reason: str) -> ConnectionResetError:
        self._cut_off("broken", reason)
        return ConnectionResetError(104, reason)

    def _over(self) -> None:
        self._is_over = True
        with contextlib.suppress(Exception):
            # A connection whose answer was read to its end is back in the pool already; any other is closed.
            self.reply.close()
        self._done(self.journal)
