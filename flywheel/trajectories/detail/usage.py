"""Totals per model and per tool."""

from dataclasses import dataclass

from flywheel.system.sql import bound
from flywheel.trajectories.models import Trajectory

AT_ONCE = 1_000
"""Steps up to which the page is shown with its sums; those of a longer trajectory come after it."""
SHOWN = 50
"""Models, and tools."""


@dataclass(frozen=True, slots=True)
class Total:
    """The totals of one model or tool."""

    name: str
    calls: int
    errors: int
    took_ms: float | None
    tokens_in: int | None
    tokens_out: int | None
    cost_usd: float | None
    is_derived: bool
    """Whether some of the cost was derived from the project's prices."""


_TOTALS = """
SELECT kind, CASE WHEN kind = 'tool' THEN tool_name ELSE model END AS of, count(*),
    count(*) FILTER (WHERE status = 'error'), sum(ended_at - started_at), sum(tokens_in), sum(tokens_out),
    sum(cost_usd), bool_or(priced_by IS NOT NULL)
FROM trajectories_step
WHERE trajectory_id = %s AND kind IN ('assistant', 'tool')
GROUP BY 1, 2
ORDER BY 1, 3 DESC, 2
"""


def totals_of(trajectory: Trajectory) -> dict[str, list[Total]]:
    """`models` and `tools`, those with the most calls first."""
    found: dict[str, list[Total]] = {"models": [], "tools": []}
    for kind, name, calls, errors, took, *sums in bound(_TOTALS, [trajectory.pk]):
        some = found["tools" if kind == "tool" else "models"]
        if len(some) < SHOWN:
            some.append(Total(name, calls, errors, took.total_seconds() * 1000 if took is not None else None, *sums))
    return found
