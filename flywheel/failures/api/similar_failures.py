"""Failures that are alike, for programs: clusterings, clusters, what is nearest, and all that a page can change."""

import uuid
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import page_of, paginate
from flywheel.edge.refusals import Refused, one
from flywheel.failures.api.similar_schemas import (
    ApartIn,
    ClusteringIn,
    ClusteringOut,
    ClusterMemberOut,
    ClusterMoveIn,
    ClusterOut,
    LabelClusterIn,
    MergeIn,
    NameIn,
    NeighboursOut,
    PageQuery,
)
from flywheel.failures.models import Cluster, Clustering
from flywheel.failures.similar_failures import cluster_edits, cluster_labels, clusterings, sketches
from flywheel.trajectories.api.lists import BulkOut
from flywheel.trajectories.models import Bulk, Trajectory

router = Router(tags=["similar failures"])


@router.get("/clusterings", response=page_of(ClusteringOut), auth=Key(Scope.READ))
def list_clusterings(request: HttpRequest, query: Query[PageQuery]) -> dict[str, Any]:
    """List clusterings of failures, newest first."""
    return paginate(Clustering.objects.filter(project=keyed(request).project), query)


@router.post("/clusterings", response={202: ClusteringOut}, auth=Key(Scope.REVIEW))
def cluster_failures(request: HttpRequest, wanted: ClusteringIn) -> Status[Clustering]:
    """Group similar failures into clusters, in the background."""
    selection, key = clusterings.Selection(**wanted.dict(exclude={"key"})), wanted.key or uuid.uuid4()
    asked = keyed(request)
    return Status(202, clusterings.submit(project=asked.project, actor=asked.actor, key=key, selection=selection))


@router.get("/clusterings/{pk}", response=ClusteringOut, auth=Key(Scope.READ))
def get_clustering(request: HttpRequest, pk: int) -> Clustering:
    """Return a clustering with its progress and scope."""
    return one(Clustering.objects.select_related("project").filter(project=keyed(request).project), pk=pk)


@router.post("/clusterings/{pk}/cancel", response=ClusteringOut, auth=Key(Scope.REVIEW))
def cancel_clustering(request: HttpRequest, pk: int) -> Clustering:
    """Cancel the clustering. 409 if it has finished."""
    return get_clustering(request, pk).cancel(keyed(request).actor)


@router.post("/clusterings/{pk}/resume", response=ClusteringOut, auth=Key(Scope.REVIEW))
def resume_clustering(request: HttpRequest, pk: int) -> Clustering:
    """Run a failed or cancelled clustering after all. 409 unless it has failed or was cancelled."""
    return get_clustering(request, pk).resume(keyed(request).actor)


@router.delete("/clusterings/{pk}", response={204: None}, auth=Key(Scope.REVIEW))
def delete_clustering(request: HttpRequest, pk: int) -> Status[None]:
    """Delete the clustering; failures and decisions are kept. 409 until it has finished."""
    cluster_edits.forget(clustering=get_clustering(request, pk), actor=keyed(request).actor)
    return Status(204, None)


@router.get("/clusterings/{pk}/clusters", response=page_of(ClusterOut), auth=Key(Scope.READ))
def list_clusters(request: HttpRequest, pk: int, query: Query[PageQuery]) -> dict[str, Any]:
    """List the clustering's clusters, largest first, and the unclustered failures."""
    return paginate(get_clustering(request, pk).clusters.select_related("medoid"), query, keys=("size", "id"))


@router.post("/clusterings/{pk}/merge", response=ClusterOut, auth=Key(Scope.REVIEW))
def merge_clusters(request: HttpRequest, pk: int, wanted: MergeIn) -> Cluster:
    """Merge two or more clusters into one."""
    merged = cluster_edits.merge(
        clustering=get_clustering(request, pk), clusters=wanted.clusters, actor=keyed(request).actor
    )
    return get_cluster(request, merged.pk)


@router.get("/clusters/{pk}", response=ClusterOut, auth=Key(Scope.READ))
def get_cluster(request: HttpRequest, pk: int) -> Cluster:
    """Return one cluster: its distinguishing features, size and cohesion."""
    rows = Cluster.objects.select_related("medoid", "clustering__project")
    return one(rows.filter(clustering__project=keyed(request).project), pk=pk)


@router.get("/clusters/{pk}/members", response=page_of(ClusterMemberOut), auth=Key(Scope.READ))
def list_cluster_members(request: HttpRequest, pk: int, query: Query[PageQuery]) -> dict[str, Any]:
    """List the cluster's members, most typical first."""
    return paginate(get_cluster(request, pk).members.select_related("trajectory"), query, keys=("likeness", "id"))


@router.post("/clusters/{pk}/name", response=ClusterOut, auth=Key(Scope.REVIEW))
def name_cluster(request: HttpRequest, pk: int, wanted: NameIn) -> Cluster:
    """Name the cluster; an empty name removes its name."""
    cluster = get_cluster(request, pk)
    cluster_edits.rename(cluster=cluster, name=wanted.name, actor=keyed(request).actor)
    return cluster


@router.post("/clusters/{pk}/move", response=ClusterOut, auth=Key(Scope.REVIEW))
def move_cluster_members(request: HttpRequest, pk: int, wanted: ClusterMoveIn) -> Cluster:
    """Move members to a new cluster, to the unclustered failures or to another cluster. Returns the cluster they are
    now in."""
    cluster, actor = get_cluster(request, pk), keyed(request).actor
    target = cluster_edits.move(cluster=cluster, trace_ids=wanted.trace_ids, to=wanted.to, actor=actor)
    return get_cluster(request, target.pk)


@router.post("/clusters/{pk}/take-apart", response={202: ClusteringOut}, auth=Key(Scope.REVIEW))
def take_cluster_apart(request: HttpRequest, pk: int, wanted: ApartIn) -> Status[Clustering]:
    """Cluster the members again, more finely, in the background. The largest part stays; the others become new
    clusters."""
    cluster, key = get_cluster(request, pk), wanted.key or uuid.uuid4()
    return Status(202, clusterings.take_apart(cluster=cluster, actor=keyed(request).actor, key=key))


@router.post("/clusters/{pk}/label", response={202: BulkOut}, auth=Key(Scope.REVIEW))
def label_cluster(request: HttpRequest, pk: int, wanted: LabelClusterIn) -> Status[Bulk]:
    """File the given members under a category, in the background. `GET /bulk/{id}` returns the result."""
    content = wanted.dict() | {"key": wanted.key or uuid.uuid4()}
    return Status(202, cluster_labels.label(cluster=get_cluster(request, pk), actor=keyed(request).actor, **content))


@router.get("/trajectories/{trace_id}/similar", response=NeighboursOut, auth=Key(Scope.READ))
def find_similar(request: HttpRequest, trace_id: str, limit: int = 20) -> dict[str, Any]:
    """List the failures most similar to this trajectory, and why."""
    row = one(Trajectory.objects.filter(project=keyed(request).project), trace_id=trace_id)
    if not 1 <= limit <= 100:
        raise Refused("expected between 1 and 100", field="limit")
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
        for other, found in near.rows
    ]
    return {"items": items, "among": near.among, "is_cut": near.is_cut}
