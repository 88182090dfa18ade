"""Success of an agent's versions: in production by day, and on held-out tasks."""

from collections.abc import Collection, Iterable
from datetime import date, timedelta
from typing import Any

from django.apps import apps
from django.db.models import Case, CharField, Count, F, Max, Q, QuerySet, Value, When
from django.db.models.functions import TruncDate
from django.utils import timezone

from flywheel.agents.models import Agent
from flywheel.core.evidence.statistics.estimates import proportion

DAYS = 30
VERSIONS = 5
"""Lines of the chart: the newest versions that were in production."""
MARKS = 12
"""Moves of what is live that it marks."""
SETS = 4
"""Lines of the other: the task sets that were measured last."""


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
        "marks": marks_of(moves[:MARKS]),
        "empty": "No judged trajectory of a known version in this period",
    }


def marks_of(moves: Iterable[Any]) -> list[dict[str, str]]:
    """A mark for each day on which another version went live, naming all of that day in their order."""
    days: dict[str, list[str]] = {}
    for move in moves:
        days.setdefault(move.created_at.date().isoformat(), []).append(f"v{move.after.number}")
    return [{"x": day, "label": f"{', '.join(versions)} live"} for day, versions in days.items()]


def _line(number: int, days: list[tuple[date, int, int]], *, is_live: bool) -> dict[str, Any]:
    estimates = [proportion(good, n) for _, good, n in days]
    return {
        "name": f"version {number}",
        "role": "candidate" if is_live else "plain",
        "x": [day.isoformat() for day, _, _ in days],
        "y": [_percent(estimate.mean) for estimate in estimates],
        "low": [_percent(estimate.low) for estimate in estimates],
        "high": [_percent(estimate.high) for estimate in estimates],
    }


def newest_evals(agents: Collection[Agent]) -> QuerySet[Any]:
    """The newest finished held-out eval of each version of these agents on each task set, newest first.

    The evals room lies to the right of this one and is asked by name: what it knows of a version belongs on its page.
    """
    runs = apps.get_model("evals.EvalRun").objects.filter(
        state="succeeded", split="held_out", version__agent__in=agents
    )
    newest = runs.order_by().values("version", "task_set").annotate(newest=Max("pk")).values("newest")
    return runs.filter(pk__in=newest).order_by("-pk")


def held_out_chart(agent: Agent, title: str = "Held-out success by version") -> dict[str, Any] | None:
    """Held-out success over versions, a line a task set that two or more were measured on; None where there is none.

    Each point is the newest finished eval of that version on that set, with its interval.
    """
    lines: dict[str, dict[int, Any]] = {}
    for run in (
        newest_evals([agent]).select_related("version", "task_set").defer("version__system_prompt", "version__tools")
    ):
        if (success := run.summary.get("metrics", {}).get("success")) and success["mean"] is not None:
            lines.setdefault(str(run.task_set), {})[run.version.number] = success
    shown = {name: points for name, points in lines.items() if len(points) > 1}
    shown = dict(list(shown.items())[:SETS])
    numbers = sorted({number for points in shown.values() for number in points})
    if not shown:
        return None
    return {
        "kind": "line",
        "title": title,
        "key": f"held-out-{agent.pk}",
        "note": "held-out success by version and task set, 95% intervals",
        "x": {"title": "version"},
        "y": {"title": "success", "unit": "%"},
        "series": [
            {
                "name": name,
                "role": "plain",
                "x": [f"v{number}" for number in numbers],
                **{
                    axis: [_percent(points[number][part]) if number in points else None for number in numbers]
                    for axis, part in (("y", "mean"), ("low", "low"), ("high", "high"))
                },
            }
            for name, points in shown.items()
        ],
    }


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)
