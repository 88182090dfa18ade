"""The outline of a trajectory: every step in a few numbers, from which the page draws tree, waterfall and minimap.

Columns instead of rows and names once, as PostgreSQL writes them: nothing is read of a step but its line.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator

import orjson

from flywheel.system.sql import bound
from flywheel.trajectories.detail import anomalies
from flywheel.trajectories.detail.anomalies import NO_PARENT
from flywheel.trajectories.models import Trajectory

MOST = 50_000
"""Steps in one answer; whoever wants more asks again from there on."""
FIRST, FURTHER = 2_000, 8_750
"""Steps in the first answer to the page, which shows them while the others are on their way, and in each further one.
"""
INLINE = 300
"""Up to so many steps the page brings its outline along."""
ODD = 1_000
"""Steps of one answer of which it is said that something is odd about how they arrived."""

_LINES = f"""
SELECT json_agg(round(date_part('epoch', started_at - %s) * 10000) / 10 ORDER BY position)::text,
    json_agg(round(date_part('epoch', ended_at - started_at) * 10000) / 10 ORDER BY position)::text,
    coalesce(json_agg(position ORDER BY position) FILTER (WHERE status = 'error'), '[]')::text,
    json_agg(concat(length(kind), ' ', length(name), ' ', kind, name, tool_name) ORDER BY position)::text,
    json_agg(span_id ORDER BY position)::text,
    json_agg(parent_id ORDER BY position)::text,
    coalesce(json_agg(position ORDER BY position) FILTER (WHERE {anomalies.ODD_TIMES}), '[]')::text
FROM trajectories_step
WHERE trajectory_id = %s AND position >= %s AND position < %s
"""  # noqa: S608
"""All that is said of a part of the steps, in one walk along their index. Names are sorted out by Python: PostgreSQL
takes every trajectory for a short one and would sort the steps by them. Times as floating point, not as `numeric`."""
_ELSEWHERE = "SELECT span_id, position FROM trajectories_step WHERE trajectory_id = %s AND span_id = ANY(%s)"


def outline_of(
    trajectory: Trajectory, start: int = 0, limit: int = MOST, *, shown: Callable[[str], str] = str
) -> bytes:
    """As JSON, the steps from position `start` on.

    `parent`, `at` and `took` hold one value a step: its parent's position (-1 for none), and in ms when it began (from
    the beginning of the trajectory) and how long it took, null where that is not known. `names` says which positions
    have which kind and name, `errors` which failed, `odd` what was odd about their arrival.
    `next` is the `start` of what follows, or null. `shown` is how names are written.
    """
    given = [trajectory.started_at, *anomalies.odd_times(trajectory), trajectory.pk, start, start + limit]
    at, took, errors, *texts = bound(_LINES, given).fetchall()[0]
    called, spans, parent_ids, odd_times = (orjson.loads(text or "[]") for text in texts)
    parents, orphans = _parents(trajectory, start, spans, parent_ids)
    following = start + len(parents)
    is_more = bool(parents) and following < trajectory.step_count
    odd = dict.fromkeys(orphans, NO_PARENT) | anomalies.words_of(trajectory, odd_times[:ODD])
    return orjson.dumps(
        {
            "start": start,
            "total": trajectory.step_count,
            "next": following if is_more else None,
            "parent": parents,
            "at": orjson.Fragment(at or "[]"),
            "took": orjson.Fragment(took or "[]"),
            "errors": orjson.Fragment(errors),
            "names": [
                {"kind": kind, "name": shown(label(kind, name, tool)), "at": positions}
                for (kind, name, tool), positions in _named(called, start)
            ],
            "odd": {str(position): word for position, word in odd.items()},
        }
    )


def _named(called: list[str], start: int) -> Iterator[tuple[tuple[str, str, str], list[int]]]:
    """Kind, name and tool, each with the positions of the steps that are called so: the earliest first."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for position, text in enumerate(called, start):
        found[text].append(position)
    for text, positions in found.items():
        one, two, names = text.split(" ", 2)
        first, second = int(one), int(one) + int(two)
        yield (names[:first], names[first:second], names[second:]), positions


def _parents(
    trajectory: Trajectory, start: int, spans: list[str], parent_ids: list[str]
) -> tuple[list[int], list[int]]:
    """Where each step's parent stands, and which steps name one that has not arrived.

    Not by a join: what PostgreSQL takes for a short trajectory, since it has not counted it yet, it joins row by row.
    """
    known = {span_id: position for position, span_id in enumerate(spans, start)}
    missing = {parent_id for parent_id in parent_ids if parent_id} - known.keys()
    if missing:
        known |= dict(bound(_ELSEWHERE, [trajectory.pk, list(missing)]).fetchall())
    parents = [known.get(parent_id, -1) for parent_id in parent_ids]
    told = enumerate(zip(parent_ids, parents, strict=True), start)
    return parents, [position for position, (parent_id, parent) in told if parent_id and parent < 0][:ODD]


def label(kind: str, name: str, tool_name: str) -> str:
    """Return the one-line name of a step."""
    if kind == "tool":
        return tool_name or name or "tool"
    return name or {"assistant": "answer", "system": "system prompt"}.get(kind, kind)
