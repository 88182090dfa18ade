"""Labelling a cluster: the same decision about members that somebody has looked at, as a bulk action.

Which members that are is said one by one, by whoever was shown them. What people decided already is never decided
again by it, neither before it was asked for nor while it runs.
"""

import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Permission, Project, Scope
from flywheel.edge.refusals import Refused
from flywheel.failures.labels.decisions import check, decide
from flywheel.failures.models import Cluster, Decision, Member, Proposal
from flywheel.trajectories.import_export.trajectory_export import IDS_MAX
from flywheel.trajectories.models import Bulk, Trajectory
from flywheel.trajectories.operations import bulk_actions
from flywheel.trajectories.operations.bulk_actions import Action, BadBulk, Done, register

NAME = "label_cluster"
AT_MOST = IDS_MAX
"""Members that are labelled at once: as many as a page shows."""


def undecided(cluster: Cluster) -> QuerySet[Member]:
    """Members of which nobody has decided, the most typical first."""
    rows = cluster.members.filter(trajectory__label="").select_related("trajectory__version__agent")
    return rows.order_by("-likeness", "-id")


def decided(cluster: Cluster) -> QuerySet[Member]:
    """Members that are left out: a person has decided about them."""
    rows = cluster.members.exclude(trajectory__label="").select_related("trajectory")
    return rows.order_by("-likeness", "-id")


def label(
    *, cluster: Cluster, trace_ids: Sequence[str], bucket: str, actor: Actor, key: uuid.UUID, note: str = ""
) -> Bulk:
    """Let a worker file these members under the bucket. The same key again is the same. Raises Refused."""
    wanted = set(trace_ids)
    members = cluster.members.filter(trajectory__trace_id__in=wanted).select_related("trajectory__project")
    if not wanted or len(wanted) > AT_MOST or members.count() < len(wanted):
        raise Refused(
            f"between 1 and {AT_MOST} choose members of this cluster; some may have been moved since",
            field="trace_ids",
        )
    first = members.first()
    assert first is not None
    check(first.trajectory, Decision.ADDED, bucket, "", None, note.strip())
    options = {"cluster": cluster.pk, "name": str(cluster)[:200], "bucket": bucket, "note": note}
    return bulk_actions.submit(
        project=first.trajectory.project, actor=actor, action=NAME, options=options, ids=sorted(wanted), key=key
    )


def _check(project: Project, options: dict[str, Any]) -> dict[str, Any]:
    """Only `label` above knows how to ask for it."""
    if not Cluster.objects.filter(pk=options.get("cluster", 0), clustering__project=project).exists():
        raise BadBulk("cluster: label clusters from their page, which shows their members first")
    return {name: options[name] for name in ("cluster", "name", "bucket", "note")}


def _label(job: Bulk, keys: list[int]) -> Done:
    done = Done()
    bucket, note = job.options["bucket"], job.options["note"]
    actor = Actor(job.created_by, job.through or f"cluster {job.options['cluster']}, bulk action {job.pk}")
    proposals = Proposal.objects.filter(trajectory__in=keys, bucket=bucket).order_by("trajectory_id", "-score", "id")
    steps = dict(proposals.distinct("trajectory_id").values_list("trajectory_id", "step"))
    # In the order in which ingest locks, so that neither waits for the other for ever.
    rows = list(Trajectory.objects.select_for_update(no_key=True).filter(pk__in=keys).order_by("trace_id"))
    for row in rows:
        if row.label:
            done.skipped["already decided by a person"] += 1
            continue
        try:
            decide(trajectory=row, actor=actor, bucket=bucket, step=steps.get(row.pk, ""), note=note, seen=0)
            done.changed += 1
        except Refused as error:
            done.failed.append((row.trace_id, str(error)))
    done.skipped += Counter({"deleted in the meantime": len(keys) - len(rows)})
    return done


register(Action(NAME, "Label cluster", "labelled", Permission.REVIEW, Scope.REVIEW, _label, _check, at_once=50))
