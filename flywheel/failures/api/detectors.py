"""The detectors' accuracy, their switches, and reviewers' agreement: for programs."""

from dataclasses import asdict
from datetime import date, datetime, timedelta
from typing import Any

from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone
from ninja import Field, Query, Router, Schema

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.core.detectors.standard_buckets import DETECTORS
from flywheel.edge.answers import EstimateOut
from flywheel.edge.refusals import Missing, check_choice
from flywheel.edge.schemas import Body
from flywheel.failures.api.queue_schemas import ReviewAgreementOut
from flywheel.failures.api.queues import agreed
from flywheel.failures.detectors import detector_quality, detector_settings
from flywheel.failures.queues import agreement
from flywheel.trajectories.models import Trajectory

router = Router(tags=["failures"])

LISTED = 200


class RatesOut(Schema):
    precision: EstimateOut
    """Share of its decided proposals filed in its category, or in a kind of it."""
    is_failure: EstimateOut
    """Of the same: filed in any bucket."""
    recall: EstimateOut
    """Of the failures that people filed in its bucket: it had proposed."""


class DetectorOut(Schema):
    name: str
    description: str
    about: str
    bucket: str
    """What it proposes in this project."""
    own_bucket: str
    """What it proposes where a project does not say otherwise."""
    bucket_since: datetime | None
    """Only what was decided since measures it; empty while it proposes its own."""
    is_on: bool
    switched_at: datetime | None
    all_decisions: RatesOut
    """Recall is too high here: what people decide about is chosen, mostly because something was proposed."""
    random_sample: RatesOut
    """From what queues with a sample of the traffic brought, each up to the first that is not decided."""
    undecided: int
    """How many of all that was drawn by lot wait for a decision."""


class WeekOut(RatesOut):
    week: date


class DisagreedOut(Schema):
    trace_id: str
    bucket: str
    """Where people filed it; empty for nothing wrong."""
    decided_at: datetime


class OneDetectorOut(DetectorOut):
    filed: dict[str, int]
    """Where people filed what it had proposed; the empty one is nothing wrong."""
    weeks: list[WeekOut]
    wrong: list[DisagreedOut]
    """It proposed and people said otherwise: the newest, at most 200."""
    missed: list[DisagreedOut]
    """In its category, without a proposal."""


class DetectorIn(Body):
    is_on: bool | None = None
    bucket: str | None = None
    """What it is to propose here: the key of a bucket of the project, or empty for its own. Left out, it stays."""


class CorrectedOut(Schema):
    bucket: str
    """The first decision; empty for nothing wrong."""
    corrected: EstimateOut


class CorrectionsOut(Schema):
    all: EstimateOut
    by_another: EstimateOut
    buckets: list[CorrectedOut]


class ProjectAgreementOut(ReviewAgreementOut):
    corrections: CorrectionsOut
    """Of decisions that one person made alone: changed to another bucket later."""


class DaysQuery(Schema):
    days: int = Field(90, ge=1, le=3650)


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
