"""An HTTP answer read within a total time and size, whatever the server does.

A socket's own timeout holds for one wait: a server that drips its answer byte by byte would be waited for without end.
"""

import contextlib
import http.client
import io
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

BODY_LIMIT = 8 * 2**20


class TooLong(ValueError):
    """The answer has more than BODY_LIMIT bytes."""


class _Reader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock, self._deadline = sock, deadline
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class Reply(http.client.HTTPResponse):
    def read_until(
        self, sock: socket.socket, deadline: float, is_enough: Callable[[bytes], bool] | None = None
    ) -> bytes:
        """Status, headers and body, before `deadline` of `time.monotonic()`; of a stream as much as `is_enough`, which
        sees part by part. Raises TooLong, and what sockets and `http.client` raise."""
        with self._until(sock, deadline):
            return self._body(is_enough)

    def status_until(self, sock: socket.socket, deadline: float) -> int:
        """The status, before `deadline`; the body stays unread."""
        with self._until(sock, deadline):
            self.begin()
            return self.status

    @contextlib.contextmanager
    def _until(self, sock: socket.socket, deadline: float) -> Iterator[None]:
        self.fp.close()
        self.fp = io.BufferedReader(_Reader(sock, deadline))
        try:
            yield
        finally:
            self.close()  # or it would hold the socket open, whoever closes that

    def _body(self, is_enough: Callable[[bytes], bool] | None) -> bytes:
        self.begin()
        parts = []
        size = 0
        while part := self.read1(65536):
            parts.append(part)
            size += len(part)
            if size > BODY_LIMIT:
                raise TooLong(f"the server's answer is longer than {BODY_LIMIT // 2**20} MiB")
            if is_enough is not None and is_enough(part):
                return b"".join(parts)
        if self.length:
            raise http.client.IncompleteRead(b"".join(parts), self.length)
        return b"".join(parts)
