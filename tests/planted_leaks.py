"""Requests written otherwise, as training data has them that somebody copied, edited or made from held-out tasks."""

from collections.abc import Callable
from random import Random
from typing import Final

SYNONYMS: Final = {
    "meeting": "appointment",
    "set up": "arrange",
    "file": "open",
    "create": "open",
    "ticket": "case",
    "email": "write to",
    "someone": "somebody",
    "must look into": "has to check",
    "need to": "have to",
    "in trouble": "in danger",
    "log": "record",
    "from now on": "as of today",
    "up to": "the job of",
    "cancel": "remove",
    "delete": "remove",
    "move": "shift",
}
"""By template: each of them wherever it stands."""


def misspelt(rng: Random, text: str) -> str:
    """One letter left out of a word of four or more."""
    words = text.split()
    at = rng.choice([place for place, word in enumerate(words) if len(word) > 3])
    letter = rng.randrange(1, len(words[at]) - 1)
    words[at] = words[at][:letter] + words[at][letter + 1 :]
    return " ".join(words)


def shortened(rng: Random, text: str) -> str:
    """One word left out."""
    words = text.split()
    del words[rng.randrange(len(words))]
    return " ".join(words)


def swapped(rng: Random, text: str) -> str:
    """Two words that stand together, the other way round."""
    words = text.split()
    at = rng.randrange(len(words) - 1)
    words[at], words[at + 1] = words[at + 1], words[at]
    return " ".join(words)


def reworded(_: Random, text: str) -> str:
    """Every word that has a synonym."""
    lower = text.lower()
    for word, other in SYNONYMS.items():
        lower = lower.replace(word, other)
    return lower


WAYS: Final[dict[str, Callable[[Random, str], str]]] = {
    "as it is": lambda _, text: text,
    "in capitals": lambda _, text: text.upper(),
    "with a polite beginning": lambda _, text: f"Please, {text[0].lower()}{text[1:]}",
    "with a polite end": lambda _, text: f"{text} Could you do that for me as soon as you can?",
    "as a quoted mail": lambda _, text: f"Forwarded by a customer this morning:\n> {text}\nPlease handle it.",
    "one typo": misspelt,
    "one word left out": shortened,
    "two words swapped": swapped,
    "synonyms": reworded,
}
