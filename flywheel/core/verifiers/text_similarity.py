"""Similarity of two texts, from 0 to 1, by the measures that evals of language models use.

    fuzzy_match        share of characters in common, in order: 2·LCS / (both lengths)
    bleu, gleu         n-grams of 1 to 4 words (Papineni et al. 2002, smoothed as Lin & Och 2004; Wu et al. 2016)
    rouge_1 … rouge_5  F1 of the n-grams in common; rouge_l: F1 of the longest common sequence of words (Lin 2004)
    meteor             words in common and their order (Banerjee & Lavie 2005), without stems and synonyms

Words are runs of letters and digits, capitals aside. Other programs cut words and smooth otherwise, so that a figure
may differ from theirs by some hundredths.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Final

LONGEST = 20_000
"""Characters of a text that are compared."""
_WORD = re.compile(r"\w+")


def similarity(metric: str, text: str, wanted: str) -> float:
    """Measure two texts by one of METRICS; 0 where one of them has no words and the other is another."""
    if metric == "fuzzy_match":
        one, other = text[:LONGEST], wanted[:LONGEST]
        return 2 * _common(one, other) / (len(one) + len(other)) if one or other else 1.0
    said, right = (_WORD.findall(each[:LONGEST].casefold()) for each in (text, wanted))
    if not said or not right:
        return float(text == wanted)  # marks alone are no words, and two without words are not alike by that
    return _OF_WORDS[metric](said, right)


def _common(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Count the longest common subsequence, a bit for each element of `one` (Hyyrö 2004)."""
    places: dict[Hashable, int] = {}
    for at, each in enumerate(one):
        places[each] = places.get(each, 0) | 1 << at
    every = (1 << len(one)) - 1
    free = every
    for each in other:
        hit = free & places.get(each, 0)
        free = ((free + hit) | (free - hit)) & every
    return len(one) - free.bit_count()


def _grams(words: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[at : at + size]) for at in range(len(words) - size + 1))


def _f1(common: float, said: int, right: int) -> float:
    return 2 * common / (said + right) if said + right else 0.0


def _rouge(size: int, said: Sequence[str], right: Sequence[str]) -> float:
    one, other = _grams(said, size), _grams(right, size)
    return _f1((one & other).total(), one.total(), other.total())


def _rouge_l(said: Sequence[str], right: Sequence[str]) -> float:
    return _f1(_common(said, right), len(said), len(right))


def _bleu(said: Sequence[str], right: Sequence[str]) -> float:
    logs = 0.0
    for size in range(1, 5):
        one = _grams(said, size)
        smooth = int(size > 1)
        common = (one & _grams(right, size)).total() + smooth
        if not common:
            return 0.0
        logs += math.log(common / (one.total() + smooth)) / 4
    return math.exp(logs + min(0.0, 1 - len(right) / len(said)))


def _gleu(said: Sequence[str], right: Sequence[str]) -> float:
    common = made = wanted = 0
    for size in range(1, 5):
        one, other = _grams(said, size), _grams(right, size)
        common, made, wanted = common + (one & other).total(), made + one.total(), wanted + other.total()
    return common / max(made, wanted)


def _meteor(said: Sequence[str], right: Sequence[str]) -> float:
    places: dict[str, list[int]] = {}
    for at, word in enumerate(right):
        places.setdefault(word, []).append(at)
    pairs: list[int] = []
    chunks, last, before = 0, -2, -2
    for at, word in enumerate(said):
        if not (free := places.get(word)):
            continue
        place = last + 1 if before == at - 1 and last + 1 in free else free[0]
        free.remove(place)
        chunks += not (before == at - 1 and place == last + 1)
        last, before = place, at
        pairs.append(place)
    if not pairs:
        return 0.0
    precision, recall = len(pairs) / len(said), len(pairs) / len(right)
    mean = 10 * precision * recall / (recall + 9 * precision)
    return mean * (1 - 0.5 * (chunks / len(pairs)) ** 3)


_OF_WORDS: Final[dict[str, Callable[[Sequence[str], Sequence[str]], float]]] = {
    "bleu": _bleu,
    "gleu": _gleu,
    "meteor": _meteor,
    **{f"rouge_{size}": partial(_rouge, size) for size in range(1, 6)},
    "rouge_l": _rouge_l,
}
METRICS: Final = ("fuzzy_match", *_OF_WORDS)
