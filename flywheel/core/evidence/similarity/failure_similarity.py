"""Likeness of failures: in what was asked, in what went wrong, and in the shape of their tool calls.

    found = read(trace, step, said)        what of one failure is compared, in readable terms
    sketch = pack(found)                   the same as hashed terms with counts: some hundred bytes, no text
    space = Space.of([sketch, …], WEIGHTS) TF-IDF of each part over these failures
    nearest(found, [sketch, …])            what is most like it, and why

Likeness is the weighted mean of three cosines, so it is in [0, 1] and says of itself which part it comes from. Why
these parts, terms and weights: docs/design/similar.md.
"""

import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from flywheel.core.traces import Trace, episodes

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

PARTS: Final = ("asked", "wrong", "calls")
WEIGHTS: Final = {"asked": 0.2, "wrong": 0.4, "calls": 0.4}
TEXT_ALONE: Final = {"asked": 1 / 3, "wrong": 2 / 3}
CALLS_ALONE: Final = {"calls": 1.0}
METHOD: Final = 1
"""Raise it when other terms are read: what was read before is then read again."""

ASKED, WRONG, SAID = 1_500, 1_000, 600
"""Characters of each text that are read."""
CALLS = 30
"""Calls read at the beginning of a run, and as many at its end."""
ARGUMENTS = 20
NOTHING = "~"
"""The one term of a part that has none: two that lack it are alike in that."""

NO_CALL: Final = "no call"

Terms = dict[str, Counter[str]]
"""Of each part, its terms and how often each occurs. Beginnings of words have a `~` before them."""

_PACKED = np.dtype([("hash", "<u4"), ("count", "u1")])


# What of a failure is compared


def read(trace: Trace, step: str = "", said: str = "") -> Terms:
    """The terms of a failure: `step` is where it shows, `said` what a detector or a person says of it."""
    episode = episodes.read(trace)
    users = [message.content for message in episode.messages if message.role == "user"]
    asked = [text[:ASKED] for text in dict.fromkeys([*users[:1], *users[-1:]])]
    wrong = [*_at(episode, step), said[:SAID]]
    return {"asked": _words(asked), "wrong": _words(wrong), "calls": _shape(episode, step)}


def _at(episode: episodes.Episode, step: str) -> Iterable[str]:
    """Yield the words, calls and observations of the step; without one, at the end."""
    turns = [turn for turn in episode.turns if turn.step == step] or episode.turns[-1:]
    calls = [
        call for call in episode.calls if call.step == step or (call.observation and call.observation.step == step)
    ]
    if not calls:
        calls = [call for turn in turns for call in turn.calls]
    for turn in turns:
        yield turn.text[:WRONG]
    for call in calls[:3]:
        yield " ".join(episodes.every_text([call.arguments]))[:WRONG]
        if call.observation:
            yield call.observation.text[:WRONG]


