"""Requests and responses of the API of queues."""

from datetime import datetime
from typing import Any

from ninja import Field

from flywheel.edge.answers import EstimateOut, ListQuery, Ref
from flywheel.edge.schemas import Body, Schema
from flywheel.failures.api.labels import FailureOut
from flywheel.failures.models import QueueItem


class QueueIn(Body):
    name: str
    instructions: str = ""
    """Shown to reviewers."""
    rule: str = "hand"
    """What is added to the queue: `hand` for nothing automatic, `detected` for detectors' proposals, `sample` for a
    random sample of the traffic, or `disagreed` for items on which reviewers disagree."""
    bucket: str = ""
    """With `detected`, only proposals of this category."""
    detector: str = ""
    """With `detected`, only proposals of this detector."""
    percent: float | None = None
    """With `sample`, the percentage of the traffic."""
    needed: int = 1
    """Reviewers per item. Two or more do not see each other's reviews, and more than half must agree."""
    assignees: list[str] = []
    """Usernames; empty for everyone who may label."""
    minutes: int = 15
    """How long an item stays reserved after its reviewer's last activity."""
    with_existing: bool = False
    """Also apply the rule to existing trajectories."""
    archived: bool = False
    """Whether the queue is closed. Its items are kept."""


class ProgressOut(Schema):
    to_review: int
    needs_another: int
    in_review: int
    """Reserved items among the two counts above."""
    done: int
    declined: int


class QueueOut(Schema):
    id: int
    name: str
    instructions: str
    rule: str
    """`hand`, `detected`, `sample` or `disagreed`."""
    bucket: str
    detector: str
    percent: float | None
    """With `sample`, the percentage of the traffic."""
    needed: int
    """Reviewers per item."""
    assignees: list[str]
    """Usernames; empty for everyone who may label."""
    minutes: int
    """How long an item stays reserved after its reviewer's last activity."""
    created_by: Ref
    created_at: datetime
    archived_at: datetime | None
    progress: ProgressOut


class ReviewOut(Schema):
    id: int
    reviewer: Ref
    declined: bool
    bucket: str
    """Empty if nothing is wrong, or if declined."""
    step: str
    corrected: dict[str, Any] | None
    note: str
    settles: bool
    """Whether it decides alone where reviewers disagree."""
    at: datetime
    current: bool
    """Whether this review counts now."""
    taken_back_at: datetime | None


class QueueItemOut(Schema):
    id: int
    trace_id: str = Field(alias="trajectory.trace_id")
    state: str = Field(alias="state_now")
    """`to_review`, `in_review`, `needs_another`, `done` or `declined`."""
    added_at: datetime
    reserved_by: str | None
    reserved_until: datetime | None
    outcome: FailureOut | None = Field(alias="seen_outcome")
    """The decision; null while the item is open and its reviewers do not see each other's reviews."""

    @staticmethod
    def resolve_reserved_by(row: QueueItem) -> str | None:
        return row.reserved_by.username if row.is_reserved and row.reserved_by else None

    @staticmethod
    def resolve_reserved_until(row: QueueItem) -> datetime | None:
        return row.reserved_until if row.is_reserved else None


class ReviewedOut(QueueItemOut):
    reviews: list[ReviewOut] = Field(alias="visible")
    """Your own reviews; everyone's if the queue has one reviewer per item or the item is closed."""


class QueueItemQuery(ListQuery):
    state: str = ""
    """`to_review`, `needs_another`, `done` or `declined`; empty for all."""


class AddIn(Body):
    trace_ids: list[str] = Field(max_length=5_000)
    """At most 5,000."""


class AddedOut(Schema):
    added: int
    unknown: list[str]
    """Trace ids that match no trajectory of this project."""


class TakeIn(Body):
    after: int | None = None
    """Id of the item that you leave undecided. It is released, and you get the next one after it."""


class ReviewIn(Body):
    bucket: str = ""
    """Key of the category; empty if nothing is wrong."""
    step: str = ""
    """Span id of the failing step; empty for the whole trajectory."""
    corrected: dict[str, Any] | None = None
    """What should have happened, as in `POST /trajectories/{trace_id}/failures`."""
    note: str = ""
    seen: int | None = None
    """In a queue with one reviewer per item, the id of the decision that you saw, 0 for none: 409 if another is
    current. Omit it to skip this check."""
    settles: bool = False
    """Decide alone where reviewers disagree. The key's creator must be allowed to build."""


class DeclineIn(Body):
    reason: str


class PairOut(Schema):
    first: str
    second: str
    kappa: EstimateOut
    """Cohen's kappa of the two reviewers."""


class BucketAgreementOut(Schema):
    bucket: str
    """Empty for nothing wrong."""
    chosen: int
    """How often reviewers chose it."""
    alpha: EstimateOut
    """Krippendorff's alpha of this category against all others."""


class ReviewAgreementOut(Schema):
    items: int
    """Items with as many reviews as their queue needs."""
    alpha: EstimateOut
    """Krippendorff's alpha over all categories."""
    buckets: list[BucketAgreementOut]
    pairs: list[PairOut]
