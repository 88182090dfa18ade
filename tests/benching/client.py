"""`python -m tests.benching.client`: sends requests over kept connections; JSON in, JSON out.

It is a process of its own, so that what it costs is known, and it talks HTTP over plain sockets, so that this is
little.
With a rate it is an open loop: requests fall due by the clock, however slow the answers are, and their latency counts
from when they were due.
"""

import json
import random
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.benching.bodies import SPANS, Bodies


@dataclass
class Order:
    port: int
    path: str
    headers: dict[str, str]
    bodies: str
    first: int
    """Number of the first request to send."""
    seconds: float
    connections: int = 8
    rate: float = 0.0
    """Spans per second; 0 is as fast as the answers come."""
    patience_s: float = 60.0


@dataclass
class Found:
    acknowledged: list[int] = field(default_factory=list)
    """Numbers of the requests that were answered with 200."""
    codes: dict[str, int] = field(default_factory=dict)
    ms: list[float] = field(default_factory=list)
    """Of those answered with 200."""
    began: float = 0.0
    ended: float = 0.0
    """Monotonic clock, which all processes share."""
    cpu_s: float = 0.0
    next: int = 0
    ran_out: bool = False

    @property
    def spans(self) -> int:
        return len(self.acknowledged) * SPANS

    @property
    def rate(self) -> float:
        return self.spans / (self.ended - self.began)

    def quantile(self, share: float) -> float:
        values = sorted(self.ms)
        return values[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


class Connection:
    """One kept connection. Raises OSError when it breaks; the next request opens another."""

    def __init__(self, order: Order) -> None:
        self.order = order
        lines = {"Host": "127.0.0.1", "Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
        words = "".join(f"{name}: {value}\r\n" for name, value in {**lines, **order.headers}.items())
        self.head = f"POST {order.path} HTTP/1.1\r\n{words}Content-Length: ".encode()
        self.socket: socket.socket | None = None

    def send(self, body: bytes) -> int:
        """The status of the answer."""
        try:
            if self.socket is None:
                self.socket = socket.create_connection(("127.0.0.1", self.order.port), self.order.patience_s)
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.sendall(b"%b%d\r\n\r\n%b" % (self.head, len(body), body))
            return self._answer(self.socket)
        except OSError:
            self.close()
            raise

    def _answer(self, given: socket.socket) -> int:
        data = b""
        while b"\r\n\r\n" not in data:
            if not (more := given.recv(65536)):
                raise ConnectionError
            data += more
        head, _, rest = data.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        if b"transfer-encoding: chunked" in lines:
            while not rest.endswith(b"0\r\n\r\n"):
                rest += given.recv(65536)
        else:
            length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
            while len(rest) < length:
                rest += given.recv(65536)
        if b"connection: close" in lines:
            self.close()
        return int(head.split(b" ", 2)[1])

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None


def run(order: Order) -> Found:
    bodies, found, lock = Bodies(Path(order.bodies)), Found(next=order.first), threading.Lock()
    found.began = time.monotonic()
    stop = found.began + order.seconds

    def work() -> None:
        connection = Connection(order)
        fresh = True
        while True:
            with lock:
                number = found.next
                due = found.began + (number - order.first) * SPANS / order.rate if order.rate else time.monotonic()
                if due >= stop:
                    return
                if number >= len(bodies):
                    found.ran_out = True
                    return
                found.next += 1
            body = bodies[number]
            if (wait := due - time.monotonic()) > 0:
                time.sleep(wait)
            start = due if order.rate else time.monotonic()
            try:
                code = str(connection.send(body))
            except OSError as error:
                code = type(error).__name__
                if isinstance(error, ConnectionError) and not fresh:
                    # A server may close what was idle; every client then tries once more.
                    with suppress(OSError):
                        code = str(connection.send(body))
            fresh = connection.socket is None
            took = (time.monotonic() - start) * 1000
            with lock:
                found.codes[code] = found.codes.get(code, 0) + 1
                if code == "200":
                    found.acknowledged.append(number)
                    found.ms.append(took)
            if not code.isdigit():
                time.sleep(random.uniform(0.05, 0.2))

    threads = [threading.Thread(target=work) for _ in range(order.connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.ended, found.cpu_s = time.monotonic(), time.process_time()
    return found


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)
    json.dump(asdict(run(Order(**json.load(sys.stdin)))), sys.stdout)
