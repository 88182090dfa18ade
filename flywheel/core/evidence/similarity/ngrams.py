"""Runs of words that two piles of texts share, as published decontamination counts them.

A run has `WORDS` words. A text that is shorter is looked for as a whole, down to `SHORTEST` words; below that only the
same text is the same. A run that more than `COMMON` training items have is wording that everybody uses, and says
nothing.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    Ints = np.ndarray[Any, np.dtype[np.int64]]
    Hashes = np.ndarray[Any, np.dtype[np.uint64]]

WORDS: Final = 13
SHORTEST: Final = 8
COMMON: Final = 10

_WORD = re.compile(r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]|[^\W_]+")
"""A word; where a script sets no spaces, a character."""


def shared(train: Sequence[str], held_out: Sequence[str], ids: Sequence[str]) -> dict[int, tuple[list[int], str]]:
    """By place of the held-out text: the training texts that have a run of it, and the run's words.

    `ids` says which training texts are one item: its copies make no wording common.
    """
    known: dict[str, int] = {}
    theirs, ours = [_numbers(text, known) for text in train], [_numbers(text, known) for text in held_out]
    item = np.unique(np.array(ids, dtype=object), return_inverse=True)[1] if ids else np.zeros(0, dtype=np.int64)
    found: dict[int, tuple[list[int], str]] = {}
    names = list(known)
    for size in range(SHORTEST, WORDS + 1):
        chosen = [at for at, one in enumerate(ours) if len(one) >= size and (len(one) == size or size == WORDS)]
        if not chosen:
            continue
        wanted, at, start = _runs([ours[place] for place in chosen], size)
        runs, place, _ = _runs(theirs, size)
        rare = _rare(runs, place, item, wanted)
        for code, owner, begin in zip(wanted.tolist(), at.tolist(), start.tolist(), strict=True):
            held = chosen[owner]
            if code in rare and held not in found:
                words = ours[held][begin : begin + size]
                found[held] = (rare[code], " ".join(names[word] for word in words.tolist()))
    return found


def _numbers(text: str, known: dict[str, int]) -> "Ints":
    return np.array([known.setdefault(word, len(known)) for word in _WORD.findall(text)], dtype=np.int64)


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


def _rare(runs: "Hashes", place: "Ints", item: "Ints", wanted: "Hashes") -> dict[int, list[int]]:
    """Return the texts of each wanted run that some items have, but not too many."""
    hit = np.isin(runs, wanted)
    runs, place = runs[hit], place[hit]
    if not len(runs):
        return {}
    pairs = np.unique(np.stack([runs, item[place].astype(np.uint64)]), axis=1)
    codes, times = np.unique(pairs[0], return_counts=True)
    rare = codes[times <= COMMON]
    kept = np.isin(runs, rare)
    found: dict[int, list[int]] = {}
    for code, text in zip(runs[kept].tolist(), place[kept].tolist(), strict=True):
        texts = found.setdefault(code, [])
        if text not in texts[-1:]:
            texts.append(text)
    return found
