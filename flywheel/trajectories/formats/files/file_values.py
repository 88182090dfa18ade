"""What a file is made of, value by value: JSON Lines, JSON (also pretty-printed, also one large list), Inspect's
`.eval` archives, Parquet and CSV, each also compressed with gzip.

`read` looks at the first bytes, never at the name, and never holds more than one value. A value is at most `VALUE_MAX`
bytes, what a file unpacks to at most `UNPACKED_MAX`, and whoever reads for somebody who waits sets closer `Bounds`.
Nothing in an archive is ever written to disk, so the names in it are only names.
"""

import csv
import gzip
import importlib
import io
import json
import re
import struct
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Protocol

from flywheel.trajectories.formats.values.hostile_json import FormatError, load, quote

VALUE_MAX = 64 * 1024 * 1024
"""Bytes of one line, one JSON value or one sample."""
UNPACKED_MAX = 4 * 1024 * 1024 * 1024
CHUNK = 1024 * 1024
ROWS_AT_ONCE = 64
"""Of a Parquet file."""
MEMBERS_MAX = 200_000
"""Files in an archive."""
CELL_MAX = VALUE_MAX
COLUMNS_MAX = 2_000
"""Of a table; in Parquet each field of a struct is one."""
NAMES_MAX = 1024 * 1024
"""Characters of the line that names a table's columns."""

_NEEDS_FILES = "needs pyarrow; install it with `pip install flywheel[files]`"
_ZSTD = 93


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
    """What reading one file may cost. Time counts from when this was made, and includes what the caller does."""

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


def read(source: BinaryIO, bounds: Bounds | None = None) -> Content:
    """What the file holds. Raises FormatError for one that cannot be read at all, and TooMuch in the middle too."""
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
        return Content("Inspect archive", _archive(source))
    if head[:4] == b"PAR1":
        return _parquet(source, bounds)
    # Empty lines are no items, so these look at the time where they read.
    source = _Borrowed(source, bounds)  # type: ignore[assignment]
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"[":
        return Content("JSON", _values(source))
    if text[:1] == b"{":
        first = text.partition(b"\n")[0].strip()
        # The beginning of a long line cannot be told from a pretty-printed object's; those begin with `{` alone.
        is_line = first != b"{" and (len(first) >= len(text) - 1 or _is_json(first) or not _opens_block(first))
        return Content("JSON Lines", lines(_lines(source))) if is_line else Content("JSON", _values(source))
    if text and _is_table(text):
        return _csv(source)
    return Content("JSON Lines", lines(_lines(source)))


def _is_json(line: bytes) -> bool:
    try:
        load(line)
    except FormatError:
        return False
    return True


def _opens_block(line: bytes) -> bool:
    """`{"messages": [` and the like: a line that ends inside a list or an object that it opened."""
    return line[-1:] in (b"[", b"{", b",")


def _is_table(head: bytes) -> bool:
    """A first line with a comma, a tab or a semicolon that is no JSON."""
    first = head.partition(b"\n")[0]
    try:
        line = first.decode()
    except UnicodeDecodeError:
        return False
    return any(mark in line for mark in ",;\t") and line.isprintable() | ("\t" in line) | line.endswith("\r")


# JSON Lines


def lines(source: Iterable[bytes]) -> Iterator[Item]:
    for number, line in enumerate(source, 1):
        line = line.removeprefix(b"\xef\xbb\xbf").strip()
        if not line:
            continue
        at = f"line {number}"
        if len(line) >= VALUE_MAX:
            yield Item(at, error=f"longer than {VALUE_MAX // 1024**2} MiB")
            continue
        try:
            if line in (b"{", b"["):
                raise FormatError(
                    "the JSON is spread over several lines; one object a line is wanted (jq -c '.[]' makes them)"
                )
            yield Item(at, load(line), size=len(line), content=line)
        except FormatError as error:
            yield Item(at, error=str(error), size=len(line), content=line)


def _lines(source: Source) -> Iterator[bytes]:
    """Lines, each cut where it would be too long to hold."""
    rest = b""
    is_cut = False
    while chunk := source.read(CHUNK):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if not is_cut:
                yield line
            is_cut = False
        if len(rest) >= VALUE_MAX:
            if not is_cut:
                yield rest
            rest, is_cut = b"", True
    if rest and not is_cut:
        yield rest


