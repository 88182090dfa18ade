"""Times as exports write them: ISO 8601, or a number of seconds or of smaller units since 1970."""

from datetime import UTC, datetime, timedelta
from typing import Any

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


_MICROSECOND = timedelta(microseconds=1)


def microseconds(at: datetime) -> int:
    """Since 1970."""
    return (at - EPOCH) // _MICROSECOND


def moment(value: Any) -> datetime | None:
    """Total: None for what is no time of the years 1971 to 9999."""
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, str):
        return _of_text(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        # Rounded to microseconds first: a float of seconds holds no more.
        if value >= 1_000_000_000_000_000_000:
            return EPOCH + timedelta(microseconds=int(value) // 1_000)
        if value >= 1_000_000_000_000_000:
            return EPOCH + timedelta(microseconds=int(value))
        if value >= 100_000_000_000:
            return EPOCH + timedelta(microseconds=round(value * 1_000))
        if value >= 31_536_000:
            return EPOCH + timedelta(microseconds=round(value * 1_000_000))
    except (OverflowError, ValueError):
        pass
    return None


def _of_text(text: str) -> datetime | None:
    try:
        if text.replace(".", "", 1).isdigit() and text.isascii():
            return moment(float(text) if "." in text else int(text))
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
