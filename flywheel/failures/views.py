"""The failures room: what goes wrong and how often, one bucket, and the review queue."""

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.core.buckets import BUCKETS, DETECTORS
from flywheel.failures import correction, counts, forms, queue, review
from flywheel.failures.label import Superseded, describe, tools_of, undo
from flywheel.failures.models import Decision, Failure
from flywheel.trajectories.models import Trajectory

EXAMPLES = 25


@require_GET
@requires(Permission.VIEW)
def index(request: PageRequest) -> HttpResponse:
    days = counts.period(request.project, _days(request))
    found, traffic = counts.by_bucket(request.project, days)
    urls = {key: reverse("failures:bucket", args=[request.project.slug, key]) for key in BUCKETS}
    recent = request.project.failures.select_related("trajectory", "labelled_by")[:12]
    return render(
        request,
        "failures/index.html",
        {
            "counts": found,
            "traffic": traffic,
            "days": len(days),
            "periods": counts.PERIODS,
            "waiting": sum(count.waiting for count in found),
            "confirmed": sum(count.confirmed for count in found),
            "uncorrected": _failures(request).filter(corrected=None).count(),
            "chart": counts.trend_chart(found, days, urls) if found else None,
            "detectors": counts.detectors(request.project),
            "recent": [(failure, describe(failure)) for failure in recent],
            "has_traffic": counts.traffic(request.project).exists(),
        },
    )


@require_GET
@requires(Permission.VIEW)
def bucket(request: PageRequest, key: str) -> HttpResponse:
    if key not in BUCKETS:
        raise Http404
    days = counts.period(request.project, _days(request))
    figures = counts.of_bucket(request.project, BUCKETS[key], days)
    confirmed = _failures(request).filter(bucket=key)
    waiting = queue.waiting(request.project, queue.Filters(bucket=key))
    return render(
        request,
        "failures/bucket.html",
        {
            "bucket": BUCKETS[key],
            "figures": figures,
            "days": len(days),
            "periods": counts.PERIODS,
            "in_period": sum(figures["daily"].values()),
            "traffic": sum(figures["traffic"].values()),
            "chart": counts.share_chart(figures, days),
            "waiting": waiting[:EXAMPLES],
            "waiting_count": waiting.count(),
            "confirmed": confirmed.select_related("trajectory", "labelled_by").prefetch_related(
                "tasks__environment", "also_tasks__environment"
            )[:EXAMPLES],
            "confirmed_count": confirmed.count(),
            "tasks": request.project.tasks.filter(bucket=key).select_related("environment")[:EXAMPLES],
            "task_count": request.project.tasks.filter(bucket=key, retired_at=None).count(),
        },
    )


@require_GET
@requires(Permission.VIEW)
def open_queue(request: PageRequest) -> HttpResponse:
    """The first item that waits, under the filters of the address."""
    filters = queue.Filters.read(request.GET.dict())
    return _page(request, filters, queue.waiting(request.project, filters).first())


@require_GET
@requires(Permission.VIEW)
def open_review(request: PageRequest, trace_id: str) -> HttpResponse:
    """The same, on one trajectory."""
    return _page(request, queue.Filters.read(request.GET.dict()), _trajectory(request, trace_id))


@require_POST
@requires(Permission.REVIEW)
def label(request: PageRequest, trace_id: str) -> HttpResponse:
    """Save a decision and go to the next item."""
    trajectory = _trajectory(request, trace_id)
    filters = queue.Filters.read(request.GET.dict())
    failure, written = forms.save(trajectory, request.actor, request.POST.dict())
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
    filters = queue.Filters.read(request.GET.dict())
    try:
        before = undo(trajectory=trajectory, actor=request.actor, seen=forms.seen_of(request.POST.dict()))
        notice = f"Taken back. {describe(before).capitalize()} counts again." if before else "Taken back."
    except Superseded as error:
        notice = f"Nothing was taken back: {error}."
    if request.htmx:
        return _go(request, filters, trajectory, notice=notice)
    messages.info(request, notice)
    return redirect(_address(request, filters, trajectory))


@require_POST
@requires(Permission.REVIEW)
def preview(request: PageRequest, trace_id: str) -> HttpResponse:
    """The corrected action as it stands in the form: its fields, what is wrong with it, the difference it makes."""
    trajectory = _trajectory(request, trace_id)
    made = correction.read(tools_of(trajectory), request.POST.dict())
    actual = review.own_call(trajectory, request.POST.get("step", ""))
    return render(
        request,
        "failures/_correction.html",
        {
            "trajectory": trajectory,
            "correction": made,
            "wanted": True,
            "actual": actual,
            "aligned": correction.aligned(actual, made.action),
            "TEXT": correction.TEXT,
        },
    )


