"""Queues for programs: making them, what is in them, taking an item, and what one says of it."""

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Query, Router, Status
from ninja.errors import HttpError

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Permission, Scope
from flywheel.core.evidence.statistics.estimates import Estimate
from flywheel.edge.paging import BadCursor, keyset
from flywheel.failures.api.queue_schemas import (
    AddedOut,
    AddIn,
    AgreementOut,
    DeclineIn,
    ItemPage,
    ItemQuery,
    QueueIn,
    QueueOut,
    ReviewedOut,
    ReviewIn,
    TakeIn,
)
from flywheel.failures.labels.decisions import LATEST, BadLabel, Superseded
from flywheel.failures.models import Queue, QueueItem
from flywheel.failures.queues import agreement, intake, queue_definitions, queue_progress, reviews
from flywheel.failures.queues import reservations as taking

router = Router(tags=["queues"])


@router.get("/queues", response=list[QueueOut], auth=Key(Scope.READ), operation_id="list_queues")
def list_queues(request: HttpRequest, archived: bool = False) -> list[dict[str, Any]]:
    """Every queue with its progress."""
    rows = keyed(request).project.queues.filter(archived_at__isnull=not archived)
    return _shown(rows.order_by("name"))


@router.post("/queues", response={201: QueueOut}, auth=Key(Scope.BUILD), operation_id="make_queue")
def make(request: HttpRequest, wanted: QueueIn) -> Status[dict[str, Any]]:
    """Make a queue."""
    key = keyed(request)
    try:
        queue = queue_definitions.make(
            project=key.project,
            actor=key.actor,
            wanted=_wanted(wanted),
            with_existing=wanted.with_existing,
        )
    except queue_definitions.BadQueue as error:
        raise HttpError(422, str(error)) from None
    return Status(201, _one(request, queue.pk))


@router.get("/queues/{int:queue_id}", response=QueueOut, auth=Key(Scope.READ), operation_id="get_queue")
def get_queue(request: HttpRequest, queue_id: int) -> dict[str, Any]:
    """One queue with its progress."""
    return _one(request, queue_id)


@router.put("/queues/{int:queue_id}", response=QueueOut, auth=Key(Scope.BUILD), operation_id="change_queue")
def change(request: HttpRequest, queue_id: int, wanted: QueueIn) -> dict[str, Any]:
    """Make the queue so, and archive it or use it again. What is in it stays."""
    queue = _queue(request, queue_id)
    said: dict[str, Any] = {"actor": keyed(request).actor}
    try:
        queue_definitions.change(queue=queue, wanted=_wanted(wanted), with_existing=wanted.with_existing, **said)
    except queue_definitions.BadQueue as error:
        raise HttpError(422, str(error)) from None
    queue_definitions.archive(queue=queue, is_archived=wanted.archived, **said)
    return _one(request, queue_id)


@router.get("/queues/{int:queue_id}/items", response=ItemPage, auth=Key(Scope.READ), operation_id="list_queue_items")
def list_items(request: HttpRequest, queue_id: int, asked: Query[ItemQuery]) -> dict[str, Any]:
    """What is in the queue, the newest first."""
    rows = _items(request, queue_id)
    if asked.state:
        if asked.state not in QueueItem.State.values:
            known = ", ".join(QueueItem.State.values)
            raise HttpError(400, f"state: {asked.state!r} is unknown, one of {known} is wanted")
        rows = rows.filter(state=asked.state)
    try:
        page = keyset(rows, cursor=asked.cursor, limit=asked.limit)
    except BadCursor as error:
        raise HttpError(400, str(error)) from None
    return {"items": page.items, "next": page.next_cursor or None}


@router.post("/queues/{int:queue_id}/items", response=AddedOut, auth=Key(Scope.REVIEW), operation_id="add_to_queue")
def add(request: HttpRequest, queue_id: int, wanted: AddIn) -> dict[str, Any]:
    """Add trajectories by hand. What is in the queue already stays as it is."""
    key, queue = keyed(request), _queue(request, queue_id)
    if queue.archived_at is not None:
        raise HttpError(409, f"the queue {queue} is archived")
    keys, unknown = intake.keys_of(key.project, " ".join(wanted.trace_ids))
    return {
        "added": intake.add(queue=queue, keys=keys, actor=key.actor),
        "unknown": unknown,
    }


