"""The progress of a queue, and each person's share of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Count, F, Max, Q, QuerySet, Sum
from django.utils import timezone

from flywheel.accounts.models import User
from flywheel.failures.models import OPEN, Queue, QueueItem, QueueTally, Review
from flywheel.failures.queues.open_queue import RECENT
from flywheel.system.sql import bound

NOTHING_WRONG = "nothing wrong"
FOLDED_FROM = 50
"""Tallies of a queue: more are made one of each state."""


@dataclass(slots=True)
class Progress:
    queue: Queue
    to_review: int = 0
    needs_another: int = 0
    done: int = 0
    declined: int = 0
    in_review: int = 0
    """Of those to review and that need another: how many somebody has now."""

    @property
    def total(self) -> int:
        return self.open + self.closed

    @property
    def open(self) -> int:
        return self.to_review + self.needs_another

    @property
    def closed(self) -> int:
        return self.done + self.declined


def of(queues: Iterable[Queue]) -> list[Progress]:
    """Return each one's progress; two statements for all of them, which cost the same however many items there are."""
    found = {queue.pk: Progress(queue) for queue in queues}
    tallied = QueueTally.objects.filter(queue__in=list(found)).order_by()
    for key, state, n in tallied.values_list("queue", "state").annotate(sum=Sum("n")):
        setattr(found[key], state, n)
    rows = QueueItem.objects.filter(queue__in=list(found)).order_by()
    taken = rows.filter(state__in=OPEN, reserved_until__gt=timezone.now())
    for key, n in taken.values_list("queue").annotate(n=Count("pk")):
        found[key].in_review = n
    return list(found.values())


def fold() -> None:
    """Make one row of many tallies of a queue's state. Those that are appended meanwhile stay beside it."""
    many = QueueTally.objects.order_by().values("queue").annotate(rows=Count("pk")).filter(rows__gt=FOLDED_FROM)
    for key in many.values_list("queue", flat=True):
        bound(_FOLD, [key])


_FOLD = """
WITH gone AS (DELETE FROM failures_queuetally WHERE queue_id = %s RETURNING queue_id, state, n)
INSERT INTO failures_queuetally (queue_id, state, n)
SELECT queue_id, state, sum(n) FROM gone JOIN failures_queue AS queue ON queue.id = queue_id
GROUP BY queue_id, state HAVING sum(n) <> 0
"""
"""What is left of a queue that is gone is not written again."""


def people(queue: Queue) -> list[Any]:
    """Who said something of its items, the most first: `{"name", "decided", "refused", "hour", "last"}` of each."""
    rows = Review.objects.filter(item__queue=queue, current=True).order_by().values(name=F("reviewer__username"))
    counted = rows.annotate(
        decided=Count("pk", filter=Q(declined=False)),
        refused=Count("pk", filter=Q(declined=True)),
        hour=Count("pk", filter=Q(at__gte=timezone.now() - timedelta(hours=1))),
        last=Max("at"),
    )
    return sorted(counted, key=lambda person: (-person["decided"], person["name"]))


def own_reviews(queue: Queue, user: User) -> QuerySet[Review]:
    """The person's own reviews of this sitting that still count, the latest first: what undo takes back."""
    since = timezone.now() - RECENT
    rows = Review.objects.filter(item__queue=queue, reviewer=user, current=True, at__gte=since)
    return rows.select_related("item__trajectory").order_by("-at", "-pk")