@require_GET
@requires(Permission.VIEW)
def panel(request: PageRequest, trace_id: str) -> HttpResponse:
    """What is proposed and decided about a trajectory, for its own page."""
    trajectory = _trajectory(request, trace_id)
    return render(request, "failures/_label.html", panel_context(trajectory))


def panel_context(trajectory: Trajectory) -> dict[str, Any]:
    decisions = list(trajectory.failures.select_related("labelled_by"))
    return {
        "trajectory": trajectory,
        "current": next((failure for failure in decisions if failure.current), None),
        "decisions": [(failure, describe(failure)) for failure in decisions],
        "proposals": [(proposal, BUCKETS.get(proposal.bucket)) for proposal in trajectory.proposals.all()],
        "tasks": trajectory.tasks.select_related("environment"),
    }


# The desk: the three panes of the queue


def _page(request: PageRequest, filters: queue.Filters, item: Trajectory | None) -> HttpResponse:
    desk = _desk(request, filters, item)
    return render(request, "failures/_desk.html", desk) if request.htmx else _whole(request, desk)


def _whole(request: PageRequest, desk: dict[str, Any], status: int = 200) -> HttpResponse:
    choices = {"orders": queue.ORDERS, "detectors": DETECTORS, "versions": queue.versions(request.project)}
    return render(request, "failures/queue.html", {**desk, **choices}, status=status)


def _go(request: PageRequest, filters: queue.Filters, item: Trajectory | None, notice: str = "") -> HttpResponse:
    address = _address(request, filters, item)
    if item is not None:
        item.refresh_from_db(fields=["label", "label_bucket"])
    if not request.htmx:
        return redirect(address)
    response = render(request, "failures/_desk.html", _desk(request, filters, item, notice=notice))
    response["HX-Push-Url"] = address
    return response


def refused(
    request: PageRequest, filters: queue.Filters, trajectory: Trajectory, written: forms.Written
) -> HttpResponse:
    """The form again with what was written and what is wrong with it; nothing else on the page moves."""
    desk = _desk(request, filters, trajectory, written)
    if not request.htmx:
        return _whole(request, desk, status=422)
    response = render(request, "failures/_decision.html", desk, status=422)
    response["HX-Retarget"] = "#decision-pane"
    response["HX-Reswap"] = "outerHTML"
    return response


def _desk(
    request: PageRequest,
    filters: queue.Filters,
    item: Trajectory | None,
    written: forms.Written | None = None,
    notice: str = "",
) -> dict[str, Any]:
    """Everything that the three panes show."""
    last = queue.own_decisions(request.project, request.actor).first()
    shown: dict[str, Any] = {
        "filters": filters,
        "buckets": BUCKETS.values(),
        "item": item,
        "list": queue.around(request.project, filters, item),
        "pace": queue.pace(request.project, request.actor),
        "last": last,
        "last_words": describe(last) if last else "",
        "notice": notice,
        "TEXT": correction.TEXT,
    }
    if item is None:
        return shown
    _, proposals, fresh = forms.opened(item)
    written = written or fresh
    actual = review.own_call(item, written.step)
    return shown | {
        **panel_context(item),
        "trajectory": item,
        "written": written,
        "view": review.view_of(item, written.step),
        "best": BUCKETS.get(proposals[0].bucket) if proposals else None,
        "actual": actual,
        "aligned": correction.aligned(actual, written.correction.action if written.correction else None),
        "correction": written.correction,
        "wanted": written.wants_correction,
    }


def _address(request: PageRequest, filters: queue.Filters, item: Trajectory | None) -> str:
    path = (
        reverse("failures:review", args=[request.project.slug, item.trace_id])
        if item
        else reverse("failures:queue", args=[request.project.slug])
    )
    return f"{path}?{filters.query}" if filters.query else path


def _trajectory(request: PageRequest, trace_id: str) -> Trajectory:
    rows = Trajectory.objects.filter(project=request.project).select_related("agent", "version__agent")
    return get_object_or_404(rows, trace_id=trace_id)


def _failures(request: PageRequest) -> Any:
    return Failure.objects.filter(project=request.project, current=True).exclude(decision=Decision.REJECTED)


def _days(request: PageRequest) -> int:
    given = request.GET.get("days", "")
    return int(given) if given.isdecimal() and int(given) in counts.PERIODS else 14
