"""How many failures of each kind there are: for the room's page and for a bucket's own."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.db.models import Case, Count, F, Max, Min, Q, QuerySet, Value, When
from django.db.models.functions import TruncDate
from django.utils import timezone

from flywheel.accounts.models import Project
from flywheel.core.buckets import BUCKETS, DETECTORS, Bucket
from flywheel.core.stats import Estimate, proportion
from flywheel.failures.models import Decision, Failure, Proposal
from flywheel.trajectories.models import Label, Source, Trajectory

PERIODS = (7, 14, 30, 90)
"""Days that a page can look back."""

PRESUMED = Case(
    When(label="", then=F("proposed_bucket")),
    When(label=Label.FAILURE, then=F("label_bucket")),
    default=Value(""),
)
"""A trajectory's bucket: a person's word where there is one, else the strongest proposal."""


@dataclass(slots=True)
class BucketCount:
    bucket: Bucket
    waiting: int = 0
    """Proposed, and nobody decided yet."""
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
    """What the agents did in the world; attempts at tasks are none of it."""
    return Trajectory.objects.filter(project=project).exclude(source=Source.ROLLOUT)


def period(project: Project, days: int) -> list[date]:
    """The last `days` days up to the newest traffic: imported history is old, and its trend is still one."""
    newest = traffic(project).aggregate(newest=Max("started_at"))["newest"]
    end = min(newest or timezone.now(), timezone.now()).date()
    return [end - timedelta(days=back) for back in range(days - 1, -1, -1)]


def by_bucket(project: Project, days: list[date]) -> tuple[list[BucketCount], int]:
    """Every bucket that has something, the largest first; and the traffic of the period."""
    counts = {key: BucketCount(bucket) for key, bucket in BUCKETS.items()}
    rows = traffic(project)
    for key, n in _grouped(rows.filter(label="", proposed_bucket__gt=""), "proposed_bucket"):
        if key in counts:
            counts[key].waiting = n
    failures = Failure.objects.filter(project=project, current=True).exclude(decision=Decision.REJECTED)
    for key, n in _grouped(failures, "bucket"):
        if key in counts:
            counts[key].confirmed = n
    for key, n in _grouped(project.tasks.filter(retired_at=None), "bucket"):
        if key in counts:
            counts[key].tasks = n
    total = 0
    daily: dict[str, Counter[date]] = {key: Counter() for key in counts}
    for key, day, n in _daily(rows, days):
        total += n
        if key in counts:
            daily[key][day] += n
    for key, moment in rows.annotate(key=PRESUMED).exclude(key="").values_list("key").annotate(at=Max("started_at")):
        if key in counts:
            counts[key].last_seen = moment
    for key, found in counts.items():
        found.trend = [daily[key][day] for day in days]
        found.in_period = sum(found.trend)
        found.share = found.in_period / total if total else None
    return sorted((c for c in counts.values() if c.total), key=lambda c: (-c.total, c.bucket.shortcut)), total


def of_bucket(project: Project, bucket: Bucket, days: list[date]) -> dict[str, Any]:
    """Figures of one bucket: first and last seen, versions, the daily share."""
    mine = traffic(project).annotate(key=PRESUMED).filter(key=bucket.key)
    seen = mine.aggregate(first=Min("started_at"), last=Max("started_at"))
    every: Counter[date] = Counter()
    own: Counter[date] = Counter()
    for key, day, n in _daily(traffic(project), days):
        every[day] += n
        own[day] += n if key == bucket.key else 0
    versions = (
        mine.values("agent_name", "version_label", "version__number", "version__agent__name")
        .annotate(n=Count("pk"), last=Max("started_at"))
        .order_by("-last")[:20]
    )
    return {"first": seen["first"], "last": seen["last"], "daily": own, "traffic": every, "versions": list(versions)}


def detectors(project: Project) -> list[dict[str, Any]]:
    """How often people agree with each detector, among the trajectories that they decided."""
    rows = (
        Proposal.objects.filter(project=project)
        .values("detector")
        .annotate(
            waiting=Count("trajectory", filter=Q(trajectory__label=""), distinct=True),
            decided=Count("trajectory", filter=~Q(trajectory__label=""), distinct=True),
            agreed=Count(
                "trajectory",
                filter=Q(trajectory__label=Label.FAILURE, trajectory__label_bucket=F("bucket")),
                distinct=True,
            ),
        )
        .order_by("-waiting", "detector")
    )
    return [{**row, "known": DETECTORS.get(row["detector"]), "agreement": _agreement(dict(row))} for row in rows]


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
        "note": "confirmed, or proposed and waiting; 95 % interval of each day",
    }


def _agreement(row: dict[str, Any]) -> Estimate:
    return proportion(row["agreed"], row["decided"])


def _percent(share: float | None) -> float | None:
    return None if share is None else share * 100


def _grouped(rows: QuerySet[Any], column: str) -> list[tuple[str, int]]:
    return list(rows.order_by().values_list(column).annotate(n=Count("pk")))


def _daily(rows: QuerySet[Trajectory], days: list[date]) -> list[tuple[str, date, int]]:
    """(bucket or nothing, day, how many) over the period."""
    start = datetime.combine(days[0], time.min, UTC)
    return list(
        rows.filter(started_at__gte=start)
        .annotate(key=PRESUMED, day=TruncDate("started_at"))
        .order_by()
        .values_list("key", "day")
        .annotate(n=Count("pk"))
    )
