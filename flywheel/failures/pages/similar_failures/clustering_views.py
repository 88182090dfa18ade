"""The pages of failures that are alike: clusterings, one clustering, one cluster, and what is nearest to one."""

import uuid
from typing import Any

from django.contrib import messages
from django.db.models import F
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge import job_pages
from flywheel.edge.numbers import form_key, key, number
from flywheel.edge.paging import page_at
from flywheel.edge.refusals import Refused
from flywheel.failures.buckets import bucket_definitions
from flywheel.failures.models import By, Cluster, Clustering, Fineness, Which
from flywheel.failures.pages.similar_failures import cluster_summaries
from flywheel.failures.queues import intake
from flywheel.failures.similar_failures import cluster_edits, clusterings, sketches
from flywheel.trajectories.models import Trajectory

CLUSTERS = 20
MEMBERS = 50
ELSEWHERE = 100
"""Clusters that members can be moved to, the largest."""
CHOSEN = "chosen"
"""Of `to`: what the form's list of clusters says."""
DAYS = {0: "all of them", 1: "last day", 7: "last 7 days", 30: "last 30 days", 90: "last 90 days"}


@require_GET
@requires(Permission.VIEW)
def index(request: PageRequest) -> HttpResponse:
    return _index(request, {**START, **request.GET.dict()})


START = {"which": Which.BOTH, "by": By.BOTH, "fineness": Fineness.MEDIUM, "bucket": "", "days": "0", "q": ""}


def _index(request: PageRequest, asked: dict[str, Any], error: str = "") -> HttpResponse:
    rows = Clustering.objects.filter(project=request.project, within=None).select_related("created_by")
    context = {
        "page": page_at(request, rows),
        "asked": asked,
        "error": error,
        "key": uuid.uuid4(),
        "known": bucket_definitions.every(request.project),
        "days": DAYS,
        "which": Which.choices,
        "by": By.choices,
        "fineness": Fineness.choices,
        "at_most": clusterings.AT_MOST,
    }
    return render(request, "failures/similar.html", context, status=422 if error else 200)


@require_POST
@requires(Permission.REVIEW)
def start(request: PageRequest) -> HttpResponse:
    asked = {**START, **{name: request.POST.get(name, "") for name in START}}
    days = number(asked["days"])
    selection = clusterings.Selection(**asked | {"days": -1 if days is None else days})  # type: ignore[arg-type]
    try:
        job = clusterings.submit(
            project=request.project,
            actor=request.actor,
            key=form_key(request.POST.get("key", "")),
            selection=selection,
        )
    except Refused as error:
        return _index(request, asked, str(error))
    return redirect("failures:clustering", request.project.slug, job.pk)


@require_GET
@requires(Permission.VIEW)
def clustering(request: PageRequest, number: int) -> HttpResponse:
    """The clusters, the largest first; while it is made, how far it is."""
    job = _clustering(request, number)
    if job.within is not None and job.is_finished:
        return redirect("failures:cluster", request.project.slug, job.within_id)
    rows = job.clusters.filter(is_rest=False).select_related("clustering")
    page = page_at(request, rows, limit=CLUSTERS, keys=("size", "id"))
    context = _about(request, job) | {
        "page": page,
        "shown": cluster_summaries.shown(job, page.items),
        "rest": job.clusters.filter(is_rest=True).first(),
    }
    return render(request, "failures/similar_clustering.html", context)


@require_POST
@requires(Permission.REVIEW)
def forget(request: PageRequest, number: int) -> HttpResponse:
    job = _clustering(request, number)
    cluster_edits.forget(clustering=job, actor=request.actor)
    messages.success(request, "Clustering deleted. Failures and decisions stay.")
    return redirect("failures:similar", request.project.slug)


@require_POST
@requires(Permission.REVIEW)
def merge(request: PageRequest, number: int) -> HttpResponse:
    job = _clustering(request, number)
    keys = [pk for text in request.POST.getlist("id") if (pk := key(text))]
    merged = cluster_edits.merge(clustering=job, clusters=keys, actor=request.actor)
    messages.success(request, f"{len(set(keys))} clusters are one now.")
    return redirect("failures:cluster", request.project.slug, merged.pk)


