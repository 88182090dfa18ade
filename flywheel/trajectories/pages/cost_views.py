"""The part of Settings › Prices that derives costs again; its job is of this room, prices are of accounts."""

import uuid

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge import job_pages
from flywheel.edge.numbers import form_key
from flywheel.edge.polling import progress
from flywheel.trajectories.models import Reread
from flywheel.trajectories.operations import rereads


@require_POST
@requires(Permission.ADMIN)
def start_costs(request: PageRequest) -> HttpResponse:
    rereads.start(request.project, request.actor, form_key(request.POST.get("key", "")), is_of_costs=True)
    return redirect(reverse("settings:prices", args=[request.project.slug]) + "#costs")


@require_GET
@requires(Permission.ADMIN)
def costs(request: PageRequest) -> HttpResponse:
    """Fragment: how far it is."""
    row = rereads.latest(request.project, is_of_costs=True)
    context = {"job": row, "costs_key": uuid.uuid4()}
    return progress(request, "trajectories/_costs.html", context, is_over=row is None or row.is_finished)


def _find(request: PageRequest, pk: int) -> Reread:
    return get_object_or_404(Reread, project=request.project, is_of_costs=True, pk=pk)


cancel = job_pages.cancel(_find, "settings:prices", requires(Permission.ADMIN), of=lambda _: [])
