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

ORDERS = {
    "step": "Newest step first",
    "reward": "Best reward first",
    "worst": "Worst reward first",
    "longest": "Longest first",
}
KINDS = {
    "": "All",
    "unsafe": "Unsafe",
    "invalid": "Unreadable",
    "unscored": "Unscored",
    "broken_off": "Broken off",
    "out_of_turns": "Out of turns",
    "overruled": "Passed, but labelled failures",
}


@require_GET
@requires(Permission.VIEW)
def tried(request: PageRequest, pk: int) -> HttpResponse:
    """The attempts of the steps and of the kind that the address names, in its order."""
    found = run_of(request, pk)
    order = request.GET.get("order", "")
    order = order if order in tried_attempts.ORDERS else "step"
    only = request.GET.get("only", "")
    only = only if only in tried_attempts.ONLY else ""
    first, last = (number(request.GET.get(name, "")) for name in ("first", "last"))
    rows = tried_attempts.attempts_of(found, order=order, only=only, first=first, last=last)
    page = page_at(request, rows, keys=tried_attempts.ORDERS[order], is_counted=True)
    context = {"run": found, "page": page, "order": order, "only": only, "first": first, "last": last}
    context |= {"orders": ORDERS, "kinds": KINDS}
    return render(request, "training/tried.html", context)
