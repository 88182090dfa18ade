"""CSV and Parquet, row by row; each cell keeps what the file says of its kind."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO

from flywheel.trajectories.formats.files import file_limits
from flywheel.trajectories.formats.files.file_limits import Bounds, Content, Item, TooMuch
from flywheel.trajectories.formats.values.hostile_json import FormatError, quote

ROWS_AT_ONCE = 64
"""Of a Parquet file."""
COLUMNS_MAX = 2_000
"""Of a table; in Parquet each field of a struct is one."""
NAMES_MAX = 1024 * 1024
"""Characters of the line that names a table's columns."""


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


def csv_content(source: BinaryIO) -> Content:
    text = io.TextIOWrapper(io.BufferedReader(source), encoding="utf-8-sig", newline="")  # type: ignore[type-var]
    try:
        head = text.read(64 * 1024)
    except UnicodeDecodeError as error:
        raise FormatError(f"CSV: not UTF-8: byte 0x{error.object[error.start]:02x}") from None
    text.seek(0)
    csv.field_size_limit(file_limits.VALUE_MAX)
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
    lines.most = file_limits.VALUE_MAX
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


def parquet_content(source: BinaryIO, bounds: Bounds) -> Content:
    parquet = file_limits.import_arrow("pyarrow.parquet", "Parquet")
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
            file_limits.check_unpacked("Parquet", unpacked)
            for row in _rows_of(batch):
                number += 1
                if row is None:
                    yield Item(f"row {number}", error=file_limits.too_long())
                    continue
                yield Item(f"row {number}", {str(key): _plain(item) for key, item in row.items()})
    except TooMuch:
        raise
    except Exception as error:
        yield Item(f"row {number + 1}", error=f"Parquet: {str(error)[:200]}; nothing after it was read")


def _rows_of(batch: Any) -> Iterator[dict[str, Any] | None]:
    """None for a row that is too large to be taken out."""
    if batch.nbytes <= file_limits.VALUE_MAX:
        yield from batch.to_pylist()
        return
    for place in range(batch.num_rows):
        row = batch.slice(place, 1)
        yield row.to_pylist()[0] if row.nbytes <= file_limits.VALUE_MAX else None


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
