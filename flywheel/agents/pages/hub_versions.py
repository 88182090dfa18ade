"""Versions whose weights a worker fetches from a model hub: how far it is."""

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.agents.models import HubVersion
from flywheel.edge import job_pages
from flywheel.edge.jobs import State


@require_GET
@requires(Permission.VIEW)
def hub_version(request: PageRequest, fetch: int) -> HttpResponse:
    """Show how far the worker is, or go to the version once it is there."""
    job = _job(request, fetch)
    if job.state == State.SUCCEEDED and job.version is not None:
        return redirect("agents:version", request.project.slug, job.agent.name, job.version.number)
    return render(request, "agents/hub_version.html", _context(request, job))


def _context(request: PageRequest, job: HubVersion) -> dict[str, object]:
    return {"job": job, "agent": job.agent, "may_stop": Permission.BUILD in request.permissions}


def _job(request: PageRequest, number: int) -> HubVersion:
    rows = HubVersion.objects.select_related("agent", "version")
    return get_object_or_404(rows, project=request.project, pk=number)


hub_version_live = job_pages.live(_job, "agents/_hub_version_live.html", requires(Permission.VIEW), _context)
cancel_hub_version = job_pages.cancel(_job, "agents:hub_version", requires(Permission.BUILD))
resume_hub_version = job_pages.resume(_job, "agents:hub_version", requires(Permission.BUILD))
