"""The effect of a decision on the items of queues, wherever it was made or undone.

Where one reviewer is enough, the decision that counts is the one that was waited for, if it was made since the item was
queued (or asked for again). Where several are wanted, only their reviews close an item (`queues/reviews.py`); when what
they agreed on is undone, it needs another.
"""

from django.db.models import Q
from django.utils import timezone

from flywheel.failures.models import OPEN, Failure, QueueItem, Review

_FIELDS = ("state", "outcome", "closed_at", "reserved_by", "reserved_until")


def made(failure: Failure) -> None:
    """A decision made outside of the queues is the one that open items of queues with one reviewer wait for."""
    waiting = QueueItem.objects.filter(trajectory=failure.trajectory, state__in=OPEN)
    mine = Q(queue__assignees=None) | Q(queue__assignees=failure.labelled_by)
    waiting.filter(mine, queue__needed=1, queue__archived_at=None).update(
        state=QueueItem.State.DONE, outcome=failure, closed_at=timezone.now(), reserved_by=None, reserved_until=None
    )


def undone(failure: Failure, current: Failure | None) -> None:
    """Let the items that it was the outcome of go on from what counts now."""
    for item in QueueItem.objects.select_for_update(of=("self",)).filter(outcome=failure).select_related("queue"):
        if item.queue.needed == 1:
            for review in item.reviews.filter(reviewer=failure.labelled_by_id, current=True):
                if made_it(review, failure):
                    take_back(review)
        item.outcome = None
        conclude(item, current)


def conclude(item: QueueItem, current: Failure | None) -> None:
    """Save the state of an item to which nobody has said anything new, given the decision that counts."""
    last = item.reviews.filter(current=True).order_by("pk").last()
    if last is not None and last.declined:
        item.state = QueueItem.State.DECLINED
    elif current is not None and _was_waited_for(item, current):
        item.state, item.outcome = QueueItem.State.DONE, current
    else:
        item.state = QueueItem.State.NEEDS_ANOTHER if last is not None else QueueItem.State.TO_REVIEW
    item.closed_at = None if item.is_open else item.closed_at or timezone.now()
    item.save(update_fields=_FIELDS)


def made_it(review: Review, failure: Failure) -> bool:
    """The failure came of the review alone."""
    return not review.declined and review.reviewer_id == failure.labelled_by_id and says(review, failure)


def take_back(review: Review) -> None:
    """Take a review back: what its maker said before counts again, or nothing."""
    Review.objects.filter(pk=review.pk).update(current=False, taken_back_at=timezone.now())
    own = Review.objects.filter(item=review.item_id, reviewer=review.reviewer_id, taken_back_at=None)
    before = own.filter(pk__lt=review.pk).order_by("-pk").first()
    if before is not None:
        Review.objects.filter(pk=before.pk).update(current=True)


def says(review: Review, failure: Failure) -> bool:
    """The failure is what the review says."""
    names = ("bucket", "step", "corrected", "note")
    return all(getattr(review, name) == getattr(failure, name) for name in names)


def _was_waited_for(item: QueueItem, failure: Failure) -> bool:
    queue = item.queue
    if queue.needed != 1 or failure.labelled_at < item.queued_at:
        return False
    named = {person.pk for person in queue.assignees.all()}
    return not named or failure.labelled_by_id in named
