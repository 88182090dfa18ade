"""The metrics of production for programs."""

from dataclasses import asdict
from datetime import date
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import EstimateOut
from flywheel.edge.refusals import Unreadable
from flywheel.edge.schemas import Schema
from flywheel.trajectories.metrics import production_metrics
from flywheel.trajectories.search import grammar

router = Router(tags=["trajectories"])


class Share(EstimateOut):
    """A rate with its 95% interval."""

    unscored: int
    """Observations that could not be counted, because their outcome is unknown."""
    method: str
    """How the interval was computed."""


class FiguresOut(Schema):
    count: int
    """Number of trajectories."""
    success: Share
    """Share of trajectories with an outcome; `unscored` is the number without one."""
    failure: Share
    """Share that a person confirmed, or that a detector proposed and is undecided."""
    intervention: Share
    """Share in which a person stepped in."""
    confirmed: int
    """Failures that a person confirmed."""
    proposed: int
    """Failures that a detector proposed and nobody decided about."""
    intervened: int
    cost_usd: float | None
    costed: int
    """Trajectories with a known cost."""
    tokens_in: int | None
    tokens_out: int | None
    counted: int
    """Trajectories with known tokens."""
    latency_p50_ms: float | None
    latency_p95_ms: float | None
    timed: int
    """Trajectories with a known latency."""


class MetricPointOut(FiguresOut):
    start: date
    """First day of the period."""
    q: str
    """Filter that finds these trajectories in `GET /trajectories`."""


class GroupOut(FiguresOut):
    name: str
    q: str
    """Filter that finds these trajectories in `GET /trajectories`."""
    times: list[MetricPointOut]


class MetricBucketOut(Schema):
    bucket: str
    count: int
    confirmed: int
    proposed: int
    share: Share
    """Share of all trajectories in the period."""
    q: str
    """Filter that finds these trajectories in `GET /trajectories`."""


class MetricsOut(Schema):
    first: date
    last: date
    """Last day, inclusive. Days are UTC."""
    every: str
    by: str
    q: str
    total: FiguresOut
    times: list[MetricPointOut]
    groups: list[GroupOut]
    """The largest groups, at most 50. By tool, a trajectory counts once for each tool that it called."""
    buckets: list[MetricBucketOut]


class MetricsQuery(Schema):
    days: int | None = None
    """Days up to the newest trajectory; 30 unless `from` or `to` is given."""
    from_: date | None = Field(None, alias="from")
    """First day (UTC)."""
    to: date | None = None
    """Last day (UTC), inclusive."""
    every: str = ""
    """`day` or `week`; if empty, it depends on the length of the period."""
    by: str = ""
    """`version`, `tool`, `env` or `attr.<key>`; empty for no groups."""
    q: str = ""
    """A filter, as for `GET /trajectories`."""


@router.get("/metrics", response=MetricsOut, auth=Key(Scope.READ))
def get_metrics(request: HttpRequest, asked: Query[MetricsQuery]) -> dict[str, Any]:
    """Return production metrics over time: success, failures by category, interventions, cost, latency and tokens. 400
    if the filter or the period cannot be read."""
    project = keyed(request).project
    wanted = {"days": asked.days, "from": asked.from_, "to": asked.to}
    read = production_metrics.ask(
        project,
        {"every": asked.every, "by": asked.by, "q": asked.q}
        | {name: str(value) for name, value in wanted.items() if value is not None},
    )
    if read.query.problems:
        raise Unreadable(" ".join(read.query.problems), field="q")
    found = production_metrics.measure(project, read)
    return {
        **{name: getattr(read, name) for name in ("first", "last", "every", "by")},
        "q": read.query.text,
        "total": _figures(found.total),
        "times": _points(read, (), found.times),
        "groups": [
            {
                **_figures(group.total),
                "name": group.name,
                "q": read.where(*group.terms),
                "times": _points(read, group.terms, group.times),
            }
            for group in found.groups
        ],
        "buckets": [
            {
                "bucket": bucket.key,
                **{name: getattr(bucket.total, name) for name in ("count", "confirmed", "proposed")},
                "share": bucket.share_of(found.total.count),
                "q": read.where(*bucket.terms),
            }
            for bucket in found.buckets
        ],
    }


def _points(read: production_metrics.Asked, terms: tuple[grammar.Node, ...], times: Any) -> list[dict[str, Any]]:
    return [
        {**_figures(these), "start": start, "q": read.where(*terms, start=start)}
        for start, these in sorted(times.items())
    ]


def _figures(these: production_metrics.Figures) -> dict[str, Any]:
    return {
        **asdict(these),
        **{name: getattr(these, name) for name in ("success", "failure", "intervention")},
        "cost_usd": these.cost,
        "latency_p50_ms": these.p50,
        "latency_p95_ms": these.p95,
    }
