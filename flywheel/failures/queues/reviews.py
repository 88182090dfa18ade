"""Reviews of a queue's items, and their effect on the item.

A queue that needs one reviewer takes the latest word, as the open queue does. One that needs several waits for them,
blind to each other: when more than half of them say the same, that is the outcome and becomes the trajectory's
`Failure`; until then the item needs another. Whoever is asked to may settle it alone. A review is never overwritten.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.utils import timezone

from flywheel.accounts.access import Forbidden
from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Permission
from flywheel.core.traces import corrections
from flywheel.edge.refusals import Refused, Stale
from flywheel.failures.labels import queue_outcomes
from flywheel.failures.labels.decisions import LATEST, check, current_of, decide, decision_for, undo
from flywheel.failures.models import Decision, Failure, QueueItem, Review
from flywheel.failures.queues import intake
from flywheel.failures.queues.reservations import Held, NotYours, may_review
from flywheel.trajectories.models import Trajectory


class Closed(Stale):
    """The item takes no more reviews; the message says why, and what would open it."""


@transaction.atomic
def give(
    *,
    item: QueueItem,
    actor: Actor,
    bucket: str = "",
    step: str = "",
    corrected: dict[str, Any] | None = None,
    note: str = "",
    settles: bool = False,
    seen: int = LATEST,
) -> Review:
    """Record what the person says of the item; no bucket says that nothing is wrong. The same twice is one.

    Raises Refused for what does not fit, Held when somebody else has the item now, NotYours and Closed; Forbidden when
    who may not build settles; and Superseded where one reviewer is enough and another decision than `seen` (0 for none)
    stands by now.
    """
    row = _locked(item)
    if settles and Permission.BUILD not in actor.user.permissions(row.queue.project):
        raise Forbidden(Permission.BUILD)
    content = {"bucket": bucket, "step": step, "corrected": corrected, "note": note.strip()}
    return _record(row, actor, content | {"declined": False}, settles, seen)


@transaction.atomic
def decline(*, item: QueueItem, actor: Actor, reason: str) -> Review:
    """Record that the item should not be in the queue. The same twice is one.

    Raises Refused without a reason, Held when somebody else has the item now, NotYours and Closed.
    """
    content = {"bucket": "", "step": "", "corrected": None, "note": reason.strip()}
    return _record(_locked(item), actor, content | {"declined": True})


def _record(row: QueueItem, actor: Actor, wanted: dict[str, Any], settles: bool = False, seen: int = LATEST) -> Review:
    """Store what the person says of a locked item, unless they said just that, and conclude the item from it."""
    mine = row.reviews.filter(reviewer=actor.user, current=True).first()
    if mine and wanted == {name: getattr(mine, name) for name in wanted} and (mine.settles or not settles):
        return mine
    _admit(row, actor, mine, settles)
    _check(row, wanted)
    if settles and not is_disputed(row):
        raise Closed("nothing to settle: its reviewers agree")
    row.reviews.filter(reviewer=actor.user, current=True).update(current=False)
    is_blind = row.queue.is_blind and row.is_open and not settles
    review = Review.objects.create(item=row, reviewer=actor.user, is_blind=is_blind, settles=settles, **wanted)
    _conclude(row, actor, seen)
    if is_disputed(row):
        intake.disagreed(row.trajectory)
    declined = wanted["declined"]
    action = "failures.decline" if declined else "failures.settle" if settles else "failures.review"
    actor.record(project=row.queue.project, action=action, subject=row, reason=wanted["note"] if declined else "")
    return review


@transaction.atomic
def take_back(*, item: QueueItem, actor: Actor) -> Review | None:
    """Undo the person's review: what they said before counts again, or nothing. Returns the review taken back.

    What it had decided is undone too. Raises Superseded when somebody has decided otherwise since, and Closed.
    """
    row = _locked(item)
    mine = row.reviews.filter(reviewer=actor.user, current=True).first()
    if mine is None:
        return None
    queue_outcomes.take_back(mine)
    if row.outcome is not None and _was_of(mine, row, row.outcome):
        if row.outcome.taken_back_at is None:
            undo(trajectory=row.trajectory, actor=actor, seen=row.outcome.pk)
        row.outcome = None
    if row.queue.needed == 1:
        queue_outcomes.conclude(row, current_of(row.trajectory))
    else:
        _conclude(row, actor, LATEST)
    actor.record(project=row.queue.project, action="failures.undo_review", subject=row)
    return mine


@transaction.atomic
def reopen(*, item: QueueItem, actor: Actor) -> None:
    """Ask for another reviewer of a closed item. What was said and decided stands until they have spoken."""
    row = _locked(item)
    if row.is_open:
        return
    row.state = (
        QueueItem.State.NEEDS_ANOTHER if row.reviews.filter(current=True).exists() else QueueItem.State.TO_REVIEW
    )
    row.closed_at, row.queued_at = None, timezone.now()
    row.save(update_fields=["state", "closed_at", "queued_at"])
    actor.record(project=row.queue.project, action="failures.reopen", subject=row)


def speaking(reviews: Sequence[Review], needed: int) -> Review | None:
    """The review that decides, given those that count, the oldest first; None while the item needs another."""
    if not reviews or reviews[-1].declined:
        return reviews[-1] if reviews else None
    given = [review for review in reviews if not review.declined]
    settling = [review for review in given if review.settles]
    if settling or needed == 1:
        return (settling or given)[-1]
    if len(given) < needed:
        return None
    [(bucket, count)] = Counter(review.bucket for review in given).most_common(1)
    if count * 2 <= len(given):
        return None
    agreed = [review for review in given if review.bucket == bucket]

    def weight(review: Review) -> tuple[bool, int, int]:
        # Of those who say the same, one who also wrote what should have happened, as most did: a task needs it.
        alike = sum(corrections.same(review.corrected, other.corrected) for other in agreed)
        return review.corrected is not None, alike, review.pk

    return max(agreed, key=weight)


def is_disputed(item: QueueItem) -> bool:
    """As many as it needs have spoken, and they do not agree, or what they agreed on was undone."""
    if item.state != QueueItem.State.NEEDS_ANOTHER:
        return False
    reviews, needed = _current(item), item.queue.needed
    return len(reviews) >= needed and (speaking(reviews, needed) is None or (needed > 1 and item.outcome is None))


def _locked(item: QueueItem) -> QueueItem:
    """The item, and its trajectory before it: in the order in which a decision locks them."""
    trajectory = (
        Trajectory.objects.select_for_update(no_key=True, of=("self",))
        .select_related("version")
        .get(pk=item.trajectory_id)
    )
    rows = QueueItem.objects.select_for_update(of=("self",)).select_related("queue__project", "reserved_by", "outcome")
    row = rows.get(pk=item.pk)
    row.trajectory = trajectory
    return row


def _admit(item: QueueItem, actor: Actor, mine: Review | None, settles: bool) -> None:
    """A first review wants the item to be free or one's own, and open where reviewers are blind. Who settles is none
    of its reviewers, and waits for none."""
    if item.queue.archived_at is not None:
        raise Closed("this queue is archived; its items stay unchanged")
    if settles:
        return
    if not may_review(item.queue, actor.user):
        raise NotYours(item.queue)
    if mine is not None:
        return
    if item.is_reserved and item.reserved_by_id != actor.user.pk:
        raise Held(item)
    if item.queue.is_blind and not item.is_open:
        why = "somebody declined it" if item.state == QueueItem.State.DECLINED else "enough reviewers have decided"
        raise Closed(f"{why} in the meantime; reopen the item for another reviewer")


def _check(item: QueueItem, wanted: dict[str, Any]) -> None:
    if wanted["declined"] and not wanted["note"]:
        raise Refused("give the reason why this does not belong in the queue", field="note")
    decision = Decision.REJECTED if wanted["declined"] else decision_for(item.trajectory, wanted["bucket"])
    check(item.trajectory, decision, wanted["bucket"], wanted["step"], wanted["corrected"], wanted["note"])


def _conclude(item: QueueItem, actor: Actor, seen: int) -> None:
    """Work out the item's state from the reviews that count, and decide when they do. It is the actor's no more."""
    speaks = speaking(_current(item), item.queue.needed)
    item.closed_at = None
    if item.reserved_by_id == actor.user.pk or speaks is not None:
        item.reserved_by = item.reserved_until = None
    if speaks is None:
        any_given = item.reviews.filter(current=True).exists()
        item.state = QueueItem.State.NEEDS_ANOTHER if any_given else QueueItem.State.TO_REVIEW
    elif speaks.declined:
        item.state, item.closed_at = QueueItem.State.DECLINED, timezone.now()
    else:
        if item.outcome is None or not queue_outcomes.says(speaks, item.outcome) or not item.outcome.current:
            item.outcome = decide(
                trajectory=item.trajectory,
                actor=Actor(speaks.reviewer, f"queue {item.queue}"),
                bucket=speaks.bucket,
                step=speaks.step,
                corrected=speaks.corrected,
                note=speaks.note,
                seen=LATEST if item.queue.is_blind else seen,
            )
        item.state, item.closed_at = QueueItem.State.DONE, timezone.now()
    item.save(update_fields=["state", "closed_at", "reserved_by", "reserved_until", "outcome"])


def _was_of(review: Review, item: QueueItem, outcome: Failure) -> bool:
    """Whether the item's outcome falls with this review, which counts no more."""
    if item.queue.needed == 1:
        return queue_outcomes.made_it(review, outcome)
    speaks = speaking(_current(item), item.queue.needed)
    return speaks is None or not queue_outcomes.says(speaks, outcome)


def _current(item: QueueItem) -> list[Review]:
    return list(item.reviews.filter(current=True).select_related("reviewer").order_by("pk"))
