"""JSON Lines, and JSON over several lines: pretty-printed, one large list, or objects one after another."""

import re
from collections.abc import Iterable, Iterator

from flywheel.trajectories.formats.files import file_limits
from flywheel.trajectories.formats.files.file_limits import Item, Source
from flywheel.trajectories.formats.values.hostile_json import FormatError, load

_MARK = re.compile(rb'["\[\]{}]')
_QUOTE = re.compile(rb'(?<!\\)(?:\\\\)*"')
"""The quote that ends a text: an even number of backslashes stands before it."""


def json_lines(source: Iterable[bytes]) -> Iterator[Item]:
    for number, line in enumerate(source, 1):
        line = line.removeprefix(b"\xef\xbb\xbf").strip()
        if not line:
            continue
        at = f"line {number}"
        if len(line) >= file_limits.VALUE_MAX:
            yield Item(at, error=file_limits.too_long())
            continue
        try:
            if line in (b"{", b"["):
                raise FormatError(
                    "the JSON is spread over several lines; expected one object a line (jq -c '.[]' makes them)"
                )
            yield Item(at, load(line), size=len(line), content=line)
        except FormatError as error:
            yield Item(at, error=str(error), size=len(line), content=line)


def short_lines(source: Source) -> Iterator[bytes]:
    """Yield lines, each cut where it would be too long to hold."""
    rest = b""
    is_cut = False
    while chunk := source.read(file_limits.CHUNK):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if not is_cut:
                yield line
            is_cut = False
        if len(rest) >= file_limits.VALUE_MAX:
            if not is_cut:
                yield rest
            rest, is_cut = b"", True
    if rest and not is_cut:
        yield rest


def json_values(source: Source) -> Iterator[Item]:
    """Yield the objects of a list, or objects one after another; each is complete when its brackets close."""
    buffer = bytearray()
    place = start = depth = count = 0
    outer = -1
    """At which depth the values are: 0, or 1 inside a list."""
    in_text = False
    began = False
    while True:
        chunk = source.read(file_limits.CHUNK)
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
        if len(buffer) >= file_limits.VALUE_MAX + file_limits.CHUNK:
            problem = f"one JSON value of more than {file_limits.VALUE_MAX // 1024**2} MiB"
            yield Item(f"item {count + 1}", error=f"{problem}; write JSON Lines, for Inspect `.eval`")
            return
        if not chunk:
            break
    if depth > 0 and not (depth == outer and count):
        yield Item(f"item {count + 1}", error="the file ends in the middle of it")
    elif depth > 0:
        yield Item(f"item {count + 1}", error="the file ends before the list does")


def _value(text: bytes, number: int) -> Item:
    if len(text) >= file_limits.VALUE_MAX:
        return Item(f"item {number}", error=file_limits.too_long())
    try:
        return Item(f"item {number}", load(text), size=len(text), content=text)
    except FormatError as error:
        return Item(f"item {number}", error=str(error), size=len(text), content=text)
