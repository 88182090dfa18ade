"""The claims of a promotion: in which share of the sessions something is found at most once its version is live.

Claimed are unsafe actions, server errors, the categories that the comparison calls better, and those of the regression
suites' tasks that the candidate passes. A claim is twice what the candidate's own sessions showed in its ramp. What was
not measured there comes from the version before: half of what it did for a category that is to be better, twice of it
for one of a suite, which only says that nothing was lost. It is kept with the promotion and never changes.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from statistics import fmean
from typing import Final

from django.utils import timezone

from flywheel.accounts.models import Project
from flywheel.agents.models import SplitUnit
from flywheel.core.evidence.ramp.ramp_plan import BUCKET, MOST_BUCKETS, SIGNALS
from flywheel.core.text.number_words import percent
from flywheel.environments.models import Suite, Task
from flywheel.evals.runs import suite_runs
from flywheel.failures.buckets.bucket_definitions import every
from flywheel.promotions.claims.session_results import buckets_found
from flywheel.promotions.models import Candidate
from flywheel.promotions.suite_standings import Standing, standings_of
from flywheel.trajectories.annotations.project_buckets import name_of
from flywheel.trajectories.models import Source, Trajectory

LEAST: Final = {"unsafe": 0.01, "errors": 0.02}
"""Claims are at least so large, or one bad hour would break them."""
LEAST_OF_BUCKET: Final = 0.02
MOST: Final = 0.5
SLACK: Final = 2.0
"""A claim is so many times what was measured of the version itself, or of the one before where nothing is to be
lost."""
BETTER: Final = 0.5
"""The same of the version before where it is to be better."""
BEFORE = timedelta(days=14)
"""Traffic of the version before from which a claim is made."""
NEWEST: Final = 5_000
"""Trajectories of it that are read."""


def claims_of(candidate: Candidate, stands: Sequence[Standing], split: int | None = None) -> dict[str, float]:
    """By signal the share of the sessions that goes wrong at most; `stands` is how the candidate stands at its suites,
    and `split` the key of its ramp's split, where it goes live by one."""
    better = better_buckets(candidate)
    factors = {key: BETTER if key in better else SLACK for key in [*better, *suite_buckets(stands, candidate.project)]}
    factors = dict(list(factors.items())[:MOST_BUCKETS])
    known = {f"{BUCKET}{key}": factors[key] * rate for key, rate in _before(candidate, factors).items()}
    known |= _in_its_ramp(split) if split is not None else {}
    least = LEAST | dict.fromkeys((f"{BUCKET}{key}" for key in factors), LEAST_OF_BUCKET)
    return {signal: min(MOST, max(floor, known.get(signal, 0.0))) for signal, floor in least.items()}


def shown_claims(candidate: Candidate, stands: Sequence[Standing] | None = None) -> dict[str, float]:
    """The claims of its promotion, or those that it would have now, if it went live at once; empty where it will have
    none."""
    if candidate.state == Candidate.State.PROMOTED and (promotion := candidate.promotions.first()):
        return dict(promotion.claims)
    if candidate.state not in Candidate.UNDECIDED:
        return {}
    return claims_of(candidate, standings_of(candidate) if stands is None else stands)


def claim_words(project: Project, claims: Mapping[str, float]) -> list[str]:
    """The claims in words, one each."""
    return [f"{signal_name(project, signal)} in at most {percent(claim)}" for signal, claim in claims.items()]


def signal_name(project: Project, signal: str) -> str:
    """The name of a signal where people read it."""
    return name_of(project, signal.removeprefix(BUCKET)) if signal.startswith(BUCKET) else SIGNALS[signal].label


def better_buckets(candidate: Candidate) -> list[str]:
    """The project's categories that the comparison calls better."""
    known = every(candidate.project)
    slices = candidate.report["comparison"].get("slices") or []
    return [row["name"] for row in slices if row["verdict"] == "better" and row["name"] in known]


def suite_buckets(stands: Sequence[Standing], project: Project) -> list[str]:
    """The project's categories of which the candidate passes every task in the suites that let it through. Suites that
    only measure harm say nothing of a category."""
    runs = {
        stand.version_run.pk: stand
        for stand in stands
        if stand.is_passed and stand.version_run and stand.suite.measure != Suite.Measure.SAFE
    }
    passed: dict[int, bool] = {}
    for run, tasks in suite_runs.tallies(stand.version_run for stand in runs.values() if stand.version_run).items():
        for task, attempts in tasks.items():
            passed[task] = passed.get(task, True) and attempts.tried(runs[run].suite.measure).passed is True
    known, kept = every(project), defaultdict(list)
    for task, bucket in Task.objects.filter(pk__in=passed).order_by("pk").values_list("pk", "bucket"):
        kept[bucket].append(passed[task])
    return [bucket for bucket, found in kept.items() if bucket in known and all(found)]


def _in_its_ramp(split: int) -> dict[str, float]:
    units = SplitUnit.objects.filter(split=split, number__isnull=False, is_candidate=True)
    values: dict[str, list[float]] = defaultdict(list)
    for parts in units.values_list("parts", flat=True):
        for signal, part in parts.items():
            if part is not None:
                values[signal].append(part)
    return {signal: SLACK * fmean(found) for signal, found in values.items()}


def _before(candidate: Candidate, buckets: Collection[str]) -> dict[str, float]:
    """The part of the trajectories of the version before in which each is found, as it is found in sessions."""
    rows = Trajectory.objects.filter(
        version=candidate.baseline_id, source=Source.PRODUCTION, started_at__gte=timezone.now() - BEFORE
    )
    read = list(rows.order_by("-started_at").values_list("pk", "label", "label_bucket")[:NEWEST]) if buckets else []
    found = buckets_found(candidate.project_id, read)
    counts = {key: sum(key in found.get(pk, ()) for pk, *_ in read) for key in buckets}
    return {key: count / len(read) for key, count in counts.items()} if read else {}
