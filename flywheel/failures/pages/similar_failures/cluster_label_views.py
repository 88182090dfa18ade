"""The page that shows every member of a cluster that would be labelled, and labels those that are ticked."""

import uuid
from collections import Counter
from typing import Any

from django.db import transaction
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from flywheel.accounts.access import Forbidden, PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.core.detectors.standard_buckets import BUCKETS
from flywheel.edge.numbers import form_key
from flywheel.edge.refusals import Refused
from flywheel.failures.buckets import bucket_definitions
from flywheel.failures.models import Cluster
from flywheel.failures.pages.similar_failures.clustering_views import find
from flywheel.failures.similar_failures import cluster_labels
from flywheel.trajectories.models import Bulk

NEW = "+"
"""In the place of a bucket: the one that the form defines."""
LEFT_OUT = 50


@require_http_methods(["GET", "POST"])
@requires(Permission.REVIEW)
def label(request: PageRequest, cluster: int) -> HttpResponse:
    found = find(request, cluster)
    if request.method == "GET":
        return _page(request, found, {})
    key = form_key(request.POST.get("key", ""))
    job = Bulk.objects.filter(project=request.project, idempotency_key=key).first()
    try:
        job = job or _ask(request, found, key)
    except Refused as error:
        return _page(request, found, {**request.POST.dict(), "ids": request.POST.getlist("id"), "error": str(error)})
    return redirect("trajectories:bulk", request.project.slug, job.pk)


@transaction.atomic
def _ask(request: PageRequest, cluster: Cluster, key: uuid.UUID) -> Bulk:
    asked = request.POST
    bucket = asked.get("bucket", "")
    if bucket == NEW:
        if Permission.BUILD not in request.permissions:
            raise Forbidden(Permission.BUILD)
        wanted = bucket_definitions.Wanted(label=asked.get("label", ""), parent=asked.get("parent", ""))
        bucket = bucket_definitions.define(project=request.project, actor=request.actor, wanted=wanted).key
    return cluster_labels.label(
        cluster=cluster,
        trace_ids=asked.getlist("id"),
        bucket=bucket,
        note=asked.get("note", "").replace("\r\n", "\n"),
        actor=request.actor,
        key=key,
    )


def _page(request: PageRequest, cluster: Cluster, written: dict[str, Any]) -> HttpResponse:
    members = list(cluster_labels.undecided(cluster)[: cluster_labels.AT_MOST])
    proposed = Counter(member.trajectory.proposed_bucket for member in members if member.trajectory.proposed_bucket)
    likely = proposed.most_common(1)[0][0] if proposed else ""
    ticked = set(written.get("ids", ()))
    context = {
        "cluster": cluster,
        "clustering": cluster.clustering,
        "rows": [(member, member.trajectory.trace_id in ticked or not written) for member in members],
        "waiting": cluster_labels.undecided(cluster).count(),
        "decided": cluster_labels.decided(cluster)[:LEFT_OUT],
        "decided_count": cluster_labels.decided(cluster).count(),
        "bucket": written.get("bucket", likely),
        "parent": written.get("parent", bucket_definitions.family(request.project, likely) if likely else ""),
        "name": written.get("label", cluster.name),
        "note": written.get("note", ""),
        "error": written.get("error", ""),
        "offered": bucket_definitions.of_project(request.project).values(),
        "built_in": BUCKETS.values(),
        "known": bucket_definitions.every(request.project),
        "proposed": proposed.most_common(),
        "key": uuid.uuid4(),
    }
    return render(request, "failures/similar_label.html", context, status=422 if written else 200)
