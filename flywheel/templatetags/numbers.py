"""Numbers and estimates as pages write them: `5 210`, `1 m 12 s`, `64.2% ±3.1 (n 240)`."""

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

register = template.Library()

NOTHING = "–"
"""Stands where there is no value. Never 0."""
MINUS = "−"
GAP = "\N{NO-BREAK SPACE}"
THIN = "\N{NARROW NO-BREAK SPACE}"


@register.filter
def count(value: Any) -> str:
    """5210 → `5 210`, with a gap that does not break."""
    number = _number(value)
    return NOTHING if number is None else f"{round(number):,}".replace(",", THIN).replace("-", MINUS)


@register.filter
def duration(value: Any) -> str:
    """Milliseconds or a timedelta → `340 ms`, `4.2 s`, `1 m 12 s`, `2 h 05 m`, `3 d 4 h`."""
    milliseconds = value.total_seconds() * 1000 if isinstance(value, timedelta) else _number(value)
    if milliseconds is None:
        return NOTHING
    sign, milliseconds = (MINUS if milliseconds < 0 else ""), abs(milliseconds)
    if milliseconds < 999.5:
        return f"{sign}{milliseconds:.0f}{GAP}ms"
    if milliseconds < 9_950:
        return f"{sign}{milliseconds / 1000:.1f}{GAP}s"
    seconds = round(milliseconds / 1000)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if minutes == 0:
        return f"{sign}{seconds}{GAP}s"
    if hours == 0:
        return f"{sign}{minutes}{GAP}m{GAP}{seconds % 60:02d}{GAP}s"
    if days == 0:
        return f"{sign}{hours}{GAP}h{GAP}{minutes % 60:02d}{GAP}m"
    return f"{sign}{days}{GAP}d{GAP}{hours % 24}{GAP}h"


@register.filter
def tokens(value: Any) -> str:
    """12400 → `12.4 k`."""
    number = _number(value)
    if number is None:
        return NOTHING
    if abs(number) < 999.5:
        return f"{number:.0f}".replace("-", MINUS)
    scale, unit = next((step for step in ((1e3, "k"), (1e6, "M")) if abs(number) < step[0] * 999.95), (1e9, "G"))
    return f"{number / scale:.1f}{GAP}{unit}".replace("-", MINUS)


@register.filter
def size(value: Any) -> str:
    """Bytes → `1.4 GB`."""
    number = _number(value)
    if number is None:
        return NOTHING
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 999.5:
            return f"{number:.0f}{GAP}{unit}" if unit == "B" or number >= 100 else f"{number:.1f}{GAP}{unit}"
        number /= 1000
    return f"{number:.1f}{GAP}TB"


@register.filter
def money(value: Any) -> str:
    """Dollars, with as many digits as the size deserves: `$0.0031`, `$4.20`, `$1 240`."""
    number = _number(value)
    if number is None:
        return NOTHING
    sign, number = (MINUS if number < 0 else ""), abs(number)
    if number == 0:
        return "$0"
    if number < 0.0001:
        return f"{sign}<$0.0001"
    if number < 0.1:
        return f"{sign}${number:.4f}"
    if number < 999.995:
        return f"{sign}${number:.2f}"
    return f"{sign}${count(number)}"


@register.filter
def percent(value: Any, digits: int = 1) -> str:
    """A share between 0 and 1 → `64.2%`."""
    number = _number(value)
    return NOTHING if number is None else f"{_fixed(number * 100, digits)}%"


@register.filter
def points(value: Any, form: str = "long") -> str:
    """A difference of shares → `+18.4 points`; with `:"short"` the bare `+18.4`."""
    number = _number(value)
    if number is None:
        return NOTHING
    text = _signed(number * 100, 1)
    return text if form == "short" else f"{text}{GAP}points"


@register.filter
def signed(value: Any, digits: int = 2) -> str:
    """`+0.31`, `−2.00`, `0.00`."""
    number = _number(value)
    return NOTHING if number is None else _signed(number, digits)


@register.filter
def number(value: Any, digits: int = 2) -> str:
    """`0.31`, with a true minus sign and no trailing surprise; not a number → `–`."""
    numeric = _number(value)
    return NOTHING if numeric is None else _fixed(numeric, digits)


# Estimates: anything with mean, low, high, n (and, if it has them, unscored and cause), as object or dict


@register.filter
def estimate_value(estimate: Any, kind: str = "percent") -> str:
    mean = _number(_part(estimate, "mean"))
    return str(_KINDS[kind or "percent"](mean))


