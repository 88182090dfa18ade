"""The failures room's first page: what goes wrong and how often."""

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.failures.buckets import bucket_counts, bucket_lifecycle
from flywheel.failures.labels.decisions import describe
from flywheel.failures.models import Decision, Priority
from flywheel.failures.pages.bucket_views import days_of

PRIORITIES = list(Priority.values)
"""The most urgent first."""


@require_GET
@requires(Permission.VIEW)
def index(request: PageRequest) -> HttpResponse:
    project = request.project
    days = bucket_counts.period(project, days_of(request))
    found, traffic = bucket_counts.by_bucket(project, days)
    lives = bucket_lifecycle.of_project(project, [count.bucket.key for count in found])
    rows = sorted(
        ((count, lives[count.bucket.key]) for count in found), key=lambda row: PRIORITIES.index(row[1].row.priority)
    )
    urls = {count.bucket.key: reverse("failures:bucket", args=[project.slug, count.bucket.key]) for count in found}
    filed = project.failures.filter(current=True).exclude(decision=Decision.REJECTED)
    recent = project.failures.select_related("trajectory", "labelled_by")[:12]
    return render(
        request,
        "failures/index.html",
        {
            "open": [row for row in rows if not row[1].row.is_closed],
            "closed": [row for row in rows if row[1].row.is_closed],
            "most": max((count.total for count in found), default=0),
            "traffic": traffic,
            "days": len(days),
            "periods": bucket_counts.PERIODS,
            "waiting": sum(count.waiting for count in found),
            "uncorrected": filed.filter(corrected=None).count(),
            "chart": bucket_counts.trend_chart(found, days, urls) if found else None,
            "recent": [(failure, describe(project, failure)) for failure in recent],
            "has_traffic": bucket_counts.traffic(project).exists(),
        },
    )
