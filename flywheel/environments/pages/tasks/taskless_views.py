"""The page of labelled failures without a task: why each has none, and where that is mended."""

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.core.envs.replay.episode_replay import KIND
from flywheel.edge.paging import page_at
from flywheel.environments.tasks import taskless_failures
from flywheel.environments.tasks.taskless_failures import look_at, reasons_of, without_any_task
from flywheel.failures.buckets.bucket_definitions import every

CORRECTED = {"no": False, "yes": True}


@require_GET
@requires(Permission.VIEW)
def taskless(request: PageRequest) -> HttpResponse:
    known = every(request.project)
    bucket, corrected = request.GET.get("bucket", ""), request.GET.get("corrected", "")
    bucket = bucket if bucket in known else ""
    rows = without_any_task(request.project, bucket=bucket, corrected=CORRECTED.get(corrected))
    page = page_at(request, rows, limit=50)
    found = look_at(page.items)
    totals = taskless_failures.count(request.project, bucket)
    page.total, page.about = totals.of(CORRECTED.get(corrected))
    context = {
        "page": page,
        "rows": [(row, known.get(row.failure.bucket)) for row in found],
        "reasons": reasons_of(found),
        "ready": sum(row.can_be_made for row in found),
        "totals": totals,
        "buckets": known.values(),
        "bucket": bucket,
        "corrected": corrected,
        "replays": request.project.environments.filter(kind=KIND).order_by("name"),
    }
    return render(request, "environments/taskless.html", context)
