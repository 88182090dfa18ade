"""Handing out the items of a queue: each to one person at a time, for as long as their page gives a sign of life.

Who takes gets the first item that is free and that they have not decided on. They reserve it by its own columns: of
two who found the same one, the second then sees that it is taken and looks again, so that no two get the same one.
"""

from datetime import timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.edge.refusals import Stale
from flywheel.failures.models import OPEN, Queue, QueueItem


class NotYours(PermissionDenied):
    """The queue names its reviewers, and this is none of them."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(f"you are not a reviewer of the queue {queue}")


class Held(Stale):
    """Somebody else has the item."""

    def __init__(self, item: QueueItem) -> None:
        self.item = item
        assert item.reserved_until is not None
        left = max(1, round((item.reserved_until - timezone.now()).total_seconds() / 60))
        super().__init__(f"{item.reserved_by} has this item, for {left} more minute{'s' if left > 1 else ''} at least")


def may_review(queue: Queue, user: User) -> bool:
    """Say whether the user may review in this queue, given that they may label at all."""
    names = {person.pk for person in queue.assignees.all()}
    return not names or user.pk in names


def free_for(queue: Queue, user: User, limit: int) -> list[QueueItem]:
    """The first open items that the person could be given, in the order of the queue."""
    keys = _item_ids(_FREE.format(more=""), queue, user, limit=limit)
    rows = QueueItem.objects.select_related("trajectory").in_bulk(keys)
    return [rows[key] for key in keys if key in rows]


def in_hand(queue: Queue, user: User) -> QueueItem | None:
    """The item that is reserved for the person now, the latest where there are several tabs."""
    rows = QueueItem.objects.filter(queue=queue, state__in=OPEN, reserved_by=user, reserved_until__gt=timezone.now())
    return rows.exclude(said_by__contains=[user.pk]).order_by("-reserved_until").first()


def take(*, queue: Queue, actor: Actor, after: QueueItem | None = None) -> QueueItem | None:
    """Reserve the next item for the person: the one they have already, else the first that is free.

    `after` is the item that they leave undecided: it is free again, and the next one behind it is wanted, from the end
    on from the beginning. None when nothing is left for them. Raises NotYours.
    """
    if queue.archived_at is not None:
        return None
    if not may_review(queue, actor.user):
        raise NotYours(queue)
    if after is None:
        held = in_hand(queue, actor.user)
        is_extended = held is not None and _reserve(queue, held.pk, actor)
        pk = held.pk if held and is_extended else _taken(_FREE.format(more=""), queue, actor)
    else:
        release(item=after, actor=actor)
        pk = _taken(_FREE.format(more=_AFTER), queue, actor, after) or _taken(
            _FREE.format(more=_BUT), queue, actor, after
        )
    rows = QueueItem.objects.select_related("trajectory__agent", "trajectory__version__agent", "queue")
    return rows.get(pk=pk) if pk else None


_FREE = """
WITH RECURSIVE said AS (
    (
        SELECT said_by FROM failures_queueitem
        WHERE queue_id = %(queue)s AND state IN ('to_review', 'needs_another') ORDER BY said_by LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT item.said_by FROM failures_queueitem AS item
        WHERE item.queue_id = %(queue)s AND item.state IN ('to_review', 'needs_another') AND item.said_by > said.said_by
        ORDER BY item.said_by LIMIT 1
    ) FROM said WHERE said.said_by IS NOT NULL
)
SELECT free.id FROM said CROSS JOIN LATERAL (
    SELECT item.id, item.queued_at FROM failures_queueitem AS item
    WHERE item.queue_id = %(queue)s AND item.state IN ('to_review', 'needs_another') AND item.said_by = said.said_by
        AND (item.reserved_until IS NULL OR item.reserved_until <= %(now)s OR item.reserved_by_id = %(me)s)
        {more}
    ORDER BY item.queued_at, item.id LIMIT %(limit)s
) AS free
WHERE NOT %(me)s = ANY(said.said_by)
ORDER BY free.queued_at, free.id LIMIT %(limit)s
"""
"""Items are in the index by who has spoken of them, and of those who have there are few different groups. So each group
that the person is not in is asked for its first, and what they have decided on is never read, however much it is."""
_AFTER = "AND (item.queued_at, item.id) > (%(queued_at)s, %(item)s)"
_BUT = "AND item.id <> %(item)s"


def hold(*, item: QueueItem, actor: Actor) -> None:
    """Reserve this very item, or reserve it for longer. Raises Held when somebody else has it, and NotYours.

    Nothing happens to an item that is closed or that the person has decided on.
    """
    if not may_review(item.queue, actor.user):
        raise NotYours(item.queue)
    if item.queue.archived_at is not None or not _reserve(item.queue, item.pk, actor):
        found = QueueItem.objects.select_related("reserved_by").get(pk=item.pk)
        if found.is_reserved and found.reserved_by_id != actor.user.pk:
            raise Held(found)


def release(*, item: QueueItem, actor: Actor) -> None:
    """Let go of the item: the next may have it."""
    QueueItem.objects.filter(pk=item.pk, reserved_by=actor.user).update(reserved_by=None, reserved_until=None)


@transaction.atomic
def requeue(*, item: QueueItem, actor: Actor) -> None:
    """Put an open item at the end of its queue. Raises Held and NotYours."""
    row = (
        QueueItem.objects.select_for_update(of=("self",))
        .select_related("queue__project", "reserved_by")
        .get(pk=item.pk)
    )
    if not may_review(row.queue, actor.user):
        raise NotYours(row.queue)
    if row.is_reserved and row.reserved_by_id != actor.user.pk:
        raise Held(row)
    if not row.is_open:
        return
    row.queued_at, row.reserved_by, row.reserved_until = timezone.now(), None, None
    row.save(update_fields=["queued_at", "reserved_by", "reserved_until"])
    actor.record(project=row.queue.project, action="failures.requeue", subject=row)


def _taken(statement: str, queue: Queue, actor: Actor, other: QueueItem | None = None) -> int | None:
    """Reserve the first that the statement finds; its key, or None where it finds nothing."""
    while keys := _item_ids(statement, queue, actor.user, other):
        if _reserve(queue, keys[0], actor):
            return keys[0]
    return None


def _item_ids(statement: str, queue: Queue, user: User, other: QueueItem | None = None, limit: int = 1) -> list[int]:
    values: dict[str, Any] = {"me": user.pk, "queue": queue.pk, "now": timezone.now(), "limit": limit}
    if other is not None:
        values |= {"item": other.pk, "queued_at": other.queued_at}
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return [key for (key,) in cursor.fetchall()]


def _reserve(queue: Queue, pk: int, actor: Actor) -> bool:
    """Reserve an open item that nobody else has and that the person has said nothing of; False where it is none.

    The conditions are on the row's own columns: of two who ask at once, the second then sees what the first has done.
    """
    now = timezone.now()
    is_free = Q(reserved_until=None) | Q(reserved_until__lte=now) | Q(reserved_by=actor.user)
    rows = QueueItem.objects.filter(is_free, pk=pk, state__in=OPEN).exclude(said_by__contains=[actor.user.pk])
    until = now + timedelta(minutes=queue.minutes)
    return bool(rows.update(reserved_by=actor.user, reserved_until=until))
