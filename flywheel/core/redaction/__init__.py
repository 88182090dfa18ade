"""Redaction: secrets leave a trace before it is stored, and equal secrets stay recognisable as equal.

What is found is replaced by `[redacted:<kind>:<hmac8>]`. The eight hex digits are a keyed hash of the value under the
project's key: the same card in two spans has the same placeholder, and nobody without the key can guess the card.

How it goes (`docs/design/redaction.md`): one automaton reads the whole text and nearly always finds nothing, which is
the end of it. Where it stops, the JSON is walked token by token and only the strings that held something are written
anew, so that ids, times, numbers and the order of keys stay byte for byte. Nothing here raises, whatever the text;
redacting twice is redacting once.
"""

import hashlib
import hmac
import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import Any, NamedTuple

from flywheel.core.redaction import secret_shapes
from flywheel.core.redaction.redaction_rules import AT_ONCE, BadRule, Rule, TimedOut, any_of, check
from flywheel.core.redaction.secret_names import (
    COUNT,
    HEADERS,
    IDENTITY,
    IDENTITY_VALUE,
    LONGEST,
    Sensitive,
    is_credential,
    sensitive,
)

__all__ = ["VERSION", "BadRule", "Finding", "Mode", "Redactor", "Rule", "check", "warnings"]

VERSION = "1"
"""Counted up whenever the built-in detectors find something else than before."""
TIMED_OUT = "timed out: "
"""How the counts name a rule that took too long."""
DEPTH = 6
"""JSON in JSON in base64 … is opened so often; deeper it is read as text."""
PASSES = 10
MOST_KEYS = 10_000
"""Names whose meaning a redactor remembers."""


class Mode(StrEnum):
    OFF = "off"
    SECRETS = "secrets"
    STRICT = "strict"


class Finding(NamedTuple):
    path: str
    """The keys above it, `attributes.http.request.header.cookie`."""
    kind: str
    shown: str
    """Its shape and not its content: `xxxxxx.xxxxx@xxxxx.xxx`."""


@dataclass(slots=True)
class _Run:
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] | None = None
    path: list[str] = field(default_factory=list)
    depth: int = 0


