"""Texts by agents and people, as pages show them. They are hostile: nothing here marks text as safe."""

import difflib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, is_dataclass
from typing import Any

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from flywheel.core.traces import corrections

register = template.Library()


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
    return safe_text(json.dumps(plain(value), indent=2, ensure_ascii=False, default=str))


@register.simple_tag
def tokens(spans: Iterable[dict[str, Any]]) -> SafeString:
    """Tokens of a model, as spans `{"state", "count", "tokens", "hidden", "last"}` of `[id, text, special]`.

    What is learnt is a `<mark>`, what is cut off a `<del>`, a special token `<b>`: never told by colour alone.
    """
    return format_html_join("", "{}", ((_span(span),) for span in spans))


def _span(span: dict[str, Any]) -> SafeString:
    tag, label = _STATES[span["state"]]
    gap = format_html("<em> … {} more … </em>", f"{span['hidden']:,}") if span["hidden"] else ""
    first, last = (format_html_join("", "{}", ((_token(*each),) for each in span[end])) for end in ("tokens", "last"))
    return format_html('<{}><span class="sr-only">{}: </span>{}{}{}</{}>', tag, label, first, gap, last, tag)


_STATES = {"read": ("span", "read"), "learnt": ("mark", "learnt"), "cut": ("del", "cut off")}


def _token(number: int, text: str, is_special: bool) -> SafeString:
    written = safe_text(text).replace("\n", "↵\n") or f"⟨{number}⟩"
    return format_html('<b title="{}">{}</b>' if is_special else '<i title="{}">{}</i>', number, written)


@register.filter
def correction(value: Any) -> str:
    """A correction in a few words; empty for none."""
    return safe_text(corrections.summary(value)) if isinstance(value, dict) else ""


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


def plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
