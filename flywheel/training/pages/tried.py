"""Every kept attempt of a training run."""

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge.numbers import number
from flywheel.edge.paging import page_at
from flywheel.training.pages.runs import run_of
from flywheel.training.runs import tried_attempts


@require_GET
@requires(Permission.VIEW)
def tried(request: PageRequest, pk: int) -> HttpResponse:
    """The attempts of the steps that the address names, by step or by reward."""
    found = run_of(request, pk)
    order = request.GET.get("order", "")
    order = order if order in tried_attempts.ORDERS else "step"
    first, last = (number(request.GET.get(name, "")) for name in ("first", "last"))
    rows = tried_attempts.attempts_of(found, order=order, first=first, last=last)
    page = page_at(request, rows, keys=tried_attempts.ORDERS[order], is_counted=True)
    context = {"run": found, "page": page, "order": order, "first": first, "last": last}
    return render(request, "training/tried.html", context)