class Redactor:
    """Redacts with one project's policy. Its policy never changes, and threads may share it."""

    def __init__(self, mode: Mode = Mode.SECRETS, key: bytes = b"", rules: Iterable[Rule] = ()) -> None:
        self.mode, self.rules = mode, tuple(rules)
        self._key = hashlib.sha256(b"flywheel.redact:" + key).digest()
        strict = mode == Mode.STRICT
        self._near = _NEAR[strict]
        self._shapes = tuple(shape for shape in secret_shapes.SHAPES if strict or not shape.strict)
        self._any_rule = any_of(self.rules)
        self._keys: dict[bytes, tuple[bytes, Sensitive | None, str]] = {}
        said = json.dumps([(rule.name, rule.pattern, rule.kind) for rule in self.rules])
        digest = hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        self.version = f"{VERSION}-{mode.value}" + (f"-{digest}" if self.rules else "")
        """What a batch is stored with: the detectors' version, the mode and the digest of the rules."""

    def json(self, text: bytes) -> tuple[bytes, Counter[str]]:
        """A JSON text without its secrets, and how many of each kind. The same object when there were none."""
        if self.mode is Mode.OFF or self._is_clean(text):
            return text, Counter()
        run = _Run()
        return self._body(text, run), run.counts

    def suspects(self, texts: Sequence[bytes]) -> set[int]:
        """Which of these JSON texts, by their index, `json` has to look at: it would find nothing in the others.

        The automaton is started once for all of them, and again only behind a text in which it stopped.
        """
        if self.mode is Mode.OFF:
            return set()
        # A line break before each text stands for its beginning. What is found across two of them is in neither: then
        # the first is looked at in vain.
        whole = b"\n".join((b"", *texts))
        begins = list(accumulate((len(text) + 1 for text in texts), initial=0))
        found: set[int] = set()
        at = 0
        while (match := self._near.search(whole, at)) is not None and match.start() < begins[-1]:
            index = bisect_right(begins, match.start()) - 1
            found.add(index)
            at = begins[index + 1]
        if self.rules:
            found |= {
                index for index, text in enumerate(texts) if index not in found and not self._rules_are_silent(text)
            }
        return found

    def value(self, value: Any) -> tuple[Any, Counter[str]]:
        """As `json`, for what JSON can say in Python. The same object when nothing was found."""
        if self.mode is Mode.OFF:
            return value, Counter()
        run = _Run()
        return self._value(value, run), run.counts

    def text(self, text: str) -> tuple[str, Counter[str]]:
        """As `json`, for one string, which may be JSON itself."""
        if self.mode is Mode.OFF:
            return text, Counter()
        run = _Run()
        return self._string(text, run), run.counts

    def findings(self, value: Any) -> list[Finding]:
        """List what `value` would replace, and where; for a report. Nothing of the secrets is in it."""
        run = _Run(findings=[])
        if self.mode is not Mode.OFF:
            self._value(value, run)
        assert run.findings is not None
        return run.findings

    # Whole values

    def _is_clean(self, text: bytes) -> bool:
        return self._near.search(text) is None and (not self.rules or self._rules_are_silent(text))

    def _rules_are_silent(self, text: bytes) -> bool:
        """Whether no rule can match anywhere: all strings are read at once, a line each. False when in doubt."""
        if self._any_rule is None or len(text) > AT_ONCE:
            return False
        if text[:1] not in (b"{", b"[", b'"'):
            return self._any_rule.search(text) is None
        try:
            return self._any_rule.search("\n".join(_strings(text)).encode("utf-8", "surrogatepass")) is None
        except (ValueError, RecursionError):
            return False

    def _body(self, text: bytes, run: _Run) -> bytes:
        return _Walk(self, run).json(text) if _is_json(text) else self._leaf(text, run)

    def _string(self, text: str, run: _Run) -> str:
        raw = text.encode("utf-8", "surrogatepass")
        new = self._leaf(raw, run)
        return text if new == raw else new.decode("utf-8", "surrogatepass")

    def _value(self, value: Any, run: _Run, depth: int = 0) -> Any:
        if isinstance(value, str):
            return self._string(value, run)
        try:
            raw = json.dumps(value).encode()
        except (TypeError, ValueError, RecursionError):
            return self._pieces(value, run, depth)
        if self._is_clean(raw):
            return value
        new = self._body(raw, run)
        return value if new == raw else json.loads(new)

    def _pieces(self, value: Any, run: _Run, depth: int) -> Any:
        """Redact a value that JSON cannot hold as a whole: each member by itself."""
        if depth > 50:
            return value
        if isinstance(value, dict):
            made: dict[Any, Any] = {}
            for key, item in value.items():
                pair = self._value({key: item}, run, depth + 1) if _is_plain(item) and isinstance(key, str) else None
                made |= pair if pair is not None else {key: self._value(item, run, depth + 1)}
            return made
        if isinstance(value, list | tuple):
            return [self._value(item, run, depth + 1) for item in value]
        return value

    # One string

    def _leaf(self, text: bytes, run: _Run) -> bytes:
        """A string's bytes without its secrets; JSON inside stays JSON."""
        if self._is_clean(text):
            return text
        if run.depth < DEPTH and text.lstrip()[:1] in (b"{", b"[", b'"') and _is_json(text):
            run.depth += 1
            try:
                return _Walk(self, run).json(text)
            finally:
                run.depth -= 1
        return self._scan(text, run)

    def _scan(self, text: bytes, run: _Run) -> bytes:
        """Again and again until nothing more is found, so that a second redaction finds nothing either."""
        whole = text
        for _ in range(PASSES):
            new = self._pass(text, run)
            if new == text:
                return text
            text = new
        return self.placeholder("unclear", whole, run)

    def _pass(self, text: bytes, run: _Run) -> bytes:
        if self._near.search(text) is not None:
            for shape in self._shapes:
                text = self._replace(text, shape.find(text), run)
        if run.depth < DEPTH:
            text = self._replace(text, self._unwrapped(text, run), run)
        for rule in self.rules:
            try:
                text = self._replace(text, ((*span, rule.kind) for span in rule.find(text)), run)
            except TimedOut:
                run.counts[TIMED_OUT + rule.name] += 1
                return self.placeholder(rule.kind, text, run)
        return text

    def _unwrapped(self, text: bytes, run: _Run) -> Iterable[secret_shapes.Span]:
        for start, end, shown in secret_shapes.wrapped(text):
            inner = _Run(depth=run.depth + 1)
            if self._leaf(shown, inner) != shown:
                yield start, end, next(iter(inner.counts), "secret")

    def _replace(self, text: bytes, spans: Iterable[secret_shapes.Span], run: _Run) -> bytes:
        held = [match.span() for match in PLACEHOLDER.finditer(text)] if b"[redacted:" in text else ()
        pieces, done = [], 0
        for start, end, kind in spans:
            if start < done or start >= end or any(start < to and since < end for since, to in held):
                continue
            pieces += [text[done:start], self.placeholder(kind, text[start:end], run)]
            done = end
        return b"".join([*pieces, text[done:]]) if pieces else text

    def placeholder(self, kind: str, value: bytes, run: _Run) -> bytes:
        run.counts[kind] += 1
        if run.findings is not None:
            run.findings.append(Finding(".".join(part for part in run.path if part)[:200], kind, shown(value)))
        normal = _NORMAL.get(kind, bytes)(value)
        return b"[redacted:%s:%s]" % (kind.encode(), hmac.digest(self._key, normal, "sha256").hex()[:8].encode())

    def forced(self, known: Sensitive, text: bytes, run: _Run) -> bytes:
        """The string under a name that says what it is: all of it, unless everything that counts is gone already."""
        if known.only == "no path" and text[:1] in (b"/", b"~", b"."):
            return self._leaf(text, run)
        trial = _Run(depth=run.depth)
        left = PLACEHOLDER.sub(b"", self._leaf(text, trial))
        if known.only == "credential":
            if not is_credential(left):
                return self._leaf(text, run)
        elif not _SCHEME.sub(b"", left, count=1).strip(b" \"'*"):
            return self._leaf(text, run)
        scheme = _SCHEME.match(text)
        begin = scheme.end() if scheme else 0
        return text[:begin] + self.placeholder(known.kind, text[begin:], run)


