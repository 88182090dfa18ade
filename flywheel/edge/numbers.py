"""Numbers and keys that come in as text: in addresses, forms and headers, where anybody may write anything."""

import uuid

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


def form_key(text: str) -> uuid.UUID:
    """The key that makes a form which is sent twice count once; a new one for a form that was given none."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return uuid.uuid4()
