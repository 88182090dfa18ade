"""Content identity: canonical JSON and its SHA-256. Two things with one digest are the same thing."""

import hashlib
import json
from typing import Any


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


def read_json(text: str) -> Any:
    """What a JSON text holds; NaN and infinity are no JSON. Raises ValueError and RecursionError."""
    return _decode(text)
