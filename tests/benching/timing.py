"""How long pages take, what that costs of the processors, and what PostgreSQL reads from end to end for them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from django.db import connection

from tests.benching import processes
from tests.benching.pages import Page

PAGES = 30
"""Of 8 kB: a smaller table is best read whole."""


@dataclass(slots=True)
class Timing:
    """Of one page, in milliseconds."""

    name: str
    limit_ms: float | None
    took: list[float] = field(default_factory=list)
    web_cpu: float = 0.0
    """Of this process, for one answer on average."""
    db_cpu: float = 0.0
    statements: float = 0.0

    def quantile(self, share: float) -> float:
        ordered = sorted(self.took)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def to_json(self) -> dict[str, Any]:
        figures = {"p50": self.quantile(0.5), "p95": self.quantile(0.95), "n": len(self.took)}
        return figures | {
            "web_cpu": self.web_cpu,
            "db_cpu": self.db_cpu,
            "statements": self.statements,
            "limit": self.limit_ms,
        }


class Watch:
    """Counts the statements that go through Django, and sees what PostgreSQL reads from end to end for which page."""

    def __init__(self, pages: int = PAGES) -> None:
        self.count = 0
        self.sequential: dict[str, set[str]] = {}
        """Tables of more than so many pages of the disk, each with the pages of ours for which it was read so."""
        self._smallest = pages

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        self.count += 1
        return execute(sql, params, many, context)

    @contextmanager
    def watching(self, page: str) -> Iterator[None]:
        """Whichever way a statement was sent, and whoever ran it for us: a trigger, a parallel worker."""
        before = self._read_whole()
        yield
        for table, times in self._read_whole().items():
            if times > before.get(table, 0):
                self.sequential.setdefault(table, set()).add(page)

    def _read_whole(self) -> dict[str, int]:
        """How often each large table was read from end to end since the server was made."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_force_next_flush()")
            cursor.execute(
                "SELECT relname, seq_scan FROM pg_stat_user_tables JOIN pg_class USING (relname)"
                " WHERE relkind = 'r' AND relpages > %s",
                [self._smallest],
            )
            return dict(cursor.fetchall())


@contextmanager
def listening(pages: int = PAGES) -> Iterator[Watch]:
    watch = Watch(pages)
    with connection.execute_wrapper(watch):
        yield watch


def backend() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def measure(client: Any, page: Page, requests: int, watch: Watch) -> Timing:
    """Answer the page so often; the first answer of all only warms up."""
    found = Timing(page.name, page.limit_ms)
    with watch.watching(page.name or "list, next page"):
        _measure(client, page, requests, watch, found)
    return found


def _measure(client: Any, page: Page, requests: int, watch: Watch, found: Timing) -> None:
    addresses = list(islice(page.addresses, 1))
    # A page that changes what it finds has no answer to spare.
    if addresses and page.post(addresses[0]) is None:
        _answer(client, page, addresses[0])
        addresses = []
    pid, before = backend(), watch.count
    db_before, cpu = processes.cpu_s(pid), 0.0
    while len(found.took) < requests:
        address = addresses.pop() if addresses else next(page.addresses, None)
        if address is None:
            break
        cpu_before, began = time.process_time(), time.perf_counter()
        response = _ask(client, page, address)
        found.took.append((time.perf_counter() - began) * 1000)
        cpu += time.process_time() - cpu_before
        _check(response, address)
        page.after(response)
    count = max(1, len(found.took))
    found.web_cpu = cpu / count * 1000
    found.db_cpu = (processes.cpu_s(pid) - db_before) / count * 1000
    found.statements = (watch.count - before) / count


def _answer(client: Any, page: Page, address: str) -> None:
    response = _ask(client, page, address)
    _check(response, address)
    page.after(response)


def _ask(client: Any, page: Page, address: str) -> Any:
    headers = {"HX-Request": "true"} if page.is_fragment else {}
    data = page.post(address)
    if data is None:
        return client.get(address, headers=headers)
    return client.post(address, data, headers=headers)


def _check(response: Any, address: str) -> None:
    assert response.status_code == 200, f"{address}: {response.status_code} {response.content[:300]!r}"
