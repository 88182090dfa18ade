"""For programs: an environment with a task set's tasks as a package for other people's tools, and their tasks here."""

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from ninja import Router, Schema

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Body
from flywheel.environments.api.environments import find_environment
from flywheel.environments.exchange import task_files
from flywheel.environments.exchange.environment_packages import download
from flywheel.environments.models import TaskSet
from flywheel.trajectories.import_export.trajectory_import import kept_aside

router = Router(tags=["environments"])


class ExportIn(Body):
    format: str
    """`nemo_gym`, `verifiers`, `verifiers_classic`, `harbor` or `openenv`."""
    held_out: bool = False
    """Held-out tasks and their answers too; it is noted in the set's ledger."""


@router.post(
    "/task-sets/{name}/{int:version}/export",
    auth=Key(Scope.BUILD),
    openapi_extra={"responses": {200: {"description": "a zip archive", "content": {"application/zip": {}}}}},
)
def export_environment(request: HttpRequest, name: str, version: int, wanted: ExportIn) -> HttpResponseBase:
    """The environment of a task set with its tasks and its verifier, as a zip archive."""
    asked = keyed(request)
    rows = TaskSet.objects.select_related("environment_version__environment", "project")
    task_set = one(rows.filter(project=asked.project), name=name, version=version)
    return download(task_set=task_set, format=wanted.format, held_out=wanted.held_out, actor=asked.actor)


class ProblemOut(Schema):
    line: int
    field: str
    """Empty where it is not one field's fault."""
    reason: str


class SplitOut(Schema):
    tasks: int
    clusters: int


class TakenOut(Schema):
    made: int
    """New tasks; those that would be made, in a preview."""
    there: int
    """Those that are here already."""
    unproved: int
    waiting: int
    """Of the unproved, those that a worker is to prove."""
    left_out: int
    problems: list[ProblemOut]
    """Why, of the first 100 that were left out."""
    sources: dict[str, int]
    """Rows by whose they seem to be."""
    splits: dict[str, SplitOut]
    """The new tasks and their sources, by split."""


@router.post("/environments/{name}/tasks/import", response=TakenOut, auth=Key(Scope.BUILD))
def import_tasks(request: HttpRequest, name: str, preview: bool = False) -> task_files.Taken:
    """Tasks of NeMo Gym's JSONL, of rows of a verifiers dataset, or exported here: one a line of the body. A preview
    says what they would become and makes none."""
    environment = find_environment(request, name)
    with kept_aside(request, most=task_files.MAX_BYTES, command="import_tasks") as lines:
        if preview:
            return task_files.look(environment=environment, lines=lines)
        return task_files.import_tasks(environment=environment, lines=lines, actor=keyed(request).actor)
