"""The quarantine: what was rejected, by cause; one of it, to look at, edit, replay or dismiss; and reading again."""

import uuid
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge.numbers import form_key, key
from flywheel.edge.paging import page_at
from flywheel.edge.polling import progress
from flywheel.templatetags.numbers import count
from flywheel.trajectories.models import Quarantined
from flywheel.trajectories.operations import quarantine, rereads

PAGE = 50
STATES = (
    (Quarantined.State.OPEN, "Waiting"),
    (Quarantined.State.REPLAYED, "Replayed"),
    (Quarantined.State.DISMISSED, "Dismissed"),
)


@require_GET
@requires(Permission.BUILD)
def index(request: PageRequest) -> HttpResponse:
    """List rejected items, newest first, of one cause or of all; and the causes."""
    state, kind = request.GET.get("state", Quarantined.State.OPEN), request.GET.get("kind", "")
    batch = key(request.GET.get("batch", "")) or 0
    every = Quarantined.objects.filter(project=request.project)
    rows = every.filter(state=state)
    if batch:
        rows = rows.filter(batch=batch)
    found = quarantine.groups(rows)
    chosen = next((group for group in found if group.kind == kind), None)
    if kind:
        rows = rows.filter(kind=kind)
    page = page_at(request, rows.select_related("batch__key", "decided_by").defer("content"), limit=PAGE)
    context = {
        "page": page,
        "groups": found,
        "chosen": chosen,
        "kind": kind,
        "batch": batch,
        "state": state,
        "states": STATES,
        "is_empty": not page.items and not every.exists(),
        "reread": rereads.latest(request.project),
        "reread_key": uuid.uuid4(),
    }
    return render(request, "trajectories/quarantine.html", context)


@require_GET
@requires(Permission.BUILD)
def item(request: PageRequest, pk: int) -> HttpResponse:
    """One of them, as it came."""
    return render(request, "trajectories/quarantined.html", _context(_find(request, pk)))


@require_GET
@requires(Permission.BUILD)
def raw(request: PageRequest, pk: int) -> HttpResponse:
    """The bytes that came, as a file."""
    row = _find(request, pk)
    name = f"quarantined-{row.pk}.{'json' if 'json' in (row.media_type or 'json') else 'pb'}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"}
    return HttpResponse(bytes(row.content), content_type="application/octet-stream", headers=headers)


@require_POST
@requires(Permission.BUILD)
def replay(request: PageRequest, pk: int) -> HttpResponse:
    """Send it through again, as it came or as it was edited; what is still wrong is told beside what was written."""
    row = _find(request, pk)
    text = request.POST.get("body")
    if text is not None and text.replace("\r\n", "\n") == quarantine.shown(row).text:
        text = None
    try:
        row = quarantine.replay(item=row, actor=request.actor, text=text)
    except quarantine.StillWrong as error:
        row.refresh_from_db()
        context = _context(row) | {"problem": str(error)}
        if text is not None:
            context["written"] = text
        return render(request, "trajectories/quarantined.html", context, status=422)
    messages.success(request, f"Stored, as a part of trajectory {row.trace_id[:12]}.")
    return redirect("trajectories:quarantined", request.project.slug, pk)


@require_POST
@requires(Permission.BUILD)
def dismiss(request: PageRequest, pk: int) -> HttpResponse:
    quarantine.dismiss(item=_find(request, pk), actor=request.actor)
    messages.success(request, "Dismissed. It is kept until its retention ends.")
    return redirect("trajectories:quarantine", request.project.slug)


@require_POST
@requires(Permission.BUILD)
def replay_group(request: PageRequest) -> HttpResponse:
    """Replay all that wait for one cause, as they came."""
    kind = request.POST.get("kind", "")
    report = quarantine.replay_group(project=request.project, kind=kind, actor=request.actor)
    said = f"{count(report.replayed)} stored"
    if report.wrong:
        said += f", {count(report.wrong)} still rejected"
    if report.left:
        said += f", {count(report.left)} not tried yet: press Replay again"
    (messages.warning if report.wrong or report.left else messages.success)(request, f"{said}.")
    return _back(request, kind if report.wrong or report.left else "")


@require_POST
@requires(Permission.BUILD)
def dismiss_group(request: PageRequest) -> HttpResponse:
    done = quarantine.dismiss_group(project=request.project, kind=request.POST.get("kind", ""), actor=request.actor)
    messages.success(request, f"{count(done)} dismissed.")
    return _back(request, "")


# Reading again


@require_POST
@requires(Permission.BUILD)
def start_reread(request: PageRequest) -> HttpResponse:
    """Let a worker read every stored span again, once for each form and while no other reading is under way."""
    rereads.start(request.project, request.actor, form_key(request.POST.get("key", "")))
    return redirect(reverse("trajectories:quarantine", args=[request.project.slug]) + "#reread")


@require_GET
@requires(Permission.BUILD)
def reread(request: PageRequest) -> HttpResponse:
    """Fragment: how far the latest reading is."""
    row = rereads.latest(request.project)
    context = {"reread": row, "reread_key": uuid.uuid4()}
    return progress(request, "trajectories/_reread.html", context, is_over=row is None or row.is_finished)


def _find(request: PageRequest, pk: int) -> Quarantined:
    rows = Quarantined.objects.select_related("batch__key", "decided_by", "project")
    return get_object_or_404(rows, project=request.project, pk=pk)


def _context(row: Quarantined) -> dict[str, Any]:
    seen = quarantine.shown(row)
    return {
        "item": row,
        "seen": seen,
        "written": seen.text,
        "lines": min(30, max(8, seen.text.count("\n") + 3)),
        "advice": quarantine.advice(row.reason),
        "size": len(row.content),
        "is_open": row.state == Quarantined.State.OPEN,
    }


def _back(request: PageRequest, kind: str) -> HttpResponse:
    address = reverse("trajectories:quarantine", args=[request.project.slug])
    return redirect(f"{address}?{urlencode({'kind': kind})}" if kind else address)
