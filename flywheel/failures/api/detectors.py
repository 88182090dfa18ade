"""The detectors' accuracy, their switches, and reviewers' agreement: for programs."""

from dataclasses import asdict
from datetime import date, datetime, timedelta
from typing import Any

from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone
from ninja import Field, Query, Router

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.core.detectors.standard_buckets import DETECTORS
from flywheel.edge.answers import EstimateOut
from flywheel.edge.refusals import Missing, check_choice
from flywheel.edge.schemas import Body, Schema
from flywheel.failures.api.queue_schemas import ReviewAgreementOut
from flywheel.failures.api.queues import agreed
from flywheel.failures.detectors import detector_quality, detector_settings
from flywheel.failures.queues import agreement
from flywheel.trajectories.models import Trajectory

router = Router(tags=["failures"])

LISTED = 200


class RatesOut(Schema):
    precision: EstimateOut
    """Share of its decided proposals that people filed in its category."""
    is_failure: EstimateOut
    """Share of the same proposals that people filed in any category."""
    recall: EstimateOut
    """Share of the failures in its category that it had proposed."""


class DetectorOut(Schema):
    name: str
    description: str
    about: str
    bucket: str
    """Category that it proposes in this project."""
    own_bucket: str
    """Category that it proposes by default."""
    bucket_since: datetime | None
    """Start of its current category; only later decisions count. Null if it proposes its default."""
    is_on: bool
    switched_at: datetime | None
    all_decisions: RatesOut
    """Rates over all decisions. Recall is overestimated here: people mostly decide about trajectories for which
    something was proposed."""
    random_sample: RatesOut
    """Rates over the queues that sample the traffic, each up to its first undecided item."""
    undecided: int
    """Items of those samples that wait for a decision."""


class WeekOut(RatesOut):
    week: date
    """Monday of the week in which the trajectories began."""


class DisagreedOut(Schema):
    trace_id: str
    bucket: str
    """Category that people chose; empty for nothing wrong."""
    decided_at: datetime


class OneDetectorOut(DetectorOut):
    filed: dict[str, int]
    """Where people filed its proposals, by category; the empty key means nothing wrong."""
    weeks: list[WeekOut]
    wrong: list[DisagreedOut]
    """Proposals that people filed elsewhere or rejected, newest first, at most 200."""
    missed: list[DisagreedOut]
    """Failures in its category that it did not propose, newest first, at most 200."""


class DetectorIn(Body):
    is_on: bool | None = None
    """Switch it on or off; omit it to leave this unchanged."""
    bucket: str | None = None
    """Key of the category to propose; empty for its default. Omit it to leave this unchanged."""


class CorrectedOut(Schema):
    bucket: str
    """Category of the first decision; empty for nothing wrong."""
    corrected: EstimateOut
    """Share that was changed to another category later."""


class CorrectionsOut(Schema):
    all: EstimateOut
    by_another: EstimateOut
    """Share that another person changed."""
    buckets: list[CorrectedOut]


class ProjectAgreementOut(ReviewAgreementOut):
    corrections: CorrectionsOut
    """How often decisions made by one person alone were changed to another category later."""


class DaysQuery(Schema):
    days: int = Field(90, ge=1, le=3650)
    """How far to look back."""


@router.get("/detectors", response=list[DetectorOut], auth=Key(Scope.READ))
def list_detectors(request: HttpRequest) -> list[dict[str, Any]]:
    """List all detectors, with how well each agrees with people's decisions."""
    project = keyed(request).project
    undecided = detector_quality.undecided(project)
    return [_detector(each, undecided) for each in detector_quality.measure(project)[0]]


@router.get("/detectors/{name}", response=OneDetectorOut, auth=Key(Scope.READ))
def get_detector(request: HttpRequest, name: str) -> dict[str, Any]:
    """Return one detector: its numbers by week, and where it and people disagree."""
    project = keyed(request).project
    check_choice(name, DETECTORS, field="detector", error=Missing)
    found = detector_quality.measure_one(project, name)
    return {
        **_detector(found, detector_quality.undecided(project)),
        "filed": found.filed,
        "weeks": [{"week": week, **asdict(rates)} for week, rates in found.weeks.items()],
        "wrong": _listed(found.wrong),
        "missed": _listed(found.missed),
    }


@router.put("/detectors/{name}", response=OneDetectorOut, auth=Key(Scope.ADMIN))
def set_detector(request: HttpRequest, name: str, wanted: DetectorIn) -> dict[str, Any]:
    """Switch a detector off or on, or have it propose another category.

    Switching it off withdraws its undecided proposals, and switching it on reads all trajectories again. If you change
    the category, its undecided proposals move to the new one.
    """
    common: dict[str, Any] = {"project": keyed(request).project, "actor": keyed(request).actor, "name": name}
    with transaction.atomic():
        if wanted.bucket is not None:
            detector_settings.point(bucket=wanted.bucket, **common)
        if wanted.is_on is not None:
            detector_settings.switch(is_on=wanted.is_on, **common)
    return get_detector(request, name)


@router.get("/agreement", response=ProjectAgreementOut, auth=Key(Scope.READ))
def get_agreement(request: HttpRequest, asked: Query[DaysQuery]) -> dict[str, Any]:
    """Return reviewers' agreement across all queues, and how often decisions made by one person alone were
    corrected."""
    project, since = keyed(request).project, timezone.now() - timedelta(days=asked.days)
    found = agreement.corrections(project, since)
    return {
        **agreed(agreement.of_project(project, since)),
        "corrections": {
            "all": found.all,
            "by_another": found.by_another,
            "buckets": [{"bucket": key, "corrected": share} for key, share in found.buckets],
        },
    }


def _detector(found: detector_quality.Measured, undecided: int) -> dict[str, Any]:
    detector = found.detector
    return {
        **{name: getattr(detector, name) for name in ("name", "description", "about")},
        "bucket": found.bucket,
        "own_bucket": detector.bucket,
        "bucket_since": found.setting.bucket_since if found.setting else None,
        "is_on": found.is_on,
        "switched_at": found.setting.at if found.setting else None,
        "all_decisions": found.all,
        "random_sample": found.drawn,
        "undecided": undecided,
    }


def _listed(judged: list[detector_quality.Judged]) -> list[dict[str, Any]]:
    rows = Trajectory.objects.only("trace_id").in_bulk([each.trajectory for each in judged[:LISTED]])
    return [
        {"trace_id": rows[each.trajectory].trace_id, "bucket": each.bucket, "decided_at": each.decided_at}
        for each in judged[:LISTED]
        if each.trajectory in rows
    ]
