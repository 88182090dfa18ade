"""What programs send and get about failures that are alike."""

import uuid
from datetime import datetime
from typing import Any

from ninja import Field, Schema

from flywheel.edge.schemas import Body
from flywheel.failures.models import By, Cluster, Fineness, Member, Which
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


class ClusteringOut(Schema):
    id: int = Field(alias="pk")
    state: str
    message: str
    done: int
    total: int | None
    error: str
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
    created_at: datetime
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
    """Those that are like no other."""
    medoid: str | None
    """Trace id of the most typical member."""

    @staticmethod
    def resolve_medoid(cluster: Cluster) -> str | None:
        return cluster.medoid.trace_id if cluster.medoid else None


class MemberOut(Schema):
    trace_id: str
    title: str
    likeness: float
    label: str
    label_bucket: str
    proposed_bucket: str

    @staticmethod
    def resolve_trace_id(member: Member) -> str:
        return member.trajectory.trace_id

    @staticmethod
    def resolve_title(member: Member) -> str:
        return member.trajectory.title

    @staticmethod
    def resolve_label(member: Member) -> str:
        return member.trajectory.label

    @staticmethod
    def resolve_label_bucket(member: Member) -> str:
        return member.trajectory.label_bucket

    @staticmethod
    def resolve_proposed_bucket(member: Member) -> str:
        return member.trajectory.proposed_bucket


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


class ClusteringPage(Schema):
    items: list[ClusteringOut]
    next: str | None


class ClusterPage(Schema):
    items: list[ClusterOut]
    next: str | None


class MemberPage(Schema):
    items: list[MemberOut]
    next: str | None


class PageQuery(Schema):
    limit: int = Field(50, ge=1, le=500)
    cursor: str = ""


class MergeIn(Body):
    clusters: list[int]


class NameIn(Body):
    name: str


class MoveIn(Body):
    trace_ids: list[str]
    to: str
    """`new` for a cluster of their own, `rest` for those that are like no other, or the id of a cluster."""


class ApartIn(Body):
    key: uuid.UUID | None = None


class LabelClusterIn(Body):
    trace_ids: list[str] = Field(max_length=cluster_labels.AT_MOST)
    """The members that were looked at, one by one. What people decided already is left as it is."""
    bucket: str
    note: str = ""
    key: uuid.UUID | None = None
