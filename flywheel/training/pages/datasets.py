"""Datasets: all of them, and what one is made of."""

from django.http import FileResponse, Http404, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge.paging import page_at
from flywheel.environments.task_sets import leaks
from flywheel.evals.models import EvalRun
from flywheel.training.datasets import contamination_checks, dataset_builder, dataset_mix
from flywheel.training.models import Dataset
from flywheel.training.pages import run_details

RUNS_SHOWN = 50


@require_GET
@requires(Permission.VIEW)
def datasets(request: PageRequest) -> HttpResponse:
    rows = Dataset.objects.filter(project=request.project).select_related("task_set", "created_by")
    context = {"page": page_at(request, rows, is_counted=True), "tab": "datasets"}
    return render(request, "training/datasets.html", context)


@require_GET
@requires(Permission.VIEW)
def dataset_page(request: PageRequest, name: str, version: int) -> HttpResponse:
    """Show a dataset's make-up, and its first rows."""
    found = _dataset(request, name, version)
    rows, problem = run_details.dataset_rows(found)
    context = {
        "dataset": found,
        "rows": rows,
        "problem": problem,
        "rollouts": EvalRun.objects.filter(project=request.project, pk=found.recipe.get("eval_run") or 0).first(),
        "beside": leaks.beside(contamination_checks.shown(found)),
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


def _dataset(request: PageRequest, name: str, version: int) -> Dataset:
    rows = Dataset.objects.select_related("task_set__environment_version__environment", "created_by", "project")
    return get_object_or_404(rows, project=request.project, name=name, version=version)
