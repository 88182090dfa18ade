"""Ranges that the values of a filter mean: of numbers (`>2k`, `1..2`), or of time (`>=2026-01`, `7d`)."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from django.db.models import Q

COMPARES = re.compile(r"(>=|<=|>|<|=)(.*)", re.DOTALL)
_NUMBER = re.compile(r"(-?\d{1,12}(?:\.\d{1,9})?)([a-z]*)")
_LATELY = re.compile(r"\d{1,5}[mhdw]")
_AGO = re.compile(r"(?<![\w:.+-])\d{1,5}[mhdw](?!\w)|(?<=\.\.)\d{1,5}[mhdw]$")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_MONTH = re.compile(r"(\d{4})-(\d{2})")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
T = TypeVar("T")
_BEYOND = 100
"""Years that a range of time may not come near: their other end would be none."""


@dataclass(frozen=True, slots=True)
class Range:
    """Open where a bound is None."""

    low: Any = None
    high: Any = None
    has_low: bool = True
    """Whether the bound itself belongs to it."""
    has_high: bool = True

    def of(self, column: str) -> Q:
        """Rows whose column is in it; one without a value is in none."""
        found = Q()
        if self.low is not None:
            found &= Q(**{f"{column}__{'gte' if self.has_low else 'gt'}": self.low})
        if self.high is not None:
            found &= Q(**{f"{column}__{'lte' if self.has_high else 'lt'}": self.high})
        return found


def of_numbers(text: str, units: dict[str, float]) -> Range | None:
    """`2`, `>2`, `1..2`, `1..`, with a unit behind each number; None when it is none of these."""
    if ".." in text:
        ends = _ends(text, lambda end: _number(end, units))
        return None if ends is None else Range(*ends)
    sign, value = _split(text)
    number = _number(value, units)
    return None if number is None else _compared(sign, number, number, ends_inside=True)


def of_time(text: str, now: datetime) -> Range | None:
    """`2026-01-31`, `>2026-01-31`, `2026-01..2026-02`, `7d` (the last seven days), `<7d`; None when it is none of
    these.

    A day or a month is all of it: what is after a day begins with the next one. Times without a zone are UTC.
    """
    if ".." in text:
        ends = _ends(text, lambda end: _moments(end, now))
        if ends is None:
            return None
        first, last = ends
        return Range(first and first[0], last and last[1], has_high=last is not None and last[0] == last[1])
    sign, value = _split(text)
    found = _moments(value, now)
    if found is None:
        return None
    if sign == "=" and _LATELY.fullmatch(value):
        return Range(low=found[0])
    return _compared(sign, *found, ends_inside=found[0] == found[1])


def settled(text: str, now: datetime) -> str:
    """The same range of time with `7d` and the like written out."""
    if _LATELY.fullmatch(text):
        text = f">={text}"
    return _AGO.sub(lambda match: _ago(match[0], now).isoformat(timespec="seconds"), text)


def _ends(text: str, read: Callable[[str], T | None]) -> tuple[T | None, T | None] | None:
    """Read the ends of `low..high`, of which one may be left out; None where nothing is to be read, or cannot be."""
    low, _, high = text.partition("..")
    first, last = read(low) if low else None, read(high) if high else None
    is_none = (first is None and last is None) or (low and first is None) or (high and last is None)
    return None if is_none else (first, last)


def _split(text: str) -> tuple[str, str]:
    match = COMPARES.fullmatch(text)
    return (match[1], match[2]) if match else ("=", text)


def _compared(sign: str, start: Any, end: Any, *, ends_inside: bool) -> Range:
    """Return the range of a comparison with start to end; `ends_inside` says whether the end belongs to it."""
    match sign:
        case ">":
            return Range(low=end, has_low=not ends_inside)
        case ">=":
            return Range(low=start)
        case "<":
            return Range(high=start, has_high=False)
        case "<=":
            return Range(high=end, has_high=ends_inside)
        case _:
            return Range(start, end, has_high=ends_inside)


def _number(text: str, units: dict[str, float]) -> float | None:
    match = _NUMBER.fullmatch(text)
    return float(match[1]) * units[match[2]] if match and match[2] in units else None


def _moments(text: str, now: datetime) -> tuple[datetime, datetime] | None:
    """Where what is written begins and ends."""
    if _LATELY.fullmatch(text):
        return _ago(text, now), _ago(text, now)
    try:
        if month := _MONTH.fullmatch(text):
            start = datetime(int(month[1]), int(month[2]), 1, tzinfo=UTC)
            return _inside(start, (start + timedelta(days=32)).replace(day=1))
        start = datetime.fromisoformat(text)
        start = start if start.tzinfo else start.replace(tzinfo=UTC)
        return _inside(start, start + timedelta(days=1) if _DAY.fullmatch(text) else start)
    except (ValueError, OverflowError):
        return None


def _ago(text: str, now: datetime) -> datetime:
    return now - timedelta(**{_UNITS[text[-1]]: int(text[:-1])})


def _inside(start: datetime, end: datetime) -> tuple[datetime, datetime] | None:
    return (start, end) if _BEYOND < start.year < datetime.max.year - _BEYOND else None
