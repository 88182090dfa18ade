"""Datasets: all of them, and what one is made of."""

from datetime import timedelta
from typing import Any

from django.db.models import Q
from django.http import FileResponse, Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.core.recipes import ALGORITHMS
from flywheel.edge import job_pages
from flywheel.edge.jobs import FINISHED, State
from flywheel.edge.numbers import number
from flywheel.edge.paging import page_at
from flywheel.edge.refusals import Missing, Refused, check_choice
from flywheel.environments.task_sets import leaks
from flywheel.evals.models import EvalRun
from flywheel.training.datasets import (
    contamination_checks,
    dataset_builder,
    dataset_mix,
    dataset_uploads,
    demonstrations,
    provider_files,
)
from flywheel.training.models import Dataset, DatasetBuild
from flywheel.training.pages import run_details

RUNS_SHOWN = 50
BUILDS_SHOWN = 10
FAILED_FOR = timedelta(days=7)
"""How long the list shows a build that failed."""


@require_GET
@requires(Permission.VIEW)
def datasets(request: PageRequest) -> HttpResponse:
    """List the datasets, newest first, and the builds that have not become one."""
    rows = Dataset.objects.filter(project=request.project).select_related("task_set", "created_by")
    is_lately_failed = Q(state=State.FAILED, finished_at__gte=timezone.now() - FAILED_FOR)
    builds = DatasetBuild.objects.filter(~Q(state__in=FINISHED) | is_lately_failed, project=request.project)
    context = {
        "page": page_at(request, rows, is_counted=True),
        "builds": builds.select_related("created_by").order_by("-pk")[:BUILDS_SHOWN],
        "tab": "datasets",
    }
    return render(request, "training/datasets.html", context)


@require_GET
@requires(Permission.VIEW)
def dataset_page(request: PageRequest, name: str, version: int) -> HttpResponse:
    """Show a dataset's make-up, and its first rows."""
    found = _dataset(request, name, version)
    start = number(request.GET.get("start", "")) or 0
    rows, problem = run_details.dataset_rows(found, start)
    last = start + len(rows)
    context = {
        "dataset": found,
        "rows": rows,
        "first_row": start + 1,
        "last_row": last,
        "previous_rows": max(0, start - run_details.ROWS_SHOWN) if start else None,
        "next_rows": last if rows and last < found.rows else None,
        "use": dataset_uploads.use_of(found.kind),
        "is_learnt": any(algorithm.data == found.kind for algorithm in ALGORITHMS.values()),
        "card": [(name, found.card[name]) for name in dataset_uploads.CARD if found.card.get(name)],
        "chosen_by": _chosen_by(found),
        "formats": [(name, label) for name, (kind, label, _) in provider_files.FORMATS.items() if kind == found.kind],
        **_left_out(found),
        "problem": problem,
        "good": demonstrations.GOOD.get(found.recipe.get("good", ""), ""),
        "one_sided": dataset_builder.one_sided(found.recipe),
        "rollouts": EvalRun.objects.filter(project=request.project, pk=found.recipe.get("eval_run") or 0).first(),
        "beside": leaks.beside(contamination_checks.at_hand(found)),
        "runs": found.training_runs.select_related("base__agent", "produced__agent").order_by("-pk")[:RUNS_SHOWN],
        "lineage": run_details.dataset_lineage(found),
        "mix": dataset_mix.parts_of(found),
    }
    return render(request, "training/dataset.html", context)


@require_GET
@requires(Permission.VIEW)
def download(request: PageRequest, name: str, version: int) -> FileResponse:
    """The rows as JSON Lines. Agents wrote them: they come as a file, never as a page."""
    found = _dataset(request, name, version)
    try:
        content = dataset_builder.open_rows(found)
    except FileNotFoundError:
        raise Http404("the storage has lost this dataset's rows") from None
    filename = f"{found.name}-{found.version}.jsonl"
    return FileResponse(content, as_attachment=True, filename=filename, content_type="application/x-ndjson")


