"""Queues for programs: making them, what is in them, taking an item, and what one says of it."""

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import page_of, paginate
from flywheel.edge.refusals import Stale, Unreadable, check_choice, one
from flywheel.failures.api.queue_schemas import (
    AddedOut,
    AddIn,
    DeclineIn,
    QueueIn,
    QueueItemOut,
    QueueItemQuery,
    QueueOut,
    ReviewAgreementOut,
    ReviewedOut,
    ReviewIn,
    TakeIn,
)
from flywheel.failures.labels.decisions import LATEST
from flywheel.failures.models import Queue, QueueItem
from flywheel.failures.queues import agreement, intake, queue_definitions, queue_progress, reviews
from flywheel.failures.queues import reservations as taking

router = Router(tags=["queues"])


@router.get("/queues", response=list[QueueOut], auth=Key(Scope.READ))
def list_queues(request: HttpRequest, archived: bool = False) -> list[dict[str, Any]]:
    """List the queues in use with their progress; with `archived`, the archived ones instead."""
    rows = keyed(request).project.queues.filter(archived_at__isnull=not archived)
    return _shown(rows.order_by("name"))


@router.post("/queues", response={201: QueueOut}, auth=Key(Scope.BUILD))
def make_queue(request: HttpRequest, wanted: QueueIn) -> Status[dict[str, Any]]:
    """Create a queue."""
    key = keyed(request)
    queue = queue_definitions.make(
        project=key.project, actor=key.actor, wanted=_settings(wanted), with_existing=wanted.with_existing
    )
    return Status(201, get_queue(request, queue.pk))


@router.get("/queues/{int:queue_id}", response=QueueOut, auth=Key(Scope.READ))
def get_queue(request: HttpRequest, queue_id: int) -> dict[str, Any]:
    """Return one queue with its progress."""
    return _shown(Queue.objects.filter(pk=_queue(request, queue_id).pk))[0]


@router.put("/queues/{int:queue_id}", response=QueueOut, auth=Key(Scope.BUILD))
def change_queue(request: HttpRequest, queue_id: int, wanted: QueueIn) -> dict[str, Any]:
    """Change the queue's settings, and archive or restore it. Its items stay."""
    queue = _queue(request, queue_id)
    actor, content = keyed(request).actor, _settings(wanted)
    queue_definitions.change(queue=queue, actor=actor, wanted=content, with_existing=wanted.with_existing)
    queue_definitions.archive(queue=queue, actor=actor, is_archived=wanted.archived)
    return get_queue(request, queue_id)


@router.get("/queues/{int:queue_id}/items", response=page_of(QueueItemOut), auth=Key(Scope.READ))
def list_queue_items(request: HttpRequest, queue_id: int, query: Query[QueueItemQuery]) -> dict[str, Any]:
    """List the queue's items, newest first."""
    rows = _items(request, queue_id)
    if query.state:
        check_choice(query.state, QueueItem.State.values, field="state", error=Unreadable)
        rows = rows.filter(state=query.state)
    return paginate(rows, query)


@router.post("/queues/{int:queue_id}/items", response=AddedOut, auth=Key(Scope.REVIEW))
def add_to_queue(request: HttpRequest, queue_id: int, wanted: AddIn) -> dict[str, Any]:
    """Add trajectories by hand. Those already in the queue are left unchanged. 409 if the queue is archived."""
    key, queue = keyed(request), _queue(request, queue_id)
    if queue.archived_at is not None:
        raise Stale(f"the queue {queue} is archived")
    keys, unknown = intake.keys_of(key.project, " ".join(wanted.trace_ids))
    return {"added": intake.add(queue=queue, keys=keys, actor=key.actor), "unknown": unknown}


@router.get("/queues/{int:queue_id}/items/{int:item_id}", response=ReviewedOut, auth=Key(Scope.READ))
def get_queue_item(request: HttpRequest, queue_id: int, item_id: int) -> QueueItem:
    """Return one item with those of its reviews that you may see."""
    row = _item(request, queue_id, item_id)
    reviews = row.reviews.select_related("reviewer").order_by("pk")
    if row.queue.is_blind and row.is_open:
        reviews = reviews.filter(reviewer=keyed(request).actor.user)
    row.visible = reviews  # type: ignore[attr-defined]
    return row


@router.post("/queues/{int:queue_id}/take", response={200: ReviewedOut, 204: None}, auth=Key(Scope.REVIEW))
def take_queue_item(request: HttpRequest, queue_id: int, wanted: TakeIn) -> Status[Any]:
    """Reserve the next item, or return the one you already have; 204 if none is left for you. 403 if you are not a
    reviewer of this queue."""
    queue = _queue(request, queue_id)
    after = _item(request, queue_id, wanted.after) if wanted.after is not None else None
    item = taking.take(queue=queue, actor=keyed(request).actor, after=after)
    return Status(200, get_queue_item(request, queue_id, item.pk)) if item else Status(204, None)


@router.post("/queues/{int:queue_id}/items/{int:item_id}/hold", response=ReviewedOut, auth=Key(Scope.REVIEW))
def hold_queue_item(request: HttpRequest, queue_id: int, item_id: int) -> QueueItem:
    """Reserve this item, or extend your reservation. 409 if someone else has it. 403 if you are not a reviewer of this
    queue."""
    taking.hold(item=_item(request, queue_id, item_id), actor=keyed(request).actor)
    return get_queue_item(request, queue_id, item_id)


