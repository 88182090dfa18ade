"""The pages of what is done with many trajectories at once: asking for it, how far it is, what became of it."""

import uuid
from typing import Any

from django.http import Http404, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import Forbidden, PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge import job_pages
from flywheel.edge.jobs import State
from flywheel.edge.numbers import BIGINT, number
from flywheel.edge.paging import about, page_at
from flywheel.trajectories.import_export import trajectory_export
from flywheel.trajectories.models import Bulk
from flywheel.trajectories.operations import bulk_actions


@require_POST
@requires(Permission.VIEW)
def start(request: PageRequest) -> HttpResponse:
    """Ask for it. A deletion is asked for twice: the second time the project's name is typed."""
    asked = request.POST
    name = asked.get("action", "")
    action = bulk_actions.ACTIONS.get(name)
    if action is None:
        raise Http404
    if action.permission not in request.permissions:
        raise Forbidden(action.permission)
    q, ids = asked.get("q", ""), [] if asked.get("all") else asked.getlist("id")
    if name == "delete" and asked.get("typed", "") != request.project.slug:
        return _confirm(request, q, ids)
    up_to = asked.get("up_to", "")
    options = {
        "tags": asked.get("tags", "").split(","),
        "reason": asked.get("reason", ""),
        "columns": asked.get("cols", "").split(","),
        action.option: asked.get(action.option, ""),
    }
    try:
        key = uuid.UUID(asked.get("key", ""))
        job = bulk_actions.submit(
            project=request.project,
            actor=request.actor,
            action=name,
            options=options,
            key=key,
            q=q,
            ids=ids,
            up_to=number(up_to, most=BIGINT),
        )
    except ValueError as error:  # BadBulk is one, and a key that is none
        return HttpResponse(str(error), status=400, content_type="text/plain; charset=utf-8")
    return redirect("trajectories:bulk", request.project.slug, job.pk)


def _confirm(request: PageRequest, q: str, ids: list[str]) -> HttpResponse:
    up_to = bulk_actions.newest()  # before they are counted, so that no more are deleted than are told
    try:
        number, is_about = about(trajectory_export.selection(request.project.pk, q, ids).filter(pk__lte=up_to))
    except trajectory_export.BadSelection as error:
        return HttpResponse(str(error), status=400, content_type="text/plain; charset=utf-8")
    context = {
        "q": q,
        "ids": ids,
        "number": number,
        "up_to": up_to,
        "is_about": is_about,
        "key": request.POST.get("key") or uuid.uuid4(),
        "was_wrong": "typed" in request.POST,
    }
    return render(request, "trajectories/bulk_delete.html", context, status=422 if context["was_wrong"] else 200)


@require_GET
@requires(Permission.VIEW)
def index(request: PageRequest) -> HttpResponse:
    """List the bulk actions, newest first."""
    rows = Bulk.objects.filter(project=request.project).select_related("created_by")
    page = page_at(request, rows)
    jobs = [{"job": job, "action": bulk_actions.ACTIONS.get(job.action)} for job in page.items]
    return render(request, "trajectories/bulk_actions.html", {"page": page, "jobs": jobs})


@require_GET
@requires(Permission.VIEW)
def page(request: PageRequest, number: int) -> HttpResponse:
    return render(request, "trajectories/bulk.html", _context(request, _find(request, number)))


@require_GET
@requires(Permission.VIEW)
def file(request: PageRequest, number: int) -> HttpResponseBase:
    """Send the file that an export has written."""
    return bulk_actions.answer(request, _find(request, number))


def _find(request: PageRequest, pk: int) -> Bulk:
    """The job. Raises Forbidden for whoever may see it, but not change it as they ask to."""
    rows = Bulk.objects.select_related("created_by", "project")
    job = get_object_or_404(rows, project=request.project, pk=pk)
    needed = bulk_actions.ACTIONS[job.action].permission if job.action in bulk_actions.ACTIONS else Permission.ADMIN
    if request.method == "POST" and needed not in request.permissions:
        raise Forbidden(needed)
    return job


def _context(request: PageRequest, job: Bulk) -> dict[str, Any]:
    report, action = job.report, bulk_actions.ACTIONS.get(job.action)
    skipped, failed = report.get("skipped", {}), report.get("failed", {})
    return {
        "job": job,
        "action": action,
        "changed": report.get("changed", 0),
        "skipped": skipped,
        "skipped_count": sum(skipped.values()),
        "failed": failed,
        "failed_count": sum(failed.values()),
        "examples": report.get("examples", []),
        "has_file": job.action == "export" and job.state == State.SUCCEEDED and bulk_actions.file_of(job).is_file(),
        "size": report.get("size", 0),
        "may_stop": action is not None and action.permission in request.permissions,
    }


live = job_pages.live(_find, "trajectories/_bulk_live.html", requires(Permission.VIEW), _context)
cancel = job_pages.cancel(_find, "trajectories:bulk", requires(Permission.VIEW))
resume = job_pages.resume(_find, "trajectories:bulk", requires(Permission.VIEW))
