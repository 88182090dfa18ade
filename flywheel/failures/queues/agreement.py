"""Agreement of reviewers, in one queue and in a project over a period; and the share of lone decisions later corrected.

From what reviewers said blind, and of each item only from as many as it needed: who came when the others had disagreed
saw a hard item, and would make all of them look worse.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import Exists, OuterRef, QuerySet

from flywheel.accounts.models import Project
from flywheel.core.detectors.standard_buckets import Bucket
from flywheel.core.evidence.statistics.estimates import Estimate, proportion
from flywheel.core.evidence.statistics.reviewer_agreement import Pair, by_value, krippendorff_alpha, pairs
from flywheel.failures.buckets.bucket_definitions import every
from flywheel.failures.models import Failure, Queue, QueueItem, Review
from flywheel.trajectories.models import Source

MEASURED = 5_000
"""Items, the newest, that agreement is worked out from."""
FOLLOWED = 20_000
"""Decisions, the newest, that corrections are looked for among."""


@dataclass(slots=True)
class Agreement:
    items: int
    """How many had as many reviewers as their queue needs."""
    overall: Estimate
    buckets: list[tuple[Bucket | None, int, Estimate]] = field(default_factory=list)
    """Each with how many items somebody put there; None is `nothing wrong`."""
    pairs: list[Pair] = field(default_factory=list)
    is_cut: bool = False
    """There are more items than were looked at."""


def of_queue(queue: Queue) -> Agreement:
    return _of(queue.project, QueueItem.objects.filter(queue=queue), Review.objects.all())


def of_project(project: Project, since: datetime) -> Agreement:
    """Return the agreement over all queues in which reviewers are blind to each other, by what was said since then."""
    said = Review.objects.filter(at__gte=since)
    items = QueueItem.objects.filter(queue__project=project, queue__needed__gt=1)
    return _of(project, items.filter(Exists(said.filter(item=OuterRef("pk")))), said)


def _of(project: Project, items: QuerySet[QueueItem], reviews: QuerySet[Review]) -> Agreement:
    newest = list(items.order_by("-pk").values_list("pk", flat=True)[: MEASURED + 1])
    rows = reviews.filter(item__in=newest[:MEASURED], is_blind=True, declined=False, taken_back_at=None)
    told = rows.order_by("pk").values_list("item", "item__queue__needed", "reviewer__username", "bucket")
    complete = first_words(told)
    known = every(project)
    chosen = [*known, ""]
    counts = {key: sum(key in by_name.values() for by_name in complete) for key in chosen}
    used = [key for key in chosen if counts[key]]
    each = by_value(complete, used)
    return Agreement(
        items=len(complete),
        overall=krippendorff_alpha([list(by_name.values()) for by_name in complete]),
        buckets=[(known.get(key), counts[key], each[key]) for key in used],
        pairs=pairs(complete),
        is_cut=len(newest) > MEASURED,
    )


def first_words(told: Iterable[tuple[int, int, str, str]]) -> list[dict[str, str]]:
    """Return each item's first reviews, by reviewer's name, where there are as many as it needs.

    `told` is item, how many reviewers it needs, reviewer and bucket, the oldest first; a later word of the same person
    takes the place of the earlier one.
    """
    said: dict[int, dict[str, str]] = {}
    wanted: dict[int, int] = {}
    for item, needed, name, bucket in told:
        by_name = said.setdefault(item, {})
        wanted[item] = max(2, needed)
        if name in by_name or len(by_name) < needed:
            by_name[name] = bucket
    return [by_name for item, by_name in said.items() if len(by_name) >= wanted[item]]


# Corrections


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision that one person made alone, and what came of it."""

    bucket: str
    by: int
    then: str | None = None
    """The bucket that a later decision chose, empty for `nothing wrong`; None where nobody decided again."""
    then_by: int | None = None

    @property
    def is_corrected(self) -> bool:
        return self.then is not None and self.then != self.bucket

    @property
    def is_corrected_by_another(self) -> bool:
        return self.is_corrected and self.then_by != self.by


@dataclass(slots=True)
class Corrections:
    all: Estimate
    by_another: Estimate
    buckets: list[tuple[str, Estimate]] = field(default_factory=list)
    """By the bucket that was chosen first, the most used first; the empty one is `nothing wrong`."""


def corrections(project: Project, since: datetime) -> Corrections:
    """Return the share of decisions by one person alone since then that were changed to another bucket later.

    What its maker took back is no decision; what several decided blind is another matter.
    """
    rows = Failure.objects.filter(project=project, labelled_at__gte=since, taken_back_at=None)
    together = QueueItem.objects.filter(outcome=OuterRef("pk"), queue__needed__gt=1)
    newest = rows.exclude(trajectory__source__in=Source.ATTEMPTS).annotate(is_joint=Exists(together)).order_by("-pk")
    found: list[Decided] = []
    later: dict[int, tuple[str, int]] = {}
    for trajectory, bucket, by, is_joint in newest.values_list("trajectory", "bucket", "labelled_by", "is_joint")[
        :FOLLOWED
    ]:
        then, then_by = later.get(trajectory, (None, None))
        if not is_joint:
            found.append(Decided(bucket, by, then, then_by))
        later[trajectory] = (bucket, by)
    return corrected(found)


def corrected(found: Sequence[Decided]) -> Corrections:
    def share(some: Sequence[Decided]) -> Estimate:
        return proportion(sum(each.is_corrected for each in some), len(some))

    by_bucket: dict[str, list[Decided]] = {}
    for each in found:
        by_bucket.setdefault(each.bucket, []).append(each)
    return Corrections(
        share(found),
        proportion(sum(each.is_corrected_by_another for each in found), len(found)),
        [(key, share(some)) for key, some in sorted(by_bucket.items(), key=lambda pair: (-len(pair[1]), pair[0]))],
    )
