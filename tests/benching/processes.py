"""What processes cost, from /proc."""

import os
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def tree(root: int) -> list[int]:
    """The process and everything that descends from it."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        if (stat := _stat(int(entry.name))) is not None:
            below.setdefault(int(stat[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += below.get(pid, [])
    return found


def cpu_s(root: int) -> float:
    """Seconds that the tree has worked, those of its ended children included."""
    stats = [stat for pid in tree(root) if (stat := _stat(pid)) is not None]
    return sum(sum(map(int, stat[11:15])) for stat in stats) / _TICK


def rss_mb(pids: Iterable[int]) -> dict[int, float]:
    """Resident memory of each. What processes share counts for each of them."""
    found = {}
    for pid in pids:
        with suppress(OSError):
            found[pid] = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 1e6
    return found


def _stat(pid: int) -> list[str] | None:
    """Fields from the third (state) on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@dataclass
class Memory:
    """Watches a tree's resident memory while a load runs."""

    root: int
    every_s: float = 1.0
    seen: list[tuple[float, float, float]] = field(default_factory=list)
    """When (monotonic), all together, the greatest; in MB."""

    def __enter__(self) -> "Memory":
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            held = rss_mb(tree(self.root)).values()
            if held:
                self.seen.append((time.monotonic(), sum(held), max(held)))
            if self._end.wait(self.every_s):
                return

    @property
    def together(self) -> float:
        return max((total for _, total, _ in self.seen), default=0.0)

    @property
    def greatest(self) -> float:
        return max((one for _, _, one in self.seen), default=0.0)

    def slope(self) -> float:
        """MB per minute of all together, over the second half."""
        points = self.seen[len(self.seen) // 2 :]
        if len(points) < 3:
            return 0.0
        times, values = [at for at, _, _ in points], [total for _, total, _ in points]
        middle, mean = sum(times) / len(times), sum(values) / len(values)
        spread = sum((at - middle) ** 2 for at in times)
        return 60 * sum((at - middle) * (value - mean) for at, value in zip(times, values, strict=True)) / spread
