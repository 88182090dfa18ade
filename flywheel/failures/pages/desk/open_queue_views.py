"""The open queue of reviews: one trajectory after the other, its decision, and what comes next."""

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.core.detectors.standard_buckets import DETECTORS
from flywheel.edge.htmx import answer, wants_fragment
from flywheel.edge.numbers import number
from flywheel.failures.buckets.bucket_definitions import offered
from flywheel.failures.labels.decisions import Superseded, current_of, describe, tools_of, undo
from flywheel.failures.models import Queue
from flywheel.failures.pages.desk import corrected_trajectory, correction_form, decision_form, panes, queue_item_views
from flywheel.failures.queues import open_queue as queue
from flywheel.trajectories.detail import expected_action
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.store.rows.trajectory_rows import home_of


@require_GET
@requires(Permission.VIEW)
def open_queue(request: PageRequest) -> HttpResponse:
    """The first item that waits, under the filters of the address."""
    filters = queue.Filters.read(request.project, request.GET.dict())
    return _page(request, filters, queue.first(request.project, filters))


@require_GET
@requires(Permission.VIEW)
def open_review(request: PageRequest, trace_id: str) -> HttpResponse:
    """The same, on one trajectory."""
    return _page(request, queue.Filters.read(request.project, request.GET.dict()), _trajectory(request, trace_id))


@require_POST
@requires(Permission.REVIEW)
def label(request: PageRequest, trace_id: str) -> HttpResponse:
    """Save a decision and go to the next item."""
    trajectory = _trajectory(request, trace_id)
    filters = queue.Filters.read(request.project, request.GET.dict())
    failure, written = decision_form.save(trajectory, request.actor, request.POST.dict())
    if failure is None:
        return refused(request, filters, trajectory, written)
    if request.POST.get("then") == "stay":
        return _go(request, filters, trajectory)
    return _go(request, filters, queue.next_after(request.project, filters, trajectory))


@require_POST
@requires(Permission.REVIEW)
def take_back(request: PageRequest, trace_id: str) -> HttpResponse:
    """Undo the decision that counts, and show that trajectory again."""
    trajectory = _trajectory(request, trace_id)
    filters = queue.Filters.read(request.project, request.GET.dict())
    try:
        before = undo(trajectory=trajectory, actor=request.actor, seen=decision_form.seen_of(request.POST.dict()))
        notice = f"Undone. {describe(request.project, before).capitalize()} counts again." if before else "Undone."
    except Superseded as error:
        notice = f"Nothing was undone: {error}."
    return _go(request, filters, trajectory, notice)


@require_POST
@requires(Permission.REVIEW)
def preview(request: PageRequest, trace_id: str) -> HttpResponse:
    """The corrected action as it stands in the form: its fields, what is wrong with it, the difference it makes."""
    trajectory = _trajectory(request, trace_id)
    step = request.POST.get("step", "")
    recorded = expected_action.own_message(trajectory, step)
    made = correction_form.read(tools_of(trajectory), request.POST.dict(), recorded)
    actual = expected_action.own_call(trajectory, step)
    return render(
        request,
        "failures/_correction.html",
        {
            "trajectory": trajectory,
            "correction": made,
            "wanted": True,
            "actual": actual,
            "aligned": expected_action.aligned(actual, made.action),
            "forms": correction_form.FORMS,
        },
    )


@require_GET
@requires(Permission.VIEW)
def panel(request: PageRequest, trace_id: str) -> HttpResponse:
    """Show the proposals and decisions about a trajectory, for its own page."""
    trajectory = _trajectory(request, trace_id)
    by_hand = Queue.objects.filter(project=request.project, archived_at=None).exclude(items__trajectory=trajectory)
    return render(request, "failures/_label.html", panes.label_context(trajectory) | {"queues": by_hand})


