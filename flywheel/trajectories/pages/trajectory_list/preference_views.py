"""Pages of the list of trajectories beside its rows: saved views, chosen columns, the preview of a row."""

from urllib.parse import urlencode

from django.contrib import messages
from django.db.models import Q
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge.numbers import key
from flywheel.trajectories.detail import transcript
from flywheel.trajectories.detail.turns import Turn
from flywheel.trajectories.models import Trajectory, View
from flywheel.trajectories.search import saved_views

PEEK = 8
"""Steps at either end in which a preview looks for the request and the answer."""


@require_POST
@requires(Permission.VIEW)
def save_view(request: PageRequest) -> HttpResponse:
    asked = request.POST
    view = saved_views.save(
        project=request.project,
        actor=request.actor,
        name=asked.get("name", ""),
        q=asked.get("q", ""),
        wanted=asked.get("cols", "").split(","),
        is_shared=bool(asked.get("is_shared")),
        is_first=bool(asked.get("is_first")),
    )
    messages.success(request, f"Saved as {view.name}.")
    return redirect(saved_views.address(view))


@require_POST
@requires(Permission.VIEW)
def delete_view(request: PageRequest, view: int) -> HttpResponse:
    is_admin = Permission.ADMIN in request.permissions
    found = get_object_or_404(saved_views.deletable_by(request.project, request.actor.user, is_admin=is_admin), pk=view)
    saved_views.delete(view=found, actor=request.actor)
    messages.success(request, f"View {found.name} was deleted.")
    return _back(request)


@require_POST
@requires(Permission.VIEW)
def open_with(request: PageRequest) -> HttpResponse:
    """Set what the list opens with for this person: a view, or everything."""
    wanted = request.POST.get("view", "")
    seen = Q(owner=request.actor.user) | Q(is_shared=True)
    view = get_object_or_404(View, seen, project=request.project, pk=key(wanted)) if wanted else None
    saved_views.open_with(project=request.project, actor=request.actor, view=view)
    messages.success(request, f"The list opens with {view.name if view else 'everything'} for you.")
    return _back(request)


@require_POST
@requires(Permission.VIEW)
def choose_columns(request: PageRequest) -> HttpResponse:
    saved_views.choose(project=request.project, actor=request.actor, wanted=request.POST.getlist("column"))
    return _back(request)


@require_GET
@requires(Permission.VIEW)
def preview(request: PageRequest, trace_id: str) -> HttpResponse:
    """Fragment: what was asked first and answered last."""
    row = get_object_or_404(Trajectory, project=request.project, trace_id=trace_id)
    beginning = transcript.conversation_of(row, 0, PEEK)
    rest = transcript.conversation_of(row, max(PEEK, row.step_count - PEEK), PEEK) if row.step_count > PEEK else []
    asked = next((turn for turn in beginning if turn.kind == "user"), None)
    answers = [turn for turn in (*beginning, *rest) if turn.kind in ("assistant", "call", "error") and _says(turn)]
    context = {"trajectory": row, "asked": asked, "answered": answers[-1] if answers else None}
    response = render(request, "trajectories/_preview.html", context)
    response["Cache-Control"] = "private, max-age=60"
    return response


def _says(turn: Turn) -> bool:
    return bool(turn.text or turn.name or turn.arguments)


def _back(request: PageRequest) -> HttpResponse:
    """To the list with the same filter."""
    q = request.POST.get("q", "")
    return redirect(f"{reverse('trajectories:index', args=[request.project.slug])}?{urlencode({'q': q})}")
