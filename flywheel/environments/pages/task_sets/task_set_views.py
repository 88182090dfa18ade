"""The page of a frozen task set: what is in it, who opened it, what it trained and measured."""

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.core.interop.environment_exports import FORMATS
from flywheel.edge.paging import page_at
from flywheel.environments import ledger, task_statistics
from flywheel.environments.exchange.environment_packages import why_not
from flywheel.environments.models import Split, TaskSet
from flywheel.environments.task_sets import leaks
from flywheel.environments.task_sets.set_power import set_power


@require_GET
@requires(Permission.VIEW)
def task_set(request: PageRequest, name: str, version: int) -> HttpResponse:
    rows = TaskSet.objects.filter(project=request.project).select_related(
        "environment_version__environment", "created_by"
    )
    row = get_object_or_404(rows, name=name, version=version)
    members = row.members.exclude(split=Split.SEALED).select_related("task__environment")
    if (split := request.GET.get("split", "")) in (Split.TRAIN, Split.HELD_OUT):
        members = members.filter(split=split)
    runs = row.eval_runs.select_related("version__agent").order_by("-pk")[:20]
    page = page_at(request, members, limit=100)
    page.total = members.count()
    if split == Split.HELD_OUT:
        ledger.looked([member.task for member in page.items], request.actor)
    context = {
        "task_set": row,
        "environment": row.environment_version.environment,
        "shape": task_statistics.shape(row),
        "can_show": set_power(row),
        "openings": ledger.openings(row),
        "sealed_openings": len(ledger.sealed_openings(row)),
        "suites": row.suites.filter(retired_at=None).select_related("agent"),
        "ledger": row.openings.select_related("actor")[:50],
        "beside": leaks.of_task_set(row, most=20),
        "inside": leaks.inside(row),
        "versions": TaskSet.objects.filter(project=request.project, name=name).order_by("-version")[:20],
        "page": page,
        "split": split,
        "hides_held_out": split != Split.HELD_OUT,
        "runs": [(run, run.summary.get("metrics", {}).get("success")) for run in runs],
        "export_formats": FORMATS.items(),
        "export_refusal": why_not(row.environment_version),
    }
    return render(request, "environments/task_set.html", context)
