"""Whole numbers that come in as text: in addresses, forms and headers, where anybody may write anything."""

import uuid
from collections.abc import Mapping

INTEGER = 2**31 - 1
"""The greatest that PostgreSQL's integer holds."""
BIGINT = 2**63 - 1
"""The greatest of its bigint, as primary keys are."""
_LONGEST = len(str(BIGINT))


def number(text: str, *, least: int = 0, most: int = INTEGER) -> int | None:
    """The number from `least` to `most` that the digits 0 to 9 write, with a minus or none; None for all else."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST):
        return None
    value = int(text)
    return value if least <= value <= most else None


def key(text: str) -> int | None:
    """A primary key; None for what cannot be one."""
    return number(text, least=1, most=BIGINT)


def form_key(form: Mapping[str, str]) -> uuid.UUID | None:
    """What the form's page has minted, so that a double click is one act; None for a form that lost it."""
    try:
        return uuid.UUID(form.get("key", ""))
    except ValueError:
        return None
