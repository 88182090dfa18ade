"""For programs: an environment with a task set's tasks as a package for other people's tools, and their tasks here."""

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from ninja import Router, Schema
from ninja.errors import HttpError

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.schemas import Body
from flywheel.environments.exchange.environment_packages import CannotExport, as_download, take, zipped
from flywheel.environments.exchange.task_files import MAX_BYTES, Taken, import_tasks, look
from flywheel.environments.models import TaskSet
from flywheel.environments.versions.environment_versions import CannotMake
from flywheel.trajectories.import_export.trajectory_import import TooLarge, kept_aside

router = Router(tags=["environments"])


class ExportIn(Body):
    format: str
    """`nemo_gym`, `verifiers`, `verifiers_classic`, `harbor` or `openenv`."""
    held_out: bool = False
    """Held-out tasks and their answers too; it is noted in the set's ledger."""


@router.post(
    "/task-sets/{name}/{int:version}/export",
    auth=Key(Scope.BUILD),
    operation_id="export_environment",
    openapi_extra={"responses": {200: {"description": "a zip archive", "content": {"application/zip": {}}}}},
)
def export_environment(request: HttpRequest, name: str, version: int, wanted: ExportIn) -> HttpResponseBase:
    """The environment of a task set with its tasks and its verifier, as a zip archive."""
    asked = keyed(request)
    rows = TaskSet.objects.select_related("environment_version__environment", "project")
    task_set = rows.filter(project=asked.project, name=name, version=version).first()
    if task_set is None:
        raise HttpError(404, f"there is no task set {name[:100]}@{version}")
    try:
        folder, files = take(
            task_set=task_set,
            format=wanted.format,
            held_out=wanted.held_out,
            actor=asked.actor,
        )
    except CannotExport as error:
        raise HttpError(422, str(error)) from None
    return as_download(folder, zipped(files, folder))


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


@router.post("/environments/{name}/tasks/import", response=TakenOut, auth=Key(Scope.BUILD), operation_id="import_tasks")
def import_tasks_of_others(request: HttpRequest, name: str, preview: bool = False) -> Taken:
    """Tasks of NeMo Gym's JSONL, of rows of a verifiers dataset, or exported here: one a line of the body. A preview
    says what they would become and makes none."""
    asked = keyed(request)
    environment = asked.project.environments.filter(name=name).first()
    if environment is None:
        raise HttpError(404, f"there is no environment {name[:100]!r}")
    try:
        with kept_aside(request, most=MAX_BYTES) as lines:
            if preview:
                return look(environment=environment, lines=lines)
            return import_tasks(environment=environment, lines=lines, actor=asked.actor)
    except TooLarge:
        raise HttpError(413, f"the lines are more than {MAX_BYTES // 1024**2} MiB; send them in parts") from None
    except CannotMake as error:
        raise HttpError(422, str(error)) from None
