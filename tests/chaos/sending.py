"""A client that follows the OTLP rules: it sends a body again, unchanged, until the answer is final.

Retried are a broken connection and 429, 502, 503, 504, after `Retry-After` or a growing pause with jitter. Everything
else is final, and everything that is neither 2xx nor 4xx then is a loss.
"""

import collections
import http.client
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

AGAIN = (429, 502, 503, 504)
PROTOBUF = "application/x-protobuf"


@dataclass
class Tally:
    """What the answers were, by all clients together."""

    codes: collections.Counter[str] = field(default_factory=collections.Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> None:
        with self.lock:
            self.codes[what] += 1


class Sender:
    """One kept connection."""

    def __init__(self, port: int, key: str, tally: Tally, seed: str = "", patience_s: float = 20.0) -> None:
        self.port = port
        self.headers = {"Authorization": f"Bearer {key}"}
        self.tally = tally
        self.chance = random.Random(seed)
        self.patience_s = patience_s
        self.connection: http.client.HTTPConnection | None = None

    def once(
        self, body: bytes, path: str = "/v1/traces", media_type: str = PROTOBUF, **headers: str
    ) -> tuple[int, str, bytes]:
        """Status, Retry-After and body of the answer. Raises OSError or HTTPException when there is none."""
        if self.connection is None:
            self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.patience_s)
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            self.connection.request("POST", path, body, {**self.headers, "Content-Type": media_type, **given})
            answer = self.connection.getresponse()
            return answer.status, answer.getheader("Retry-After", ""), answer.read()
        except BaseException:
            self.close()
            raise

    def deliver(self, body: bytes, path: str = "/v1/traces", give_up: Callable[[], bool] = lambda: False) -> int:
        """The final status; 0 when it gave up before there was one."""
        pause = 0.1
        while not give_up():
            try:
                status, retry_after, _ = self.once(body, path)
            except (OSError, http.client.HTTPException) as error:
                self.tally.count(type(error).__name__)
                time.sleep(self.chance.uniform(0, pause))
                pause = min(2 * pause, 2.0)
                continue
            self.tally.count(str(status))
            if status not in AGAIN:
                return status
            if not retry_after.isdigit():
                self.tally.count(f"{status} without Retry-After")
            time.sleep(int(retry_after) if retry_after.isdigit() else self.chance.uniform(0, pause))
        return 0

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None
