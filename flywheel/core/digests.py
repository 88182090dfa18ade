"""Content identity: canonical JSON and its SHA-256. Two things with one digest are the same thing."""

import hashlib
import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

DEEPEST = 50
"""Levels of lists and objects within each other that are judged; what nests deeper has failed."""
_NESTING = (Mapping, list, tuple)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


# Made once: `json.dumps` and `json.loads` make others each time, which takes as long as a short text does.
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_decode = json.JSONDecoder(parse_constant=_refuse).decode


def canonical(value: Any) -> bytes:
    """Sorted keys, no spaces, UTF-8, no NaN. Raises ValueError on NaN and TypeError on what JSON cannot say."""
    return _encode(value).encode()


def digest(value: Any) -> str:
    """The lower-case hex SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value)).hexdigest()


def is_deep(value: Any) -> bool:
    """Whether lists and objects stand more than DEEPEST within each other. No value is too deep for this itself."""
    level = [value]
    for _ in range(DEEPEST + 1):
        inner = (each.values() if isinstance(each, Mapping) else each for each in level if isinstance(each, _NESTING))
        if not (level := list(chain.from_iterable(inner))):
            return False
    return True


def read_json(text: str) -> Any:
    """Return the value that a JSON text holds; NaN and infinity are no JSON. Raises ValueError and RecursionError."""
    return _decode(text)
