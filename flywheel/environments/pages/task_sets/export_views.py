"""Downloading an environment for other people's tools, from its page."""

from django.http import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.environments.exchange import environment_packages
from flywheel.environments.models import TaskSet


@require_POST
@requires(Permission.BUILD)
def download(request: PageRequest, name: str, version: int) -> HttpResponseBase:
    """The environment of a task set with its tasks, as an archive."""
    rows = TaskSet.objects.select_related("environment_version__environment", "project")
    task_set = get_object_or_404(rows, project=request.project, name=name, version=version)
    format, held_out = request.POST.get("format", ""), "held_out" in request.POST
    return environment_packages.download(task_set=task_set, format=format, held_out=held_out, actor=request.actor)
