"""Counts of failures by kind: for the room's page and for a bucket's own."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.db.models import Count, Max, Min, QuerySet
from django.db.models.functions import TruncDate

from flywheel.accounts.models import Project
from flywheel.core.detectors.standard_buckets import Bucket
from flywheel.core.evidence.statistics.estimates import proportion
from flywheel.failures.buckets.bucket_definitions import every
from flywheel.failures.models import Decision, Failure
from flywheel.trajectories.metrics.production_metrics import last_day
from flywheel.trajectories.models import Label, Source, Trajectory

PERIODS = (7, 14, 30, 90)
"""Days that a page can look back."""


@dataclass(slots=True)
class BucketCount:
    bucket: Bucket
    waiting: int = 0
    """Proposed, not decided yet."""
    confirmed: int = 0
    """Failures that people filed here."""
    tasks: int = 0
    in_period: int = 0
    """Trajectories of the period, confirmed or proposed."""
    share: float | None = None
    """Of the period's traffic; None without traffic."""
    trend: list[int] = field(default_factory=list)
    last_seen: Any = None

    @property
    def total(self) -> int:
        return self.waiting + self.confirmed


def traffic(project: Project) -> QuerySet[Trajectory]:
    """Select trajectories of what the agents did in the world; attempts at tasks are none of it."""
    return Trajectory.objects.filter(project=project).exclude(source__in=Source.ATTEMPTS)


def period(project: Project, days: int) -> list[date]:
    """The last `days` days up to the newest traffic."""
    end = last_day(project)
    return [end - timedelta(days=back) for back in range(days - 1, -1, -1)]


def waiting(project: Project) -> QuerySet[Trajectory]:
    """Select trajectories that detectors propose and nobody decided; by its own index (`trajectory_waiting`)."""
    return traffic(project).filter(label="", proposed_bucket__gt="")


def failed(project: Project) -> QuerySet[Trajectory]:
    """Select trajectories that people called a failure; by its own index (`trajectory_failed`)."""
    return traffic(project).filter(label=Label.FAILURE)


def by_bucket(project: Project, days: list[date]) -> tuple[list[BucketCount], int]:
    """Every bucket that has something or that the project defined, the largest first; and the traffic of the period."""
    counts = {key: BucketCount(bucket) for key, bucket in every(project).items()}
    failures = Failure.objects.filter(project=project, current=True).exclude(decision=Decision.REJECTED)
    for name, counted in (
        ("waiting", _grouped(waiting(project), "proposed_bucket")),
        ("confirmed", _grouped(failures, "bucket")),
        ("tasks", _grouped(project.tasks.filter(retired_at=None), "bucket")),
    ):
        for key, n in counted:
            if key in counts:
                setattr(counts[key], name, n)
    daily: dict[str, Counter[date]] = {key: Counter() for key in counts}
    for rows, column in ((waiting(project), "proposed_bucket"), (failed(project), "label_bucket")):
        for key, moment in rows.order_by().values_list(column).annotate(last=Max("started_at")):
            if key in counts:
                counts[key].last_seen = max(filter(None, (moment, counts[key].last_seen)))
        for key, day, n in _daily(rows, days, column):
            if key in daily:
                daily[key][day] += n
    total = sum(n for _, n in _daily(traffic(project), days))
    for key, found in counts.items():
        found.trend = [daily[key][day] for day in days]
        found.in_period = sum(found.trend)
        found.share = found.in_period / total if total else None
    shown = (c for c in counts.values() if c.total or (c.bucket.parent and not c.bucket.is_archived))
    return sorted(shown, key=lambda c: -c.total), total


def of_bucket(project: Project, bucket: Bucket, days: list[date]) -> dict[str, Any]:
    """Figures of one bucket: first and last seen, versions, the daily share."""
    parts = [waiting(project).filter(proposed_bucket=bucket.key), failed(project).filter(label_bucket=bucket.key)]
    seen = [part.aggregate(first=Min("started_at"), last=Max("started_at")) for part in parts]
    own: Counter[date] = Counter()
    for part in parts:
        own.update(dict(_daily(part, days)))
    return {
        "first": min((each["first"] for each in seen if each["first"]), default=None),
        "last": max((each["last"] for each in seen if each["last"]), default=None),
        "daily": own,
        "traffic": Counter(dict(_daily(traffic(project), days))),
        "versions": _versions(parts),
    }


def _versions(parts: list[QuerySet[Trajectory]]) -> list[dict[str, Any]]:
    """The versions that it was seen of, the latest first."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    names = ("agent_name", "version_label", "version__number", "version__agent__name")
    for part in parts:
        for row in part.order_by().values(*names).annotate(n=Count("pk"), last=Max("started_at")):
            same = found.setdefault(tuple(row[name] for name in names), {**row, "n": 0})
            same["n"] += row["n"]
            same["last"] = max(same["last"], row["last"])
    return sorted(found.values(), key=lambda row: row["last"], reverse=True)[:20]


def trend_chart(counts: list[BucketCount], days: list[date], urls: dict[str, str]) -> dict[str, Any]:
    """Failures by day, one bar a bucket, the five largest."""
    return {
        "kind": "bar",
        "stack": True,
        "title": "Failures by day",
        "key": "failures-by-day",
        "x": {"title": "day"},
        "y": {"title": "trajectories"},
        "height": "short",
        "series": [
            {
                "name": count.bucket.label,
                "x": [day.isoformat() for day in days],
                "y": count.trend,
                "links": [urls[count.bucket.key]] * len(days),
            }
            for count in sorted(counts, key=lambda count: -count.in_period)[:6]
            if count.in_period
        ],
        "note": "confirmed, or proposed and waiting",
    }


def share_chart(figures: dict[str, Any], days: list[date]) -> dict[str, Any]:
    """The bucket's daily share of the traffic, with its interval."""
    daily = [proportion(figures["daily"][day], figures["traffic"][day]) for day in days]
    return {
        "kind": "bar",
        "title": "Share of traffic by day",
        "key": "bucket-share",
        "x": {"title": "day"},
        "y": {"title": "share", "unit": "%"},
        "height": "short",
        "series": [
            {
                "name": "share",
                "role": "plain",
                "x": [day.isoformat() for day in days],
                "y": [_percent(one.mean) for one in daily],
                "low": [_percent(one.low) for one in daily],
                "high": [_percent(one.high) for one in daily],
            }
        ],
        "note": "confirmed, or proposed and waiting; 95% interval of each day",
    }


def _percent(share: float | None) -> float | None:
    return None if share is None else share * 100


def _grouped(rows: QuerySet[Any], column: str) -> list[tuple[str, int]]:
    return list(rows.order_by().values_list(column).annotate(n=Count("*")))


def _daily(rows: QuerySet[Trajectory], days: list[date], *columns: str) -> list[tuple[Any, ...]]:
    """(the columns, day, how many) over the period."""
    start = datetime.combine(days[0], time.min, UTC)
    found = rows.filter(started_at__gte=start).annotate(day=TruncDate("started_at")).order_by()
    return list(found.values_list(*columns, "day").annotate(n=Count("*")))
