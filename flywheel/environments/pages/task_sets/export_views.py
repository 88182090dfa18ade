"""Downloading an environment for other people's tools, from its page."""

from django.http import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.environments.exchange.environment_packages import as_download, take, zipped
from flywheel.environments.models import TaskSet


@require_POST
@requires(Permission.BUILD)
def download(request: PageRequest, name: str, version: int) -> HttpResponseBase:
    """The environment of a task set with its tasks, as an archive."""
    rows = TaskSet.objects.select_related("environment_version__environment", "project")
    task_set = get_object_or_404(rows, project=request.project, name=name, version=version)
    folder, files = take(
        task_set=task_set,
        format=request.POST.get("format", ""),
        held_out="held_out" in request.POST,
        actor=request.actor,
    )
    return as_download(folder, zipped(files, folder))
