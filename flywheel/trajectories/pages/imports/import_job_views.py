"""The page of a file that a worker imports: how far it is, and what became of it."""

from typing import Any

from django.db.models import Sum
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge import job_pages
from flywheel.edge.jobs import State
from flywheel.trajectories.import_export import uploads
from flywheel.trajectories.import_export.trajectory_import import label_of
from flywheel.trajectories.models import Batch, Import

COLUMNS = ("trajectories", "received", "inserted", "updated", "duplicate", "rejected")
BATCHES_SHOWN = 20


@require_GET
@requires(Permission.BUILD)
def page(request: PageRequest, job: int) -> HttpResponse:
    return render(request, "trajectories/import_job.html", _context(request, _find(request, job)))


def _find(request: PageRequest, pk: int) -> Import:
    return get_object_or_404(Import.objects.select_related("created_by", "project"), project=request.project, pk=pk)


def _context(_: PageRequest, job: Import) -> dict[str, Any]:
    rows = Batch.objects.filter(project=job.project, pk__in=job.batches).select_related("key")
    sums = rows.aggregate(**{name: Sum(name, default=0) for name in COLUMNS})
    # One trajectory may be in several rows; only the end of the file says how many there are.
    sums["trajectories"] = job.report.get("trajectories", sums["trajectories"])
    batches = list(rows.order_by("-id")[:BATCHES_SHOWN])
    has_ended_early = job.state in (State.FAILED, State.CANCELLED)
    return {
        "job": job,
        "may_stop": True,
        "can_resume": has_ended_early and uploads.find(job.project, job.upload) is not None,
        "imported": batches[::-1],
        "told": sum(len(batch.problems) for batch in batches),
        "batches": batches,
        "hidden": max(0, len(job.batches) - BATCHES_SHOWN),
        "sums": sums,
        "read_as": [(label_of(name), count) for name, count in job.report.get("formats", {}).items()],
        "notes": job.report.get("notes", 0),
    }


live = job_pages.live(_find, "trajectories/_import_live.html", requires(Permission.BUILD), _context)
cancel = job_pages.cancel(_find, "trajectories:import_job", requires(Permission.BUILD))
resume = job_pages.resume(_find, "trajectories:import_job", requires(Permission.BUILD))
