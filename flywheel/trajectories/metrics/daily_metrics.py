"""Metrics day by day: finished days are added up beforehand, so that a page of 90 days does not read every trajectory.

A day's sums are believed only while nothing about the day has changed since they were made: triggers note in
`MetricsStale`, with the change itself, which finished day it was of. What is not added up, or no longer right, is read
from the trajectories when somebody looks. So the figures are always those of now, whether `catch_up` has run or not.

A day is noted from its end on, and added up two days after its beginning: whatever is still being written when it ends
has long been committed or has noted it.
"""

import time as clock
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, TypeVar

import numpy as np
from django.db import connection, transaction
from django.db.models import Case, CharField, DateField, F, Func, Min, Q, TextField, Value, When
from django.db.models.functions import TruncDay
from django.utils import timezone

from flywheel.accounts.models import Project
from flywheel.system.sql import bound, sql_of
from flywheel.trajectories.models import Label, MetricsDay, MetricsStale, Source, Trajectory

KEPT_DAYS = 732
"""Days back that are added up without being asked."""
BUSY_S = 5.0
"""How long one sweep adds up; the next one goes on."""
_LOCK = 0x6D6574
"""Of PostgreSQL's advisory locks: one at a time adds up a project's days."""
N = TypeVar("N", int, float)
_DOUBLES = np.dtype("<f8")

PRESUMED = Case(
    When(label="", then=F("proposed_bucket")),
    When(label=Label.FAILURE, then=F("label_bucket")),
    default=Value(""),
    output_field=CharField(),
)
"""A trajectory's bucket: a reviewer's decision, otherwise the strongest proposal."""

KEYS: dict[str, Func] = {
    "version": Func(F("version_id"), template="coalesce(%(expressions)s::text, '')", output_field=TextField()),
    "tool": Func(F("tool_names"), template="coalesce(nullif(%(expressions)s, '{}'), '{\"\"}')::text[]"),
    "env": Func(F("environment"), template="%(expressions)s::text", output_field=TextField()),
}
"""What a trajectory is told apart by, as text, empty where it has none; of tools all of them, as an array."""
KINDS = ("all", "bucket", *KEYS)

COUNTS = """count(*), count(outcome), count(*) FILTER (WHERE outcome = 'success'),
    count(*) FILTER (WHERE label = 'failure'), count(*) FILTER (WHERE label = '' AND filed <> ''),
    count(*) FILTER (WHERE intervened), count(cost_usd), count(coalesce(tokens_in, tokens_out)),
    sum(tokens_in), sum(tokens_out), sum(cost_usd)"""
COLUMNS = ("outcome", "label", "cost_usd", "tokens_in", "tokens_out", "latency_ms")
"""What they are made of, beside `filed` and `intervened`."""


@dataclass(slots=True)
class Sums:
    """Sums over some trajectories, and how to add several up. Their latencies are kept one by one."""

    count: int = 0
    scored: int = 0
    succeeded: int = 0
    confirmed: int = 0
    proposed: int = 0
    intervened: int = 0
    costed: int = 0
    counted: int = 0
    tokens_in: int | None = None
    """None where none is known, as the next two."""
    tokens_out: int | None = None
    cost: float | None = None
    latencies: list[Any] = field(default_factory=list)
    """Arrays, each in ascending order."""

    def add(self, other: "Sums") -> None:
        self.count += other.count
        self.scored += other.scored
        self.succeeded += other.succeeded
        self.confirmed += other.confirmed
        self.proposed += other.proposed
        self.intervened += other.intervened
        self.costed += other.costed
        self.counted += other.counted
        self.tokens_in = _plus(self.tokens_in, other.tokens_in)
        self.tokens_out = _plus(self.tokens_out, other.tokens_out)
        self.cost = _plus(self.cost, other.cost)
        self.latencies += other.latencies

    def percentiles(self, *ranks: float) -> tuple[int, list[float | None]]:
        """Return the number of latencies, and their percentiles, interpolated like PostgreSQL's `percentile_cont`."""
        known = self.latencies[0] if len(self.latencies) == 1 else np.sort(np.concatenate([(), *self.latencies]))
        if not (n := len(known)):
            return 0, [None] * len(ranks)
        found: list[float | None] = []
        for rank in ranks:
            below, share = divmod(rank * (n - 1), 1)
            low, high = known[int(below)], known[min(int(below) + 1, n - 1)]
            found.append(float(low + share * (high - low)))
        return n, found


NAMES = tuple(item.name for item in fields(Sums) if item.name != "latencies")


def _plus(one: N | None, other: N | None) -> N | None:
    """None where neither is known."""
    return one if other is None else other if one is None else one + other


def sums_of(values: Sequence[Any], latencies: Iterable[Any] = ()) -> Sums:
    """Build the sums from the values that `COUNTS` gave, in its order."""
    found = Sums(**dict(zip(NAMES, values, strict=True)), latencies=list(latencies))
    # Sums of whole numbers come as decimals.
    found.tokens_in = None if found.tokens_in is None else int(found.tokens_in)
    found.tokens_out = None if found.tokens_out is None else int(found.tokens_out)
    return found


Part = tuple[str, date, str, Sums]
"""Kind, day, key, and what it came to."""


