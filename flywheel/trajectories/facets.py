"""What the newest trajectories of a list are made of: counts by outcome, bucket, version, tool, source."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from flywheel.trajectories.models import Trajectory

COUNTED = 5000
"""Newest matching rows that are counted; a facet is a look, not a report."""
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


def facets_of(rows: QuerySet[Trajectory]) -> tuple[list[Facet], int]:
    """The facets, and how many rows were counted."""
    newest = rows.order_by("-started_at", "-id").values_list(
        "outcome", "proposed_bucket", "label", "label_bucket", "version__number", "tool_names", "source", "environment"
    )[:COUNTED]
    counts: dict[str, Counter[Any]] = {
        name: Counter() for name in ("outcome", "bucket", "label", "version", "tool", "source", "env")
    }
    total = 0
    for outcome, proposed, label, bucket, version, tools, source, environment in newest:
        total += 1
        counts["outcome"][outcome or "unknown"] += 1
        counts["bucket"][(bucket if label else proposed) or ""] += 1
        counts["label"][label or "none"] += 1
        counts["version"][version] += 1
        counts["tool"].update(tools)
        counts["source"][source] += 1
        counts["env"][environment] += 1
    return [facet for name, counted in counts.items() if (facet := _facet(name, counted)).values], total


def _facet(name: str, counted: Counter[Any]) -> Facet:
    known = [(value, count) for value, count in counted.most_common() if value not in (None, "")]
    values = [Value(str(value), count, f"{name}:{_quoted(str(value))}") for value, count in known[:SHOWN]]
    return Facet(name, values if len(counted) > 1 or len(values) > 1 else [])


def _quoted(value: str) -> str:
    return f'"{value}"' if any(sign in value for sign in ' ,()"') else value