@router.get(
    "/queues/{int:queue_id}/items/{int:item_id}",
    response=ReviewedOut,
    auth=Key(Scope.READ),
    operation_id="get_queue_item",
)
def get_item(request: HttpRequest, queue_id: int, item_id: int) -> QueueItem:
    """One item, with what its reviewers said as far as you may see it."""
    return _reviewed(request, queue_id, item_id)


@router.post(
    "/queues/{int:queue_id}/take",
    response={200: ReviewedOut, 204: None},
    auth=Key(Scope.REVIEW),
    operation_id="take_queue_item",
)
def take(request: HttpRequest, queue_id: int, wanted: TakeIn) -> Status[Any]:
    """Reserve the next item, or the one that you have already; 204 when nothing is left for you."""
    queue = _queue(request, queue_id)
    after = _item(request, queue_id, wanted.after) if wanted.after is not None else None
    try:
        item = taking.take(queue=queue, actor=keyed(request).actor, after=after)
    except taking.NotYours as error:
        raise HttpError(403, str(error)) from None
    return Status(200, _reviewed(request, queue_id, item.pk)) if item else Status(204, None)


@router.post(
    "/queues/{int:queue_id}/items/{int:item_id}/hold",
    response=ReviewedOut,
    auth=Key(Scope.REVIEW),
    operation_id="hold_queue_item",
)
def hold(request: HttpRequest, queue_id: int, item_id: int) -> QueueItem:
    """Reserve this item, or for longer: a sign of life. 409 when somebody else has it."""
    try:
        taking.hold(item=_item(request, queue_id, item_id), actor=keyed(request).actor)
    except taking.Held as error:
        raise HttpError(409, str(error)) from None
    except taking.NotYours as error:
        raise HttpError(403, str(error)) from None
    return _reviewed(request, queue_id, item_id)


@router.post(
    "/queues/{int:queue_id}/items/{int:item_id}/release",
    response=ReviewedOut,
    auth=Key(Scope.REVIEW),
    operation_id="release_queue_item",
)
def release(request: HttpRequest, queue_id: int, item_id: int, at_the_end: bool = False) -> QueueItem:
    """Let go of the item; with `at_the_end` it also goes to the end of the queue."""
    item, actor = _item(request, queue_id, item_id), keyed(request).actor
    if not at_the_end:
        taking.release(item=item, actor=actor)
        return _reviewed(request, queue_id, item_id)
    try:
        taking.requeue(item=item, actor=actor)
    except taking.Held as error:
        raise HttpError(409, str(error)) from None
    except taking.NotYours as error:
        raise HttpError(403, str(error)) from None
    return _reviewed(request, queue_id, item_id)


@router.post(
    "/queues/{int:queue_id}/items/{int:item_id}/review",
    response={201: ReviewedOut},
    auth=Key(Scope.REVIEW),
    operation_id="review_queue_item",
)
def review(request: HttpRequest, queue_id: int, item_id: int, wanted: ReviewIn) -> Status[QueueItem]:
    """Say what you see. A later word of yours supersedes this one; the same twice is one."""
    if wanted.settles and Permission.BUILD not in keyed(request).permissions:
        raise HttpError(403, "settles: only who may build settles what reviewers disagree on")
    said = wanted.dict(exclude={"seen"})
    return _give(request, queue_id, item_id, **said, seen=LATEST if wanted.seen is None else wanted.seen)


@router.post(
    "/queues/{int:queue_id}/items/{int:item_id}/decline",
    response={201: ReviewedOut},
    auth=Key(Scope.REVIEW),
    operation_id="decline_queue_item",
)
def decline(request: HttpRequest, queue_id: int, item_id: int, wanted: DeclineIn) -> Status[QueueItem]:
    """Say that the item should not be in this queue. That closes it."""
    return _give(request, queue_id, item_id, declined=True, note=wanted.reason)


@router.post(
    "/queues/{int:queue_id}/items/{int:item_id}/undo",
    response=ReviewedOut,
    auth=Key(Scope.REVIEW),
    operation_id="undo_queue_review",
)
def undo(request: HttpRequest, queue_id: int, item_id: int) -> QueueItem:
    """Take back what you said; what you said before counts again, or nothing."""
    item = _item(request, queue_id, item_id)
    try:
        reviews.take_back(item=item, actor=keyed(request).actor)
    except Superseded as error:
        raise HttpError(409, f"{error}; nothing was taken back") from None
    return _reviewed(request, queue_id, item_id)


