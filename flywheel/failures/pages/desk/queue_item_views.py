"""The desk of a queue: the item in hand, its decision, and what comes next.

Looking reserves nothing: `take` hands out the next item, and the open page holds it (`hold`) for as long as it is open.
What reviewers say stays between them and the item until it is done.
"""

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission, Project
from flywheel.edge.htmx import answer
from flywheel.edge.numbers import number
from flywheel.edge.refusals import Refused, Stale
from flywheel.failures.buckets.bucket_definitions import name_of
from flywheel.failures.labels.decisions import Superseded
from flywheel.failures.models import Queue, QueueItem, Review
from flywheel.failures.pages.desk import correction_form, decision_form, panes
from flywheel.failures.queues import queue_progress, reservations, reviews

BEFORE, AFTER = 8, 30
"""Items that the list shows: one's own last ones, and those that are free."""


@require_POST
@requires(Permission.REVIEW)
def take(request: PageRequest, pk: int) -> HttpResponse:
    """Hand out the next item."""
    return _next(request, get_object_or_404(request.project.queues, pk=pk))


@require_GET
@requires(Permission.VIEW)
def open_desk(request: PageRequest, pk: int) -> HttpResponse:
    """The item that one has; without one, the way to the first."""
    queue = get_object_or_404(request.project.queues, pk=pk)
    held = reservations.in_hand(queue, request.actor.user)
    if held is not None:
        return redirect(_address(request, queue, held))
    return _page(request, queue, None)


@require_GET
@requires(Permission.VIEW)
def open_item(request: PageRequest, pk: int, item: int) -> HttpResponse:
    row = _item(request, pk, item)
    return _page(request, row.queue, row)


@require_POST
@requires(Permission.REVIEW)
def decide(request: PageRequest, pk: int, item: int) -> HttpResponse:
    """Save what one says of the item and go to the next."""
    row = _item(request, pk, item)
    said, written = decision_form.save(row.trajectory, request.actor, {**request.POST.dict(), "item": str(row.pk)})
    if said is None:
        return refused(request, row, written)
    if not reservations.may_review(row.queue, request.actor.user):  # who settled is given nothing of it
        return _go(request, row.queue, _item(request, pk, item), "Settled.")
    return _next(request, row.queue)


@require_POST
@requires(Permission.REVIEW)
def decline(request: PageRequest, pk: int, item: int) -> HttpResponse:
    """Say that the item should not be here, and go to the next."""
    row = _item(request, pk, item)
    reason = request.POST.get("reason", "")
    try:
        reviews.decline(item=row, actor=request.actor, reason=reason)
    except (Stale, reservations.NotYours) as error:
        problem = f"Not declined: {error}."
    except Refused:
        problem = "Give a short reason why it does not belong here."
    else:
        return _next(request, row.queue)
    _, written = decision_form.opened(row.trajectory)
    written.error = problem
    return refused(request, row, written, reason)


@require_POST
@requires(Permission.REVIEW)
def skip(request: PageRequest, pk: int, item: int) -> HttpResponse:
    """Let go of the item undecided and go to the next."""
    row = _item(request, pk, item)
    return _next(request, row.queue, after=row if row.is_open else None)


@require_POST
@requires(Permission.REVIEW)
def requeue(request: PageRequest, pk: int, item: int) -> HttpResponse:
    """Put the item at the end and go to the next."""
    row = _item(request, pk, item)
    try:
        reservations.requeue(item=row, actor=request.actor)
    except (reservations.Held, reservations.NotYours) as error:
        return _go(request, row.queue, row, f"Not moved: {error}.")
    return _next(request, row.queue)


@require_POST
@requires(Permission.REVIEW)
def hold(request: PageRequest, pk: int, item: int) -> HttpResponse:
    """The sign of life of an open page."""
    row = _item(request, pk, item)
    problem = ""
    try:
        reservations.hold(item=row, actor=request.actor)
    except (reservations.Held, reservations.NotYours) as error:
        problem = str(error)
    row = _item(request, pk, item)
    return render(request, "failures/_hold.html", {"queue": row.queue, "entry": row, "problem": problem})


@require_POST
@requires(Permission.REVIEW)
def take_back(request: PageRequest, pk: int, item: int) -> HttpResponse:
    """Undo one's own review and show the item again."""
    row = _item(request, pk, item)
    try:
        said = reviews.take_back(item=row, actor=request.actor)
        notice = f"Undone: {words(request.project, said)}." if said else "You have nothing to undo here."
        reservations.hold(item=_item(request, pk, item), actor=request.actor)
    except Superseded as error:
        notice = f"Nothing was undone: {error}."
    except reservations.Held as error:
        notice = f"{notice} {str(error).capitalize()}."
    except reservations.NotYours:
        pass  # taken off the queue since: one's own word can still be taken back
    return _go(request, row.queue, _item(request, pk, item), notice)


@require_POST
@requires(Permission.REVIEW)
def reopen(request: PageRequest, pk: int, item: int) -> HttpResponse:
    """Ask for another reviewer."""
    row = _item(request, pk, item)
    reviews.reopen(item=row, actor=request.actor)
    return _go(request, row.queue, _item(request, pk, item), "Reopened. The current decision holds until the next one.")


def refused(request: PageRequest, item: QueueItem, written: decision_form.Written, reason: str = "") -> HttpResponse:
    """The form again with what was written and what is wrong with it; nothing else on the page moves."""
    shown = _desk(request, item.queue, _item(request, item.queue_id, item.pk), written) | {"reason": reason}
    if request.htmx:
        return panes.pane_again(request, shown)
    return render(request, "failures/queue_desk.html", shown, status=422)


