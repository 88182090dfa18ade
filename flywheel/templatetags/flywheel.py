"""The words and numbers of the pages, written one way everywhere (docs/design/ui-components.md).

A built-in template library: templates use it without {% load %}. What an agent wrote is hostile text: nothing here
marks text as safe; the few tags that answer HTML build it with format_html, which escapes every part.
"""

import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django import template
from django.http import QueryDict
from django.template.context import RequestContext
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from flywheel.core.detectors.standard_buckets import Bucket, name_of
from flywheel.core.verifiers import CAUSES

register = template.Library()

NOTHING = "–"
"""Stands where there is no value. Never 0."""
MINUS = "−"
GAP = "\N{NO-BREAK SPACE}"
THIN = "\N{NARROW NO-BREAK SPACE}"


# Numbers


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
    scale, unit = next(
        (step for step in ((1e3, "k"), (1e6, "M")) if abs(number) < step[0] * 999.95),
        (1e9, "G"),
    )
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
    """A share between 0 and 1 → `64.2 %`."""
    number = _number(value)
    return NOTHING if number is None else f"{_fixed(number * 100, digits)}{GAP}%"


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
    """Half the width of the interval, in the unit of the value: `±3.1`."""
    low, high = _number(_part(estimate, "low")), _number(_part(estimate, "high"))
    if low is None or high is None:
        return ""
    half = (high - low) / 2
    if kind in ("percent", "points", ""):
        return f"±{half * 100:.1f}"
    if kind == "number":
        return f"±{half:.2f}"
    return f"±{_KINDS[kind](half)}"


@register.filter
def estimate_range(estimate: Any, kind: str = "percent") -> str:
    """`61.1 to 67.3 %`: the interval itself, which need not be symmetric around the value."""
    low, high = _part(estimate, "low"), _part(estimate, "high")
    if _number(low) is None or _number(high) is None:
        return str(_part(estimate, "reason") or "no interval")
    write, level = _KINDS[kind or "percent"], _number(_part(estimate, "level")) or 0.95
    method = f" ({how})" if (how := _part(estimate, "method")) else ""
    return f"{level * 100:.0f}{GAP}% interval: {write(low)} to {write(high)}{method}"


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
    """`64.2 % ±3.1 (n 240)`; kind: percent, points, number, duration, tokens, money."""
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


# Time


@register.filter
def ago(value: datetime | date | None) -> str:
    """A moment → <time>: relative at once, exact on hover; app.js rewrites the hover to the person's zone."""
    moment = _moment(value)
    if moment is None:
        return NOTHING
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        moment.isoformat(timespec="seconds"),
        moment.strftime("%Y-%m-%d %H:%M:%S UTC"),
        relative(moment, timezone.now()),
    )


def relative(moment: datetime, now: datetime) -> str:
    """`just now`, `2 m ago`, `3 h ago`, `in 5 m`, `4 d ago`, then the date. static/app.js says the same."""
    seconds = (now - moment).total_seconds()
    distance = abs(seconds)
    if distance < 45:
        return "just now" if seconds >= 0 else "in a moment"
    if distance < 3570:
        text = f"{max(1, round(distance / 60))}{GAP}m"
    elif distance < 84_600:
        text = f"{max(1, round(distance / 3600))}{GAP}h"
    elif distance < 30 * 86_400:
        text = f"{max(1, round(distance / 86_400))}{GAP}d"
    else:
        return f"{moment.day}{GAP}{moment:%b %Y}"
    return f"{text} ago" if seconds >= 0 else f"in {text}"


# Words


@register.simple_tag
def mark_outcome(outcome: Any) -> SafeString:
    """✓ success, ✕ failed, – unknown: always a mark and a word, the colour only helps."""
    word = str(getattr(outcome, "value", outcome) or "unknown")
    tone, mark = _OUTCOMES.get(word, ("", "–"))
    return format_html('<span class="chip {}"><span aria-hidden="true">{}</span> {}</span>', tone, mark, word)


@register.simple_tag
def state(value: Any, label: str = "") -> SafeString:
    """A chip for the state of a job, bucket, task or gate, in the tone the same word has on every page."""
    word = str(getattr(value, "value", value) or "unknown")
    tone, mark = _STATES.get(word.lower().replace(" ", "_"), ("", "○"))
    shown = label or word.replace("_", " ")
    return format_html('<span class="chip {}"><span aria-hidden="true">{}</span> {}</span>', tone, mark, shown)


@register.filter
def bucket_name(key: str, known: Mapping[str, Bucket]) -> str:
    """A bucket's key in running text: `wrong tool`. `known_buckets`, the project's, is on every page."""
    return name_of(key, known)


@register.filter
def cause_words(cause: str) -> str:
    """Why there is no score, in our words: `timeout` → timed out."""
    return CAUSES.get(cause, cause)


