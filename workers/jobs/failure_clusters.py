"""Clustering failures: the worker's side of `failures.similar`."""

from flywheel.core.evidence.similarity import average_linkage
from flywheel.edge.jobs import Lease
from flywheel.failures.models import Clustering
from flywheel.failures.similar_failures import cluster_edits, clusterings


def cluster(lease: Lease) -> None:
    """Read the failures, compare them, write the clusters. What was read is kept for whoever does it again; the
    clusters are written all at once."""
    job = lease.job
    assert isinstance(job, Clustering)
    keys, found = clusterings.chosen(job)
    lease.progress(0, len(keys), "reads the failures")
    for done in clusterings.reading(keys):
        lease.go_on()
        lease.progress(done, message="reads the failures")
    report: dict[str, float | str] = {"found": found, "compared": 0, "unreadable": len(keys), "clusters": 0, "alone": 0}
    if not keys:
        lease.update(report=report)
        return
    total = len(keys)
    lease.progress(total, message="compares them")
    keys, space = clusterings.compare(job, keys)
    apart = clusterings.apart(job, space)
    groups = average_linkage.cluster(space.rows, apart, seed=clusterings.SEED, between=lease.go_on)
    report |= {
        "compared": len(keys),
        "unreadable": total - len(keys),
        "clusters": len(groups.clusters),
        "alone": len(groups.alone),
        "linked": groups.linked,
        "apart": apart,
        "seed": clusterings.SEED,
        **clusterings.days_of(keys),
    }
    alone = [keys[at] for at in groups.alone]
    if job.within_id is not None:
        with lease.guard():
            cluster_edits.put_apart(job, [[keys[at] for at in places] for places in groups.clusters], alone)
            lease.update(report=report)
        return
    told = []
    for number, places in enumerate(groups.clusters, start=1):
        lease.go_on()
        told.append(clusterings.described(space, places, keys))
        if number % 20 == 0:
            lease.progress(len(keys), message=f"tells {number} of {len(groups.clusters)} clusters apart")
    with lease.guard():
        clusterings.write(job, told, alone)
        lease.update(report=report, message="")
