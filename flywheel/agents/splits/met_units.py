"""Who has met which arm: a row for each unit, made at its first call and never changed, and the last ones in memory.

So a higher share moves nobody who has begun, over processes and restarts. A unit that is known costs no question.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from flywheel.agents.models import Split, SplitUnit
from flywheel.agents.splits.assignment import Unit, coin
from flywheel.agents.splits.open_splits import OpenSplit
from flywheel.system.sql import bound, planned

REMEMBERED = 20_000
"""Units that a process keeps in memory."""
LONGEST_NAME = 200


def kept(split: OpenSplit, unit: Unit) -> Unit:
    """The unit as the traces of its session will name it: without what its project does not keep."""
    if unit.kind != SplitUnit.Kind.SESSION:
        return unit
    said, found = split.redactor.value({"session_id": unit.name})
    return replace(unit, name=said["session_id"][:LONGEST_NAME]) if found else unit


class MetUnits:
    """The units of any split that were asked for last. For several threads."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._most = most
        self._known: OrderedDict[tuple[int, Unit], bool] = OrderedDict()
        self._lock = threading.Lock()

    def recall(self, split: OpenSplit, unit: Unit) -> bool | None:
        """Whether the candidate answers the unit; None where this process does not know it."""
        with self._lock:
            found = self._known.get((split.row.pk, unit))
            if found is not None:
                self._known.move_to_end((split.row.pk, unit))
            return found

    def meet(self, split: OpenSplit, unit: Unit, *, trace_id: str = "", is_assigned: bool = False) -> bool | None:
        """The same, whoever met it first; None where the split has ended. Raises django.db.Error."""
        row = kept(split, unit)
        thrown = coin(split.row.salt, split.project_id, split.row.agent_id, row)
        name = [split.row.pk, row.kind, row.name]
        found = planned(_MEET, [split.row.pk, *name, row.kind, row.name, trace_id, thrown, is_assigned])
        if not found:  # it has ended, or another process makes the row in this moment
            found = planned(_READ, name)
        if not found:
            return None
        is_candidate = bool(found[0][0])
        with self._lock:
            self._known[split.row.pk, unit] = is_candidate
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return is_candidate


_READ = """
SELECT unit.is_candidate FROM agents_splitunit AS unit JOIN agents_split AS split ON split.id = unit.split_id
WHERE split.id = %s AND split.closed_at IS NULL AND split.share > 0 AND unit.kind = %s AND unit.name = %s
"""
_MEET = """
WITH split AS (SELECT id, share FROM agents_split WHERE id = %s AND closed_at IS NULL AND share > 0),
known AS (
    SELECT unit.is_candidate FROM split, agents_splitunit AS unit
    WHERE unit.split_id = %s AND unit.kind = %s AND unit.name = %s
),
made AS (
    INSERT INTO agents_splitunit
        (split_id, kind, name, trace_id, is_candidate, share, is_assigned, met_at, look_at, mixed, parts, wealth,
        trajectories, overriding_calls, overrides)
    SELECT split.id, %s, %s, %s, %s::int < split.share, split.share, %s, now(), now(), '', '{}', '{}', 0, 0, '{}'
    FROM split, (SELECT set_config('synchronous_commit', 'off', true)) AS unflushed
    WHERE NOT EXISTS (SELECT FROM known)
    ON CONFLICT (split_id, kind, name) DO NOTHING
    RETURNING is_candidate
)
SELECT is_candidate FROM made UNION ALL SELECT is_candidate FROM known
"""
"""The coin falls against the share that the split has in this moment, whatever the process remembers of it.

Not flushed before the call goes on: where a crash of the machine loses the row, the same coin falls once more."""

_FORGET = """
UPDATE agents_splitunit AS unit
SET trace_id = CASE WHEN unit.trace_id = ANY(%(traces)s) THEN '' ELSE unit.trace_id END,
    name = CASE WHEN unit.kind = 'session' AND NOT unit.name = ANY(%(sessions)s) THEN unit.name
        ELSE 'deleted ' || unit.id END
FROM agents_split AS split JOIN agents_agent AS agent ON agent.id = split.agent_id
WHERE split.id = unit.split_id AND agent.project_id = %(project)s
AND (unit.trace_id = ANY(%(traces)s) OR (unit.split_id = ANY(%(splits)s) AND unit.kind = 'session'
    AND unit.name = ANY(%(sessions)s)))
"""


_FORGET_COPIES = """
UPDATE agents_shadowcopy AS copy
SET trace_id = CASE WHEN copy.trace_id = ANY(%(traces)s) THEN '' ELSE copy.trace_id END,
    name = CASE WHEN copy.kind = 'session' AND NOT copy.name = ANY(%(sessions)s) THEN copy.name
        ELSE 'deleted ' || md5(split.salt || copy.name) END
FROM agents_split AS split
WHERE split.id = copy.split_id AND split.id = ANY(%(splits)s)
AND (copy.trace_id = ANY(%(traces)s) OR (copy.kind = 'session' AND copy.name = ANY(%(sessions)s)))
"""
"""The copies of one session stay those of one."""


def forget(project_id: int, *, trace_ids: Sequence[str], sessions: Sequence[str]) -> None:
    """Take the names of deleted traces, and of sessions of which nothing is left, out of the units that met an arm
    and the copies of calls. How they went stays, since it was judged; one that is heard of again is another unit."""
    splits = list(Split.objects.filter(agent__project=project_id).values_list("pk", flat=True))
    if splits:
        values = {"project": project_id, "splits": splits, "traces": list(trace_ids), "sessions": list(sessions)}
        bound(_FORGET, values)
        bound(_FORGET_COPIES, values)


met_units = MetUnits()
