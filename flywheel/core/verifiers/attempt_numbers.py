"""Numbers in what an attempt says: of a text its last one."""

import math
from typing import Any

from flywheel.core.traces import json_schemas
from flywheel.core.traces.json_schemas import pattern
from flywheel.core.verifiers.attempt_places import NotThere, shown

_NUMBER = pattern(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?|[-+]?\.\d+")
_JOINS = pattern(r"[\pL\pN_)\]}]$")
"""What makes the hyphen after it a joint, as in B-12, 10-12 or 2026-11-12, and no minus."""


def number_of(value: Any) -> float:
    """Read a number, or the last one of a text. Raises NotThere."""
    if isinstance(value, str):
        text = json_schemas.utf8(value).replace("\N{MINUS SIGN}", "-")
        found = list(_NUMBER.finditer(text))
        if not found:
            raise NotThere(f"there is no number in {shown(value)}")
        said, at = found[-1].group().replace(",", ""), found[-1].start()
        return _finite(said.lstrip("+-") if _JOINS.search(text[:at][-1:]) else said)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotThere(f"{shown(value)} is no number")
    return _finite(value)


def _finite(value: Any) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise NotThere("the number is too large")
    return number
