"""Texts that are nearly the same: candidates by MinHash and banding, each confirmed by the exact Jaccard similarity.

A text is the set of its runs of `SHINGLE` characters, so a changed name or date changes a few of many. `PERMUTATIONS`
minima are kept of each set; texts whose minima agree in one of `BANDS` bands are candidates, which finds a pair of
similarity 0.8 with probability 0.9998 and one of 0.5 with 0.64. What is returned was compared exactly.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    Ints = np.ndarray[Any, np.dtype[np.int64]]
    Hashes = np.ndarray[Any, Any]

SHINGLE: Final = 5
PERMUTATIONS: Final = 64
BANDS: Final = 16
READ: Final = 20_000
"""Characters of a text that `nearest` reads."""
BUCKET: Final = 200
"""Texts of one bucket that a text is compared with, spread evenly over it."""
BEST: Final = 16
"""Candidates of a text that are estimated from all minima, those of the most bands."""
EXACT: Final = 4
"""Of these, the best that are compared exactly."""
AT_ONCE: Final = 2_000
CHUNK: Final = 256
"""Texts of which minima are taken together: what they need stays in the processor's cache."""


def nearest(
    train: Sequence[str], held_out: "Sequence[str] | Sketches", least: float, *, before: bool = False
) -> dict[int, tuple[int, float]]:
    """By place of the held-out text: the training text that is most like it, and how much, where that is `least` or
    more. With `before`, both are one list and a text is compared with those before it alone. Held-out texts that are
    compared several times can be given as their sketches."""
    if not train or not len(held_out):
        return {}
    theirs = Sketches(train)
    ours = theirs if before else held_out if isinstance(held_out, Sketches) else Sketches(held_out)
    found: dict[int, tuple[int, float]] = {}
    for start in range(0, len(ours), AT_ONCE):
        at, place = _candidates(theirs, ours, slice(start, start + AT_ONCE))
        if before:
            at, place = at[place < at], place[place < at]
        for held, other in zip(*_best(theirs, ours, at, place), strict=True):
            likeness = jaccard(theirs.shingles(other), ours.shingles(held))
            if likeness >= least and likeness > found.get(held, (0, 0.0))[1]:
                found[held] = (other, likeness)
    return found


def shingles(text: str) -> "Hashes":
    """Return the shingles of the whole text, however long it is."""
    return np.unique(_codes(text, len(text)))


def jaccard(one: "Hashes", other: "Hashes") -> float:
    """The exact similarity of two sets of shingles."""
    both = len(np.intersect1d(one, other, assume_unique=True))
    return both / (len(one) + len(other) - both)


class Sketches:
    """The shingles of texts, and their minima under each permutation."""

    def __init__(self, texts: Sequence[str]) -> None:
        codes = [_codes(text) for text in texts]
        self.ends = np.cumsum([len(one) for one in codes], dtype=np.int64)
        self.starts = np.concatenate([[0], self.ends[:-1]])
        self.every = np.concatenate(codes)
        rng = np.random.default_rng(5)
        factors = rng.integers(1, 2**32, size=PERMUTATIONS, dtype=np.uint32) | np.uint32(1)
        shifts = rng.integers(0, 2**32, size=PERMUTATIONS, dtype=np.uint32)
        self.minima = np.empty((len(texts), PERMUTATIONS), dtype=np.uint32)
        for first in range(0, len(texts), CHUNK):
            last = min(first + CHUNK, len(texts)) - 1
            begin = self.starts[first]
            some, starts = self.every[begin : self.ends[last]], self.starts[first : last + 1] - begin
            for column in range(PERMUTATIONS):
                mixed = some * factors[column] + shifts[column]
                mixed ^= mixed >> np.uint32(16)
                self.minima[first : last + 1, column] = np.minimum.reduceat(mixed * np.uint32(0x45D9F3B), starts)

    def __len__(self) -> int:
        return len(self.ends)

    def shingles(self, at: int) -> "Hashes":
        return np.unique(self.every[self.starts[at] : self.ends[at]])

    def bands(self, rows: slice) -> "Hashes":
        """One number for each band of each text."""
        width = PERMUTATIONS // BANDS
        parts = self.minima[rows].reshape(-1, BANDS, width).astype(np.uint64)
        factors = np.random.default_rng(8).integers(1, 2**63, size=width, dtype=np.uint64) | np.uint64(1)
        return np.asarray((parts * factors).sum(axis=2, dtype=np.uint64))


def _codes(text: str, most: int = READ) -> "Hashes":
    """A hash for each run of characters; for a text that is shorter, one of the whole."""
    letters = np.frombuffer(text[:most].encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    size = min(SHINGLE, len(letters))
    if not size:
        return np.zeros(1, dtype=np.uint32)
    codes = np.zeros(len(letters) - size + 1, dtype=np.uint64)
    for shift in range(size):
        codes = codes * np.uint64(0x100000001B3) + letters[shift : len(letters) - size + 1 + shift]
    codes *= np.uint64(0x9E3779B97F4A7C15)
    return (codes >> np.uint64(32)).astype(np.uint32)


def _candidates(theirs: Sketches, ours: Sketches, rows: slice) -> "tuple[Ints, Ints]":
    """Pairs that agree in a band, the held-out texts of `rows` only; of each text those that agree in most bands."""
    keys, wanted = theirs.bands(slice(None)), ours.bands(rows)
    total, pairs = len(keys), []
    for band in range(BANDS):
        order = np.argsort(keys[:, band], kind="stable")
        column = keys[order, band]
        left = np.searchsorted(column, wanted[:, band], "left")
        size = np.searchsorted(column, wanted[:, band], "right") - left
        taken = np.minimum(size, BUCKET)
        held = np.repeat(np.arange(len(wanted)), taken)
        step = np.arange(taken.sum()) - np.repeat(np.cumsum(taken) - taken, taken)
        spread = step * size[held] // np.maximum(taken[held], 1)
        pairs.append((held + rows.start) * total + order[left[held] + spread])
    codes, times = np.unique(np.concatenate(pairs), return_counts=True)
    return _first(codes // total, codes % total, times, BEST)


def _best(theirs: Sketches, ours: Sketches, at: "Ints", place: "Ints") -> tuple[list[int], list[int]]:
    """Return the candidates whose minima agree most."""
    agree = (theirs.minima[place] == ours.minima[at]).sum(axis=1)
    held, other = _first(at, place, agree, EXACT)
    return held.tolist(), other.tolist()


def _first(at: "Ints", place: "Ints", weight: "Ints", most: int) -> "tuple[Ints, Ints]":
    """Return the pairs of largest weight for each `at`."""
    order = np.lexsort((place, -weight, at))
    at, place = at[order], place[order]
    rank = np.arange(len(at)) - np.searchsorted(at, at, "left")
    return at[rank < most], place[rank < most]