@require_GET
@requires(Permission.TRAIN)
def download_format(request: PageRequest, name: str, version: int, format: str) -> HttpResponse:
    """The rows as a provider's file, unless they have anything of a held-out task: what is trained elsewhere comes back
    as a version of which nobody knows what it learnt from."""
    found = _dataset(request, name, version)
    formats = [known for known, (kind, _, _) in provider_files.FORMATS.items() if kind == found.kind]
    check_choice(format, formats, field="format", error=Missing)
    for check in contamination_checks.check_all(found):
        if problem := contamination_checks.refusal(check, check.task_set):
            raise Refused(problem, field="dataset")
    try:
        rows = dataset_builder.kept(found).rows
    except Refused as error:
        raise Missing(error.problem) from error
    try:
        content = list(provider_files.lines(format, rows))
    except ValueError as error:
        raise Refused(str(error), field="tools") from None
    about: dict[str, Any] = {"format": format, "rows": len(content)}
    request.actor.record(project=request.project, action="training.provider_file", subject=found, **about)
    answer = HttpResponse(b"".join(content), content_type="application/x-ndjson")
    answer["Content-Disposition"] = f'attachment; filename="{found.name}-{found.version}-{format}.jsonl"'
    return answer


def _chosen_by(found: Dataset) -> list[str]:
    """Say who chose its rows, as far as anybody knows; of a mix, of each of its parts."""
    if found.mix:
        parts = Dataset.objects.filter(pk__in=[part["dataset"] for part in found.mix]).order_by("pk")
        return list(dict.fromkeys(words for part in parts for words in _chosen_by(part)))
    if found.is_chosen_by_reward:
        return ["the verifier’s reward: what it likes is learnt"]
    if found.origin == Dataset.Origin.UPLOAD:
        return ["the author of the file; unknown whether by a reward"]
    if found.origin == Dataset.Origin.TRAJECTORIES:
        if found.recipe["good"] != "filter":
            return ["people’s labels and feedback"]
        return ["hand" if found.recipe["by_hand"] else "the filter"]
    return ["the task set, not by a reward"]


def _left_out(found: Dataset) -> dict[str, Any]:
    """Say what a dataset from elsewhere left out, and whether that is named by trace ids."""
    if found.origin == Dataset.Origin.TASK_SET or found.mix:
        return {"is_sourced": False}
    if found.origin == Dataset.Origin.TRAJECTORIES:
        reasons = demonstrations.reasons_shown(found.recipe["left_out_trajectories"])
    else:
        reasons = dataset_uploads.reasons_shown(found.recipe["measured"])
    return {"is_sourced": True, "reasons": reasons, "is_linked": found.origin == Dataset.Origin.TRAJECTORIES}


def _dataset(request: PageRequest, name: str, version: int) -> Dataset:
    rows = Dataset.objects.select_related("task_set__environment_version__environment", "created_by", "project")
    return get_object_or_404(rows, project=request.project, name=name, version=version)


@require_GET
@requires(Permission.VIEW)
def build_page(request: PageRequest, job: int) -> HttpResponse:
    """Show how far a dataset is; go on to it when it is built."""
    found = _build(request, job)
    if found.dataset is not None:
        return redirect("training:dataset", request.project.slug, found.dataset.name, found.dataset.version)
    return render(request, "training/build.html", {"job": found, "tab": "datasets", "may_stop": _may(request)})


def _may(request: PageRequest) -> bool:
    return Permission.TRAIN in request.permissions


def _build(request: PageRequest, pk: int) -> DatasetBuild:
    rows = DatasetBuild.objects.select_related("dataset", "created_by", "project")
    return get_object_or_404(rows, project=request.project, pk=pk)


build_live = job_pages.live(
    _build,
    "training/_build_live.html",
    requires(Permission.VIEW),
    lambda request, job: {"job": job, "may_stop": _may(request)},
)
cancel_build = job_pages.cancel(_build, "training:build", requires(Permission.TRAIN))
resume_build = job_pages.resume(_build, "training:build", requires(Permission.TRAIN))
