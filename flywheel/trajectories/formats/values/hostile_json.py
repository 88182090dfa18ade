"""Reading hostile JSON: errors that name the field and what would be right, and values that PostgreSQL accepts.

Everything that comes in from an agent passes through `plain` once; after it there is no NUL, no lone surrogate, no NaN,
no integer beyond 64 bits and no nesting deeper than `MAX_DEPTH` left.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from flywheel.core.traces import MAX_COUNT
from flywheel.core.traces import count as count

MAX_DEPTH = 64
"""PostgreSQL and Python both recurse over JSON; real traces stay below 20."""

MAX_INT = 2**63

_SURROGATES = re.compile("[\ud800-\udfff]")


class FormatError(ValueError):
    """Unreadable input; the message names the field and what would be right."""


def text(value: str) -> str:
    """`value` without NUL and lone surrogates, which PostgreSQL refuses."""
    if "\x00" in value:
        value = value.replace("\x00", "\u2400")
    if value.isascii():
        return value
    return _SURROGATES.sub("\ufffd", value)


def plain(value: Any, depth: int = 0) -> Any:
    """`value` as JSON that PostgreSQL accepts. Total: whatever comes in, JSON comes out."""
    if isinstance(value, str):
        return text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -MAX_INT <= value < MAX_INT else _long(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"nan": "NaN", "inf": "Infinity"}.get(str(value), "-Infinity")
    if isinstance(value, dict | list | tuple):
        if depth >= MAX_DEPTH:
            return f"[nested deeper than {MAX_DEPTH} levels]"
        if isinstance(value, dict):
            return {text(str(key)): plain(item, depth + 1) for key, item in value.items()}
        return [plain(item, depth + 1) for item in value]
    return text(str(value))


def load(source: str | bytes) -> Any:
    """Parse JSON. Raises FormatError with the place of the mistake; never anything else."""
    try:
        return json.loads(source if isinstance(source, str) else source.decode())
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}") from None
    except RecursionError:
        raise FormatError("nested too deep to be read") from None
    except ValueError as error:
        raise FormatError(f"not valid JSON: {error}") from None


def structured(value: Any) -> Any:
    """Decode JSON that was sent as a string, which OpenTelemetry attributes need for anything nested."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    # Most JSON holds nothing that `plain` would change, and is read much faster without it.
    if "\\u0000" not in value and _NINETEEN not in value.encode(errors="replace").translate(_DIGITS):
        try:
            read = orjson.loads(value)
        except orjson.JSONDecodeError:
            pass
        else:
            if value.count("{") + value.count("[") < MAX_DEPTH or _fits(read):
                return read
    try:
        return plain(load(value))
    except FormatError:
        return value


_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_NINETEEN = b"0" * 19
"""An integer that may be beyond 64 bits. Bytes are translated and searched much faster than a pattern is matched."""


def _fits(value: Any, room: int = MAX_DEPTH) -> bool:
    """Whether a list or an object is nested no deeper than `plain` lets it be."""
    return room > 0 and all(
        _fits(item, room - 1)
        for item in (value.values() if isinstance(value, dict) else value)
        if isinstance(item, dict | list)
    )


def quote(value: Any) -> str:
    """`value` as JSON for an error message, cut to 60 characters."""
    shown = json.dumps(plain(value), ensure_ascii=False)
    return shown if len(shown) <= 60 else shown[:59] + "…"


def as_list(value: Any) -> list[Any]:
    """`value` where it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def as_dict(value: Any) -> dict[str, Any]:
    """`value` where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def cost(value: Any) -> float | None:
    """An amount of money in US dollars, or None for what cannot be one: no step costs more than a million."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e6:
        return None
    return float(value)


class Row:
    """A JSON object whose fields are read by name; an error says where it is and what would be right."""

    def __init__(self, value: Any, path: str = "") -> None:
        if not isinstance(value, dict):
            raise FormatError(f"{path or 'the line'}: {quote(value)} is not an object")
        self.value: dict[str, Any] = value
        self.path = path

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def text(self, key: str, required: bool = False) -> str:
        value = self.value.get(key)
        if value is None and not required:
            return ""
        if not isinstance(value, str):
            raise FormatError(f"{self.at(key)}: {'missing, a' if value is None else quote(value) + ' is not a'} string")
        return value

    def choice(self, key: str, allowed: Sequence[str]) -> str:
        value = self.value.get(key)
        if value not in allowed or not isinstance(value, str):
            raise FormatError(f"{self.at(key)}: {quote(value)} is not one of {', '.join(allowed)}")
        return value

    def row(self, key: str) -> "Row":
        """The object under `key`, an empty one when there is none."""
        value = self.value.get(key)
        return Row({} if value is None else value, self.at(key))

    def rows(self, key: str) -> Iterator["Row"]:
        for index, item in enumerate(self.list(key)):
            yield Row(item, f"{self.at(key)}[{index}]")

    def list(self, key: str, required: bool = False) -> "list[Any]":
        value = self.value.get(key)
        if value is None and not required:
            return []
        if not isinstance(value, list):
            raise FormatError(f"{self.at(key)}: {'missing, a' if value is None else quote(value) + ' is not a'} list")
        return value

    def count(self, key: str) -> int | None:
        value = self.value.get(key)
        if value is not None and count(value) is None:
            raise FormatError(f"{self.at(key)}: {quote(value)} is not a whole number from 0 to {MAX_COUNT}")
        return count(value)

    def cost(self, key: str) -> float | None:
        value = self.value.get(key)
        if value is not None and cost(value) is None:
            raise FormatError(f"{self.at(key)}: {quote(value)} is not an amount in US dollars")
        return cost(value)

    def time(self, key: str) -> datetime | None:
        value = self.text(key)
        if not value:
            return None
        try:
            moment = datetime.fromisoformat(value)
            return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            raise FormatError(
                f"{self.at(key)}: {quote(value)} is not an ISO 8601 time such as 2026-01-31T12:00:00Z"
            ) from None


def _long(value: int) -> str:
    try:
        return str(value)
    except ValueError:  # past Python's limit of 4300 digits
        return hex(value)
