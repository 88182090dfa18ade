"""Facets of the newest trajectories of a list: counts by outcome, bucket, version, tool, source, attribute; and
suggestions for a value that none of them has."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import QuerySet

from flywheel.accounts.models import Project
from flywheel.core.detectors.standard_buckets import Bucket, keys_named
from flywheel.system.sql import bound
from flywheel.trajectories.annotations.project_buckets import every
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.search import grammar
from flywheel.trajectories.search.fields import nearest

COUNTED = 5000
"""Newest matching rows that are counted; a facet is a look, not a report."""
LATELY = 2000
"""Newest rows in which a value is looked for that may be meant."""
SHOWN = 8


@dataclass(frozen=True, slots=True)
class Value:
    label: str
    count: int
    term: str
    """What to add to the filter bar."""


@dataclass(frozen=True, slots=True)
class Facet:
    name: str
    values: list[Value]


_COUNTS = """
WITH newest AS MATERIALIZED (
    SELECT coalesce(row.outcome, 'unknown') AS outcome,
        CASE WHEN row.label = '' THEN row.proposed_bucket ELSE row.label_bucket END AS bucket,
        coalesce(nullif(row.label, ''), 'none') AS label, coalesce(version.number::text, '') AS version,
        row.tool_names, row.source, row.environment, row.attributes, row.started_at
    FROM trajectories_trajectory AS row LEFT JOIN agents_version AS version ON version.id = row.version_id
    WHERE row.id = ANY(%s)
)
SELECT 'outcome', outcome, count(*), max(started_at) FROM newest GROUP BY 2
UNION ALL SELECT 'bucket', bucket, count(*), max(started_at) FROM newest GROUP BY 2
UNION ALL SELECT 'label', label, count(*), max(started_at) FROM newest GROUP BY 2
UNION ALL SELECT 'version', version, count(*), max(started_at) FROM newest GROUP BY 2
UNION ALL SELECT 'tool', tool, count(*), max(started_at) FROM newest CROSS JOIN unnest(tool_names) AS tool GROUP BY 2
UNION ALL SELECT 'source', source, count(*), max(started_at) FROM newest GROUP BY 2
UNION ALL SELECT 'env', environment, count(*), max(started_at) FROM newest GROUP BY 2
UNION ALL (
    SELECT 'attr', item, count(*), max(started_at)
    FROM (SELECT attributes, started_at FROM newest ORDER BY started_at DESC LIMIT 1000) AS few
    CROSS JOIN unnest(attributes) AS item
    WHERE strpos(item, '=') > 0 AND NOT starts_with(item, 'flywheel.assignment=') GROUP BY 2
    HAVING count(*) < (SELECT least(count(*), 1000) FROM newest) ORDER BY 3 DESC, 4 DESC, 2 LIMIT 16
)
ORDER BY 3 DESC, 4 DESC, 2
"""
"""Counted where the rows are: five thousand of them in Python cost as much again, and set off its garbage collector.
The token of an assignment is another for each session."""
_FIELDS = ("outcome", "bucket", "label", "version", "tool", "source", "env", "attr")


def facets_of(project: Project, rows: QuerySet[Trajectory]) -> tuple[list[Facet], int]:
    """The facets, and how many rows were counted."""
    # Found by their keys first, for which an index does where few match.
    keys = list(rows.order_by("-started_at", "-id").values_list("pk", flat=True)[:COUNTED])
    counts: dict[str, list[tuple[str, int]]] = {name: [] for name in _FIELDS}
    if keys:
        for name, value, count, _ in bound(_COUNTS, [keys]):
            counts[name].append((value, count))
    facets = [
        Facet(name, [_value(project, name, value, count) for value, count in counted if value][:SHOWN])
        for name, counted in counts.items()
        if len(counted) > 1
    ]
    return facets, len(keys)


def _value(project: Project, name: str, value: str, count: int) -> Value:
    buckets = every(project) if name == "bucket" else {}
    return Value(buckets[value].label if value in buckets else value, count, _term(name, value))


def _term(name: str, value: str) -> str:
    return grammar.attribute(value) if name == "attr" else grammar.term(name, value)


def meant(project: Project, rows: QuerySet[Trajectory], q: str) -> list[str]:
    """Suggest buckets of the project, and values of its newest trajectories, near those asked for but not found."""
    asked = [
        (term.field, value.text)
        for term in grammar.terms_of(grammar.parse(q).node)
        if isinstance(term, grammar.Term)
        for value in term.values
        if value.is_exact or "*" not in value.text
    ]
    found = []
    buckets = every(project)
    for field, value in asked:
        if field == "bucket" and value != "none" and not buckets.keys() & keys_named(value, buckets):
            found.append(f"Unknown category {value!r}. {_nearest_name(value, buckets)}")
        if field in _NAMED:
            names = _names(rows, _NAMED[field])
            near = difflib.get_close_matches(value, names, n=1) if value not in names else []
            found += [
                f"{field}:{value} was not seen lately. Did you mean {grammar.term(field, name)}?" for name in near
            ]
    return found


def _nearest_name(value: str, buckets: Mapping[str, Bucket]) -> str:
    """The category that was probably meant, or all of them, by their names."""
    names = [bucket.label for bucket in buckets.values()]
    by_spelling = {
        spelling.lower(): bucket.label for key, bucket in buckets.items() for spelling in (key, bucket.label)
    }
    near = difflib.get_close_matches(value.lower(), by_spelling, n=1)
    return nearest(by_spelling[near[0]] if near else value, names)


_NAMED = {"tool": "tool_names", "agent": "agent__name", "env": "environment", "tag": "tags", "user": "user_id"}


def _names(rows: QuerySet[Trajectory], column: str) -> set[str]:
    newest = rows.order_by("-started_at", "-id").values_list(column, flat=True)[:LATELY]
    return {name for value in newest for name in (value if isinstance(value, list) else [value]) if name}
