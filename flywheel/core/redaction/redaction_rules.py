"""A project's own rules: a regular expression, and the kind of thing that it finds.

RE2 runs them, so their time grows with the text and with nothing else. A long value is read in windows, and between
two windows the clock is looked at: that is what makes the limit hold. It is this thread's own processor time, so that a
busy machine redacts nothing by accident.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import re2

WINDOW, OVERLAP = 16 * 1024, 2 * 1024
"""Bytes. A match longer than the overlap may be found in part only."""
AT_ONCE = 64 * 1024
"""Bytes of a JSON text whose strings are first looked at together."""
LIMIT_S = 0.05
"""A value that takes a rule longer than this is redacted as a whole."""
PROBE_S = 0.010
"""What a rule may take for one window of a probe."""
MOST_RULES = 20
LONGEST_PATTERN = 1000
RE2 = "Patterns are RE2's: no look-around, no back-references."

_KIND = re.compile(r"[a-z][a-z0-9_]{0,39}")


class BadRule(ValueError):
    """The rule cannot be; the message says what would be right."""


class TimedOut(Exception):
    """A value took a rule too long."""


@dataclass(frozen=True)
class Rule:
    name: str
    pattern: str
    kind: str
    _regex: Any = field(default=None, init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_regex", _compiled(self.pattern))

    def find(self, text: bytes, limit_s: float = LIMIT_S) -> list[tuple[int, int]]:
        """Where it matches. Raises TimedOut."""
        found: list[tuple[int, int]] = []
        until = time.thread_time() + limit_s
        start, size = 0, len(text)
        while start < size or start == 0:
            end = min(start + WINDOW, size)
            last = end == size
            following = end if last else end - OVERLAP
            for match in self._regex.finditer(text, start, end):
                begin, stop = match.span()
                if not last and begin >= end - OVERLAP:
                    break
                if stop > begin:
                    found.append((begin, stop))
                    following = max(following, stop)
            if last:
                break
            if time.thread_time() > until:
                raise TimedOut(self.name)
            start = following
        return found


def any_of(rules: Sequence[Rule]) -> Any:
    """One expression that matches in lines wherever one of the rules could match in one of them; None when unsure."""
    if not rules or any(re.search(r"\\[AzZCQE]|\(\?[a-zA-Z]*-|\(\?[a-zA-Z]*[sU]", rule.pattern) for rule in rules):
        return None
    try:
        return _compiled("|".join(f"(?m:{rule.pattern})" for rule in rules), longest=MOST_RULES * (LONGEST_PATTERN + 8))
    except BadRule:
        return None


def check(rule: Rule) -> None:
    """Raises BadRule for a rule that must not be saved."""
    if not rule.name.strip() or len(rule.name) > 60:
        raise BadRule("a rule needs a name of at most 60 characters")
    if not _KIND.fullmatch(rule.kind):
        raise BadRule(f"the kind {rule.kind!r} is no word like `customer_number`: a–z, 0–9 and _, at most 40")
    for text in (b"", *_PROBES):
        begun = time.thread_time()
        for match in rule._regex.finditer(text):
            if match.start() == match.end():
                raise BadRule("the pattern matches the empty text: it has to need at least one character")
        if time.thread_time() - begun > PROBE_S * max(1, len(text) / WINDOW):
            raise BadRule("the pattern is too slow: make its repetitions smaller, or write less of `.{0,500}`")


def _compiled(pattern: str, longest: int = LONGEST_PATTERN) -> Any:
    if not pattern or len(pattern) > longest:
        raise BadRule(f"a pattern has 1 to {longest} characters")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 2 * 1024 * 1024
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        said = error.args[0] if error.args else ""
        said = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        raise BadRule(f"the pattern cannot be read: {said}. {RE2}") from None


_PROBES = tuple(
    (probe * (WINDOW // len(probe) + 1))[:WINDOW].encode()
    for probe in (
        "a", "0", "-", "a1B2-", "0000 ", "name: value, ",
        "Please move the meeting of 2026-03-01 10:00 to Ana's room.\n",
        '{"id": "00000373", "to": "ana@example.com"} ', "é€ ", "x" * 63 + " ",
    )
)  # fmt: skip
