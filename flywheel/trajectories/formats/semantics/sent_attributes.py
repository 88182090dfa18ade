"""Attributes that were sent and have no column of their own, as `key=value`: what `attr.key:value` finds. Behind them
stands each key alone, so that the index finds who sent it, whatever the value.

A trajectory has those of its resource, its spans and, where a format has no spans, its metadata, each once. Left
out are lists and objects, values and keys that are too long, and values with control characters. Of one key the first
`EACH` values in order are kept, of all the first `MOST` and `ASSIGNMENT`: the same parts leave the same whatever their
order was.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flywheel.trajectories.formats.values.hostile_json import text

ASSIGNMENT = "flywheel.assignment"
"""Key of the tokens by which a program shows which arm of a ramp it was given. They count, so others give way."""
LONGEST_KEY, LONGEST_VALUE = 80, 119
"""Characters, at most."""
EACH = 4
"""Values of one key."""
MOST = 64
"""Items of one trajectory."""
_NEVER = re.compile(
    r"(?:telemetry|process|host|os|container|thread|code)\.|k8s\.pod\.|service\.instance\.id$"
    r"|(?:.*[._-])?(?:request|trace|span|correlation)[._-]?id$",
    re.IGNORECASE,
)
"""What libraries say of themselves and of where they run, another with each start, and ids, another with each call."""


def items_of(attributes: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    """The items of these attributes that can be kept."""
    found = []
    for key in keys:
        value = attributes.get(key)
        if type(value) is bool:
            value = "true" if value else "false"
        elif type(value) is int or type(value) is float:
            value = repr(value)
        elif type(value) is not str or len(value) > LONGEST_VALUE:
            continue
        if value and key.isprintable() and value.isprintable() and len(value) <= LONGEST_VALUE:
            found.append(f"{key}={' '.join(value.split())}")
    return [text(item) for item in found]


def keys_of(keys: Iterable[str]) -> tuple[str, ...]:
    """Those of the names that can be kept."""
    return tuple(key for key in keys if 0 < len(key) <= LONGEST_KEY and "=" not in key and not _NEVER.match(key))


def merged(known: Sequence[str], more: set[str]) -> list[str]:
    """All of these, cut to what a trajectory keeps, and then their keys."""
    counts: dict[str, int] = {}
    kept = []
    for item in sorted(more.union(sent(known)), key=lambda item: (not item.startswith(f"{ASSIGNMENT}="), item)):
        key = item.partition("=")[0]
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= EACH:
            kept.append(item)
    kept = sorted(kept[:MOST])
    return kept + sorted({item.partition("=")[0] for item in kept})


def values_of(kept: Sequence[str], key: str) -> list[str]:
    """The values that were sent under a key, in order."""
    return [item.partition("=")[2] for item in kept if item.startswith(f"{key}=")]


def sent(kept: Sequence[str]) -> list[str]:
    """The items of these as `key=value`, without the keys alone."""
    return [item for item in kept if "=" in item]
