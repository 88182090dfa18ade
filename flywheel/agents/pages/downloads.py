"""Downloads of a version: its weights, its adapter, and both merged."""

from typing import Any

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.agents.models import Version
from flywheel.agents.weights import artifact_tar, merged_weights
from flywheel.edge import job_pages
from flywheel.edge.polling import progress


@require_GET
@requires(Permission.VIEW)
def downloads(request: PageRequest, name: str, number: int) -> HttpResponse:
    """Fragment: the downloads, while something is merged."""
    found = _version(request, name, number)
    context = {"version": found, "agent": found.agent, **downloads_of(found)}
    return progress(request, "agents/_downloads.html", context, is_over=not context["is_merging"])


def downloads_of(version: Version) -> dict[str, Any]:
    """The fragment's view of a version."""
    parts = merged_weights.parts_of(version)
    is_merging = any(part.is_being_made for part in parts)
    return {"parts": parts, "is_merging": is_merging, "is_qlora": merged_weights.is_of_4_bits(version)}


@require_POST
@requires(Permission.BUILD)
def merge(request: PageRequest, name: str, number: int, dtype: str) -> HttpResponse:
    """Have a worker merge the version's adapter into its base."""
    found = _version(request, name, number)
    with job_pages.refusal_told(request, "Nothing was merged"):
        merged_weights.merge(found, request.actor, dtype)
    return redirect(f"{reverse('agents:version', args=[request.project.slug, name, number])}#downloads")


@require_GET
@requires(Permission.VIEW)
def download(request: PageRequest, name: str, number: int, part: str) -> HttpResponseBase:
    """The files of a part in one tar."""
    artifact, filename = merged_weights.part_of(_version(request, name, number), part)
    return artifact_tar.download(request, artifact, filename)


def _version(request: PageRequest, name: str, number: int) -> Version:
    rows = Version.objects.select_related("agent__project", "weights", "adapter")
    return get_object_or_404(rows, agent__project=request.project, agent__name=name, number=number)
