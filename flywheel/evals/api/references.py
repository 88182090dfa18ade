"""Versions and task sets that a body names."""

from django.http import HttpRequest

from flywheel.accounts.access import keyed
from flywheel.agents.models import Version
from flywheel.agents.references import UnknownReference, find_version
from flywheel.edge.refusals import Refused
from flywheel.environments.models import TaskSet
from flywheel.environments.task_sets.task_set_references import find_task_set


def version_of(request: HttpRequest, ref: str, field: str = "version") -> Version:
    """What `field` of the body names. Raises Refused."""
    try:
        return find_version(keyed(request).project, ref)
    except UnknownReference as error:
        raise Refused(str(error), field=field) from None


def task_set_of(request: HttpRequest, ref: str) -> TaskSet:
    """What `task_set` of the body names. Raises Refused."""
    try:
        return find_task_set(keyed(request).project, ref)
    except UnknownReference as error:
        raise Refused(str(error), field="task_set") from None
