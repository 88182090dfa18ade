"""JSON as a tree that opens and closes: what a tool was given, and what it answered.

A string that holds JSON is shown as the tree that it is. What is long is cut, and whole when that is asked for.
`static/tree.js` copies a value or its path; the names in `data-k` are the way to it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.utils.safestring import SafeString

from flywheel.edge.numbers import number
from flywheel.templatetags.flywheel import count, safe_text
from flywheel.trajectories.detail.markup import html, joined

DEEPEST = 40
"""Levels; what lies deeper is text."""
OPEN = 2
"""Levels that are open at first."""
BLOCK = 200
"""Characters from which on a text has lines of its own."""
READ = 1_000_000
"""Characters of a string of which it is tried whether it is JSON."""


@dataclass(frozen=True, slots=True)
class Limits:
    nodes: int
    """Of the whole tree."""
    items: int
    """Of one list or object."""
    text: int
    """Characters of one string."""


BRIEF = Limits(nodes=100, items=20, text=600)
WHOLE = Limits(nodes=5_000, items=2_000, text=200_000)


@dataclass(frozen=True, slots=True)
class Tree:
    html: SafeString
    is_cut: bool


def tree_of(value: Any, limits: Limits = BRIEF) -> Tree:
    """The tree of an object, a list, or a string that holds one."""
    held = held_by(value)
    writer = _Writer(limits)
    html = writer.items(held if held is not None else {"": value}, 0, "tree")
    return Tree(html, writer.is_cut)


def held_by(value: Any) -> dict[str, Any] | list[Any] | None:
    """The object or list that a value is, or that it holds as text; None for all else."""
    if isinstance(value, dict | list):
        return value
    if not isinstance(value, str) or len(value) > READ or value.lstrip()[:1] not in ("{", "["):
        return None
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict | list) and read else None


def value_at(value: Any, path: Iterable[str]) -> Any:
    """What stands at a path of names and indexes. Raises LookupError when nothing does."""
    for name in path:
        held = held_by(value)
        if isinstance(held, dict):
            value = held[name]
        elif isinstance(held, list) and (place := number(name)) is not None:
            value = held[place]
        else:
            raise LookupError(name)
    return value


def written(value: Any) -> str:
    """A value as text to be copied: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)


class _Writer:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.left = limits.nodes
        self.is_cut = False

    def items(self, held: dict[str, Any] | list[Any], depth: int, name: str = "") -> SafeString:
        pairs = held.items() if isinstance(held, dict) else ((str(index), item) for index, item in enumerate(held))
        written = []
        for index, (key, value) in enumerate(pairs):
            if index >= self.limits.items or self.left <= 0:
                self.is_cut = True
                written.append(html('<li class="muted">and {} more</li>', count(len(held) - index)))
                break
            self.left -= 1
            written.append(self.node(str(key), value, depth))
        return html('<ul class="{}">{}</ul>' if name else "<ul>{1}</ul>", name, joined(written))

    def node(self, key: str, value: Any, depth: int) -> SafeString:
        held = held_by(value)
        if not held or depth >= DEEPEST:
            return html('<li data-k="{}"><b>{}</b> {}</li>', key, safe_text(key), self.leaf(value))
        size = f"{len(held)} {'key' if isinstance(held, dict) else 'item'}{'' if len(held) == 1 else 's'}"
        return html(
            '<li data-k="{}"><details{}><summary><b>{}</b> <span class="muted">{}</span>{}</summary>{}</details></li>',
            key,
            " open" if depth < OPEN else "",
            safe_text(key),
            size,
            _NONE if held is value else _IN_A_STRING,
            self.items(held, depth + 1),
        )

    def leaf(self, value: Any) -> SafeString:
        if not isinstance(value, str):
            kind = "number" if isinstance(value, int | float) and not isinstance(value, bool) else "word"
            return html('<code class="{}">{}</code>', kind, safe_text(written(value)[: self.limits.text]))
        shown = value[: self.limits.text]
        is_block = "\n" in shown or len(shown) > BLOCK
        tag = html('<pre class="prose">{}</pre>' if is_block else '<code class="text">{}</code>', safe_text(shown))
        if len(shown) == len(value):
            return tag
        self.is_cut = True
        return html('{} <span class="muted">of {} characters</span>', tag, count(len(value)))


_NONE = SafeString("")
_IN_A_STRING = SafeString(' <span class="chip">JSON in a string</span>')