# JSON over several lines


_MARK = re.compile(rb'["\[\]{}]')
_QUOTE = re.compile(rb'(?<!\\)(?:\\\\)*"')
"""The quote that ends a text: an even number of backslashes stands before it."""


def _values(source: Source) -> Iterator[Item]:
    """The objects of a list, or objects one after another; each is complete when its brackets close."""
    buffer = bytearray()
    place = start = depth = count = 0
    outer = -1
    """At which depth the values are: 0, or 1 inside a list."""
    in_text = False
    began = False
    while True:
        chunk = source.read(CHUNK)
        buffer += chunk
        while place < len(buffer):
            found = (_QUOTE if in_text else _MARK).search(buffer, place)
            if found is None:
                # Backslashes at the very end are looked at again, with what follows them.
                place = max(place, len(buffer.rstrip(b"\\"))) if in_text else len(buffer)
                break
            mark, place = found[0][-1:], found.end()
            if mark == b'"':
                in_text = not in_text
            elif mark in b"[{":
                if not began:
                    began = True
                    outer = 1 if mark == b"[" else 0
                if depth == outer:
                    start = found.start()
                depth += 1
            else:
                depth -= 1
                if depth == outer:
                    count += 1
                    yield _value(bytes(buffer[start:place]), count)
                    del buffer[:place]
                    place = start = 0
                elif depth < 0:
                    yield Item(f"item {count + 1}", error="not valid JSON: a bracket closes that was never opened")
                    return
        if depth <= max(outer, 0):
            del buffer[:place]
            place = start = 0
        if len(buffer) >= VALUE_MAX + CHUNK:
            yield Item(
                f"item {count + 1}",
                error=f"one JSON value of more than {VALUE_MAX // 1024**2} MiB; write JSON Lines, for Inspect `.eval`",
            )
            return
        if not chunk:
            break
    if depth > 0 and not (depth == outer and count):
        yield Item(f"item {count + 1}", error="the file ends in the middle of it")
    elif depth > 0:
        yield Item(f"item {count + 1}", error="the file ends before the list does")


def _value(text: bytes, number: int) -> Item:
    if len(text) >= VALUE_MAX:
        return Item(f"item {number}", error=f"longer than {VALUE_MAX // 1024**2} MiB")
    try:
        return Item(f"item {number}", load(text), size=len(text), content=text)
    except FormatError as error:
        return Item(f"item {number}", error=str(error), size=len(text), content=text)


# gzip


class _Bounded(io.RawIOBase):
    """A gzip stream that says when it has unpacked too much. Reads only forwards, and can be rewound."""

    def __init__(self, inner: gzip.GzipFile) -> None:
        self.inner = inner
        self.head = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.inner.tell()

    def seek(self, place: int, whence: int = 0) -> int:
        return self.inner.seek(place, whence)

    def read(self, size: int = -1) -> bytes:
        try:
            found = self.inner.read(size if size >= 0 else CHUNK)
        except (OSError, EOFError, zlib.error) as error:
            raise FormatError(f"gzip: {error}") from None
        if self.inner.tell() > UNPACKED_MAX:
            raise TooMuch(f"gzip: unpacks to more than {UNPACKED_MAX // 1024**3} GiB")
        return found


def _unzipped(source: BinaryIO) -> BinaryIO:
    if _peek(source, 2) != b"\x1f\x8b":
        return source
    return _Bounded(gzip.GzipFile(fileobj=source, mode="rb"))  # type: ignore[return-value]


def _peek(source: BinaryIO, size: int) -> bytes:
    source.seek(0)
    head = source.read(size)
    source.seek(0)
    return head


# Inspect archives


