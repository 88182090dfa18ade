"""The plan that a release by steps begins with, from the live version's traffic, and what each of its stages would
catch."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from django.db.models import (
    Aggregate,
    Avg,
    Case,
    Count,
    DurationField,
    ExpressionWrapper,
    F,
    FloatField,
    Q,
    QuerySet,
    When,
)
from django.utils import timezone

from flywheel.agents.models import Version
from flywheel.core.evidence.ramp.ramp_plan import WHOLE, Plan, Stage, with_buckets
from flywheel.core.evidence.statistics.sequential.stage_reach import least_harm
from flywheel.promotions.claims.promotion_claims import better_buckets
from flywheel.promotions.models import Candidate
from flywheel.trajectories.models import Label, Outcome, Source, Step, Trajectory

DAYS: Final = 14
FEWEST: Final = 50
"""Trajectories that a limit rests on."""
NEWEST: Final = 5_000
"""Trajectories that are read, and of the newest a tenth for their calls."""
RATE_UNKNOWN: Final = 0.3
"""Taken for the live version's failure rate while nothing of it was judged."""


@dataclass(frozen=True, slots=True)
class LiveTraffic:
    """A version in production in the last fortnight."""

    judged: int
    rate: float | None
    """The part of the judged trajectories that failed; None where none was judged."""
    call_s: float | None = None
    cost_usd: float | None = None
    """In nine of ten trajectories a model call takes no longer on average, and nine of ten cost no more; None where too
    few are known."""

    @property
    def rate_taken(self) -> float:
        """The rate by which stages are planned: never so near to 0 or 1 that nothing could become worse or better."""
        return RATE_UNKNOWN if self.rate is None else min(0.99, max(0.005, self.rate))


class NineOfTen(Aggregate):
    """The 90th percentile, interpolated."""

    template = "percentile_cont(0.9) WITHIN GROUP (ORDER BY %(expressions)s)"


def live_traffic(version: Version) -> LiveTraffic:
    """Read the version's newest trajectories, and of some of them the model calls."""
    newest = _newest(version)
    judged = Case(
        When(label=Label.FAILURE, then=1.0),
        When(label=Label.PASS, then=0.0),
        When(outcome=Outcome.FAILED, then=1.0),
        When(outcome=Outcome.SUCCESS, then=0.0),
        output_field=FloatField(),
    )
    rows = newest.annotate(failed=judged)[:NEWEST]
    counts = rows.aggregate(
        judged=Count("failed"),
        failures=Count("pk", filter=Q(failed=1.0)),
        priced=Count("cost_usd"),
        cost=NineOfTen("cost_usd", output_field=FloatField()),
    )
    took = ExpressionWrapper(F("ended_at") - F("started_at"), output_field=DurationField())
    calls = (  # as the judge measures: the mean of those that the gateway saw
        Step.objects.filter(
            trajectory__in=list(newest.values_list("pk", flat=True)[: NEWEST // 10]), answered_by__isnull=False
        )
        .order_by()
        .values("trajectory")
        .annotate(took=Avg(took))
    )
    timed: dict[str, Any] = calls.aggregate(n=Count("took"), long=NineOfTen("took", output_field=DurationField()))
    return LiveTraffic(
        counts["judged"],
        counts["failures"] / counts["judged"] if counts["judged"] else None,
        timed["long"].total_seconds() if timed["n"] >= FEWEST else None,
        counts["cost"] if counts["priced"] >= FEWEST else None,
    )


def proposed_plan(candidate: Candidate, traffic: LiveTraffic | None = None) -> Plan:
    """The default plan, with limits for slow and costly sessions where the live version's traffic gives them, and a
    signal for each category that the comparison calls better."""
    traffic = traffic or live_traffic(candidate.baseline)
    limits = {"slow": traffic.call_s, "dear": traffic.cost_usd}
    plan = replace(Plan(), limits={key: float(f"{limit:.4g}") for key, limit in limits.items() if limit})
    better = better_buckets(candidate)
    return with_buckets(plan, better) if better else plan


def reach_of(stage: Stage, plan: Plan, rate: float) -> float | None:
    """The least rise of failures that the stage alone would catch in four of five ramps; None where there is none."""
    return least_harm(
        share=stage.share / WHOLE, sessions=stage.sessions, rate=min(rate, 0.995), alpha=plan.alphas["failed"]
    )


def reach_words(number: int, stage: Stage, plan: Plan, rate: float) -> str:
    """Return the same in a sentence."""
    harm = reach_of(stage, plan, rate)
    sessions = f"{stage.sessions:,} session{'' if stage.sessions == 1 else 's'} at {stage.share * 100 / WHOLE:g}%"
    if harm is None:
        return f"Stage {number} is too short to catch anything by itself ({sessions})."
    points = max(1, round(100 * harm))
    return (
        f"Stage {number} would catch {points} point{'' if points == 1 else 's'} more failures in 80% of ramps "
        f"({sessions})."
    )


def _newest(version: Version) -> QuerySet[Trajectory]:
    since = timezone.now() - timedelta(days=DAYS)
    rows = Trajectory.objects.filter(version=version, started_at__gte=since, source=Source.PRODUCTION)
    return rows.order_by("-started_at")
