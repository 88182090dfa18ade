"""Limits on reading a file, and the content that it yields.

Whoever tries a limit sets it here: all who read look it up when they need it.
"""

import importlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from flywheel.trajectories.formats.values.hostile_json import FormatError

VALUE_MAX = 64 * 1024 * 1024
"""Bytes of one line, one JSON value or one sample."""
UNPACKED_MAX = 4 * 1024 * 1024 * 1024
CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Item:
    """One value of a file, or what is wrong with it."""

    at: str
    """Where it stands: `line 3`, `item 3`, `row 3`, `samples/1_epoch_1.json`."""
    value: Any = None
    error: str = ""
    size: int = 0
    """Bytes that it took."""
    content: bytes = b""
    """The bytes themselves, where they are lines."""


@dataclass(frozen=True, slots=True)
class Content:
    kind: str
    """`JSON Lines`, `JSON`, `Inspect archive`, `Parquet` or `CSV`."""
    items: Iterator[Item]
    columns: tuple[str, ...] = ()
    """Of a table."""

    @property
    def is_table(self) -> bool:
        return bool(self.columns)


class Source(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class TooMuch(FormatError):
    """The file is larger than may be read; what came before is good."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on reading one file. Time counts from when this was made, and includes what the caller does."""

    values: int = 10_000_000
    """Lines, rows, samples or items."""
    seconds: float | None = None
    begun: float = field(default_factory=time.monotonic)

    def check_time(self) -> None:
        if self.seconds is not None and time.monotonic() - self.begun > self.seconds:
            raise TooMuch(f"the file takes longer than {self.seconds:g} s to read")

    def check_count(self, count: int, what: str = "more than that") -> None:
        if count > self.values:
            raise TooMuch(f"the file holds {what}; at most {self.values:,} lines, rows or samples are read")


def check_unpacked(kind: str, size: int) -> None:
    if size > UNPACKED_MAX:
        raise TooMuch(f"{kind}: unpacks to more than {UNPACKED_MAX // 1024**3} GiB")


def too_long() -> str:
    return f"longer than {VALUE_MAX // 1024**2} MiB"


def import_arrow(name: str, what: str) -> Any:
    """Import a module of pyarrow, which not every installation has. Raises FormatError without it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise FormatError(f"{what} needs pyarrow; install it with `pip install flywheel[files]`") from None
