"""The talk about a trajectory as a fragment of its page and of the desks."""

import uuid
from itertools import groupby
from typing import Any

from django.contrib import messages
from django.http import HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge.numbers import form_key
from flywheel.edge.refusals import Refused
from flywheel.trajectories.annotations import comments as talk
from flywheel.trajectories.models import Comment, Trajectory

PEOPLE_MAX = 1000
"""Members that the completion of names knows."""


@require_GET
@requires(Permission.VIEW)
def comments(request: PageRequest, trace_id: str) -> HttpResponse:
    """Fragment: what was said, by step, and the form."""
    return _talk(request, _find(request, trace_id))


@require_POST
@requires(Permission.REVIEW)
def say(request: PageRequest, trace_id: str) -> HttpResponse:
    row = _find(request, trace_id)
    step, text = request.POST.get("step", ""), request.POST.get("text", "")
    try:
        talk.say(trajectory=row, actor=request.actor, text=text, step=step, key=form_key(request.POST.get("key", "")))
    except Refused as error:
        return _refused(request, row, str(error), written=text)
    return _done(request, row)


@require_POST
@requires(Permission.REVIEW)
def edit_comment(request: PageRequest, trace_id: str, comment: int) -> HttpResponse:
    row = _find(request, trace_id)
    text = request.POST.get("text", "")
    try:
        talk.edit(comment=_comment(request, row, comment), actor=request.actor, text=text)
    except (Refused, talk.NotYours) as error:
        return _refused(request, row, str(error), editing=(comment, text))
    return _done(request, row)


@require_POST
@requires(Permission.REVIEW)
def delete_comment(request: PageRequest, trace_id: str, comment: int) -> HttpResponse:
    row = _find(request, trace_id)
    is_admin = Permission.ADMIN in request.permissions
    try:
        talk.delete(comment=_comment(request, row, comment), actor=request.actor, is_admin=is_admin)
    except talk.NotYours as error:
        return _refused(request, row, str(error))
    return _done(request, row)


@require_POST
@requires(Permission.VIEW)
def read_comments(request: PageRequest, trace_id: str) -> HttpResponse:
    """Mark the comments that mention this person here as read: they have been on their screen."""
    talk.mark_read(project=request.project, user=request.actor.user, trajectory=_find(request, trace_id))
    return HttpResponse(status=204)


@require_GET
@requires(Permission.REVIEW)
def people(request: PageRequest) -> JsonResponse:
    """The names that can be called, for the completion: `{"people": [[username, full name]]}`."""
    found = talk.people(request.project).values_list("username", "first_name", "last_name")[:PEOPLE_MAX]
    return JsonResponse({"people": [[name, f"{first} {last}".strip()] for name, first, last in found]})


def _talk(request: PageRequest, row: Trajectory, status: int = 200, **more: Any) -> HttpResponse:
    said = list(talk.seen_by(row, request.actor.user).reverse()[: talk.SHOWN + 1])
    shown = sorted(said[: talk.SHOWN], key=lambda comment: comment.pk)
    is_blind = bool(talk.hidden(request.project, request.actor.user, [row.pk]))
    wanted = request.GET.get("step", "") or request.POST.get("step", "")
    context = {
        "trajectory": row,
        "threads": _threads(row, shown),
        "count": sum(comment.deleted_at is None for comment in shown),
        "is_part": len(said) > talk.SHOWN,
        "is_blind": is_blind,
        "calls_me": not is_blind
        and talk.unread(request.project, request.actor.user).filter(comment__trajectory=row).exists(),
        "chosen": row.steps.filter(span_id=wanted).only("span_id", "position").first() if wanted else None,
        "key": uuid.uuid4(),
        "limit": talk.LIMIT,
        "most": talk.SHOWN,
        **more,
    }
    return render(request, "trajectories/_comments.html", context, status=status)


def _threads(row: Trajectory, shown: list[Comment]) -> list[dict[str, Any]]:
    """Comments on the whole first, then by step in the order of the steps."""
    spans = {comment.step for comment in shown if comment.step}
    steps = {step.span_id: step for step in row.steps.filter(span_id__in=spans).defer("body")} if spans else {}

    def place(comment: Comment) -> tuple[int, str]:
        step = steps.get(comment.step)
        return (step.position if step else -1, comment.step)

    ordered = sorted(shown, key=lambda comment: (place(comment), comment.pk))
    return [
        {"span_id": span_id, "step": steps.get(span_id), "comments": [(each, talk.pieces(each)) for each in group]}
        for (_, span_id), group in groupby(ordered, key=place)
    ]


def _done(request: PageRequest, row: Trajectory) -> HttpResponse:
    return _talk(request, row) if request.htmx else redirect(_address(request, row))


def _refused(request: PageRequest, row: Trajectory, problem: str, **written: Any) -> HttpResponse:
    if request.htmx:
        return _talk(request, row, 422, problem=problem, **written)
    messages.error(request, f"Not saved: {problem}.")
    return redirect(_address(request, row))


def _address(request: PageRequest, row: Trajectory) -> str:
    step = request.POST.get("step", "")
    address = reverse("trajectories:detail", args=[request.project.slug, row.trace_id])
    return f"{address}{'?' + urlencode({'step': step}) if step else ''}#comments"


def _comment(request: PageRequest, row: Trajectory, comment: int) -> Comment:
    return get_object_or_404(talk.seen_by(row, request.actor.user), pk=comment)


def _find(request: PageRequest, trace_id: str) -> Trajectory:
    rows = Trajectory.objects.filter(project=request.project).select_related("project")
    return get_object_or_404(
        rows.defer("claims", "metadata", "attributes", "tools", "interventions"), trace_id=trace_id
    )
