"""Pages of ramps: all of them, and one with its numbers and the buttons that move it."""

from collections.abc import Callable
from typing import Any, Final

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge.paging import page_at
from flywheel.edge.polling import loaded_anew, unchanged
from flywheel.edge.refusals import refusal_shown
from flywheel.promotions.models import Ramp
from flywheel.promotions.pages.ramp_context import fingerprint, open_ramps, ramp_context, ramps_of
from flywheel.promotions.pages.ramp_pages.ramp_forms import MoveForm
from flywheel.promotions.ramps import ramp_moves

MOVES: Final[dict[str, tuple[Callable[..., object], str]]] = {
    "hold": (ramp_moves.hold, "On hold. Sessions keep their arms."),
    "go-on": (ramp_moves.go_on, "The ramp goes on."),
    "advance": (ramp_moves.advance, "The next stage began."),
    "stop": (ramp_moves.stop, "Stopped. All sessions go to the live version."),
    "take-back": (ramp_moves.take_back, "Taken back. All sessions go to the live version."),
    "finish": (ramp_moves.finish, "The version is now live for all sessions."),
}
"""By the word of its address: the move, and the message after it."""


@require_GET
@requires(Permission.VIEW)
def index(request: PageRequest) -> HttpResponse:
    """List the ramps, those under way first."""
    past = ramps_of(request.project).exclude(state__in=Ramp.OPEN)
    context = {"running": open_ramps(request.project), "page": page_at(request, past, limit=20, is_counted=True)}
    return render(request, "promotions/ramps.html", context)


@require_GET
@requires(Permission.VIEW)
def ramp(request: PageRequest, ramp: int) -> HttpResponse:
    row = _ramp(request, ramp)
    return _show(request, row, MoveForm(initial={"generation": row.generation}))


@require_GET
@requires(Permission.VIEW)
def live(request: PageRequest, ramp: int) -> HttpResponse:
    """Fragment: everything that moves, and the buttons; the end loads the page anew."""
    row = _ramp(request, ramp)
    if request.GET.get("seen") == fingerprint(row):
        return unchanged(is_over=not row.is_open)
    if not row.is_open:
        return loaded_anew()
    context = {**_context(request, row, MoveForm(initial={"generation": row.generation})), "is_polled": True}
    return render(request, "promotions/_ramp.html", context)


@require_POST
@requires(Permission.APPROVE)
def move(request: PageRequest, ramp: int, move: str) -> HttpResponse:
    """Hold, go on, go to the next stage, stop, take back, or finish."""
    if move not in MOVES:
        raise Http404
    row, (verb, done) = _ramp(request, ramp), MOVES[move]
    form = MoveForm(request.POST)
    if form.is_valid():
        with refusal_shown(form):
            verb(ramp=row, actor=request.actor, **form.cleaned_data)
            messages.success(request, done)
            return redirect("promotions:ramp", request.project.slug, row.pk)
    return _show(request, _ramp(request, ramp), form, status=422)


def _show(request: PageRequest, row: Ramp, form: MoveForm, status: int = 200) -> HttpResponse:
    return render(request, "promotions/ramp.html", _context(request, row, form), status=status)


def _context(request: PageRequest, row: Ramp, form: MoveForm) -> dict[str, Any]:
    return {**ramp_context(row, request.GET.get("signal", "")), "form": form}


def _ramp(request: PageRequest, pk: int) -> Ramp:
    return get_object_or_404(ramps_of(request.project), pk=pk)