class _Frame:
    __slots__ = ("awaits_key", "entries", "forced", "hit", "is_object", "key", "named", "values")

    def __init__(self, is_object: bool, forced: Sensitive | None, key: bytes = b"") -> None:
        self.is_object = self.awaits_key = is_object
        self.forced = forced
        """What every leaf in here is, since it stands under a name that says so."""
        self.key = b"" if is_object else key
        """Of the value that comes; a list's values have the list's."""
        self.hit: Sensitive | None = None
        """What this key says of its value."""
        self.named: Sensitive | None = None
        """What `{"key": "password", …}` says of the `value` beside it."""
        self.values: list[re.Match[bytes]] = []
        """Values that came before such a name."""
        self.entries = 0


class _Walk:
    """One pass over a valid JSON text, token by token. Only what held something is written anew."""

    def __init__(self, redactor: Redactor, run: _Run) -> None:
        self.redactor, self.run = redactor, run
        self.edits: dict[int, tuple[int, bytes]] = {}
        self.frames: list[_Frame] = [_Frame(False, None)]

    def json(self, text: bytes) -> bytes:
        path = len(self.run.path)
        for token in _TOKEN.finditer(text):
            sign = token.group()[:1]
            frame = self.frames[-1]
            if sign in b"{[":
                self.run.path.append("")
                self.frames.append(_Frame(sign == b"{", self._force(frame), frame.key))
            elif sign in b"}]":
                self.frames.pop()
                self.run.path.pop()
            elif sign == b",":
                frame.awaits_key = frame.is_object
                frame.entries += 1
            elif sign == b":":
                frame.awaits_key = False
            elif frame.awaits_key:
                self._key(frame, token)
            else:
                self._leaf(frame, token)
        del self.run.path[path:]
        pieces, done = [], 0
        for start, (end, new) in sorted(self.edits.items()):
            pieces += [text[done:start], new]
            done = end
        return b"".join([*pieces, text[done:]]) if pieces else text

    def _force(self, frame: _Frame) -> Sensitive | None:
        if frame.hit:
            return frame.hit
        if frame.named and (frame.key in _VALUES or not frame.is_object):
            return frame.named
        return None if frame.key in _SCHEMA else frame.forced

    def _key(self, frame: _Frame, token: re.Match[bytes]) -> None:
        raw = token.group()
        known = self.redactor._keys.get(raw)
        if known is None:
            known = self._read_key(raw, token)
        frame.key, frame.hit, self.run.path[-1] = known

    def _read_key(self, raw: bytes, token: re.Match[bytes]) -> tuple[bytes, Sensitive | None, str]:
        redactor, name = self.redactor, _decoded(raw)
        clean = redactor._leaf(name, self.run)
        plain = PLACEHOLDER.sub(b"", clean)
        said = clean.decode("utf-8", "replace")
        known = plain, sensitive(plain.decode("utf-8", "replace")), said
        if clean != name:
            self.edits[token.start()] = token.end(), _encoded(clean)
        elif len(raw) < LONGEST:
            if len(redactor._keys) >= MOST_KEYS:
                redactor._keys.clear()
            redactor._keys[raw] = known
        return known

    def _leaf(self, frame: _Frame, token: re.Match[bytes]) -> None:
        raw = token.group()
        known = self._force(frame)
        if raw[:1] != b'"':
            self._number(raw, known, token)
            return
        text = _decoded(raw)
        if IDENTITY_VALUE.fullmatch(text) and IDENTITY.search(frame.key):
            return
        self._string(token, text, known)
        if frame.is_object and frame.key in _NAMES:
            frame.named = sensitive(PLACEHOLDER.sub(b"", text).decode("utf-8", "replace"))
            if frame.named:
                for earlier in frame.values:
                    self._string(earlier, _decoded(earlier.group()), frame.named)
        elif frame.is_object and frame.key in _VALUES and not known:
            frame.values.append(token)
        elif not frame.is_object and frame.entries == 0 and text.lower() in HEADERS:
            frame.named = sensitive(text.decode("latin-1"))
        elif not frame.is_object and frame.entries > 1:
            frame.named = None

    def _string(self, token: re.Match[bytes], text: bytes, known: Sensitive | None) -> None:
        if not text:
            return
        redactor = self.redactor
        new = redactor.forced(known, text, self.run) if known else redactor._leaf(text, self.run)
        if new != text:
            self.edits[token.start()] = token.end(), _encoded(new)

    def _number(self, raw: bytes, known: Sensitive | None, token: re.Match[bytes]) -> None:
        """A number under a secret's name, or one that is a payment card; never true, false and null."""
        is_secret = known is not None and not known.only and len(raw) > 2 and raw.strip(b"-+.eE0123456789") == b""
        if is_secret or (12 < len(raw) < 20 and raw.isdigit() and secret_shapes.is_card(raw)):
            if not is_secret and COUNT.search(self.frames[-1].key):
                return
            kind = known.kind if known and is_secret else "card"
            self.edits[token.start()] = token.end(), _encoded(self.redactor.placeholder(kind, raw, self.run))


