"""Requests and responses about failures that are alike."""

import uuid
from datetime import datetime
from typing import Any

from ninja import Field, Schema

from flywheel.edge.answers import JobOut, ListQuery, TraceId
from flywheel.edge.schemas import Body
from flywheel.failures.models import By, Fineness, Which
from flywheel.failures.similar_failures import cluster_labels


class ClusteringIn(Body):
    which: str = Which.BOTH
    """`both`, `confirmed` by people, or `proposed` by detectors and waiting."""
    bucket: str = ""
    """Empty for all of them."""
    days: int = 0
    """How far to look back: 1, 7, 30 or 90 days; 0 for everything."""
    q: str = ""
    """A further filter, in the language of the list of trajectories."""
    by: str = By.BOTH
    """What makes two alike: `both`, `text` or `calls`."""
    fineness: str = Fineness.MEDIUM
    """`coarse`, `medium` or `fine`."""
    key: uuid.UUID | None = None
    """The same key again is the same clustering."""


class ClusteringOut(JobOut):
    message: str
    which: str
    bucket: str
    since: datetime | None
    q: str
    by: str
    fineness: str
    within: int | None = Field(alias="within_id")
    """The cluster that it takes apart."""
    report: dict[str, Any]
    """How many were `found`, `compared`, `unreadable`, are `alone`, and were `linked`: compared each with each."""
    finished_at: datetime | None


class ClusterOut(Schema):
    id: int = Field(alias="pk")
    clustering: int = Field(alias="clustering_id")
    name: str
    words: list[str]
    calls: list[str]
    size: int
    cohesion: float | None
    """Mean likeness of two members, between 0 and 1."""
    is_rest: bool
    """The unclustered ones."""
    medoid: TraceId | None
    """Trace id of the most typical member."""


class ClusterMemberOut(Schema):
    trace_id: str = Field(alias="trajectory.trace_id")
    title: str = Field(alias="trajectory.title")
    likeness: float
    label: str = Field(alias="trajectory.label")
    label_bucket: str = Field(alias="trajectory.label_bucket")
    proposed_bucket: str = Field(alias="trajectory.proposed_bucket")


class NearOut(Schema):
    trace_id: str
    title: str
    likeness: float
    parts: dict[str, float]
    """The likeness of what was `asked`, of what went `wrong`, and of the `calls`, each alone."""
    words: list[str]
    calls: list[str]
    """What the two share, the most telling first."""


class NeighboursOut(Schema):
    items: list[NearOut]
    among: int
    """How many failures it was compared with."""
    is_cut: bool
    """There are older ones, which were left out."""


class PageQuery(ListQuery):
    limit: int = Field(50, ge=1, le=500)


class MergeIn(Body):
    clusters: list[int]


class NameIn(Body):
    name: str


class ClusterMoveIn(Body):
    trace_ids: list[str]
    to: str
    """`new` for a cluster of their own, `rest` for the unclustered ones, or the id of a cluster."""


class ApartIn(Body):
    key: uuid.UUID | None = None


class LabelClusterIn(Body):
    trace_ids: list[str] = Field(max_length=cluster_labels.AT_MOST)
    """The members that were looked at, one by one. What people decided already is left as it is."""
    bucket: str
    note: str = ""
    key: uuid.UUID | None = None