@register.filter
def safe_text(value: Any) -> str:
    """Hostile text made visible and harmless: no terminal colours, no hidden or direction-changing characters.

    Returns plain text on purpose: autoescape does the rest.
    """
    text = "" if value is None else str(value)
    if (text.isascii() and text.isprintable()) or not _UNSEEN.search(text):  # nearly always, and much quicker
        return text
    return _ANSI.sub("", text).translate(_VISIBLE)


@register.filter
def pretty(value: Any) -> str:
    """JSON, indented, as text. A string that holds JSON is read first; any other string stays as it is."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return safe_text(value)
        if isinstance(value, str):
            return safe_text(value)
    return safe_text(json.dumps(_plain(value), indent=2, ensure_ascii=False, default=str))


@register.filter
def short_id(value: Any, length: int = 8) -> str:
    """The first characters of an id or digest; put the whole one in the title."""
    text = str(value or "").removeprefix("sha256:")
    return text if len(text) <= length else text[:length]


@register.simple_tag
def diff(before: Any, after: Any) -> SafeString:
    """Expected ↔ actual, as words with <del> and <ins>; whatever is not text is compared as indented JSON."""
    old, new = (safe_text(side) if isinstance(side, str) else pretty(side) for side in (before, after))
    parts = []
    for same, removed, added in _changes(old, new):
        parts.append(format_html("{}", same))
        if removed:
            parts.append(format_html("<del>{}</del>", removed))
        if added:
            parts.append(format_html("<ins>{}</ins>", added))
    return format_html('<pre class="diff">{}</pre>', format_html_join("", "{}", ((part,) for part in parts)))


# Pictures. SVG attributes instead of inline styles, which the Content-Security-Policy forbids


@register.inclusion_tag("_chart.html")
def chart(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A chart of static/charts.js. The data travels as text, because htmx removes every <script> from what it swaps."""
    return {"spec": spec, "data": json.dumps(_finite(_plain(spec)), default=str, separators=(",", ":"))}


