"""Which unit an answer was given to that a further call names (`previous_response_id`) instead of repeating all.

Only the server that gave the answer can go on from it, so such a call stays with the arm of that unit.
"""

import hashlib

from flywheel.agents.models import NamedAnswer
from flywheel.agents.splits.assignment import Unit
from flywheel.agents.splits.met_units import kept
from flywheel.agents.splits.open_splits import OpenSplit
from flywheel.system.sql import planned


def arm_of(split: OpenSplit, name: str) -> bool | None:
    """Whether the candidate gave the answer of this name; None where neither arm did, or the split has ended. Raises
    django.db.Error."""
    found = planned(_READ, [split.row.pk, _digest(name)])
    return bool(found[0][0]) if found else None


def keep(split: OpenSplit, name: str, *, unit: Unit, after: str = "") -> None:
    """Keep to whom this answer was given: the unit of the answer `after`, where it goes on from that one, else this
    one. Raises django.db.Error."""
    if after:
        planned(_GO_ON, [_digest(name), split.row.pk, _digest(after)])
    else:
        row = kept(split, unit)
        planned(_KEEP, [_digest(name), split.row.pk, row.kind, row.name])


def forget(split: int) -> None:
    """The split is over, and nobody asks any more."""
    rows = NamedAnswer.objects.filter(split=split)
    rows._raw_delete(rows.db)  # may be millions, of which nothing hangs


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


_READ = """
SELECT unit.is_candidate FROM agents_namedanswer AS answer
JOIN agents_splitunit AS unit ON unit.id = answer.unit_id JOIN agents_split AS split ON split.id = answer.split_id
WHERE split.id = %s AND split.closed_at IS NULL AND split.share > 0 AND answer.name = %s
"""
_KEEP = """
INSERT INTO agents_namedanswer (name, split_id, unit_id)
SELECT %s, unit.split_id, unit.id FROM agents_splitunit AS unit
WHERE unit.split_id = %s AND unit.kind = %s AND unit.name = %s ON CONFLICT DO NOTHING
"""
_GO_ON = """
INSERT INTO agents_namedanswer (name, split_id, unit_id)
SELECT %s, answer.split_id, answer.unit_id FROM agents_namedanswer AS answer
WHERE answer.split_id = %s AND answer.name = %s ON CONFLICT DO NOTHING
"""
