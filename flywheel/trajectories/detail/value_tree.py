"""JSON as a tree that opens and closes: what a tool was given, and what it answered.

A string that holds JSON is shown as the tree that it is. What is long is cut, and whole when that is asked for.
`static/tree.js` copies a value or its path; the names in `data-k` are the way to it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flywheel.edge.numbers import number

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
class Node:
    """A named value of an object, or an item of a list."""

    key: str
    branch: "Branch | None" = None
    size: str = ""
    """Of the branch."""
    is_open: bool = False
    is_in_a_string: bool = False
    text: str = ""
    """Of a value that holds nothing, as far as it is shown."""
    kind: str = ""
    """`text`, `block`, `number`, `word`"""
    characters: int = 0
    """Of which the text is the beginning; 0 where it is whole."""


@dataclass(frozen=True, slots=True)
class Branch:
    nodes: list[Node]
    more: int
    """That are left out."""


@dataclass(frozen=True, slots=True)
class Tree:
    branch: Branch
    is_cut: bool


def tree_of(value: Any, limits: Limits = BRIEF) -> Tree:
    """The tree of an object, a list, or a string that holds one."""
    held = held_by(value)
    reader = _Reader(limits)
    branch = reader.branch(held if held is not None else {"": value}, 0)
    return Tree(branch, reader.is_cut)


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
    """Return the value at a path of names and indexes. Raises LookupError when there is none."""
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


class _Reader:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.left = limits.nodes
        self.is_cut = False

    def branch(self, held: dict[str, Any] | list[Any], depth: int) -> Branch:
        pairs = held.items() if isinstance(held, dict) else ((str(index), item) for index, item in enumerate(held))
        nodes: list[Node] = []
        for key, value in pairs:
            if len(nodes) >= self.limits.items or self.left <= 0:
                self.is_cut = True
                break
            self.left -= 1
            nodes.append(self.node(str(key), value, depth))
        return Branch(nodes, len(held) - len(nodes))

    def node(self, key: str, value: Any, depth: int) -> Node:
        held = held_by(value)
        if not held or depth >= DEEPEST:
            return self.leaf(key, value)
        size = f"{len(held)} {'key' if isinstance(held, dict) else 'item'}{'' if len(held) == 1 else 's'}"
        return Node(key, self.branch(held, depth + 1), size, is_open=depth < OPEN, is_in_a_string=held is not value)

    def leaf(self, key: str, value: Any) -> Node:
        if not isinstance(value, str):
            kind = "number" if isinstance(value, int | float) and not isinstance(value, bool) else "word"
            return Node(key, text=written(value)[: self.limits.text], kind=kind)
        text = value[: self.limits.text]
        if len(text) < len(value):
            self.is_cut = True
        kind = "block" if "\n" in text or len(text) > BLOCK else "text"
        return Node(key, text=text, kind=kind, characters=len(value) if len(text) < len(value) else 0)
