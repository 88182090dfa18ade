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


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's keys and values. Which of two values a reader takes is its own affair (RFC 8259, section 4), so that
    a judge could read another than the tool does."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for place, key in enumerate(keys) if key in keys[:place])
        raise ValueError(f"the key {twice[:60]!r} stands twice in one object")
    return found


# Made once: `json.dumps` and `json.loads` make others each time, which takes as long as a short text does.
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_decoder = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_once)


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
    """Return the value that a JSON text holds. NaN and infinity are no JSON, nor is an object that has a key twice.
    Raises ValueError and RecursionError."""
    return _decoder.decode(text)


def read_json_start(text: str) -> tuple[Any, int]:
    """Return the JSON value that a text begins with, by the rules of `read_json`, and where it ends."""
    return _decoder.raw_decode(text)


def repeats_a_key(text: str) -> bool:
    """Whether a JSON object that begins anywhere in the text has a key twice, in itself or in an inner one. It is for
    what another reader has read already, which kept one of the values and does not tell."""
    at = text.find("{")
    while at >= 0:
        try:
            at = _decoder.raw_decode(text, at)[1]
        except json.JSONDecodeError:
            at += 1  # no JSON begins here
        except (ValueError, RecursionError):
            return True  # a second key, or what no reader should have taken either: NaN, a thousand levels
        at = text.find("{", at)
    return False