def _archive(source: BinaryIO) -> Iterator[Item]:
    """Each sample with the log's header, read from memory: `samples/*.json` beside `header.json`."""
    try:
        archive = zipfile.ZipFile(source)
    except (zipfile.BadZipFile, ValueError, struct.error, OSError) as error:
        raise FormatError(f"zip: {error}") from None
    members = archive.infolist()
    if len(members) > MEMBERS_MAX:
        raise FormatError(f"zip: more than {MEMBERS_MAX} files")
    if any(entry.filename == "[Content_Types].xml" for entry in members):
        raise FormatError("zip: an Office document; save the sheet as CSV")
    samples = [entry for entry in members if entry.filename.startswith("samples/") and entry.filename.endswith(".json")]
    if not samples:
        raise FormatError("zip: no Inspect log, there are no samples/*.json in it; a ZIP of other files is not read")
    header: dict[str, Any] = {}
    for name in ("header.json", "_journal/start.json"):  # a log that was cut off has only the journal
        entry = next((entry for entry in members if entry.filename == name), None)
        if entry is not None and not header:
            found = load(_member(source, archive, entry))
            header = found.get("eval", {}) if isinstance(found, dict) else {}
    total = 0
    for entry in samples:
        try:
            text = _member(source, archive, entry)
            total += len(text)
            if total > UNPACKED_MAX:
                raise FormatError(f"zip: unpacks to more than {UNPACKED_MAX // 1024**3} GiB")
            yield Item(entry.filename, {"eval": header, "samples": [load(text)]}, size=len(text))
        except FormatError as error:
            yield Item(entry.filename[:200], error=str(error))
            if total > UNPACKED_MAX:
                return


def _member(source: BinaryIO, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """One file of the archive, at most `VALUE_MAX` bytes of it, whatever its entry says of its size."""
    if entry.flag_bits & 1:
        raise FormatError("zip: encrypted")
    try:
        stream: Any = (
            _zstd(source, entry)
            if entry.compress_type == _ZSTD and _ZSTD not in _known_methods()
            else archive.open(entry)
        )
        with stream:
            text: bytes = stream.read(VALUE_MAX + 1)
    except (zipfile.BadZipFile, NotImplementedError, OSError, EOFError, zlib.error, ValueError, struct.error) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"zip: {error}") from None
    if len(text) > VALUE_MAX:
        raise FormatError(f"unpacks to more than {VALUE_MAX // 1024**2} MiB")
    return text


def _known_methods() -> set[int]:
    """Compression methods of the standard library; Zstandard is one from Python 3.14 on."""
    return set(getattr(zipfile, "compressor_names", {})) & {_ZSTD} if hasattr(zipfile, "ZIP_ZSTANDARD") else set()


def _zstd(source: BinaryIO, entry: zipfile.ZipInfo) -> Any:
    arrow = _arrow("pyarrow", "Inspect's .eval with Zstandard compression")
    source.seek(entry.header_offset)
    local = source.read(30)
    if local[:4] != b"PK\x03\x04":
        raise FormatError("zip: no file where the directory says")
    name, extra = struct.unpack("<HH", local[26:30])
    source.seek(entry.header_offset + 30 + name + extra)
    packed = source.read(min(entry.compress_size, VALUE_MAX))
    return arrow.CompressedInputStream(arrow.BufferReader(packed), "zstd")


# Tables


class _Borrowed(io.RawIOBase):
    """The caller's file for a reader that closes what it was given, and only for as long as the bounds allow."""

    def __init__(self, source: BinaryIO, bounds: Bounds) -> None:
        self.source = source
        self.bounds = bounds

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.source.tell()

    def seek(self, place: int, whence: int = 0) -> int:
        return self.source.seek(place, whence)

    def readinto(self, target: Any) -> int:
        self.bounds.check_time()
        found = self.source.read(len(target))
        target[: len(found)] = found
        return len(found)


class _RowTooLong(FormatError):
    """Nobody knows where the next one begins."""


class _Lines:
    """The lines of a CSV file for its reader, which would hold one of any length, or a row of any number of them."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self.text = text
        self.most = NAMES_MAX
        self.size = 0
        """Characters of the row that is being read."""

    def __iter__(self) -> Iterator[str]:
        while line := self.text.readline(self.most - self.size + 1):
            self.size += len(line)
            if self.size > self.most:
                raise _RowTooLong(f"CSV: the row is longer than {self.most // 1024**2} MiB")
            yield line


def _csv(source: BinaryIO) -> Content:
    text = io.TextIOWrapper(io.BufferedReader(source), encoding="utf-8-sig", newline="")  # type: ignore[type-var]
    try:
        head = text.read(64 * 1024)
    except UnicodeDecodeError as error:
        raise FormatError(f"CSV: not UTF-8: byte 0x{error.object[error.start]:02x}") from None
    text.seek(0)
    csv.field_size_limit(CELL_MAX)
    lines = _Lines(text)
    rows = csv.reader(lines, delimiter=_delimiter(head.partition("\n")[0]))
    try:
        columns = next(rows)
    except (StopIteration, UnicodeDecodeError, csv.Error) as error:
        raise FormatError(f"CSV: {error}") from None
    _check_columns("CSV", len(columns))
    twice = sorted(name for name, count in Counter(columns).items() if count > 1)
    if twice or not any(columns):
        raise FormatError(
            f"CSV: the first line names columns; {quote(twice)} stands there twice"
            if twice
            else "CSV: the first line names no columns"
        )
    return Content("CSV", _csv_rows(rows, columns, lines), tuple(columns))


def _delimiter(line: str) -> str:
    """The likeliest mark between the names of columns. csv.Sniffer's time grows with the square of the line."""
    bare = re.sub(r'"[^"]*"?', "", line)
    return max(",;\t", key=bare.count)


