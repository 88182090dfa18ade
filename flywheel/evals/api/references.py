"""Versions and task sets that a body names."""

from django.http import HttpRequest

from flywheel.accounts.access import keyed
from flywheel.agents.models import Version
from flywheel.agents.references import find_version
from flywheel.edge.refusals import at_field
from flywheel.environments.models import TaskSet
from flywheel.environments.task_sets.task_set_references import find_task_set


def version_of(request: HttpRequest, ref: str, field: str = "version") -> Version:
    """Find the version that `field` of the body names. Raises Refused."""
    with at_field(field):
        return find_version(keyed(request).project, ref)


def task_set_of(request: HttpRequest, ref: str) -> TaskSet:
    """Find the task set that `task_set` of the body names. Raises Refused."""
    with at_field("task_set"):
        return find_task_set(keyed(request).project, ref)