@require_GET
@requires(Permission.VIEW)
def cluster(request: PageRequest, cluster: int) -> HttpResponse:
    """Its members, the most typical first, beside the shape of the most typical one's calls."""
    found = find(request, cluster)
    rows = found.members.select_related("trajectory__version__agent")
    page = page_at(request, rows, limit=MEMBERS, keys=("likeness", "id"))
    page.total = found.size
    context = {
        "cluster": found,
        "clustering": found.clustering,
        "page": page,
        "about": cluster_summaries.shown(found.clustering, [found])[0],
        "shape": cluster_summaries.call_shape(found.medoid, _step(found.medoid)) if found.medoid else None,
        "others": found.clustering.clusters.exclude(pk=cluster).order_by(F("size").desc(), "-id")[:ELSEWHERE],
        "queues": request.project.queues.filter(archived_at=None),
        "known": bucket_definitions.every(request.project),
        "key": uuid.uuid4(),
        "splits": found.splits.order_by("-id")[:3],
    }
    return render(request, "failures/similar_cluster.html", context)


@require_POST
@requires(Permission.REVIEW)
def rename(request: PageRequest, cluster: int) -> HttpResponse:
    found = find(request, cluster)
    cluster_edits.rename(cluster=found, name=request.POST.get("name", ""), actor=request.actor)
    return redirect("failures:cluster", request.project.slug, cluster)


@require_POST
@requires(Permission.REVIEW)
def move(request: PageRequest, cluster: int) -> HttpResponse:
    """Move the ticked members."""
    found = find(request, cluster)
    ids, to = request.POST.getlist("id"), request.POST.get("to", "")
    if to == CHOSEN:
        to = request.POST.get("cluster", "")
    target = cluster_edits.move(cluster=found, trace_ids=ids, to=to, actor=request.actor)
    messages.success(request, f"{len(set(ids))} moved.")
    is_there = Cluster.objects.filter(pk=cluster).exists()
    return redirect(
        "failures:cluster", request.project.slug, cluster if is_there and to != cluster_edits.NEW else target.pk
    )


@require_POST
@requires(Permission.REVIEW)
def take_apart(request: PageRequest, cluster: int) -> HttpResponse:
    job = clusterings.take_apart(
        cluster=find(request, cluster), actor=request.actor, key=form_key(request.POST.get("key", ""))
    )
    return redirect("failures:clustering", request.project.slug, job.pk)


@require_POST
@requires(Permission.REVIEW)
def send(request: PageRequest, cluster: int) -> HttpResponse:
    """Send the ticked members to a queue, or all of them."""
    found = find(request, cluster)
    pk = key(request.POST.get("queue", ""))
    queue = get_object_or_404(request.project.queues, archived_at=None, pk=pk)
    members = found.members.order_by("-likeness", "-id")
    if "all" not in request.POST:
        members = members.filter(trajectory__trace_id__in=request.POST.getlist("id"))
    added = intake.add(queue=queue, keys=members.values_list("trajectory_id", flat=True), actor=request.actor)
    messages.success(request, f"{added} added to {queue}; existing items stay unchanged.")
    return redirect("failures:cluster", request.project.slug, cluster)


@require_GET
@requires(Permission.VIEW)
def neighbours(request: PageRequest, trace_id: str) -> HttpResponse:
    """The failures that are most like this trajectory, and why."""
    rows = Trajectory.objects.filter(project=request.project).select_related("version__agent")
    trajectory = get_object_or_404(rows, trace_id=trace_id)
    context = {
        "trajectory": trajectory,
        "near": sketches.neighbours(trajectory),
        "known": bucket_definitions.every(request.project),
    }
    return render(request, "failures/similar_neighbours.html", context)


def find(request: PageRequest, pk: int) -> Cluster:
    """The cluster of this project."""
    rows = Cluster.objects.select_related("clustering__project", "medoid").filter(clustering__within=None)
    return get_object_or_404(rows, clustering__project=request.project, pk=pk)


def _clustering(request: PageRequest, pk: int) -> Clustering:
    rows = Clustering.objects.select_related("created_by", "project", "within")
    return get_object_or_404(rows, project=request.project, pk=pk)


def _step(trajectory: Trajectory) -> str:
    best = trajectory.proposals.first()
    decided = trajectory.failures.filter(current=True).first()
    return (decided.step if decided else "") or (best.step if best else "")


def _about(request: PageRequest, job: Clustering) -> dict[str, Any]:
    report = job.report
    compared = report.get("compared", 0)
    return {
        "job": job,
        "clustering": job,
        "may_stop": Permission.REVIEW in request.permissions,
        "report": report,
        "is_cut": report.get("found", 0) > compared + report.get("unreadable", 0),
        "is_sampled": report.get("linked", compared) < compared,
        "known": bucket_definitions.every(request.project),
    }


live = job_pages.live(_clustering, "failures/_similar_live.html", requires(Permission.VIEW), _about)
cancel = job_pages.cancel(_clustering, "failures:clustering", requires(Permission.REVIEW))
resume = job_pages.resume(_clustering, "failures:clustering", requires(Permission.REVIEW))