@require_GET
@requires(Permission.VIEW)
def corrected(request: PageRequest, trace_id: str) -> HttpResponse:
    """Show the corrected trajectory beside the recorded one."""
    trajectory = _trajectory(request, trace_id)
    failure = current_of(trajectory)
    whole = corrected_trajectory.beside(trajectory, failure) if failure is not None and failure.corrected else None
    context = {"trajectory": trajectory, "whole": whole}
    return answer(request, "failures/beside.html", "failures/_beside.html", context)


# The desk: the three panes of the queue


def _page(request: PageRequest, filters: queue.Filters, item: Trajectory | None) -> HttpResponse:
    shown = _desk(request, filters, item)
    if not wants_fragment(request):
        shown |= _choices(request, shown)
    return answer(request, "failures/queue.html", "failures/_desk.html", shown)


def _choices(request: PageRequest, shown: dict[str, Any]) -> dict[str, Any]:
    """Return the choices of the filters above the panes."""
    return {
        "orders": queue.ORDERS,
        "proposed": offered(request.project, shown["filters"].bucket),
        "detectors": DETECTORS,
        "versions": queue.versions(request.project),
    }


def _go(request: PageRequest, filters: queue.Filters, item: Trajectory | None, notice: str = "") -> HttpResponse:
    address = _address(request, filters, item)
    if item is not None:
        item.refresh_from_db(fields=["label", "label_bucket"])
    if not request.htmx:
        if notice:
            messages.info(request, notice)
        return redirect(address)
    response = render(request, "failures/_desk.html", _desk(request, filters, item, notice=notice))
    response["HX-Push-Url"] = address
    return response


def refused(
    request: PageRequest, filters: queue.Filters, trajectory: Trajectory, written: decision_form.Written
) -> HttpResponse:
    """The form again with what was written and what is wrong with it; nothing else on the page moves."""
    entry = decision_form.item_of(trajectory, request.POST.dict())
    if entry is not None:
        return queue_item_views.refused(request, entry, written)
    shown = _desk(request, filters, trajectory, written)
    if request.htmx:
        return panes.pane_again(request, shown)
    return render(request, "failures/queue.html", shown | _choices(request, shown), status=422)


def _desk(
    request: PageRequest,
    filters: queue.Filters,
    item: Trajectory | None,
    written: decision_form.Written | None = None,
    notice: str = "",
) -> dict[str, Any]:
    """Everything that the three panes show."""
    last = queue.own_decisions(request.project, request.actor.user).first()
    shown: dict[str, Any] = {
        "filters": filters,
        "described": filters.describe(request.project),
        "item": item,
        "list": queue.around(request.project, filters, item),
        "in_all": queue.waiting_in_all(request.project),
        "pace": queue.pace(request.project, request.actor.user),
        "last": last,
        "last_words": describe(request.project, last) if last else "",
        "notice": notice,
        "forms": correction_form.FORMS,
    }
    if item is None:
        return shown
    proposals, fresh = decision_form.opened(item)
    address = reverse("failures:label", args=[request.project.slug, item.trace_id])
    return shown | {
        **panes.label_context(item),
        **panes.reading(item, written or fresh, proposals, number(request.GET.get("start", ""))),
        "window_url": f"{reverse('failures:review', args=[request.project.slug, item.trace_id])}?{filters.query}",
        "decide_url": f"{address}?{filters.query}",
        "draft": item.trace_id,
        "makes_tasks": True,
    }


def _address(request: PageRequest, filters: queue.Filters, item: Trajectory | None) -> str:
    slug = request.project.slug
    path = reverse("failures:review", args=[slug, item.trace_id]) if item else reverse("failures:queue", args=[slug])
    return f"{path}?{filters.query}" if filters.query else path


def _trajectory(request: PageRequest, trace_id: str) -> Trajectory:
    rows = Trajectory.objects.filter(project=request.project).select_related("agent", "version__agent")
    return get_object_or_404(rows, trace_id=home_of(request.project.pk, trace_id))