def words(project: Project, review: Review) -> str:
    """The review in two or three words: `wrong tool`, `nothing wrong`, `declined`."""
    if review.declined:
        return "declined"
    return name_of(project, review.bucket) if review.bucket else queue_progress.NOTHING_WRONG


def _next(request: PageRequest, queue: Queue, after: QueueItem | None = None) -> HttpResponse:
    try:
        return _go(request, queue, reservations.take(queue=queue, actor=request.actor, after=after))
    except reservations.NotYours as error:
        messages.error(request, f"No item: {error}.")
        address = reverse("failures:queue_detail", args=[request.project.slug, queue.pk])
        return HttpResponse(headers={"HX-Redirect": address}) if request.htmx else redirect(address)


def _go(request: PageRequest, queue: Queue, item: QueueItem | None, notice: str = "") -> HttpResponse:
    address = _address(request, queue, item)
    if not request.htmx:
        if notice:
            messages.info(request, notice)
        return redirect(address)
    response = render(request, "failures/_queue_desk.html", _desk(request, queue, item, notice=notice))
    response["HX-Push-Url"] = address
    return response


def _page(request: PageRequest, queue: Queue, item: QueueItem | None) -> HttpResponse:
    return answer(request, "failures/queue_desk.html", "failures/_queue_desk.html", _desk(request, queue, item))


def _desk(
    request: PageRequest,
    queue: Queue,
    item: QueueItem | None,
    written: decision_form.Written | None = None,
    notice: str = "",
) -> dict[str, Any]:
    """Everything that the three panes show."""
    own = list(queue_progress.own_reviews(queue, request.actor.user)[:BEFORE])
    last = own[0] if own else None
    shown: dict[str, Any] = {
        "queue": queue,
        "entry": item,
        "item": item.trajectory if item else None,
        "progress": queue_progress.of([queue])[0],
        "list": _around(queue, request, item, own),
        "last": last,
        "last_words": words(request.project, last) if last else "",
        "notice": notice,
        "forms": correction_form.FORMS,
    }
    return shown | _decision(request, item, written) if item else shown


def _decision(request: PageRequest, item: QueueItem, written: decision_form.Written | None) -> dict[str, Any]:
    """The trajectory and the form. Of an item that is not done, a blind reviewer sees nothing that another said."""
    row, queue = item.trajectory, item.queue
    mine = item.reviews.filter(reviewer=request.actor.user, current=True).first()
    may_settle = Permission.BUILD in request.permissions and reviews.is_disputed(item)
    settles = may_settle and "settle" in (request.POST or request.GET)
    is_hidden = queue.is_blind and item.is_open and not settles
    known = panes.label_context(row)
    proposals = [proposal for proposal, *_ in known["proposals"]]
    if is_hidden:
        known |= {"current": None, "decisions": []}
    current = known["current"]
    fresh = decision_form.initial(row, mine or current, proposals)
    fresh.seen = current.pk if current else 0
    return {
        **known,
        **panes.reading(row, written or fresh, proposals, number(request.GET.get("start", ""))),
        "window_url": f"{_address(request, queue, item)}?{'settle=1' if settles else ''}",
        "mine": (mine, words(request.project, mine)) if mine and is_hidden else None,
        "reviews": [
            (review, words(queue.project, review))
            for review in ([] if is_hidden else item.reviews.select_related("reviewer").order_by("-pk"))
        ],
        "is_blind": is_hidden,
        "settles": settles,
        "may_settle": may_settle and not settles,
        # What was written and refused stays in its form, whoever has the item now.
        "locked": "" if written else _locked(request, item, mine, settles),
        "decide_url": reverse("failures:decide", args=[request.project.slug, queue.pk, item.pk]),
        "draft": f"item-{item.pk}",
        "makes_tasks": not is_hidden,
    }


def _locked(request: PageRequest, item: QueueItem, mine: Review | None, settles: bool) -> str:
    """Why one cannot decide here now; empty when one can."""
    queue = item.queue
    if queue.archived_at is not None:
        return "This queue is archived. Its items stay unchanged."
    if settles:
        return ""
    if not reservations.may_review(queue, request.actor.user):
        return f"{reservations.NotYours(queue)}.".capitalize()
    if mine is None and item.is_reserved and item.reserved_by_id != request.actor.user.pk:
        return f"{reservations.Held(item)}."
    if mine is None and queue.is_blind and not item.is_open:
        return "Enough reviewers have decided." if item.state == QueueItem.State.DONE else "Somebody declined it."
    return ""


def _around(queue: Queue, request: PageRequest, item: QueueItem | None, own: list[Review]) -> dict[str, Any]:
    """One's own last items, the one in hand, and those that are free, in the order in which they come."""
    before = [review.item for review in reversed(own)]
    free = reservations.free_for(queue, request.actor.user, AFTER + 1)
    later = [row for row in free if item is None or row.pk != item.pk][:AFTER]
    is_old = item is not None and any(row.pk == item.pk for row in before)
    items = [*before, *([item] if item and not is_old else []), *later]
    at = next((place for place, row in enumerate(items) if item and row.pk == item.pk), len(before))
    return {"items": items, "previous": items[at - 1] if at > 0 else None, "free": len(later)}


def _address(request: PageRequest, queue: Queue, item: QueueItem | None) -> str:
    if item is None:
        return reverse("failures:desk", args=[request.project.slug, queue.pk])
    return reverse("failures:item", args=[request.project.slug, queue.pk, item.pk])


def _item(request: PageRequest, pk: int, item: int) -> QueueItem:
    rows = QueueItem.objects.filter(queue=pk, queue__project=request.project)
    people = ("queue__project", "reserved_by", "trajectory__agent", "trajectory__version__agent")
    return get_object_or_404(rows.select_related(*people), pk=item)
