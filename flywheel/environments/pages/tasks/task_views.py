"""The page of a task: what it asks, its proof, its results, and taking it out of use."""

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.core.envs.replay import episode_replay, user_turns
from flywheel.core.traces import Message
from flywheel.core.traces.tooling import parse_call
from flywheel.environments import ledger, task_statistics
from flywheel.environments.models import Split, Task, TaskSet
from flywheel.environments.pages.tasks import variant_views
from flywheel.environments.proofs.red_green_proof import failed_checks
from flywheel.environments.tasks.own_tasks import is_draft
from flywheel.environments.tasks.retirement import retire
from flywheel.trajectories.annotations.project_buckets import every, name_of
from flywheel.trajectories.detail.expected_action import aligned


@require_GET
@requires(Permission.VIEW)
def task(request: PageRequest, name: str, number: int) -> HttpResponse:
    row = _task(request, name, number)
    ledger.looked([row], request.actor)
    version = row.environment.versions.order_by("-number").first()
    results = (
        row.results.exclude(run__split=Split.SEALED)
        .select_related("run__version__agent", "trajectory")
        .order_by("-pk")[:20]
    )
    sets = row.task_sets.order_by("-pk")
    context = {
        "task": row,
        "environment": row.environment,
        "version": version,
        "bucket": every(request.project).get(row.bucket),
        "recorded": row.proof.get("recorded"),
        "is_recorded": row.proof.get("is_failure") is not None,
        "target": _as_recorded(row),
        "turns": user_turns.lines_in(row.state) if row.environment.kind == episode_replay.KIND else [],
        "also": row.also.filter(current=True).select_related("trajectory")[:12],
        "failed": failed_checks(row),
        "is_draft": is_draft(row),
        "siblings": row.environment.tasks.filter(cluster=row.cluster).exclude(pk=row.pk).order_by("number")[:12],
        "rates": task_statistics.solved_by_version(row, version),
        "results": results,
        "task_sets": sets,
        "plays": row.plays.select_related("created_by")[:5],
        "lineage": _lineage(request, row, list(sets)),
        **variant_views.context(request, row),
    }
    return render(request, "environments/task.html", context)


@require_POST
@requires(Permission.BUILD)
def retire_task(request: PageRequest, name: str, number: int) -> HttpResponse:
    row = _task(request, name, number)
    retire(task=row, actor=request.actor, reason=request.POST.get("reason", ""))
    messages.success(request, f"{row} is left out of new task sets. Frozen sets keep it.")
    return redirect("environments:task", request.project.slug, name, number)


def _as_recorded(row: Task) -> Any:
    """The target with its arguments in the order of the recorded call, so that the two can be read side by side."""
    recorded = row.proof.get("recorded")
    call = parse_call(Message.from_json(recorded)).call if recorded else None
    return aligned({"arguments": call.arguments}, row.target) if call else row.target


def _lineage(request: PageRequest, row: Task, sets: list[TaskSet]) -> list[dict[str, Any]]:
    """From what happened, or the environment where nothing did, to the newest set; a variant's by way of its origin."""

    def link(label: str, page: str, *names: object) -> dict[str, Any]:
        return {"label": label, "url": reverse(page, args=[request.project.slug, *names])}

    origin = row.generation.origin if row.generation else None
    first = origin or row
    if first.source:
        trace_id = first.source.trace_id
        bucket = name_of(request.project, first.bucket) if first.bucket else "passes"
        chain = [
            link(f"trajectory {trace_id[:8]}", "trajectories:detail", trace_id),
            link(f"failure {bucket}", "failures:review", trace_id),
        ]
    else:
        chain = [link(f"environment {row.environment}", "environments:environment", row.environment.name)]
    if origin:
        chain.append(link(f"task {origin}", "environments:task", row.environment.name, origin.number))
    chain.append({"label": f"variant {row}" if origin else f"task {row}", "current": True})
    if sets:
        label = f"set {sets[0]} ({row.get_split_display().lower()})"
        chain.append(link(label, "environments:task_set", sets[0].name, sets[0].version))
    return chain


def _task(request: PageRequest, name: str, number: int) -> Task:
    rows = Task.objects.select_related(
        "environment", "source", "failure__labelled_by", "created_by", "generation__origin"
    )
    return get_object_or_404(rows, project=request.project, environment__name=name, number=number)