def parts(project: Project, first: date, last: date, kinds: Collection[str]) -> Iterator[Part]:
    """Everything of these days, each from where it is right. Days without a trajectory may be missing."""
    rolled = set()
    for kind, day, key, latencies, *values in bound(_ROLLED, [project.pk, list(kinds), first, last]):
        if kind == "all":
            rolled.add(day)
        yield kind, day, key, sums_of(values, [np.frombuffer(latencies, _DOUBLES)])
    days = [first + timedelta(days=at) for at in range((last - first).days + 1)]
    yield from fresh(project, [day for day in days if day not in rolled], kinds)


_ROLLED = f"""
SELECT kind, day, key, latencies, {", ".join(NAMES)} FROM trajectories_metricsday AS kept
WHERE project_id = %s AND kind = ANY(%s) AND day BETWEEN %s AND %s AND NOT EXISTS (
    SELECT FROM trajectories_metricsstale AS stale WHERE stale.project_id = kept.project_id AND stale.day = kept.day
)
"""  # noqa: S608


def fresh(project: Project, days: Collection[date], kinds: Collection[str]) -> Iterator[Part]:
    """The same, added up now: each day's once."""
    if not days:
        return
    whens = Q()
    for first, last in _runs(sorted(days)):
        whens |= Q(started_at__gte=_midnight(first), started_at__lt=_midnight(last + timedelta(days=1)))
    chosen = (
        Trajectory.objects.filter(whens, project=project)
        .exclude(source__in=Source.ATTEMPTS)
        .order_by()
        .annotate(
            start=TruncDay("started_at", tzinfo=UTC, output_field=DateField()),
            filed=PRESUMED,
            intervened=~Q(interventions=[]),
            **{f"by_{name}": key for name, key in KEYS.items()},
        )
        .values("start", "filed", "intervened", *COLUMNS, *(f"by_{name}" for name in KEYS))
    )
    inner, values = sql_of(chosen)
    several = "\nUNION ALL".join(_PARTS[kind] for kind in kinds)
    with connection.cursor() as cursor:
        cursor.execute(f"WITH chosen AS MATERIALIZED ({inner}) {several}", values)
        rows = cursor.fetchall()
    for kind, day, key, *sums, latencies in rows:
        known = [] if latencies is None else [np.sort(np.array(latencies, _DOUBLES))]
        yield kind, day, key, sums_of(sums, known)


_LATENCIES = "array_agg(latency_ms) FILTER (WHERE latency_ms IS NOT NULL)"


def _part(kind: str, key: str = "", spread: str = "", latencies: str = _LATENCIES) -> str:
    keyed, more = (key, f", {key}") if key else ("''", "")
    return f"""
SELECT '{kind}', start::date, {keyed}, {COUNTS}, {latencies} FROM chosen {spread} GROUP BY start{more}"""  # noqa: S608


_PARTS = {
    "all": _part("all"),
    "bucket": _part("bucket", "filed", "WHERE filed <> ''", "NULL::float8[]"),
    "version": _part("version", "by_version"),
    "env": _part("env", "by_env"),
    "tool": _part("tool", "one", "CROSS JOIN unnest(by_tool) AS one"),
}


def _runs(days: list[date]) -> Iterator[tuple[date, date]]:
    """Days that follow one another, as the first and the last of them."""
    first = last = days[0]
    for day in days[1:]:
        if day - last > timedelta(days=1):
            yield first, last
            first = day
        last = day
    yield first, last


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time.min, UTC)


# Adding up


def catch_up() -> int:
    """Add up finished days that are not or have changed, the newest first, for a bounded while. Returns how many."""
    until, count = clock.monotonic() + BUSY_S, 0
    for project in Project.objects.order_by("pk"):
        for day in due(project):
            if clock.monotonic() > until:
                return count
            roll(project, day)
            count += 1
    return count


def due(project: Project) -> list[date]:
    newest = timezone.now().astimezone(UTC).date() - timedelta(days=2)
    days = set(MetricsStale.objects.filter(project=project, day__lte=newest).values_list("day", flat=True).distinct())
    began = Trajectory.objects.filter(project=project).aggregate(first=Min("started_at"))["first"]
    if began is not None:
        first = max(began.astimezone(UTC).date(), newest - timedelta(days=KEPT_DAYS))
        wanted = {first + timedelta(days=at) for at in range((newest - first).days + 1)}
        there = MetricsDay.objects.filter(project=project, kind="all", day__gte=first)
        days |= wanted - set(there.values_list("day", flat=True))
    return sorted(days, reverse=True)


@transaction.atomic
def roll(project: Project, day: date) -> None:
    """Add up one finished day. What changes meanwhile notes the day again, and is not in these sums."""
    bound("SELECT pg_advisory_xact_lock(%s, %s)", [_LOCK, project.pk % 2**31])
    # First, so that all that noted the day is committed when its trajectories are read.
    MetricsStale.objects.filter(project=project, day=day).delete()
    found = list(fresh(project, [day], KINDS))
    MetricsDay.objects.filter(project=project, day=day).delete()
    MetricsDay.objects.bulk_create(_rows(project, day, found))


def _rows(project: Project, day: date, found: Iterable[Part]) -> Iterator[MetricsDay]:
    is_empty = True
    for kind, _, key, sums in found:
        is_empty = False
        latencies = b"".join(each.tobytes() for each in sums.latencies)
        values = {name: getattr(sums, name) for name in NAMES}
        yield MetricsDay(project=project, day=day, kind=kind, key=key, latencies=latencies, **values)
    if is_empty:
        yield MetricsDay(project=project, day=day, kind="all")