@router.post(
    "/queues/{int:queue_id}/items/{int:item_id}/reopen",
    response=ReviewedOut,
    auth=Key(Scope.REVIEW),
    operation_id="reopen_queue_item",
)
def reopen(request: HttpRequest, queue_id: int, item_id: int) -> QueueItem:
    """Ask for another reviewer of a closed item. What was decided stands until they have spoken."""
    reviews.reopen(item=_item(request, queue_id, item_id), actor=keyed(request).actor)
    return _reviewed(request, queue_id, item_id)


@router.get(
    "/queues/{int:queue_id}/agreement",
    response=AgreementOut,
    auth=Key(Scope.READ),
    operation_id="get_queue_agreement",
)
def get_agreement(request: HttpRequest, queue_id: int) -> dict[str, Any]:
    """How far its reviewers agree beyond chance: Krippendorff's alpha in all and by bucket, Cohen's kappa of pairs."""
    return agreed(agreement.of_queue(_queue(request, queue_id)))


def agreed(found: agreement.Agreement) -> dict[str, Any]:
    """As the API shows it."""
    return {
        "items": found.items,
        "alpha": estimated(found.overall),
        "buckets": [
            {"bucket": bucket.key if bucket else "", "chosen": count, "alpha": estimated(alpha)}
            for bucket, count, alpha in found.buckets
        ],
        "pairs": [{"first": pair.first, "second": pair.second, "kappa": estimated(pair.kappa)} for pair in found.pairs],
    }


def _give(request: HttpRequest, queue_id: int, item_id: int, **said: Any) -> Status[QueueItem]:
    item = _item(request, queue_id, item_id)
    try:
        reviews.give(item=item, actor=keyed(request).actor, **said)
    except BadLabel as error:
        raise HttpError(422, str(error)) from None
    except (taking.Held, reviews.Closed, Superseded) as error:
        raise HttpError(409, f"{error}; yours is not saved") from None
    except taking.NotYours as error:
        raise HttpError(403, str(error)) from None
    return Status(201, _reviewed(request, queue_id, item_id))


def _wanted(given: QueueIn) -> queue_definitions.Wanted:
    return queue_definitions.Wanted(**given.dict(exclude={"with_existing", "archived"}))


def _shown(rows: QuerySet[Queue]) -> list[dict[str, Any]]:
    names = ("id", "name", "instructions", "rule", "bucket", "detector", "percent", "needed", "minutes")
    return [
        {
            **{name: getattr(each.queue, name) for name in (*names, "created_at", "archived_at")},
            "assignees": sorted(person.username for person in each.queue.assignees.all()),
            "created_by": each.queue.created_by.username,
            "progress": each,
        }
        for each in queue_progress.of(rows.select_related("created_by").prefetch_related("assignees"))
    ]


def _one(request: HttpRequest, pk: int) -> dict[str, Any]:
    return _shown(Queue.objects.filter(pk=_queue(request, pk).pk))[0]


def _reviewed(request: HttpRequest, queue_id: int, item_id: int) -> QueueItem:
    """The item with those reviews that the caller may see."""
    row = _item(request, queue_id, item_id)
    reviews = row.reviews.select_related("reviewer").order_by("pk")
    if row.queue.is_blind and row.is_open:
        reviews = reviews.filter(reviewer=keyed(request).actor.user)
    row.visible = reviews  # type: ignore[attr-defined]
    return row


def estimated(found: Estimate) -> dict[str, Any]:
    return {name: getattr(found, name) for name in ("mean", "low", "high", "n", "reason")}


def _queue(request: HttpRequest, pk: int) -> Queue:
    row = Queue.objects.filter(project=keyed(request).project, pk=pk).first()
    if row is None:
        raise HttpError(404, f"there is no queue {pk}")
    return row


def _items(request: HttpRequest, queue_id: int) -> QuerySet[QueueItem]:
    rows = QueueItem.objects.filter(queue=_queue(request, queue_id))
    return rows.select_related(
        "queue__project", "trajectory", "reserved_by", "outcome__labelled_by", "outcome__trajectory"
    )


def _item(request: HttpRequest, queue_id: int, item_id: int) -> QueueItem:
    row = _items(request, queue_id).filter(pk=item_id).first()
    if row is None:
        raise HttpError(404, f"there is no item {item_id} in this queue")
    return row
