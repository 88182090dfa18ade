"""Pages on a project's detectors: accuracy, whether they are on and what they propose; and its reviewers' agreement."""

from datetime import date, timedelta
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import AuditEntry, Permission
from flywheel.accounts.project_settings import audit_log
from flywheel.core.detectors.standard_buckets import DETECTORS
from flywheel.core.evidence.statistics.estimates import Estimate
from flywheel.edge.numbers import number
from flywheel.edge.paging import about
from flywheel.failures.buckets.bucket_definitions import name_of, offered
from flywheel.failures.detectors import detector_quality, detector_settings
from flywheel.failures.models import Proposal
from flywheel.failures.queues import open_queue
from flywheel.failures.queues.agreement import corrections, of_project
from flywheel.trajectories.models import Trajectory

LISTED = 12
HISTORY = 30
WEEKS = 8
"""That the chart has at least."""
PERIODS = (30, 90, 365)
"""Days that agreement can be looked at."""


@require_GET
@requires(Permission.VIEW)
def index(request: PageRequest) -> HttpResponse:
    found, buckets = detector_quality.measure(request.project)
    context = {
        "found": found,
        "buckets": buckets,
        "has_drawn": any(bucket.drawn.recall.n or bucket.drawn.precision.n for bucket in buckets),
        "undecided": detector_quality.undecided(request.project),
    }
    return render(request, "failures/detectors.html", context)


@require_GET
@requires(Permission.VIEW)
def detector(request: PageRequest, detector: str) -> HttpResponse:
    if detector not in DETECTORS:
        raise Http404
    found = detector_quality.measure_one(request.project, detector)
    waiting, is_guess = about(open_queue.waiting(request.project, open_queue.Filters(detector=detector)))
    history = audit_log.entries(request.project).filter(subject=f"detector {detector}")
    filed = [(key, n) for key, n in found.filed.most_common() if key]
    context = {
        "found": found,
        "about": DETECTORS[detector].about,
        "undecided": detector_quality.undecided(request.project),
        "waiting": waiting,
        "is_guess": is_guess,
        "filed": [*filed, ("", found.filed[""])] if found.filed[""] else filed,
        "decided": found.filed.total(),
        "chart": _chart(found),
        "buckets": offered(request.project, found.bucket),
        "history": [(entry, _words(request, entry)) for entry in history.order_by("-id")[:HISTORY]],
        "wrong": _listed(found.wrong, detector),
        "missed": _listed(found.missed, detector),
    }
    return render(request, "failures/detector.html", context)


@require_POST
@requires(Permission.ADMIN)
def switch(request: PageRequest, detector: str) -> HttpResponse:
    is_on = request.POST.get("on") == "1"
    changed = detector_settings.switch(project=request.project, actor=request.actor, name=detector, is_on=is_on)
    if changed:
        then = "Trajectories are read again" if is_on else "Undecided proposals are withdrawn"
        messages.success(request, f"{detector} is {'on' if is_on else 'off'}. {then}, in the background.")
    return redirect("failures:detector", request.project.slug, detector)


@require_POST
@requires(Permission.ADMIN)
def point(request: PageRequest, detector: str) -> HttpResponse:
    """Let it propose another bucket in the project."""
    key = request.POST.get("bucket", "")
    changed = detector_settings.point(project=request.project, actor=request.actor, name=detector, bucket=key)
    if changed:
        said = f"{detector} proposes {name_of(request.project, key)} from now on."
        messages.success(request, f"{said} Undecided proposals are updated in the background.")
    return redirect("failures:detector", request.project.slug, detector)


@require_GET
@requires(Permission.VIEW)
def agreement(request: PageRequest) -> HttpResponse:
    wanted = number(request.GET.get("days", ""))
    days = wanted if wanted in PERIODS else PERIODS[1]
    since = timezone.now() - timedelta(days=days)
    context = {
        "found": of_project(request.project, since),
        "corrections": corrections(request.project, since),
        "days": days,
        "periods": PERIODS,
    }
    return render(request, "failures/agreement.html", context)


def _words(request: PageRequest, entry: AuditEntry) -> str:
    """Put the action in words."""
    if entry.action == "failures.detector_bucket":
        was, now = (name_of(request.project, entry.data[name]) for name in ("before", "bucket"))
        return f"changed its category from {was} to {now}"
    return "switched it on" if entry.action == "failures.detector_on" else "switched it off"


def _listed(judged: list[detector_quality.Judged], name: str) -> list[dict[str, Any]]:
    """The newest of these with what a list shows of them."""
    keys = [each.trajectory for each in judged[:LISTED]]
    rows = Trajectory.objects.filter(pk__in=keys).only("trace_id", "title", "started_at").in_bulk()
    evidence = {
        proposal.trajectory_id: proposal.evidence
        for proposal in Proposal.objects.filter(trajectory__in=keys, detector=name).order_by("score", "-id")
    }
    return [
        {"row": rows[each.trajectory], "judged": each, "evidence": evidence.get(each.trajectory, "")}
        for each in judged[:LISTED]
        if each.trajectory in rows
    ]


def _chart(found: detector_quality.Measured) -> dict[str, Any]:
    """Precision and recall of the trajectories of each week, with the weeks in which there were none."""
    last, first = max(found.weeks, default=None), min(found.weeks, default=None)
    weeks: list[date] = []
    while last and first and (last >= first or len(weeks) < WEEKS):
        weeks.insert(0, last)
        last -= timedelta(days=7)

    def percent(share: float | None) -> float | None:
        return None if share is None else round(share * 100, 2)

    def line(name: str) -> dict[str, Any]:
        of: list[Estimate | None] = [
            getattr(found.weeks[week], name) if week in found.weeks else None for week in weeks
        ]
        parts = {
            part: [percent(getattr(each, value)) if each else None for each in of]
            for part, value in (("y", "mean"), ("low", "low"), ("high", "high"))
        }
        return {"name": name, "role": "plain", "x": [week.isoformat() for week in weeks], **parts}

    return {
        "kind": "line",
        "key": f"detector-{found.detector.name}",
        "title": "Precision and recall by week",
        "x": {"title": "week in which the trajectory began"},
        "y": {"title": "share", "unit": "%"},
        "height": "short",
        "series": [line("precision"), line("recall")],
        "note": "of all decisions; 95% interval",
    }