_WORD = re.compile(r"[^\W_]+")
_DIGITS = re.compile(r"\d+")
_UNSPACED = re.compile(r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
"""Scripts that set no spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, Chinese and Japanese."""
_STEM = 5


def _words(texts: Iterable[str]) -> Counter[str]:
    """Words without case and with every number as `0`, and the beginnings of the longer ones, which find one form of
    a word in another. Where words are not set apart, pairs of characters."""
    found: Counter[str] = Counter()
    for text in texts:
        for word in _WORD.findall(unicodedata.normalize("NFKC", text).casefold()):
            if _UNSPACED.search(word):
                found.update(word[at : at + 2] for at in range(max(len(word) - 1, 1)))
                continue
            word = _DIGITS.sub("0", word)[:60]
            found[word] += 1
            if len(word) > _STEM:
                found["~" + word[:_STEM]] += 1
    return found


def _shape(episode: episodes.Episode, step: str) -> Counter[str]:
    """Which tools were called, with which arguments, in which order, and how that went; no values."""
    found: Counter[str] = Counter()
    calls = episode.calls if len(episode.calls) <= 2 * CALLS else episode.calls[:CALLS] + episode.calls[-CALLS:]
    before = ""
    for call in calls:
        name = call.name[:100] or "unnamed"
        names = "unreadable"
        if isinstance(call.arguments, dict):
            names = ", ".join(sorted(str(key)[:60] for key in call.arguments)[:ARGUMENTS])
        found[name] += 1
        found[f"{name}({names})"] += 1
        if ended := _ended(call):
            found[f"{name} {ended}"] += 1
        if step and call.step == step:
            found[f"fails at {name}"] += 1
        found[f"{before or 'start'} → {name}"] += 1
        before = name
    found[f"{before} → end" if calls else NO_CALL] += 1
    return found


def _ended(call: episodes.Call) -> str:
    seen = call.observation
    if seen is None:
        return "unanswered"
    if seen.no_such_tool:
        return "is no tool"
    return "errs" if seen.failed else "finds nothing" if seen.empty else ""


# Hashed: what is kept of it


def pack(terms: Terms) -> dict[str, bytes]:
    """Each part as sorted hashes with counts."""
    packed = {}
    for part in PARTS:
        counts: Counter[int] = Counter()
        for term, count in (terms[part] or {NOTHING: 1}).items():
            counts[hash_of(term)] += count
        rows = np.array([(code, min(count, 255)) for code, count in sorted(counts.items())], dtype=_PACKED)
        packed[part] = rows.tobytes()
    return packed


def hash_of(term: str) -> int:
    return zlib.crc32(term.encode("utf-8", "surrogatepass"))


# In one space


@dataclass(frozen=True, slots=True)
class Space:
    """Failures as rows of at most unit length: the product of two rows is how alike they are."""

    rows: "csr_matrix"
    terms: "np.ndarray[Any, Any]"
    """What each column stands for, as `code_of` gives it."""

    @classmethod
    def of(cls, sketches: Sequence[dict[str, bytes]], weights: dict[str, float]) -> "Space":
        """TF-IDF over these failures, so that what all of them have counts little. Terms of a single failure are in
        the length of its row and in no column: no other can have them."""
        from scipy.sparse import hstack

        blocks, terms = [], []
        for part in PARTS:
            if weights.get(part):
                block, known = _block([sketch[part] for sketch in sketches])
                blocks.append(block * np.float32(np.sqrt(weights[part])))
                terms.append(known << 2 | PARTS.index(part))
        return cls(hstack(blocks, format="csr"), np.concatenate(terms))


def _block(packed: list[bytes]) -> tuple["csr_matrix", "np.ndarray[Any, Any]"]:
    """One part of all failures: rows of at most unit length, and the hashes that the columns stand for."""
    from scipy.sparse import csr_matrix

    count = len(packed)
    every = np.frombuffer(b"".join(packed), dtype=_PACKED)
    known, column = np.unique(every["hash"], return_inverse=True)
    seen = np.bincount(column, minlength=len(known))
    row = np.repeat(np.arange(count), [len(one) // _PACKED.itemsize for one in packed])
    weight = (1 + np.log(every["count"])) * (np.log((1 + count) / (1 + seen)) + 1)[column]
    weight /= np.sqrt(np.bincount(row, weights=weight**2, minlength=count))[row]
    shared = seen > 1
    kept = shared[column]
    place = (np.cumsum(shared) - 1)[column[kept]]
    values = weight[kept].astype(np.float32)
    return csr_matrix((values, (row[kept], place)), shape=(count, int(shared.sum()))), known[shared].astype(np.int64)


def code_of(part: str, term: str) -> int:
    """The number of a term in a part."""
    return hash_of(term) << 2 | PARTS.index(part)


def names_of(every: Iterable[Terms]) -> dict[int, tuple[str, str]]:
    """Part and term by number, of the terms that tell a person something."""
    return {
        code_of(part, term): (part, term)
        for terms in every
        for part, counts in terms.items()
        for term in counts
        if not term.startswith("~") and (part == "calls" or len(term) > 2 or not term.isascii())
    }


@dataclass(frozen=True, slots=True)
class Shared:
    """Features that two failures have in common, or the failures of a cluster, the most telling first."""

    words: list[str]
    calls: list[str]


def telling(weights: "np.ndarray[Any, Any]", space: Space, names: dict[int, tuple[str, str]], most: int = 8) -> Shared:
    """The named terms of the largest weights."""
    found: dict[bool, list[str]] = {True: [], False: []}
    for column in np.argsort(-weights, kind="stable"):
        if weights[column] <= 0 or min(len(found[True]), len(found[False])) >= most:
            break
        part, term = names.get(int(space.terms[column]), ("", ""))
        chosen = found[part == "calls"]
        if term and term not in chosen and len(chosen) < most:
            chosen.append(term)
    return Shared(found[False], found[True])


# The nearest


@dataclass(frozen=True, slots=True)
class Near:
    at: int
    """Its place among those that were given."""
    likeness: float
    parts: dict[str, float]
    """The likeness of each part alone."""
    shared: Shared


def nearest(one: Terms, others: Sequence[dict[str, bytes]], most: int = 20) -> list[Near]:
    """Find those of the others that are most like this failure, and why."""
    if not others:
        return []
    space = Space.of([pack(one), *others], WEIGHTS)
    mine = space.rows[0]
    likeness = (space.rows[1:] @ mine.T).toarray()[:, 0]
    names = names_of([one])
    part_of = space.terms & 3
    found = []
    for at in np.argsort(-likeness, kind="stable")[:most]:
        if likeness[at] <= 0:
            break
        both = space.rows[int(at) + 1].multiply(mine).toarray()[0]
        parts = {part: float(both[part_of == number].sum()) / WEIGHTS[part] for number, part in enumerate(PARTS)}
        found.append(Near(int(at), float(likeness[at]), parts, telling(both, space, names, most=6)))
    return found
