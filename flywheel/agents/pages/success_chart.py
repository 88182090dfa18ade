"""Success of an agent's versions in production, by day."""

from datetime import date, timedelta
from typing import Any

from django.db.models import Case, CharField, Count, F, Q, Value, When
from django.db.models.functions import TruncDate
from django.utils import timezone

from flywheel.agents.models import Agent
from flywheel.core.evidence.statistics.estimates import proportion

DAYS = 30
VERSIONS = 5
"""Lines of the chart: the newest versions that were in production."""


def success_chart(agent: Agent, days: int = DAYS) -> dict[str, Any]:
    """Success by day, a line a version with its Wilson interval; where the live version changed is marked.

    What a person said of a trajectory counts more than what the agent reported; what neither judged is left out.
    """
    since = timezone.now() - timedelta(days=days)
    judged = Case(
        When(label="pass", then=Value("success")),
        When(label="failure", then=Value("failed")),
        default=F("outcome"),
        output_field=CharField(),
    )
    rows = (
        agent.trajectories.filter(source="production", started_at__gte=since, version__isnull=False)
        .annotate(judged=judged, day=TruncDate("started_at"))
        .exclude(judged=None)
        .values("version__number", "day")
        .annotate(n=Count("pk"), good=Count("pk", filter=Q(judged="success")))
        .order_by("day")
    )
    lines: dict[int, list[tuple[date, int, int]]] = {}
    for row in rows:
        lines.setdefault(row["version__number"], []).append((row["day"], row["good"], row["n"]))
    live = agent.live.number if agent.live else None
    newest = sorted(lines, reverse=True)[:VERSIONS]
    moves = agent.promotions.filter(created_at__gte=since).select_related("after").order_by("pk")
    return {
        "kind": "line",
        "title": "Success in production",
        "key": f"success-{agent.pk}",
        "note": f"judged trajectories of the last {days} days, 95% intervals",
        "x": {"title": "day"},
        "y": {"title": "success", "unit": "%"},
        "series": [_line(number, lines[number], is_live=number == live) for number in sorted(newest)],
        "marks": [
            {"x": move.created_at.date().isoformat(), "label": f"v{move.after.number} live"} for move in moves[:12]
        ],
        "empty": "No judged trajectory of a known version in this period",
    }


def _line(number: int, days: list[tuple[date, int, int]], *, is_live: bool) -> dict[str, Any]:
    estimates = [proportion(good, n) for _, good, n in days]
    return {
        "name": f"version {number}",
        "role": "candidate" if is_live else "plain",
        "x": [day.isoformat() for day, _, _ in days],
        "y": [round(100 * (estimate.mean or 0), 2) for estimate in estimates],
        "low": [round(100 * (estimate.low or 0), 2) for estimate in estimates],
        "high": [round(100 * (estimate.high or 0), 2) for estimate in estimates],
    }