def _check_columns(kind: str, count: int) -> None:
    if count > COLUMNS_MAX:
        raise TooMuch(f"{kind}: {count:,} columns; at most {COLUMNS_MAX:,} are read")


def _csv_rows(rows: Iterator[list[str]], columns: list[str], lines: _Lines) -> Iterator[Item]:
    number = 1
    lines.most = VALUE_MAX
    while True:
        number += 1
        lines.size = 0
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield Item(f"row {number}", error=f"CSV: {error}")
            continue
        except _RowTooLong as error:
            yield Item(f"row {number}", error=f"{error}; nothing after it was read")
            return
        except UnicodeDecodeError as error:
            yield Item(
                f"row {number}", error=f"not UTF-8: byte 0x{error.object[error.start]:02x}; nothing after it was read"
            )
            return
        if not row:
            continue
        if len(row) != len(columns):
            yield Item(f"row {number}", error=f"{len(row)} cells, {len(columns)} columns")
            continue
        yield Item(f"row {number}", dict(zip(columns, row, strict=True)))


def _parquet(source: BinaryIO, bounds: Bounds) -> Content:
    parquet = _arrow("pyarrow.parquet", "Parquet")
    try:
        file = parquet.ParquetFile(source)
        columns = tuple(str(name) for name in file.schema_arrow.names)
    except Exception as error:  # pyarrow raises its own, and OSError and ValueError
        raise FormatError(f"Parquet: {str(error)[:200]}") from None
    if not columns:
        raise FormatError("Parquet: no columns")
    _check_columns("Parquet", file.metadata.num_columns)
    bounds.check_count(file.metadata.num_rows, f"{file.metadata.num_rows:,} rows")
    return Content("Parquet", _parquet_rows(file, bounds), columns)


def _parquet_rows(file: Any, bounds: Bounds) -> Iterator[Item]:
    """A few kilobytes may unpack to any number of rows, so what counts is what they unpack to."""
    number = unpacked = 0
    try:
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
            bounds.check_time()
            unpacked += batch.nbytes
            if unpacked > UNPACKED_MAX:
                raise TooMuch(f"Parquet: unpacks to more than {UNPACKED_MAX // 1024**3} GiB")
            for row in _rows_of(batch):
                number += 1
                if row is None:
                    yield Item(f"row {number}", error=f"longer than {VALUE_MAX // 1024**2} MiB")
                    continue
                yield Item(f"row {number}", {str(key): _plain(item) for key, item in row.items()})
    except TooMuch:
        raise
    except Exception as error:
        yield Item(f"row {number + 1}", error=f"Parquet: {str(error)[:200]}; nothing after it was read")


def _rows_of(batch: Any) -> Iterator[dict[str, Any] | None]:
    """None for a row that is too large to be taken out."""
    if batch.nbytes <= VALUE_MAX:
        yield from batch.to_pylist()
        return
    for place in range(batch.num_rows):
        row = batch.slice(place, 1)
        yield row.to_pylist()[0] if row.nbytes <= VALUE_MAX else None


def _plain(value: Any) -> Any:
    """A cell without its empty parts: a struct column has every field in every row, unset ones as null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {str(key): _plain(item) for key, item in value}  # a map column
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return f"[{len(value)} bytes]"
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return json.loads(json.dumps(value, default=str))


def _arrow(name: str, what: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise FormatError(f"{what} {_NEEDS_FILES}") from None
