"""The form in which texts are compared."""

import re
import unicodedata

_SPACE = re.compile(r"\s+")
_CLOSING = " .!?…。！？"


def normalise(text: str) -> str:
    """A text as it is compared: NFKC, without case, invisible characters and closing punctuation, every run of spaces
    as one. Digits, signs and accents stay: they tell one request from another."""
    text = unicodedata.normalize("NFKC", text).casefold()
    invisible = [ord(letter) for letter in set(text) if unicodedata.category(letter) == "Cf"]
    return _SPACE.sub(" ", text.translate(dict.fromkeys(invisible)) if invisible else text).strip(_CLOSING)
