"""Review queues, their items, how many are in which state, and what reviewers say of each.

In a queue each reviewer says what they see in a `Review`, which no other page shows; when enough of them agree, it
becomes a `Failure`.
"""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.utils import timezone

from flywheel.accounts.models import Project, User
from flywheel.failures.models.failures import Failure
from flywheel.trajectories.models import Trajectory


class Rule(models.TextChoices):
    """The rule that puts trajectories into a queue. People may add some by hand to any of them."""

    HAND = "hand", "by hand"
    DETECTED = "detected", "new failures that detectors propose"
    SAMPLE = "sample", "a sample of the traffic"
    DISAGREED = "disagreed", "where reviewers disagree"


class Queue(models.Model):
    """Trajectories that are handed out for review, one at a time to one person. `queue_definitions.py` makes and edits
    it."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="queues")
    name = models.CharField(max_length=100)
    instructions = models.TextField(blank=True)
    """What reviewers are asked, in the words of whoever made the queue."""
    rule = models.CharField(max_length=16, choices=Rule, default=Rule.HAND)
    bucket = models.CharField(max_length=64, blank=True)
    detector = models.CharField(max_length=64, blank=True)
    """Of `detected`: only what is proposed so; empty takes every proposal."""
    percent = models.FloatField(null=True, blank=True)
    """Of `sample`: how much of the traffic."""
    needed = models.PositiveSmallIntegerField(default=1)
    """How many reviewers decide on each item, blind to each other."""
    assignees = models.ManyToManyField(User, related_name="+", blank=True)
    """Who reviews; nobody named means everyone who may."""
    minutes = models.PositiveSmallIntegerField(default=15)
    """How long an item stays reserved for the person who has it, from the last sign of life of their page."""
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    caught_up_at = models.DateTimeField(null=True, blank=True)
    """When the rule was applied to what was there already; empty until then."""
    archived_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="queue_once"),
            models.CheckConstraint(condition=Q(rule__in=Rule.values), name="queue_rule_is_known"),
            models.CheckConstraint(condition=Q(needed__gte=1), name="queue_needs_a_reviewer"),
            models.CheckConstraint(condition=Q(minutes__gte=1), name="queue_reserves_for_a_while"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_blind(self) -> bool:
        """Reviewers do not see what others decided before enough of them have."""
        return self.needed > 1


class QueueItem(models.Model):
    """One trajectory in one queue. Reserved for one person at a time, also where several have to decide."""

    class State(models.TextChoices):
        TO_REVIEW = "to_review", "to review"
        NEEDS_ANOTHER = "needs_another", "needs another"
        DONE = "done", "done"
        DECLINED = "declined", "declined"

    queue = models.ForeignKey(Queue, on_delete=models.CASCADE, related_name="items", db_index=False)
    trajectory = models.ForeignKey(Trajectory, on_delete=models.CASCADE, related_name="queue_items")
    state = models.CharField(max_length=16, choices=State, default=State.TO_REVIEW)
    queued_at = models.DateTimeField(default=timezone.now)
    """Its place in the queue; set anew when it is put at the end."""
    added_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    """Nobody where the rule added it."""
    added_at = models.DateTimeField(default=timezone.now)
    said_by = ArrayField(models.BigIntegerField(), default=list, editable=False)
    """Keys of the people whose reviews of it count, in order: whom it is not handed out to. A trigger on the reviews
    writes it (migration 0101), so that `reservations.py` finds what is free for somebody without reading what is not.
    Save an item with `update_fields`: a whole one that was read before the review would write what it was then."""
    reserved_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    reserved_until = models.DateTimeField(null=True, blank=True)
    outcome = models.ForeignKey(Failure, on_delete=models.SET_NULL, related_name="items", null=True, blank=True)
    """What its reviewers agreed on, or what somebody decided outside of the queue."""
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["queue", "trajectory"], name="queue_item_once")]
        indexes = [
            models.Index(
                fields=["queue", "said_by", "queued_at", "id"],
                name="queue_item_free",
                condition=Q(state__in=["to_review", "needs_another"]),
            ),
            models.Index(fields=["queue", "-id"], name="queue_item_newest"),
            models.Index(fields=["queue", "state", "-id"], name="queue_item_by_state"),
            models.Index(
                fields=["queue", "reserved_by"], name="queue_item_reserved", condition=~Q(reserved_until=None)
            ),
        ]

    def __str__(self) -> str:
        return f"item {self.pk} of queue {self.queue_id}"

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    @property
    def is_reserved(self) -> bool:
        """Somebody has it now."""
        return self.is_open and self.reserved_until is not None and self.reserved_until > timezone.now()

    @property
    def seen_outcome(self) -> Failure | None:
        """The outcome; None while blind reviewers, whom it would tell what others said, are still to speak."""
        return None if self.queue.is_blind and self.is_open else self.outcome

    @property
    def state_now(self) -> str:
        """The state in a word, with `in review` for an open item that somebody has."""
        return "in_review" if self.is_reserved else str(self.state)


class QueueTally(models.Model):
    """The number of a queue's items that came into a state, or left it: the sum is the number in it.

    Triggers on the items append to it (migration 0101), so that nobody waits for a counter and nobody counts items;
    `queue_progress.py` reads the sums and folds them.
    """

    queue = models.ForeignKey(Queue, on_delete=models.CASCADE, related_name="tallies", db_constraint=False)
    """Without a constraint: items that go with their queue are still tallied."""
    state = models.CharField(max_length=16)
    n = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.n:+} {self.state} of queue {self.queue_id}"


OPEN = (QueueItem.State.TO_REVIEW, QueueItem.State.NEEDS_ANOTHER)


class Review(models.Model):
    """One person's verdict on one item. `reviews.py` writes it and works out what it means for the item."""

    item = models.ForeignKey(QueueItem, on_delete=models.CASCADE, related_name="reviews")
    reviewer = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", db_index=False)
    declined = models.BooleanField(default=False)
    """The item should not be in the queue; the note says why."""
    bucket = models.CharField(max_length=64, blank=True)
    """Empty when nothing is wrong, or when declined."""
    step = models.CharField(max_length=64, blank=True)
    corrected = models.JSONField(null=True, blank=True)
    note = models.TextField(blank=True)
    at = models.DateTimeField(default=timezone.now)
    is_blind = models.BooleanField(default=True)
    """Given while its maker could not see what others said; only such reviews measure agreement."""
    settles = models.BooleanField(default=False)
    """Decides alone, where reviewers could not agree."""
    current = models.BooleanField(default=True)
    """Not superseded by a later one of the same person."""
    taken_back_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["item", "reviewer"], condition=Q(current=True), name="review_one_current"),
            models.CheckConstraint(condition=Q(declined=False) | Q(bucket=""), name="review_declined_has_no_bucket"),
        ]
        indexes = [models.Index(fields=["reviewer", "-at", "-id"], name="review_by_person")]

    def __str__(self) -> str:
        return f"review {self.pk} of item {self.item_id}"
