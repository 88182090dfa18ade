"""Runs of words that two piles of texts share, as published decontamination counts them.

A run has `WORDS` words. A text that is shorter is looked for as a whole, down to `SHORTEST` words; below that only the
same text is the same. A run that more than `COMMON` training items have is wording that everybody uses, and says
nothing.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np

if TYPE_CHECKING:
    Ints = np.ndarray[Any, np.dtype[np.int64]]
    Hashes = np.ndarray[Any, np.dtype[np.uint64]]

WORDS: Final = 13
SHORTEST: Final = 8
COMMON: Final = 10

T = TypeVar("T")
_WORD = re.compile(r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]|[^\W_]+")
"""A word; where a script sets no spaces, a character."""


def words_of(text: str) -> list[str]:
    """The words of a text, without its signs and quotation marks; of a script without spaces its characters."""
    return _WORD.findall(text)


class SharedRuns(Generic[T]):
    """Runs of held-out texts that training texts have too. Those are added in parts; what has none is not kept."""

    def __init__(self, held_out: Sequence[str]) -> None:
        self._words: dict[str, int] = {}
        self._texts = [_numbers(text, self._words) for text in held_out]
        self._sought: dict[int, tuple[list[int], Hashes, Ints, Ints]] = {}
        """By size of a run: places of the texts, then of each run its hash, whose it is, and where it begins."""
        for size in range(SHORTEST, WORDS + 1):
            own = [at for at, one in enumerate(self._texts) if len(one) >= size and (len(one) == size or size == WORDS)]
            if own:
                self._sought[size] = (own, *_runs([self._texts[at] for at in own], size))
        self._rare = {size: np.unique(codes) for size, (_, codes, _, _) in self._sought.items()}
        """Runs that are not known yet to be wording that everybody uses."""
        self._having: dict[tuple[int, int], dict[str, T]] = {}

    def add(self, train: Sequence[str], owners: Sequence[T], ids: Sequence[str]) -> None:
        """Compare these training texts. `ids` says which of them are one item: its copies make no wording common."""
        theirs = [self._numbers_of(text) for text in train] if self._sought else []
        for size, rare in self._rare.items():
            runs, place, _ = _runs(theirs, size)
            hit = np.isin(runs, rare)
            pairs = zip(runs[hit].tolist(), place[hit].tolist(), strict=True)
            common = []
            for code, at in dict.fromkeys(pairs):
                having = self._having.setdefault((size, code), {})
                if len(having) <= COMMON:
                    having.setdefault(ids[at], owners[at])
                    if len(having) > COMMON:
                        common.append(code)
            if common:
                self._rare[size] = np.setdiff1d(rare, np.array(common, dtype=np.uint64), assume_unique=True)

    def hits(self) -> dict[int, tuple[list[T], str]]:
        """By place of the held-out text: the owners of training texts that have a run of it, one of each id, and the
        run's words."""
        found: dict[int, tuple[list[T], str]] = {}
        names = list(self._words)
        for size, (own, codes, owner, start) in self._sought.items():
            for code, place, begin in zip(codes.tolist(), owner.tolist(), start.tolist(), strict=True):
                having = self._having.get((size, code), {})
                if 0 < len(having) <= COMMON and own[place] not in found:
                    words = self._texts[own[place]][begin : begin + size]
                    found[own[place]] = (list(having.values()), " ".join(names[word - 1] for word in words.tolist()))
        return found

    def _numbers_of(self, text: str) -> "Ints":
        """Numbers of its words; 0 for one that no held-out text has."""
        return np.array([self._words.get(word, 0) for word in _WORD.findall(text)], dtype=np.int64)


def _numbers(text: str, words: dict[str, int]) -> "Ints":
    return np.array([words.setdefault(word, len(words) + 1) for word in _WORD.findall(text)], dtype=np.int64)


def _runs(texts: Sequence["Ints"], size: int) -> "tuple[Hashes, Ints, Ints]":
    """Every run of so many words: its hash, its text, and where in the text it begins."""
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    counts = np.maximum(lengths - size + 1, 0)
    if not counts.sum():
        nothing = np.zeros(0, dtype=np.int64)
        return nothing.astype(np.uint64), nothing, nothing
    every = np.concatenate(texts).astype(np.uint64)
    owner = np.repeat(np.arange(len(texts)), counts)
    start = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    first = start + np.repeat(np.cumsum(lengths) - lengths, counts)
    codes = np.zeros(len(first), dtype=np.uint64)
    factors = np.random.default_rng(13).integers(1, 2**63, size=size, dtype=np.uint64) | np.uint64(1)
    for shift, factor in enumerate(factors):
        codes += (every[first + shift] + np.uint64(1)) * factor
    codes ^= codes >> np.uint64(29)
    return codes, owner, start


class WholeTexts:
    """Texts that are looked for as a whole within others, word by word, whatever stands around them."""

    def __init__(self, texts: Sequence[str], least: int) -> None:
        """`least` is the fewest words of a text that is looked for."""
        self._least = least
        self._by_start: dict[tuple[str, ...], list[tuple[int, list[str]]]] = {}
        for place, text in enumerate(texts):
            words = words_of(text)
            if len(words) >= least:
                self._by_start.setdefault(tuple(words[:least]), []).append((place, words))

    def within(self, text: str) -> set[int]:
        """Places of the texts that this one holds."""
        words = words_of(text) if self._by_start else []
        found: set[int] = set()
        for start in range(len(words) - self._least + 1):
            for place, own in self._by_start.get(tuple(words[start : start + self._least]), ()):
                if words[start : start + len(own)] == own:
                    found.add(place)
        return found
