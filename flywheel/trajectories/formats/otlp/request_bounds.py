"""Limits on one request's content. Bytes are bounded before; but a byte can cost a hundred once it has been read.

Small requests are not looked at: what they can hold is bounded by their size.
"""

from flywheel.trajectories.formats.values.hostile_json import FormatError

LOOKED_AT = 2 * 1024 * 1024
"""From this size (bytes) on."""
SPANS = 50_000
"""Also log records. An SDK sends 512 at once, a collector 8,192."""
FIELDS = 10_000
"""Of one span or record: attributes, events and links. An SDK stops at 128 attributes."""
JSON_VALUES = 1_000_000
CONTENTS = 4 * 1024 * 1024
"""Bytes of rejected spans that are kept for people to look at."""
SPLIT = "send smaller batches"


def check_json(body: bytes) -> None:
    """Raises FormatError when it would take too much memory."""
    if len(body) > LOOKED_AT and sum(map(body.count, (b"{", b"[", b","))) > JSON_VALUES:
        raise FormatError(f"more than {JSON_VALUES} values in one request; {SPLIT}")


def is_crowded(body: bytes) -> bool:
    """Whether a large protobuf has so many parts that it must be read piece by piece, if at all."""
    if len(body) <= LOOKED_AT:
        return False
    return _parts(body, 0, len(body), 4, SPANS * 4) > SPANS * 4


def is_crowded_span(body: bytes) -> bool:
    """Whether one span or record has too many fields."""
    return len(body) > FIELDS and _parts(body, 0, len(body), 1, FIELDS) > FIELDS


def _parts(body: bytes, at: int, end: int, depth: int, enough: int) -> int:
    """Length-delimited fields down to this depth, hardly more than `enough`. What is no protobuf ends it."""
    found = 0
    while at < end and found <= enough:
        wire = body[at] & 7
        while at < end and body[at] > 0x7F:
            at += 1
        at += 1
        if wire == 2:
            size = shift = 0
            while at < end:
                byte = body[at]
                at += 1
                size |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            if at + size > end:
                break
            found += 1
            if depth > 1 and size > 1:
                found += _parts(body, at, at + size, depth - 1, enough - found)
            at += size
        elif wire == 0:
            while at < end and body[at] > 0x7F:
                at += 1
            at += 1
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            break
    return found
