"""The page of tasks × versions: a row a task of a set, a column a version, each cell leading to its rollouts."""

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge.refusals import Refused
from flywheel.environments import ledger
from flywheel.environments.models import Split, TaskSet
from flywheel.environments.task_sets import leaks
from flywheel.evals.comparisons import task_grid
from flywheel.evals.comparisons.run_comparison import doubts
from flywheel.evals.runs.rollout_looks import note_looks
from flywheel.evals.serving import version_isolation

OFFERED = 50
"""Versions to choose from, those with the newest evals."""


@require_GET
@requires(Permission.VIEW)
def grid(request: PageRequest, task_set: str, version: int) -> HttpResponse:
    """`split`, `version` (several), `show` and `cursor` are in the address."""
    rows = TaskSet.objects.select_related("environment_version__environment")
    found = get_object_or_404(rows, project=request.project, name=task_set, version=version)
    split, show = request.GET.get("split", ""), request.GET.get("show", "")
    split = split if split in task_grid.SPLITS else Split.HELD_OUT.value
    show = show if show in task_grid.SHOW else "all"
    runs = task_grid.measured(found, split)
    try:
        columns = task_grid.choose(runs, request.GET.getlist("version"))
        table = task_grid.grid(
            columns,
            task_set=found,
            split=split,
            show=show,
            cursor=request.GET.get("cursor", ""),
            limit=task_grid.ROWS,
            query=request.GET,
        )
    except Refused as error:
        messages.warning(request, f"Not shown as asked: {error}.")
        return redirect(request.path)
    note_looks(columns, request.actor)
    learnt = leaks.trained_on([run.version for run in columns], found) if split == Split.HELD_OUT else {}
    context = {
        "task_set": found,
        "environment": found.environment_version.environment,
        "split": split,
        "split_label": task_grid.SPLITS[split],
        "splits": task_grid.SPLITS,
        "show": show,
        "choices": [(name, label, table.counts[name]) for name, label in task_grid.SHOW.items()],
        "grid": table,
        "columns": columns,
        "invalid": {key: each for key, each in learnt.items() if each.is_invalid},
        "doubts": [(run, told) for run in columns[:-1] if (told := doubts(columns[-1], run))],
        "unshown": version_isolation.unshown(columns),
        "offered": [run for place, run in enumerate(runs) if place < OFFERED or run in columns],
        "most": task_grid.MOST,
        "openings": ledger.openings(found),
    }
    return render(request, "evals/grid.html", context)
