"""Requests and responses about failures that are alike."""

import uuid
from datetime import datetime
from typing import Any

from ninja import Field

from flywheel.edge.answers import JobOut, ListQuery, TraceId
from flywheel.edge.schemas import Body, Schema
from flywheel.failures.models import By, Fineness, Which
from flywheel.failures.similar_failures import cluster_labels


class ClusteringIn(Body):
    which: str = Which.BOTH
    """`confirmed` by people, `proposed` by detectors and undecided, or `both`."""
    bucket: str = ""
    """Key of a category; empty for all."""
    days: int = 0
    """How far to look back: 1, 7, 30 or 90 days; 0 for everything."""
    q: str = ""
    """A further filter, as for `GET /trajectories`."""
    by: str = By.BOTH
    """What makes two failures similar: `text`, `calls` or `both`."""
    fineness: str = Fineness.MEDIUM
    """`coarse`, `medium` or `fine`."""
    key: uuid.UUID | None = None
    """Your own UUID. Repeating a key returns the same clustering."""


class ClusteringOut(JobOut):
    message: str
    which: str
    bucket: str
    since: datetime | None
    q: str
    by: str
    fineness: str
    within: int | None = Field(alias="within_id")
    """The cluster that it splits further; null if there is none."""
    report: dict[str, Any]
    """Numbers of failures that were `found`, `compared` and `unreadable`, that are `alone`, and that were `linked`,
    each compared with each."""
    finished_at: datetime | None


class ClusterOut(Schema):
    id: int = Field(alias="pk")
    clustering: int = Field(alias="clustering_id")
    name: str
    words: list[str]
    """Words that distinguish the cluster."""
    calls: list[str]
    """Tool calls that distinguish the cluster."""
    size: int
    cohesion: float | None
    """Mean similarity of two members, from 0 to 1."""
    is_rest: bool
    """Whether these are the unclustered failures."""
    medoid: TraceId | None
    """Trace id of the most typical member."""


class ClusterMemberOut(Schema):
    trace_id: str = Field(alias="trajectory.trace_id")
    title: str = Field(alias="trajectory.title")
    likeness: float
    """Similarity to the most typical member, from 0 to 1."""
    label: str = Field(alias="trajectory.label")
    label_bucket: str = Field(alias="trajectory.label_bucket")
    proposed_bucket: str = Field(alias="trajectory.proposed_bucket")


class NearOut(Schema):
    trace_id: str
    title: str
    likeness: float
    """Overall similarity, from 0 to 1."""
    parts: dict[str, float]
    """Separate similarity of what was `asked`, what went `wrong`, and the `calls`."""
    words: list[str]
    """Words that both contain, most distinctive first."""
    calls: list[str]
    """Calls that both contain, most distinctive first."""


class NeighboursOut(Schema):
    items: list[NearOut]
    among: int
    """Number of failures that it was compared with."""
    is_cut: bool
    """Whether older failures were left out."""


class PageQuery(ListQuery):
    limit: int = Field(50, ge=1, le=500)
    """Items per page."""


class MergeIn(Body):
    clusters: list[int]
    """Ids of two or more clusters of this clustering."""


class NameIn(Body):
    name: str
    """Empty to remove the name."""


class ClusterMoveIn(Body):
    trace_ids: list[str]
    """Members to move."""
    to: str
    """`new` for a new cluster, `rest` for the unclustered failures, or the id of a cluster."""


class ApartIn(Body):
    key: uuid.UUID | None = None
    """Your own UUID. Repeating a key returns the same clustering."""


class LabelClusterIn(Body):
    trace_ids: list[str] = Field(max_length=cluster_labels.AT_MOST)
    """Members that were checked one by one. Existing decisions stay unchanged."""
    bucket: str
    """Key of the category."""
    note: str = ""
    key: uuid.UUID | None = None
    """Your own UUID. Repeating a key returns the same bulk action."""
