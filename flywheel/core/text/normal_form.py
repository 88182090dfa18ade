"""The form in which texts are compared."""

import re
import unicodedata
from collections.abc import Callable, Mapping

_SPACE = re.compile(r"\s+")
_CLOSING = " .!?…。！？"


def normalise(text: str) -> str:
    """A text as it is compared: NFKC, without case, invisible characters and closing punctuation, every run of spaces
    as one. Digits, signs and accents stay: they tell one request from another."""
    text = unicodedata.normalize("NFKC", text).casefold()
    invisible = [ord(letter) for letter in set(text) if unicodedata.category(letter) == "Cf"]
    return _SPACE.sub(" ", text.translate(dict.fromkeys(invisible)) if invisible else text).strip(_CLOSING)


def _spaced(text: str) -> str:
    return " ".join(text.split())


COMPARISONS: Mapping[str, Callable[[str], str]] = {
    "spaces": _spaced,
    "exact": str,
    "case": lambda text: _spaced(text).casefold(),
}
"""How an environment may compare texts, by name; the first unless it says otherwise: as they are but for the spaces at
their ends and several in a row, letter by letter, or without regard to spaces and capitals."""
SPACES = next(iter(COMPARISONS))