@register.filter
def estimate_margin(estimate: Any, kind: str = "percent") -> str:
    """Half the width of the interval, in the unit of the value: `±3.1`. The interval itself, `[72.2, 97.4]`, of a share
    from which half the width would lead below 0 or beyond 100."""
    low, high = _number(_part(estimate, "low")), _number(_part(estimate, "high"))
    if low is None or high is None:
        return ""
    half, mean = (high - low) / 2, _number(_part(estimate, "mean"))
    if kind in ("percent", "") and mean is not None and not half <= mean <= 1 - half:
        return f"[{low * 100:.1f}, {high * 100:.1f}]"
    if kind in ("percent", "points", ""):
        return f"±{half * 100:.1f}"
    if kind == "number":
        return f"±{half:.2f}"
    return f"±{_KINDS[kind](half)}"


@register.filter
def estimate_range(estimate: Any, kind: str = "percent") -> str:
    """`61.1% to 67.3%`: the interval itself, which need not be symmetric around the value."""
    low, high = _part(estimate, "low"), _part(estimate, "high")
    if _number(low) is None or _number(high) is None:
        return str(_part(estimate, "reason") or "no interval")
    write, level = _KINDS[kind or "percent"], _number(_part(estimate, "level")) or 0.95
    method = f" ({how})" if (how := _part(estimate, "method")) else ""
    return f"{level * 100:.0f}% interval: {write(low)} to {write(high)}{method}"


@register.filter
def estimate_cause(estimate: Any) -> str:
    """Why there is no value."""
    if estimate is None:
        return "not measured yet"
    cause = _part(estimate, "cause") or _part(estimate, "reason")
    if cause:
        return str(cause)
    unscored = _part(estimate, "unscored")
    return f"not scored: {unscored} without a score" if unscored else "not scored"


@register.inclusion_tag("_estimate.html", name="estimate")
def show_estimate(estimate: Any, kind: str = "percent") -> dict[str, Any]:
    """`64.2% ±3.1 (n 240)`; kind: percent, points, number, duration, tokens, money."""
    return {"estimate": estimate, "kind": kind}


@register.simple_tag
def difference(estimate: Any, kind: str = "points", better: str = "") -> SafeString:
    """`+18.4 points [+9.1, +27.6]`. With better="high" or "low" it also carries the word and colour of its verdict."""
    mean = _number(_part(estimate, "mean"))
    if mean is None:
        return format_html('<span class="none" title="{}">{}</span>', estimate_cause(estimate), NOTHING)
    low, high = _number(_part(estimate, "low")), _number(_part(estimate, "high"))
    scale, digits = (100, 1) if kind in ("points", "percent") else (1, 2)
    write = _DIFFERENCES.get(kind, lambda v: _signed(v, digits))
    value = write(mean)
    if low is None or high is None:
        return format_html('<span class="estimate"><b>{}</b></span>', value)
    interval = (
        f"[{_signed(low * scale, digits)}, {_signed(high * scale, digits)}]"
        if kind in ("points", "percent", "number")
        else f"[{write(low)}, {write(high)}]"
    )
    word, tone = _verdict(low, high, better)
    return format_html(
        '<span class="estimate {}" title="{}"><span class="nowrap">{}<b>{}</b></span> '
        '<span class="interval">{}</span>{}</span>',
        tone,
        estimate_range(estimate, kind),
        format_html('<i aria-hidden="true">{}</i> ', "▲" if mean > 0 else "▼") if tone else "",
        value,
        interval,
        format_html(" <em>{}</em>", word) if word else "",
    )


_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (percent, points, number, duration, tokens, money)}
_DIFFERENCES: dict[str, Any] = {
    "points": points,
    "percent": lambda value: f"{_signed(value * 100, 1)}%",
    "duration": lambda value: ("+" if value > 0 else "") + duration(value),
    "tokens": lambda value: ("+" if value > 0 else "") + tokens(value),
    "money": lambda value: ("+" if value > 0 else "") + money(value),
}


def _number(value: Any) -> float | None:
    """A finite number, or None for everything else: NaN, text, nothing."""
    try:
        result = float(value)
    except (TypeError, ValueError):
        return None
    return result if math.isfinite(result) else None


def _fixed(value: float, digits: int) -> str:
    text = f"{value:.{int(digits)}f}"
    return f"{0:.{int(digits)}f}" if float(text) == 0 else text.replace("-", MINUS)


def _signed(value: float, digits: int) -> str:
    text = _fixed(value, digits)
    return text if text.startswith(MINUS) or float(text) == 0 else f"+{text}"


def _part(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _verdict(low: float, high: float, better: str) -> tuple[str, str]:
    if better not in ("high", "low"):
        return "", ""
    if low <= 0 <= high:
        return "not shown", ""
    return ("better", "ok") if (low > 0) == (better == "high") else ("worse", "bad")
