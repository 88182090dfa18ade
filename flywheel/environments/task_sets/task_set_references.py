"""`name@version` of a task set, and what it points at in a project."""

import re

from flywheel.accounts.models import Project
from flywheel.agents.references import SHOWN, UnknownReference, listed
from flywheel.environments.models import TaskSet

_FORM = re.compile(r"(?P<name>[\w-]+)(?:@v?(?P<version>\d{1,9}))?", re.ASCII)


def find_task_set(project: Project, ref: str) -> TaskSet:
    """The set that `name@version` means, or the newest of a name alone. Raises UnknownReference."""
    match = _FORM.fullmatch(ref.strip())
    if match is None:
        raise UnknownReference(f"{ref!r} is not of the form set@version, such as {_example(project)}")
    sets = TaskSet.objects.filter(project=project, name=match["name"])
    meant = sets.filter(version=int(match["version"])) if match["version"] else sets.order_by("-version")
    found = meant.select_related("environment_version__environment").first()
    if found is not None:
        return found
    versions = [str(number) for number in sets.order_by("-version").values_list("version", flat=True)[: SHOWN + 1]]
    if versions:
        raise UnknownReference(f"{match['name']} has no version {match['version']}; it has {listed(versions)}")
    names = list(TaskSet.objects.filter(project=project).order_by("name").values_list("name", flat=True).distinct())
    there_are = f"this project has {listed(names)}" if names else "this project has none yet, freeze one first"
    raise UnknownReference(f"there is no task set {match['name']!r}; {there_are}")


def _example(project: Project) -> str:
    newest = TaskSet.objects.filter(project=project).order_by("-pk").first()
    return str(newest) if newest else "mail@1"
