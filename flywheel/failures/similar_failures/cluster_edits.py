"""People's changes to a clustering: merge clusters, move members, name a cluster, forget all of it.

Nothing here changes a trajectory or a decision. A member is in exactly one cluster of its clustering before and
afterwards: what belongs nowhere is with the unclustered ones.
"""

from collections.abc import Sequence
from typing import Any, Final

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.core.evidence.similarity.failure_similarity import Space
from flywheel.edge.jobs import FINISHED, State
from flywheel.edge.numbers import key
from flywheel.edge.refusals import Refused, Stale
from flywheel.failures.models import Cluster, Clustering, Member
from flywheel.failures.similar_failures import clusterings
from flywheel.failures.similar_failures.clusterings import Described
from flywheel.failures.similar_failures.sketches import sketches_of

NEW: Final = "new"
"""Where `move` puts members: into a cluster of their own."""
REST: Final = "rest"
"""Among the unclustered ones."""
MEASURED = 3_000
"""Members of a changed cluster that are compared anew, the nearest ones."""
BESIDE = 1_000
"""Other members of the clustering, beside which it is told what sets the cluster apart."""
STALE_AT_ONCE = 20
NAME_LIMIT = 100


@transaction.atomic
def merge(*, clustering: Clustering, clusters: Sequence[int], actor: Actor) -> Cluster:
    """Make one cluster of these: the largest of them takes in the others and keeps its name. Raises Refused."""
    _lock(clustering)
    wanted = set(clusters)
    found = list(clustering.clusters.filter(pk__in=wanted).order_by("is_rest", "-size", "-id"))
    if len(found) < len(wanted) or len(found) < 2:
        raise Refused("choose two or more of this clustering; some may have been merged since", field="clusters")
    if found[-1].is_rest:
        raise Refused("the unclustered failures are not a cluster; take members out instead", field="clusters")
    _check_at_rest(found)
    target, others = found[0], found[1:]
    named = next((each.name for each in found if each.name), "")
    Member.objects.filter(cluster__in=others).update(cluster=target)
    Cluster.objects.filter(pk__in=[each.pk for each in others]).delete()
    Cluster.objects.filter(pk=target.pk).update(name=named)
    target.name = named
    measure(target)
    _record(target, actor, "failures.merge_clusters", merged=[each.pk for each in others])
    return target


@transaction.atomic
def move(*, cluster: Cluster, trace_ids: Sequence[str], to: str, actor: Actor) -> Cluster:
    """Move these members into a new cluster, to the rest, or to the cluster with this key. Raises Refused."""
    _lock(cluster.clustering)
    wanted = set(trace_ids)
    members = cluster.members.filter(trajectory__trace_id__in=wanted)
    count = members.count()
    if not wanted or count < len(wanted):
        raise Refused("choose members of this cluster; some may have been moved since", field="trace_ids")
    _check_at_rest([cluster])
    target = _target(cluster, to, count)
    _put(cluster, target, list(members.values_list("trajectory", flat=True)))
    measure(cluster)
    _record(target, actor, "failures.move_members", trajectories=count, source=cluster.pk, to=to)
    return target


def _target(cluster: Cluster, to: str, count: int) -> Cluster:
    whole = cluster.clustering
    if to == NEW:
        if count == cluster.members.count() and not cluster.is_rest:
            raise Refused("all of its members would form the same cluster again", field="trace_ids")
        return Cluster.objects.create(clustering=whole)
    target = rest_of(whole) if to == REST else whole.clusters.filter(pk=key(to) or 0).first()
    if target is None:
        raise Refused(f"expected {NEW}, {REST} or a cluster of this clustering", field="to")
    if target.pk == cluster.pk:
        raise Refused("they are already there", field="to")
    return target


@transaction.atomic
def rename(*, cluster: Cluster, name: str, actor: Actor) -> None:
    """Give the cluster a name, or take it back with an empty one. Raises Refused."""
    name = name.strip()
    if len(name) > NAME_LIMIT or not (name.isprintable() or not name):
        raise Refused(f"expected at most {NAME_LIMIT} visible characters", field="name")
    if cluster.is_rest:
        raise Refused("the unclustered failures are not a cluster and have no name", field="cluster")
    if Cluster.objects.filter(pk=cluster.pk).exclude(name=name).update(name=name):
        cluster.name = name
        _record(cluster, actor, "failures.name_cluster")