def warnings(counts: Counter[str]) -> list[str]:
    """List the warnings that a person needs about a redaction: sentences for the ledger."""
    return [
        f"the redaction rule {name[len(TIMED_OUT) :]!r} took too long on {count} values, which were redacted as a whole"
        for name, count in sorted(counts.items())
        if name.startswith(TIMED_OUT)
    ]


def shown(value: bytes) -> str:
    """The shape of a value: letters are x, digits 0; at most 32 characters."""
    shape = re.sub(r"[^\W\d_]", "x", re.sub(r"\d", "0", value[:96].decode("utf-8", "replace")))
    return shape if len(shape) <= 32 else shape[:31] + "…"


def _strings(text: bytes | str, depth: int = 0) -> list[str]:
    """Every key and string of a JSON text, also of JSON in its strings. Raises ValueError, RecursionError."""
    found: list[str] = []
    waiting: list[Any] = [json.loads(text)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if depth < DEPTH and value.lstrip()[:1] in ("{", "[", '"'):
                try:
                    found += _strings(value, depth + 1)
                    continue
                except ValueError:
                    pass
            found.append(value)
        elif isinstance(value, dict):
            found += value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return found


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _decoded(token: bytes) -> bytes:
    if b"\\" not in token:
        return token[1:-1]
    return str(json.loads(token, strict=False)).encode("utf-8", "surrogatepass")


def _encoded(text: bytes) -> bytes:
    value = text.decode("utf-8", "surrogatepass")
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value).encode()


PLACEHOLDER = re.compile(rb"\[redacted:[a-z][a-z0-9_]{0,39}:[0-9a-f]{8}\]")

_NEAR = {strict: secret_shapes.near(strict=strict) for strict in (False, True)}
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]|[^\s"{}\[\]:,]+', re.DOTALL)
_SCHEME = re.compile(rb"(?:bearer|basic|token|digest)\s+", re.IGNORECASE)
_NAMES = frozenset({b"key", b"name", b"header", b"field", b"Name", b"Key"})
_VALUES = frozenset({b"value", b"values", b"val", b"stringValue", b"string_value", b"Value"})
_SCHEMA = frozenset(
    {b"type", b"description", b"title", b"format", b"enum", b"pattern", b"examples", b"required", b"$ref", b"minLength",
     b"maxLength", b"default"}
)  # fmt: skip
"""Under `{"password": {…}}` these are a JSON schema's words about a password."""

_NORMAL = {
    "card": lambda value: value.translate(None, b" -"),
    "iban": lambda value: value.translate(None, b" ").upper(),
    "email": lambda value: value.replace(b"%40", b"@").lower(),
    "phone": lambda value: value.translate(None, b" -.()+"),
}