@register.simple_tag
def sparkline(values: Sequence[float | None], label: str = "", tone: str = "") -> SafeString:
    """A trend the size of a word; label is what a screen reader hears. Gaps stay gaps."""
    known = [value for value in values if value is not None]
    if not known:
        return format_html('<span class="none" title="no data">{}</span>', NOTHING)
    low, high, width, height = min(known), max(known), 72, 20
    spread = (high - low) or 1
    step = (width - 4) / max(1, len(values) - 1)
    runs: list[list[str]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            runs.append([])
            continue
        y = height / 2 if high == low else height - 3 - (value - low) / spread * (height - 6)
        runs[-1].append(f"{2 + index * step:.1f},{y:.1f}")
    lines = format_html_join(
        "",
        '<polyline points="{}" />',
        ((" ".join(run if len(run) > 1 else run * 2),) for run in runs if run),
    )
    return format_html(
        '<svg class="spark {}" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">{}</svg>',
        tone,
        width,
        height,
        width,
        height,
        label or f"trend from {known[0]:g} to {known[-1]:g}",
        lines,
    )


@register.simple_tag
def bar(value: float | None, maximum: float = 1, tone: str = "", label: str = "") -> SafeString:
    """A share as a bar, as wide as its cell."""
    share = 0.0 if value is None or not maximum else max(0.0, min(1.0, value / maximum))
    return span_bar(0, share, 1, tone, label)


@register.simple_tag
def span_bar(start: float, length: float, total: float, tone: str = "", label: str = "") -> SafeString:
    """One row of a waterfall: a bar from `start`, `length` long, where the whole track is `total`."""
    total = total or 1
    x = max(0.0, min(1.0, start / total))
    width = max(0.003 if length else 0.0, min(1.0 - x, length / total))
    return format_html(
        '<svg class="bar {}" role="img" aria-label="{}"><rect class="track" width="100%" height="100%" rx="2" />'
        '<rect class="fill" x="{}%" width="{}%" height="100%" rx="2" /></svg>',
        tone,
        label or f"{width * 100:.0f} %",
        f"{x * 100:.2f}",
        f"{width * 100:.2f}",
    )


@register.simple_block_tag
def empty_state(content: SafeString, title: str, **fields: str) -> SafeString:
    """Say in the tag's content what will stand here; `action`, `action_url`, `command` and `id` are a way to it."""
    return render_to_string("_empty.html", {**fields, "title": title, "text": content})


# The address


@register.simple_tag(takes_context=True)
def query(context: RequestContext, **changes: Any) -> str:
    """`?…` of this page with these parameters changed; None or "" removes one. A new filter forgets the cursor."""
    request = context.get("request")
    parameters = request.GET.copy() if request else QueryDict(mutable=True)
    if "cursor" not in changes:
        parameters.pop("cursor", None)
    for name, value in changes.items():
        if value is None or value == "":
            parameters.pop(name, None)
        elif isinstance(value, list | tuple):
            parameters.setlist(name, [str(item) for item in value])
        else:
            parameters[name] = str(value)
    return f"?{parameters.urlencode()}"


# Parts

_KINDS: dict[str, Any] = {
    "percent": percent,
    "points": points,
    "number": number,
    "duration": duration,
    "tokens": tokens,
    "money": money,
}
_DIFFERENCES: dict[str, Any] = {
    "points": points,
    "percent": lambda value: f"{_signed(value * 100, 1)}{GAP}%",
    "duration": lambda value: ("+" if value > 0 else "") + duration(value),
    "tokens": lambda value: ("+" if value > 0 else "") + tokens(value),
    "money": lambda value: ("+" if value > 0 else "") + money(value),
}
_OUTCOMES = {
    "success": ("ok", "✓"),
    "passed": ("ok", "✓"),
    "failed": ("bad", "✕"),
    "failure": ("bad", "✕"),
    "error": ("bad", "✕"),
    "partial": ("warn", "◐"),
}
_OK, _BAD, _WARN, _BUSY, _OFF = ("ok", "✓"), ("bad", "✕"), ("warn", "!"), ("busy", "◐"), ("", "○")
_STATES = {
    **dict.fromkeys(("done", "succeeded", "completed", "green", "confirmed", "approved", "eligible", "fixed"), _OK),
    **dict.fromkeys(("success", "passed", "resolved", "healthy"), _OK),
    "live": ("base", "●"),
    "promoted": ("base", "●"),
    **dict.fromkeys(("failed", "error", "red", "regressed", "broken", "lost", "rejected"), _BAD),
    **dict.fromkeys(("not_shown", "reopened", "quarantined", "stale", "cancelling", "warning", "invalid"), _WARN),
    **dict.fromkeys(("running", "claimed", "in_progress", "waiting", "pending", "in_review", "fixing"), _BUSY),
    "open": ("warn", "○"),
    **dict.fromkeys(("queued", "new", "draft", "cancelled", "closed", "muted", "retired", "proposed"), _OFF),
    "train": ("", "□"),
    "held-out": ("", "■"),
    "held_out": ("", "■"),
    "sealed": ("", "■"),
}
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_DIFF_LIMIT = 4_000_000
"""Comparisons a diff may cost: the time grows with the product of the lengths, and an agent chooses the lengths."""
# CSI and OSC sequences and two-character escapes; then whatever lone control characters are left become visible.
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]|\x9b[0-?]*[ -/]*[@-~]")
_HIDDEN = {
    *range(0x200B, 0x2010),  # zero-width characters and direction marks
    *range(0x202A, 0x202F),  # bidi embeddings and overrides
    *range(0x2060, 0x2070),  # word joiner, invisible operators, bidi isolates
    *range(0xE0000, 0xE0080),  # tag characters, which can carry a whole hidden prompt
    *range(0xFE00, 0xFE0F),  # variation selectors, except the one emoji need
    *range(0xE0100, 0xE01F0),
    0x00AD,  # soft hyphen
    0x034F,
    0x061C,
    0x115F,
    0x1160,
    0x180E,
    0x2028,
    0x2029,
    0x3164,
    0xFEFF,
    0xFFA0,
}


_VISIBLE = {point: f"⟨U+{point:04X}⟩" for point in (*_HIDDEN, *range(0x7F, 0xA0))} | {
    point: chr(0x2400 + point) for point in range(0x20) if chr(point) not in "\n\t\r"
}
"""What stands in the place of a character that is not seen."""


def _any_of(points: Iterable[int]) -> re.Pattern[str]:
    """A class of characters, written as ranges: one by one, those beyond 0xFFFF would each be compared."""
    ranges: list[list[int]] = []
    for point in sorted(points):
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    return re.compile(f"[{''.join(f'{re.escape(chr(low))}-{re.escape(chr(high))}' for low, high in ranges)}]")


_UNSEEN = _any_of(_VISIBLE)
"""The characters of which there is something to do. Each of `_ANSI` begins with one."""


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


def _moment(value: datetime | date | None) -> datetime | None:
    if value is None or value == "":
        return None
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _changes(old: str, new: str) -> Iterator[tuple[str, str, str]]:
    """(what stayed, what went, what came), by words where that is affordable, else by lines, else as a whole."""
    for split in (_WORDS.findall, lambda text: text.splitlines(keepends=True)):
        a, b = split(old), split(new)
        if len(a) * len(b) <= _DIFF_LIMIT:
            break
    else:
        a, b = [old], [new]
    for what, i1, i2, j1, j2 in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if what == "equal":
            yield "".join(a[i1:i2]), "", ""
        else:
            yield "", "".join(a[i1:i2]), "".join(b[j1:j2])


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _finite(value: Any) -> Any:
    """NaN and infinity are no JSON; a gap in the line says the same."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
