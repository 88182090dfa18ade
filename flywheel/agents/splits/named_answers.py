"""Which unit an answer was given to that a further call names (`previous_response_id`) instead of repeating all.

Only the server that gave the answer can go on from it, so such a call stays with the arm of that unit.
"""

import hashlib

from flywheel.agents.models import NamedAnswer, SplitUnit
from flywheel.agents.splits.assignment import Unit
from flywheel.agents.splits.met_units import kept
from flywheel.agents.splits.open_splits import OpenSplit
from flywheel.system.sql import planned

AT_ONCE = 10_000
"""Rows that are deleted in one transaction."""


def arm_after(split: OpenSplit, name: str, unit: Unit) -> bool | None:
    """Whether the candidate gave the answer of this name; None where the split has ended. A name that is not known is
    of a conversation from before, which the live version had, unless its trace has met an arm. Raises
    django.db.Error."""
    trace = unit.name if unit.kind == SplitUnit.Kind.TRACE else ""
    found = planned(_READ, [_digest(name), trace, split.row.pk])
    return bool(found[0][0]) if found else None


def keep(split: OpenSplit, name: str, *, unit: Unit, after: str = "") -> None:
    """Keep to whom this answer was given: the unit of the answer `after` that it goes on from, or this one, where it
    goes on from none or is of one trace. One that has met no arm is none. Raises django.db.Error."""
    row = kept(split, unit)
    own = row.name if not after or row.kind == SplitUnit.Kind.TRACE else ""
    planned(_KEEP, [_digest(after), row.kind, own, split.row.pk, _digest(name)])


def sweep() -> None:
    """Forget the answers of splits that are over: nobody asks any more."""
    over = NamedAnswer.objects.filter(split__closed_at__isnull=False).order_by("pk").values_list("pk", flat=True)
    while keys := list(over[:AT_ONCE]):
        rows = NamedAnswer.objects.filter(pk__in=keys)
        rows._raw_delete(rows.db)  # nothing hangs on them


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


_READ = """
SELECT coalesce(
    (SELECT unit.is_candidate FROM agents_namedanswer AS answer
     JOIN agents_splitunit AS unit ON unit.id = answer.unit_id WHERE answer.split_id = split.id AND answer.name = %s),
    (SELECT unit.is_candidate FROM agents_splitunit AS unit
     WHERE unit.split_id = split.id AND unit.kind = 'trace' AND unit.name = %s),
    false
)
FROM agents_split AS split WHERE split.id = %s AND split.closed_at IS NULL AND split.share > 0
"""
_KEEP = """
INSERT INTO agents_namedanswer (split_id, unit_id, name)
SELECT known.split_id, known.unit_id, said.name
FROM (
    SELECT split.id AS split_id, coalesce(
        (SELECT answer.unit_id FROM agents_namedanswer AS answer WHERE answer.split_id = split.id AND answer.name = %s),
        (SELECT unit.id FROM agents_splitunit AS unit
         WHERE unit.split_id = split.id AND unit.kind = %s AND unit.name = %s)
    ) AS unit_id
    FROM agents_split AS split WHERE split.id = %s AND split.closed_at IS NULL
) AS known, (SELECT %s::text AS name) AS said, (SELECT set_config('synchronous_commit', 'off', true)) AS unflushed
WHERE known.unit_id IS NOT NULL
ON CONFLICT DO NOTHING
"""
"""Not flushed before the answer goes on: where a crash of the machine loses it, the live version goes on from it."""
