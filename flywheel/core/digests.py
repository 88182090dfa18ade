"""Content identity: canonical JSON and its SHA-256. Two things with one digest are the same thing."""

import hashlib
import json
from typing import Any


def canonical(value: Any) -> bytes:
    """Sorted keys, no spaces, UTF-8, no NaN. Raises ValueError on NaN and TypeError on what JSON cannot say."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(value: Any) -> str:
    """The lower-case hex SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value)).hexdigest()
