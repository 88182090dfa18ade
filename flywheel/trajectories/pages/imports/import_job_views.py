"""The page of a file that a worker imports: how far it is, and what became of it."""

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge.jobs import StaleState
from flywheel.edge.polling import loaded_anew
from flywheel.trajectories.import_export import import_jobs
from flywheel.trajectories.models import Import


@require_GET
@requires(Permission.BUILD)
def page(request: PageRequest, job: int) -> HttpResponse:
    return render(request, "trajectories/import_job.html", _context(_find(request, job)))


@require_GET
@requires(Permission.BUILD)
def live(request: PageRequest, job: int) -> HttpResponse:
    """What the page of an import that is not over asks for every two seconds; at the end it is loaded anew."""
    found = _find(request, job)
    if found.is_finished:
        return loaded_anew()
    return render(request, "trajectories/_import_live.html", _context(found))


@require_POST
@requires(Permission.BUILD)
def cancel(request: PageRequest, job: int) -> HttpResponse:
    found = _find(request, job)
    try:
        import_jobs.cancel(job=found, actor=request.actor)
    except StaleState as error:
        messages.warning(request, f"Not stopped: {error}.")
    return redirect("trajectories:import_job", request.project.slug, found.pk)


@require_POST
@requires(Permission.BUILD)
def resume(request: PageRequest, job: int) -> HttpResponse:
    found = _find(request, job)
    try:
        import_jobs.resume(job=found, actor=request.actor)
    except StaleState as error:
        messages.warning(request, f"Not resumed: {error}.")
    return redirect("trajectories:import_job", request.project.slug, found.pk)


def _find(request: PageRequest, pk: int) -> Import:
    return get_object_or_404(Import.objects.select_related("created_by", "project"), project=request.project, pk=pk)


def _context(found: Import) -> dict[str, Any]:
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
