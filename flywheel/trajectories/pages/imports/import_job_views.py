"""The page of a file that a worker imports: how far it is, and what became of it."""

from typing import Any

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge import job_pages
from flywheel.trajectories.import_export import import_jobs
from flywheel.trajectories.models import Import


@require_GET
@requires(Permission.BUILD)
def page(request: PageRequest, job: int) -> HttpResponse:
    return render(request, "trajectories/import_job.html", _context(request, _find(request, job)))


def _find(request: PageRequest, pk: int) -> Import:
    return get_object_or_404(Import.objects.select_related("created_by", "project"), project=request.project, pk=pk)


def _context(_: PageRequest, found: Import) -> dict[str, Any]:
    seen = import_jobs.seen(found)
    return {
        "job": found,
        "seen": seen,
        "imported": seen.batches[::-1],
        "told": sum(len(batch.problems) for batch in seen.batches),
        "batches": seen.batches,
        "sums": seen.sums,
        "read_as": seen.read_as,
        "notes": found.report.get("notes", 0),
    }


live = job_pages.live(_find, "trajectories/_import_live.html", requires(Permission.BUILD), _context)
cancel = job_pages.cancel(_find, "trajectories:import_job", requires(Permission.BUILD))
resume = job_pages.resume(_find, "trajectories:import_job", requires(Permission.BUILD))
