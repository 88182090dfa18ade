"""Values of a file, one by one: JSON Lines, JSON (also pretty-printed, also one large list), Inspect's `.eval`
archives, Parquet and CSV, each also compressed with gzip.

`read` looks at the first bytes, never at the name, and never holds more than one value. A value is at most `VALUE_MAX`
bytes, what a file unpacks to at most `UNPACKED_MAX`, and whoever reads for somebody who waits sets closer `Bounds`.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, BinaryIO

from flywheel.trajectories.formats.files import file_limits
from flywheel.trajectories.formats.files.archive_values import archive_values
from flywheel.trajectories.formats.files.file_limits import Bounds, Content, Item
from flywheel.trajectories.formats.files.json_values import json_lines, json_values, short_lines
from flywheel.trajectories.formats.files.table_values import csv_content, parquet_content
from flywheel.trajectories.formats.values.hostile_json import FormatError, load


def read(source: BinaryIO, bounds: Bounds | None = None) -> Content:
    """Tell what a file holds. Raises FormatError for one that cannot be read at all, and TooMuch in the middle too."""
    bounds = bounds or Bounds()
    content = _content(source, bounds)
    return replace(content, items=_within(content.items, bounds))


def _within(items: Iterator[Item], bounds: Bounds) -> Iterator[Item]:
    for number, item in enumerate(items, 1):
        bounds.check_count(number)
        bounds.check_time()
        yield item


def _content(source: BinaryIO, bounds: Bounds) -> Content:
    source = _unzipped(source)
    head = _peek(source, 64 * 1024)
    if head[:4] == b"PK\x03\x04":
        return Content("Inspect archive", archive_values(source))
    if head[:4] == b"PAR1":
        return parquet_content(source, bounds)
    # Empty lines are no items, so these look at the time where they read.
    source = _Borrowed(source, bounds)  # type: ignore[assignment]
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"[" or (text[:1] == b"{" and not _begins_with_line(text)):
        return Content("JSON", json_values(source))
    if text[:1] not in (b"", b"{") and _is_table(text):
        return csv_content(source)
    return Content("JSON Lines", json_lines(short_lines(source)))


def _begins_with_line(text: bytes) -> bool:
    first = text.partition(b"\n")[0].strip()
    # The beginning of a long line cannot be told from a pretty-printed object's; those begin with `{` alone.
    return first != b"{" and (len(first) >= len(text) - 1 or _is_json(first) or not _opens_block(first))


def _is_json(line: bytes) -> bool:
    try:
        load(line)
    except FormatError:
        return False
    return True


def _opens_block(line: bytes) -> bool:
    """Tell `{"messages": [` and the like: a line that ends inside a list or an object that it opened."""
    return line[-1:] in (b"[", b"{", b",")


def _is_table(head: bytes) -> bool:
    """Whether there is a first line with a comma, a tab or a semicolon that is no JSON."""
    first = head.partition(b"\n")[0]
    try:
        line = first.decode()
    except UnicodeDecodeError:
        return False
    return any(mark in line for mark in ",;\t") and line.isprintable() | ("\t" in line) | line.endswith("\r")


class _Forwarded(io.RawIOBase):
    """A stream that asks another one."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self.inner.tell())

    def seek(self, place: int, whence: int = 0) -> int:
        return int(self.inner.seek(place, whence))


class _Bounded(_Forwarded):
    """A gzip stream that says when it has unpacked too much. Reads only forwards, and can be rewound."""

    def read(self, size: int = -1) -> bytes:
        try:
            unpacked = bytes(self.inner.read(size if size >= 0 else file_limits.CHUNK))
        except (OSError, EOFError, zlib.error) as error:
            raise FormatError(f"gzip: {error}") from None
        file_limits.check_unpacked("gzip", self.inner.tell())
        return unpacked


class _Borrowed(_Forwarded):
    """The caller's file for a reader that closes what it was given, and only for as long as the bounds allow."""

    def __init__(self, source: BinaryIO, bounds: Bounds) -> None:
        super().__init__(source)
        self.bounds = bounds

    def readinto(self, target: Any) -> int:
        self.bounds.check_time()
        piece = self.inner.read(len(target))
        target[: len(piece)] = piece
        return len(piece)


def _unzipped(source: BinaryIO) -> BinaryIO:
    if _peek(source, 2) != b"\x1f\x8b":
        return source
    return _Bounded(gzip.GzipFile(fileobj=source, mode="rb"))  # type: ignore[return-value]


def _peek(source: BinaryIO, size: int) -> bytes:
    source.seek(0)
    head = source.read(size)
    source.seek(0)
    return head
