"""The metrics of production: the page with its period and grouping, and the figures, which come after it."""

from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.trajectories.annotations.project_buckets import every
from flywheel.trajectories.metrics import production_metrics
from flywheel.trajectories.metrics.production_metrics import Figures
from flywheel.trajectories.pages.metrics import metrics_charts


@require_GET
@requires(Permission.VIEW)
def index(request: PageRequest) -> HttpResponse:
    context = {
        "periods": production_metrics.PERIODS,
        "everies": tuple(production_metrics.EVERY),
        "bys": production_metrics.BY,
    }
    try:
        asked = production_metrics.ask(request.project, request.GET.dict())
    except production_metrics.BadPeriod as problem:
        asked = production_metrics.ask(request.project, {"q": request.GET.get("q", "")})
        context["problem"] = str(problem)
    context["attribute"] = asked.by.partition(".")[2]
    return render(request, "trajectories/metrics.html", {**context, "asked": asked})


@require_GET
@requires(Permission.VIEW)
def figures(request: PageRequest) -> HttpResponse:
    """Fragment: adding up a long period takes a moment, and the page does not wait for it."""
    try:
        asked = production_metrics.ask(request.project, request.GET.dict())
        found = production_metrics.measure(request.project, asked)
    except production_metrics.BadPeriod as problem:
        return HttpResponse(str(problem), status=400, content_type="text/plain; charset=utf-8")
    here = reverse("trajectories:index", args=[request.project.slug])
    context = {
        "asked": asked,
        "total": _row(here, found, "", found.total, ()),
        "costed": _where(here, found, metrics_charts.COSTED),
        "charts": metrics_charts.charts_of(found, here, every(request.project)),
        "groups": [_row(here, found, group.name, group.total, group.terms) for group in found.groups],
        "group_label": by.label if (by := production_metrics.by_of(asked.by)) else "",
        "is_cut": found.is_cut,
        "buckets": [_bucket(here, found, bucket) for bucket in found.buckets],
        "times": [_row(here, found, start, these, (), start) for start, these in reversed(found.times.items())],
    }
    return render(request, "trajectories/_metrics.html", context)


def _row(
    here: str,
    found: production_metrics.Metrics,
    name: Any,
    these: Figures,
    terms: metrics_charts.Where,
    start: Any = None,
) -> dict[str, Any]:
    """One line of a table: the figures of a day or a group, the list of all of them, and of those each counts."""
    return {
        "name": name,
        "these": these,
        "url": _where(here, found, terms, start),
        "scored": _where(here, found, (*terms, *metrics_charts.SCORED), start),
        "failed": _where(here, found, (*terms, *metrics_charts.FAILED), start),
        "intervened": _where(here, found, (*terms, *metrics_charts.INTERVENED), start),
    }


def _bucket(here: str, found: production_metrics.Metrics, bucket: production_metrics.BucketFigures) -> dict[str, Any]:
    return {
        "key": bucket.key,
        "these": bucket.total,
        "share": bucket.share_of(found.total.count),
        "url": _where(here, found, bucket.terms),
        "confirmed": _where(here, found, (*bucket.terms, metrics_charts.term("label", "failure"))),
        "waiting": _where(here, found, (*bucket.terms, metrics_charts.term("label", "none"))),
    }


def _where(here: str, found: production_metrics.Metrics, terms: metrics_charts.Where, start: Any = None) -> str:
    return metrics_charts.address(here, found.request.where(*terms, start=start))
