"""Failures that are alike, for programs: clusterings, clusters, what is nearest, and all that a page can change."""

import uuid
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router, Status
from ninja.errors import HttpError

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.paging import BadCursor, keyset
from flywheel.failures.api.similar_schemas import (
    ApartIn,
    ClusteringIn,
    ClusteringOut,
    ClusteringPage,
    ClusterOut,
    ClusterPage,
    LabelClusterIn,
    MemberPage,
    MergeIn,
    MoveIn,
    NameIn,
    NeighboursOut,
    PageQuery,
)
from flywheel.failures.labels.decisions import BadLabel
from flywheel.failures.models import Cluster, Clustering
from flywheel.failures.similar_failures import cluster_edits, cluster_labels, clusterings, sketches
from flywheel.trajectories.api.lists import BulkOut
from flywheel.trajectories.models import Bulk, Trajectory
from flywheel.trajectories.operations.bulk_actions import BadBulk

router = Router(tags=["similar failures"])


@router.get("/clusterings", response=ClusteringPage, auth=Key(Scope.READ), operation_id="list_clusterings")
def list_clusterings(request: HttpRequest, asked: Query[PageQuery]) -> dict[str, Any]:
    """Clusterings of failures, newest first."""
    return _paged(Clustering.objects.filter(project=keyed(request).project), asked, ("id",))


@router.post("/clusterings", response={202: ClusteringOut}, auth=Key(Scope.REVIEW), operation_id="cluster_failures")
def cluster_failures(request: HttpRequest, wanted: ClusteringIn) -> Status[Clustering]:
    """Put failures that are alike into clusters, in the background."""
    asked = keyed(request)
    fields = wanted.dict() | {"key": wanted.key or uuid.uuid4()}
    try:
        job = clusterings.submit(project=asked.project, actor=asked.actor, **fields)
    except clusterings.BadClustering as error:
        raise HttpError(422, str(error)) from None
    return Status(202, job)


@router.get("/clusterings/{pk}", response=ClusteringOut, auth=Key(Scope.READ), operation_id="get_clustering")
def get_clustering(request: HttpRequest, pk: int) -> Clustering:
    """How far it is, and what it was about."""
    return _clustering(request, pk)


@router.post(
    "/clusterings/{pk}/cancel", response=ClusteringOut, auth=Key(Scope.REVIEW), operation_id="cancel_clustering"
)
def cancel_clustering(request: HttpRequest, pk: int) -> Clustering:
    """Ask for an end."""
    return _clustering(request, pk).cancel(keyed(request).actor)


@router.post(
    "/clusterings/{pk}/resume", response=ClusteringOut, auth=Key(Scope.REVIEW), operation_id="resume_clustering"
)
def resume_clustering(request: HttpRequest, pk: int) -> Clustering:
    """Do a failed or cancelled one after all."""
    return _clustering(request, pk).resume(keyed(request).actor)


@router.delete("/clusterings/{pk}", response={204: None}, auth=Key(Scope.REVIEW), operation_id="delete_clustering")
def delete_clustering(request: HttpRequest, pk: int) -> Status[None]:
    """Delete the clustering; failures and decisions stay."""
    job = _clustering(request, pk)
    try:
        cluster_edits.forget(clustering=job, actor=keyed(request).actor)
    except cluster_edits.BadChange as error:
        raise HttpError(409, str(error)) from None
    return Status(204, None)


@router.get("/clusterings/{pk}/clusters", response=ClusterPage, auth=Key(Scope.READ), operation_id="list_clusters")
def list_clusters(request: HttpRequest, pk: int, asked: Query[PageQuery]) -> dict[str, Any]:
    """Its clusters, the largest first, and those that are like no other."""
    return _paged(_clustering(request, pk).clusters.select_related("medoid"), asked, ("size", "id"))


@router.post("/clusterings/{pk}/merge", response=ClusterOut, auth=Key(Scope.REVIEW), operation_id="merge_clusters")
def merge_clusters(request: HttpRequest, pk: int, wanted: MergeIn) -> Cluster:
    """Make one cluster of two or more."""
    job = _clustering(request, pk)
    try:
        merged = cluster_edits.merge(clustering=job, clusters=wanted.clusters, actor=keyed(request).actor)
    except cluster_edits.BadChange as error:
        raise HttpError(422, str(error)) from None
    return _cluster(request, merged.pk)


@router.get("/clusters/{pk}", response=ClusterOut, auth=Key(Scope.READ), operation_id="get_cluster")
def get_cluster(request: HttpRequest, pk: int) -> Cluster:
    """One cluster: what sets it apart, its size and cohesion."""
    return _cluster(request, pk)


