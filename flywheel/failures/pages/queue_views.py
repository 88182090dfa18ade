"""The queues of a project: the list with its progress, one queue, making and changing it, and adding by hand."""

from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge.numbers import key
from flywheel.edge.paging import about, page_at
from flywheel.edge.refusals import Refused, show_at_field
from flywheel.failures.labels.decisions import describe
from flywheel.failures.models import Queue, QueueItem
from flywheel.failures.pages import queue_forms
from flywheel.failures.queues import agreement, intake, queue_definitions, queue_progress
from flywheel.failures.queues.open_queue import Filters, waiting
from flywheel.failures.queues.reservations import in_hand, may_review
from flywheel.trajectories.operations import bulk_actions

STATES = dict(QueueItem.State.choices)


@require_GET
@requires(Permission.VIEW)
def queues(request: PageRequest) -> HttpResponse:
    rows = request.project.queues.prefetch_related("assignees").order_by("name")
    archived = "archived" in request.GET
    found = queue_progress.of(rows.filter(archived_at__isnull=not archived))
    count, is_guess = about(waiting(request.project, Filters()))
    return render(
        request,
        "failures/queues.html",
        {
            "found": [(each, may_review(each.queue, request.actor.user)) for each in found],
            "waiting": count,
            "is_guess": is_guess,
            "archived": archived,
            "has_archived": archived or rows.exclude(archived_at=None).exists(),
        },
    )


@require_GET
@requires(Permission.VIEW)
def queue_detail(request: PageRequest, pk: int) -> HttpResponse:
    queue = get_object_or_404(request.project.queues, pk=pk)
    rows = queue.items.select_related("trajectory", "reserved_by", "outcome", "added_by")
    state = request.GET.get("state", "")
    if state in STATES:
        rows = rows.filter(state=state)
    page = page_at(request, rows, limit=50)
    return render(
        request,
        "failures/queue_detail.html",
        {
            "queue": queue,
            "assignees": list(queue.assignees.order_by("username")),
            "progress": queue_progress.of([queue])[0],
            "people": queue_progress.people(queue),
            "page": page,
            "rows": [
                (row, describe(request.project, row.seen_outcome) if row.seen_outcome else "") for row in page.items
            ],
            "states": STATES,
            "state": state,
            "may_review": may_review(queue, request.actor.user),
            "held": in_hand(queue, request.actor.user),
            "rule": queue_forms.RULES[queue.rule],  # type: ignore[index]
        },
    )


@require_GET
@requires(Permission.VIEW)
def queue_agreement(request: PageRequest, pk: int) -> HttpResponse:
    """A fragment of its own: the page does not wait for it."""
    queue = get_object_or_404(request.project.queues, pk=pk)
    return render(request, "failures/_agreement.html", {"queue": queue, "found": agreement.of_queue(queue)})


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def new_queue(request: PageRequest) -> HttpResponse:
    return _edit(request, None)


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def edit_queue(request: PageRequest, pk: int) -> HttpResponse:
    return _edit(request, get_object_or_404(request.project.queues, pk=pk))


@require_POST
@requires(Permission.BUILD)
def archive_queue(request: PageRequest, pk: int) -> HttpResponse:
    queue = get_object_or_404(request.project.queues, pk=pk)
    queue_definitions.archive(queue=queue, actor=request.actor, is_archived=request.POST.get("archived") != "0")
    return redirect("failures:queue_detail", request.project.slug, pk)


@require_POST
@requires(Permission.REVIEW)
def add_to_queue(request: PageRequest) -> HttpResponse:
    """Add trajectories by their trace ids."""
    queue = get_object_or_404(request.project.queues, pk=key(request.POST.get("queue", "")))
    keys, unknown = intake.keys_of(request.project, request.POST.get("trace_ids", ""))
    if queue.archived_at is not None:
        messages.error(request, f"Nothing added: the queue {queue} is archived.")
        return redirect("failures:queue_detail", request.project.slug, queue.pk)
    count = intake.add(queue=queue, keys=keys, actor=request.actor)
    there = len(keys) - count
    parts = [f"{count} added to {queue}"]
    if there:
        parts.append(f"{there} {'was' if there == 1 else 'were'} already in it")
    if unknown:
        parts.append(f"{len(unknown)} not found: {', '.join(name[:40] for name in unknown[:3])}")
    (messages.success if keys else messages.warning)(request, f"{'; '.join(parts)}.")
    if request.POST.get("stay") and keys:
        return redirect("trajectories:detail", request.project.slug, request.POST["trace_ids"].strip())
    return redirect("failures:queue_detail", request.project.slug, queue.pk)


def _edit(request: PageRequest, queue: Queue | None) -> HttpResponse:
    initial = queue_forms.as_written(queue) if queue else {"rule": request.GET.get("rule", "hand")}
    sent = None if "begin" in request.POST else request.POST or None
    form = queue_forms.QueueForm(request.project, sent, initial=initial)
    try:
        chosen = queue_forms.Chosen.read(request.project, request.POST) if queue is None else None
        if form.is_valid():
            return redirect("failures:queue_detail", request.project.slug, _saved(request, queue, form, chosen).pk)
    except bulk_actions.BadBulk as error:
        return HttpResponse(str(error), status=400, content_type="text/plain; charset=utf-8")
    except Refused as error:
        show_at_field(form, error)
    status = 422 if form.errors else 200
    return render(request, "failures/edit_queue.html", {"form": form, "queue": queue, "chosen": chosen}, status=status)


@transaction.atomic
def _saved(
    request: PageRequest, queue: Queue | None, form: queue_forms.QueueForm, chosen: queue_forms.Chosen | None
) -> Queue:
    """Raises Refused."""
    asked: dict[str, Any] = {
        "actor": request.actor,
        "wanted": form.definition,
        "with_existing": form.cleaned_data["with_existing"],
    }
    if queue is not None:
        return queue_definitions.change(queue=queue, **asked)
    made = queue_definitions.make(project=request.project, **asked)
    if chosen is not None:
        bulk_actions.submit(
            project=request.project,
            actor=request.actor,
            action="queue",
            options={"queue": str(made.pk)},
            q=chosen.q,
            ids=chosen.ids,
            key=chosen.key,
        )
        messages.success(request, "Queue created. Your selection is being added in the background.")
    return made