@router.post("/queues/{int:queue_id}/items/{int:item_id}/release", response=ReviewedOut, auth=Key(Scope.REVIEW))
def release_queue_item(request: HttpRequest, queue_id: int, item_id: int, at_the_end: bool = False) -> QueueItem:
    """Release the item; with `at_the_end`, also move it to the end of the queue. 409 if someone else has it and you
    move it."""
    item, actor = _item(request, queue_id, item_id), keyed(request).actor
    (taking.requeue if at_the_end else taking.release)(item=item, actor=actor)
    return get_queue_item(request, queue_id, item_id)


@router.post("/queues/{int:queue_id}/items/{int:item_id}/review", response={201: ReviewedOut}, auth=Key(Scope.REVIEW))
def review_queue_item(request: HttpRequest, queue_id: int, item_id: int, wanted: ReviewIn) -> Status[QueueItem]:
    """Submit your review. It replaces your earlier one; sending the same one twice records it once. 409 if someone else
    has the item, its queue is archived, enough reviewers have decided, or the current decision is not the one in
    `seen`. 403 if you are not a reviewer of this queue."""
    content = wanted.dict(exclude={"seen"})
    seen = LATEST if wanted.seen is None else wanted.seen
    reviews.give(item=_item(request, queue_id, item_id), actor=keyed(request).actor, **content, seen=seen)
    return Status(201, get_queue_item(request, queue_id, item_id))


@router.post("/queues/{int:queue_id}/items/{int:item_id}/decline", response={201: ReviewedOut}, auth=Key(Scope.REVIEW))
def decline_queue_item(request: HttpRequest, queue_id: int, item_id: int, wanted: DeclineIn) -> Status[QueueItem]:
    """Decline the item because it does not belong in this queue. This closes the item. 409 if someone else has it, its
    queue is archived, or enough reviewers have decided. 403 if you are not a reviewer of this queue."""
    reviews.decline(item=_item(request, queue_id, item_id), actor=keyed(request).actor, reason=wanted.reason)
    return Status(201, get_queue_item(request, queue_id, item_id))


@router.post("/queues/{int:queue_id}/items/{int:item_id}/undo", response=ReviewedOut, auth=Key(Scope.REVIEW))
def undo_queue_review(request: HttpRequest, queue_id: int, item_id: int) -> QueueItem:
    """Take back your review. The one you gave before it, if any, counts again. 409 if someone has decided otherwise
    since."""
    reviews.take_back(item=_item(request, queue_id, item_id), actor=keyed(request).actor)
    return get_queue_item(request, queue_id, item_id)


@router.post("/queues/{int:queue_id}/items/{int:item_id}/reopen", response=ReviewedOut, auth=Key(Scope.REVIEW))
def reopen_queue_item(request: HttpRequest, queue_id: int, item_id: int) -> QueueItem:
    """Request another reviewer for a closed item. The existing decision stays in force until they have reviewed it."""
    reviews.reopen(item=_item(request, queue_id, item_id), actor=keyed(request).actor)
    return get_queue_item(request, queue_id, item_id)


@router.get("/queues/{int:queue_id}/agreement", response=ReviewAgreementOut, auth=Key(Scope.READ))
def get_queue_agreement(request: HttpRequest, queue_id: int) -> dict[str, Any]:
    """Return reviewers' agreement beyond chance: Krippendorff's alpha overall and by category, Cohen's kappa for
    pairs."""
    return agreed(agreement.of_queue(_queue(request, queue_id)))


def agreed(found: agreement.Agreement) -> dict[str, Any]:
    """As the API shows it."""
    return {
        "items": found.items,
        "alpha": found.overall,
        "buckets": [
            {"bucket": bucket.key if bucket else "", "chosen": count, "alpha": alpha}
            for bucket, count, alpha in found.buckets
        ],
        "pairs": found.pairs,
    }


def _settings(body: QueueIn) -> queue_definitions.Wanted:
    return queue_definitions.Wanted(**body.dict(exclude={"with_existing", "archived"}))


def _shown(rows: QuerySet[Queue]) -> list[dict[str, Any]]:
    names = ("id", "name", "instructions", "rule", "bucket", "detector", "percent", "needed", "minutes")
    return [
        {
            **{name: getattr(each.queue, name) for name in (*names, "created_by", "created_at", "archived_at")},
            "assignees": sorted(person.username for person in each.queue.assignees.all()),
            "progress": each,
        }
        for each in queue_progress.of(rows.select_related("created_by").prefetch_related("assignees"))
    ]


def _queue(request: HttpRequest, pk: int) -> Queue:
    return one(Queue.objects.filter(project=keyed(request).project), pk=pk)


def _items(request: HttpRequest, queue_id: int) -> QuerySet[QueueItem]:
    rows = QueueItem.objects.filter(queue=_queue(request, queue_id))
    return rows.select_related(
        "queue__project", "trajectory", "reserved_by", "outcome__labelled_by", "outcome__trajectory"
    )


def _item(request: HttpRequest, queue_id: int, item_id: int) -> QueueItem:
    return one(_items(request, queue_id), pk=item_id)