@router.get("/clusters/{pk}/members", response=MemberPage, auth=Key(Scope.READ), operation_id="list_cluster_members")
def list_cluster_members(request: HttpRequest, pk: int, asked: Query[PageQuery]) -> dict[str, Any]:
    """Its members, the most typical first."""
    return _paged(_cluster(request, pk).members.select_related("trajectory"), asked, ("likeness", "id"))


@router.post("/clusters/{pk}/name", response=ClusterOut, auth=Key(Scope.REVIEW), operation_id="name_cluster")
def name_cluster(request: HttpRequest, pk: int, wanted: NameIn) -> Cluster:
    """Give it a name; an empty one takes it back."""
    asked = keyed(request)
    cluster = _cluster(request, pk)
    try:
        cluster_edits.rename(cluster=cluster, name=wanted.name, actor=asked.actor)
    except cluster_edits.BadChange as error:
        raise HttpError(422, str(error)) from None
    return cluster


@router.post("/clusters/{pk}/move", response=ClusterOut, auth=Key(Scope.REVIEW), operation_id="move_cluster_members")
def move_cluster_members(request: HttpRequest, pk: int, wanted: MoveIn) -> Cluster:
    """Move members into a cluster of their own, to the rest, or to another cluster; answers where they are."""
    try:
        target = cluster_edits.move(
            cluster=_cluster(request, pk),
            trace_ids=wanted.trace_ids,
            to=wanted.to,
            actor=keyed(request).actor,
        )
    except cluster_edits.BadChange as error:
        raise HttpError(422, str(error)) from None
    return _cluster(request, target.pk)


@router.post(
    "/clusters/{pk}/take-apart",
    response={202: ClusteringOut},
    auth=Key(Scope.REVIEW),
    operation_id="take_cluster_apart",
)
def take_cluster_apart(request: HttpRequest, pk: int, wanted: ApartIn) -> Status[Clustering]:
    """Cluster its members anew, more finely, in the background. Its largest part stays; the others become clusters."""
    asked = keyed(request)
    try:
        job = clusterings.take_apart(
            cluster=_cluster(request, pk),
            actor=asked.actor,
            key=wanted.key or uuid.uuid4(),
        )
    except clusterings.BadClustering as error:
        raise HttpError(422, str(error)) from None
    return Status(202, job)


@router.post("/clusters/{pk}/label", response={202: BulkOut}, auth=Key(Scope.REVIEW), operation_id="label_cluster")
def label_cluster(request: HttpRequest, pk: int, wanted: LabelClusterIn) -> Status[Bulk]:
    """File the named members under a bucket, in the background. `GET /bulk/{id}` says what became of it."""
    try:
        job = cluster_labels.label(
            cluster=_cluster(request, pk),
            trace_ids=wanted.trace_ids,
            bucket=wanted.bucket,
            note=wanted.note,
            actor=keyed(request).actor,
            key=wanted.key or uuid.uuid4(),
        )
    except (BadLabel, BadBulk, cluster_edits.BadChange) as error:
        raise HttpError(422, str(error)) from None
    return Status(202, job)


@router.get(
    "/trajectories/{trace_id}/similar", response=NeighboursOut, auth=Key(Scope.READ), operation_id="find_similar"
)
def find_similar(request: HttpRequest, trace_id: str, limit: int = 20) -> dict[str, Any]:
    """The failures that are most like this trajectory, and why."""
    row = Trajectory.objects.filter(project=keyed(request).project, trace_id=trace_id).first()
    if row is None:
        raise HttpError(404, f"there is no trajectory {trace_id[:64]!r}")
    if not 1 <= limit <= 100:
        raise HttpError(422, "limit: between 1 and 100 is wanted")
    near = sketches.neighbours(row, limit)
    items = [
        {
            "trace_id": other.trace_id,
            "title": other.title,
            "likeness": found.likeness,
            "parts": found.parts,
            "words": found.shared.words,
            "calls": found.shared.calls,
        }
        for other, found in near.found
    ]
    return {"items": items, "among": near.among, "is_cut": near.is_cut}


def _paged(rows: Any, asked: PageQuery, keys: tuple[str, ...]) -> dict[str, Any]:
    try:
        page = keyset(rows, cursor=asked.cursor, limit=asked.limit, keys=keys)
    except BadCursor as error:
        raise HttpError(400, str(error)) from None
    return {"items": page.items, "next": page.next_cursor or None}


def _clustering(request: HttpRequest, pk: int) -> Clustering:
    job = Clustering.objects.select_related("project").filter(project=keyed(request).project, pk=pk).first()
    if job is None:
        raise HttpError(404, f"there is no clustering {pk}")
    return job


def _cluster(request: HttpRequest, pk: int) -> Cluster:
    rows = Cluster.objects.select_related("medoid", "clustering__project")
    found = rows.filter(clustering__project=keyed(request).project, pk=pk).first()
    if found is None:
        raise HttpError(404, f"there is no cluster {pk}")
    return found
