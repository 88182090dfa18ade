"""Requests and responses of the API of queues."""

from datetime import datetime
from typing import Any

from ninja import Field, Schema

from flywheel.edge.answers import EstimateOut, ListQuery, Ref
from flywheel.edge.schemas import Body
from flywheel.failures.api.labels import FailureOut
from flywheel.failures.models import QueueItem


class QueueIn(Body):
    name: str
    instructions: str = ""
    rule: str = "hand"
    """`hand`, `detected`, `sample` or `disagreed`."""
    bucket: str = ""
    detector: str = ""
    """Of `detected`: only what is proposed so."""
    percent: float | None = None
    """Of `sample`: how much of the traffic."""
    needed: int = 1
    """Reviewers per item; two or more are blind to each other, and more than half of them have to agree."""
    assignees: list[str] = []
    """Usernames; empty for everyone who may label."""
    minutes: int = 15
    """How long an item stays reserved, from the last sign of life."""
    with_existing: bool = False
    """Apply the rule to what is there already too."""
    archived: bool = False


class ProgressOut(Schema):
    to_review: int
    needs_another: int
    in_review: int
    """Of the two above: how many somebody has now."""
    done: int
    declined: int


class QueueOut(Schema):
    id: int
    name: str
    instructions: str
    rule: str
    bucket: str
    detector: str
    percent: float | None
    needed: int
    assignees: list[str]
    minutes: int
    created_by: Ref
    created_at: datetime
    archived_at: datetime | None
    progress: ProgressOut


class ReviewOut(Schema):
    id: int
    reviewer: Ref
    declined: bool
    bucket: str
    """Empty when nothing is wrong, or when declined."""
    step: str
    corrected: dict[str, Any] | None
    note: str
    settles: bool
    at: datetime
    current: bool
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
    """Null while it is open and its reviewers are blind to each other."""

    @staticmethod
    def resolve_reserved_by(row: QueueItem) -> str | None:
        return row.reserved_by.username if row.is_reserved and row.reserved_by else None

    @staticmethod
    def resolve_reserved_until(row: QueueItem) -> datetime | None:
        return row.reserved_until if row.is_reserved else None


class ReviewedOut(QueueItemOut):
    reviews: list[ReviewOut] = Field(alias="visible")
    """Your own; everybody's where they are not blind or the item is closed."""


class QueueItemQuery(ListQuery):
    state: str = ""


class AddIn(Body):
    trace_ids: list[str] = Field(max_length=5_000)


class AddedOut(Schema):
    added: int
    unknown: list[str]
    """Trace ids that name no trajectory of this project."""


class TakeIn(Body):
    after: int | None = None
    """The id of the item that you leave undecided: it is free again, and you get the next one behind it."""


class ReviewIn(Body):
    bucket: str = ""
    """Empty: nothing is wrong."""
    step: str = ""
    corrected: dict[str, Any] | None = None
    """In the forms of `POST /trajectories/{trace_id}/failures`."""
    note: str = ""
    seen: int | None = None
    """Where one reviewer decides: the id of the decision that you saw, 0 for none; 409 when another stands by now."""
    settles: bool = False
    """Decide alone where reviewers disagree; wants a maker who may build."""


class DeclineIn(Body):
    reason: str


class PairOut(Schema):
    first: str
    second: str
    kappa: EstimateOut


class BucketAgreementOut(Schema):
    bucket: str
    """Empty for nothing wrong."""
    chosen: int
    alpha: EstimateOut


class ReviewAgreementOut(Schema):
    items: int
    alpha: EstimateOut
    buckets: list[BucketAgreementOut]
    pairs: list[PairOut]