@transaction.atomic
def forget(*, clustering: Clustering, actor: Actor) -> None:
    """Delete the clustering. Trajectories and what was decided of them stay. Raises Stale while it is made."""
    if Clustering.objects.select_for_update().get(pk=clustering.pk).state not in FINISHED:
        raise Stale("stop it first", field="clustering")
    subject = str(clustering)
    Member.objects.filter(clustering=clustering).delete()
    clustering.delete()
    actor.record(project=clustering.project, action="failures.forget_clustering", subject=subject)


def put_apart(job: Clustering, found: Sequence[Sequence[int]], alone: Sequence[int]) -> None:
    """Split the cluster `job.within` into what a worker found in it: the largest part stays, the others become clusters
    of their own. What somebody has moved away meanwhile is left where it is. In a transaction."""
    cluster = job.within
    assert cluster is not None
    _lock(cluster.clustering)
    for part in found[1:]:
        _put(cluster, Cluster.objects.create(clustering=cluster.clustering), part)
    if alone and found:
        _put(cluster, rest_of(cluster.clustering), alone)
    measure(cluster)


def _put(source: Cluster, target: Cluster, keys: Sequence[int]) -> None:
    Member.objects.filter(cluster=source, trajectory__in=keys).update(cluster=target, likeness=0)
    measure(target)


def rest_of(clustering: Clustering) -> Cluster:
    """The unclustered ones of a clustering."""
    return clustering.clusters.get_or_create(is_rest=True)[0]


def measure(cluster: Cluster) -> None:
    """Bring what is known of a changed cluster up to date. One without members is no more."""
    rows = list(cluster.members.order_by("-likeness", "-id")[:MEASURED])
    size = len(rows) if len(rows) < MEASURED else cluster.members.count()
    kept = Cluster.objects.filter(pk=cluster.pk)
    if not size:
        kept.delete()
        return
    found = None if cluster.is_rest else _described(cluster, [row.trajectory_id for row in rows])
    if found is not None:
        likeness = dict(found.members)
        for row in rows:
            row.likeness = likeness.get(row.trajectory_id, 0.0)
        Member.objects.bulk_update(rows, ["likeness"], batch_size=2_000)
    kept.update(**(found.columns if found else {}) | {"size": size, "is_stale": False})


def _described(cluster: Cluster, keys: list[int]) -> Described | None:
    """Return the members' common traits, beside others of the clustering; None where none can be compared any more."""
    beside = Member.objects.filter(clustering=cluster.clustering_id).exclude(cluster=cluster).order_by("pk")
    packed = sketches_of([*keys, *beside.values_list("trajectory_id", flat=True)[:BESIDE]])
    mine = [key for key in keys if key in packed]
    every = mine + sorted(packed.keys() - set(mine))
    space = Space.of([packed[key] for key in every], clusterings.WEIGHTS[cluster.clustering.by])
    return clusterings.described(space, range(len(mine)), every) if mine else None


def catch_up() -> int:
    """Measure clusters anew that were told by what is there no more. Returns how many."""
    stale = Cluster.objects.filter(is_stale=True).select_related("clustering").order_by("pk")[:STALE_AT_ONCE]
    for cluster in stale:
        with transaction.atomic():
            Clustering.objects.select_for_update().get(pk=cluster.clustering_id)
            measure(cluster)
    return len(stale)


def _lock(clustering: Clustering) -> None:
    """One change at a time, and none before there are clusters."""
    if Clustering.objects.select_for_update().get(pk=clustering.pk).state != State.SUCCEEDED:
        raise Refused("it has no clusters yet", field="clustering")


def _check_at_rest(clusters: Sequence[Cluster]) -> None:
    if Clustering.objects.filter(within__in=clusters).exclude(state__in=FINISHED).exists():
        raise Refused("it is being split; wait, or stop the split", field="cluster")


def _record(cluster: Cluster, actor: Actor, action: str, **data: Any) -> None:
    actor.record(
        project=cluster.clustering.project,
        action=action,
        subject=f"cluster {cluster.pk} of {cluster.clustering}",
        name=cluster.name,
        **data,
    )
