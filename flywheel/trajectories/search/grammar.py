"""The grammar of a query: `bucket:wrong_tool -env:dev (latency:>2 or has:error) "meet Bako"`.

    query  = both { "or" both }
    both   = one { ["and"] one }
    one    = ( "-" | "not" ) one | "(" query ")" | field ":" values | words
    values = value { "," value } | "(" value { ( "," | "or" ) value } ")"

A value or words in quotes are taken as they stand; `""` inside is one quote. `and`, `or` and `not` are written in any
case; in quotes they are words. What the fields mean is not known here (`query.py`), nor what a value may be.

`show` writes a query that reads as the same one: `parse(show(node)).node == node`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

LENGTH_MAX = 4000
TERMS_MAX = 100
DEPTH_MAX = 20

_KEYWORD = re.compile(r"(and|or|not)(?=[\s()]|$)", re.IGNORECASE)
_FIELD = re.compile(r'([a-z][a-z_]*)(?:\.(?:([\w.-]+)|"((?:[^"]|"")+)"))?:(?!//)')
_KEY = re.compile(r"[\w.-]+")
_QUOTED = re.compile(r'"((?:[^"]|"")*)(?:"|$)')
_ITEM = re.compile(r'[^"(),\s]+')
_UNCLOSED = 'A "(" is never closed. To look for it, write it in quotes.'
_OR = re.compile(r"or(?=[\s\"]|$)", re.IGNORECASE)


class Unreadable(ValueError):
    """The text is no query; says why, and what to write instead."""


@dataclass(frozen=True, slots=True)
class Value:
    text: str
    is_exact: bool = False
    """Written in quotes: no comparison, no glob."""


@dataclass(frozen=True, slots=True)
class Term:
    """`field:value,value` or `field.key:value`: one of the values holds."""

    field: str
    values: tuple[Value, ...]
    key: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """Free text."""

    text: str
    is_exact: bool = False


@dataclass(frozen=True, slots=True)
class Not:
    part: "Node"


@dataclass(frozen=True, slots=True)
class And:
    """All parts hold; without any, everything matches."""

    parts: tuple["Node", ...] = ()


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple["Node", ...]


Node = Term | Words | Not | And | Or


@dataclass(frozen=True, slots=True)
class Read:
    node: Node
    parts: tuple[str, ...]
    """As they were written: what all has to hold."""


def parse(text: str) -> Read:
    """Raises Unreadable."""
    if len(text) > LENGTH_MAX:
        raise Unreadable(f"The filter has {len(text)} characters; at most {LENGTH_MAX} are read.")
    reader = _Reader(text)
    node = reader.either()
    return Read(node, tuple(text[start:end] for start, end in reader.parts))


def terms_of(node: Node) -> Iterator[Term | Words]:
    """Its leaves, as they come."""
    match node:
        case And(parts) | Or(parts):
            for part in parts:
                yield from terms_of(part)
        case Not(part):
            yield from terms_of(part)
        case _:
            yield node


# Writing


def show(node: Node) -> str:
    """The query as text."""
    match node:
        case And(parts):
            return " ".join(f"({show(part)})" if isinstance(part, Or) else show(part) for part in parts)
        case Or(parts):
            return " or ".join(show(part) for part in parts)
        case Not(part):
            return f"-({show(part)})" if isinstance(part, And | Or) else f"-{show(part)}"
        case Words(words, is_exact):
            return quote(words) if is_exact else words
        case Term(name, values, key):
            return f"{name}{_key(key)}:{_values(values)}"


def quote(text: str) -> str:
    """In quotes, to be taken as it stands."""
    return '"' + text.replace('"', '""') + '"'


def term(field: str, value: str, key: str = "") -> str:
    """The term that asks for exactly this value, in quotes only where they are needed."""
    is_plain = re.fullmatch(r"[\w@/+][\w.@/+:-]*", value) is not None and ".." not in value
    return show(Term(field, (Value(value, not is_plain),), key))


def attribute(item: str) -> str:
    """The term that asks for an attribute, written as it is stored: `key=value`."""
    key, _, value = item.partition("=")
    return term("attr", value, key)


def _key(key: str) -> str:
    if not key:
        return ""
    return f".{key}" if _KEY.fullmatch(key) else f".{quote(key)}"


def _values(values: tuple[Value, ...]) -> str:
    written = ",".join(quote(value.text) if value.is_exact else value.text for value in values)
    is_spread = any(not value.is_exact and re.search(r"\s", value.text) for value in values)
    return f"({written})" if is_spread else written


# Reading


class _Reader:
    """Reads from the left; `at` is where it is."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.opened = 0
        """Parentheses around here."""
        self.count = 0
        self.parts: list[tuple[int, int]] = []
        """Where the parts at the top stand that all have to hold."""

    def either(self) -> Node:
        alternatives: list[Node] = []
        start = self.at
        while True:
            if (found := self._both(joined=bool(alternatives))) is not None:
                alternatives.append(found)
            if not self._keyword("or"):
                break
            if found is None:
                raise Unreadable('"or" joins two terms, and there is none before it. As a word, write it in quotes.')
        if not self.opened and len(alternatives) > 1:
            self.parts = [(start, len(self.text.rstrip()))]
        return _flat(Or, alternatives)

    def _both(self, *, joined: bool) -> Node | None:
        """Terms that all have to hold, as far as an "or", a closing parenthesis or the end."""
        parts: list[Node] = []
        is_bound = joined
        bound_by = "or"
        while True:
            while self._keyword("and"):
                if not parts or is_bound:
                    raise Unreadable(
                        '"and" joins two terms, and there is none before it. As a word, write it in quotes.'
                    )
                is_bound, bound_by = True, "and"
            self._skip()
            if self._is_over() or self._sees("or"):
                break
            start = self.at
            parts.append(self._one())
            is_bound = False
            if not self.opened:
                self.parts.append((start, self.at))
        if is_bound:
            raise Unreadable(
                f'"{bound_by}" joins two terms, and there is none after it. As a word, write it in quotes.'
            )
        return _flat(And, parts) if parts else None

    def _one(self) -> Node:
        self._skip()
        if self._keyword("not") or self._minus():
            self._deeper("not")
            self._skip()
            if self._is_over() or self._sees("and") or self._sees("or"):
                raise Unreadable('Nothing comes after "not". As a word, write it in quotes.')
            part = self._one()
            self.depth -= 1
            return Not(part)
        if self._next() == "(":
            return self._group()
        self.count += 1
        if self.count > TERMS_MAX:
            raise Unreadable(f"The filter has more than {TERMS_MAX} terms.")
        if match := self._take(_FIELD):
            return Term(match[1], self._several(), match[2] or (match[3] or "").replace('""', '"'))
        if match := self._take(_QUOTED):
            return Words(match[1].replace('""', '"'), is_exact=True)
        if self._next() == ")":
            raise Unreadable('A ")" closes nothing. To look for it, write it in quotes.')
        return Words(self._bare())

    def _group(self) -> Node:
        self.at += 1
        self._deeper("(")
        self.opened += 1
        node = self.either()
        if self._next() != ")":
            raise Unreadable(_UNCLOSED)
        if node == And():
            raise Unreadable('Nothing is in "()". To look for it, write it in quotes.')
        self.at += 1
        self.depth -= 1
        self.opened -= 1
        return node

    def _several(self) -> tuple[Value, ...]:
        if self._next() == "(":
            return self._listed()
        values: list[Value] = []
        while True:
            if match := self._take(_QUOTED):
                values.append(Value(match[1].replace('""', '"'), is_exact=True))
            elif self._next() == "(":
                raise Unreadable('A value that begins with "(" has to be in quotes.')
            elif text := self._bare(until=","):
                values.append(Value(text))
            if self._next() != ",":
                return tuple(values)
            self.at += 1

    def _listed(self) -> tuple[Value, ...]:
        """Values in parentheses; words that are not quoted belong together up to a comma or an "or"."""
        self.at += 1
        values: list[Value] = []
        words: list[str] = []

        def close() -> None:
            if words:
                values.append(Value(" ".join(words)))
                words.clear()

        while True:
            self._skip()
            if self._next() in (")", ","):
                close()
                self.at += 1
                if self.text[self.at - 1] == ")":
                    return tuple(values)
            elif match := self._take(_QUOTED):
                close()
                values.append(Value(match[1].replace('""', '"'), is_exact=True))
            elif self._take(_OR):
                close()
            elif match := self._take(_ITEM):
                words.append(match[0])
            else:
                raise Unreadable(
                    'The values in "(" are never closed, or hold another "(": write such a value in quotes.'
                )

    def _bare(self, until: str = "") -> str:
        """Up to a space, or to the parenthesis that closes the group around it."""
        start, opened = self.at, 0
        while (sign := self._next()) and not sign.isspace() and sign != until:
            opened += (sign == "(") - (sign == ")")
            if opened < 0 and self.opened:
                break
            self.at += 1
        if opened > 0 and self.opened:
            raise Unreadable(_UNCLOSED)
        return self.text[start : self.at]

    def _minus(self) -> bool:
        """Whether a term is turned around here; a dash that stands alone is a word."""
        following = self.text[self.at + 1 : self.at + 2]
        if self._next() != "-" or not following or following.isspace() or following == ")":
            return False
        self.at += 1
        return True

    def _deeper(self, what: str) -> None:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise Unreadable(f'The filter has more than {DEPTH_MAX} "{what}" inside each other.')

    def _keyword(self, wanted: str) -> bool:
        self._skip()
        if not self._sees(wanted):
            return False
        self.at += len(wanted)
        return True

    def _sees(self, wanted: str) -> bool:
        match = _KEYWORD.match(self.text, self.at)
        return match is not None and match[1].lower() == wanted

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match

    def _skip(self) -> None:
        while self._next().isspace():
            self.at += 1

    def _next(self) -> str:
        return self.text[self.at : self.at + 1]

    def _is_over(self) -> bool:
        return self.at >= len(self.text) or (self.opened > 0 and self._next() == ")")


def _flat(kind: type[And] | type[Or], parts: list[Node]) -> Node:
    """One part stands for itself, and what is inside the same kind belongs to it."""
    if len(parts) == 1:
        return parts[0]
    spread = [inner for part in parts for inner in (part.parts if isinstance(part, kind) else (part,))]
    return kind(tuple(spread)) if parts else And()
