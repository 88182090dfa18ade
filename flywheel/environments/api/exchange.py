"""For programs: an environment with a task set's tasks as a package for other people's tools, and their tasks here."""

import json
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from ninja import Field, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import Ref
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Body, Schema
from flywheel.environments.api.environments import find_environment
from flywheel.environments.exchange import task_files
from flywheel.environments.exchange.environment_packages import download
from flywheel.environments.exchange.eval_imports import EvalImport, EvalTaken, import_eval, preview_eval
from flywheel.environments.models import TaskSet
from flywheel.trajectories.import_export.trajectory_import import kept_aside

router = Router(tags=["environments"])


class TaskSetExportIn(Body):
    format: str
    """`nemo_gym`, `verifiers`, `verifiers_classic`, `harbor` or `openenv`."""
    held_out: bool = False
    """Include held-out tasks and their answers. This is recorded in the ledger of the task set."""


@router.post(
    "/task-sets/{name}/{int:version}/export",
    auth=Key(Scope.BUILD),
    openapi_extra={"responses": {200: {"description": "A zip archive", "content": {"application/zip": {}}}}},
)
def export_environment(request: HttpRequest, name: str, version: int, wanted: TaskSetExportIn) -> HttpResponseBase:
    """Export the environment of a task set, with its tasks and verifier, as a zip archive."""
    asked = keyed(request)
    rows = TaskSet.objects.select_related("environment_version__environment", "project")
    task_set = one(rows.filter(project=asked.project), name=name, version=version)
    return download(task_set=task_set, format=wanted.format, held_out=wanted.held_out, actor=asked.actor)


class ProblemOut(Schema):
    line: int
    field: str
    """Empty if the problem is not in a single field."""
    reason: str


class SplitOut(Schema):
    tasks: int
    clusters: int
    """Sources."""


class TakenOut(Schema):
    made: int
    """New tasks; in a preview, tasks that would be created."""
    there: int
    """Tasks that already exist."""
    unproved: int
    waiting: int
    """Unproved tasks that a worker will prove."""
    left_out: int
    problems: list[ProblemOut]
    """Reasons for the first 100 rows that were left out."""
    sources: dict[str, int]
    """Rows by the format that was detected."""
    splits: dict[str, SplitOut]
    """New tasks and their sources, by split."""


class ImportedEvalIn(Body):
    name: str
    """Name of the new environment."""
    eval: Any
    """The eval's object, `{"eval": …, "run": …}` with a run that has its data and its request, or a grader."""
    rows: list[dict[str, Any]] | None = None
    """Items, either bare or as `{"item": {…}}`; omit them if the run's object has them."""
    request: str = ""
    """Template of the user's request, for example `{{item.question}}`; if empty, it comes from the run or from the most
    likely field."""
    held_out_share: float = 0.4
    """Fraction of sources that is used only for measuring, from 0 to 1."""
    partial: bool = False
    """Leave out graders that cannot be imported, rather than refuse the import."""
    preview: bool = False
    """Show the result without creating anything."""


class GraderOut(Schema):
    name: str
    type: str
    state: str
    """`taken`, `changed` (`words` gives the difference) or `left`."""
    words: str


class EvalTakenOut(Schema):
    environment: Ref
    graders: list[GraderOut]
    request: Any = Field(alias="hosted.request")
    """Template of the user's request."""
    verifier: dict[str, Any] = Field(alias="hosted.verifier")
    notes: list[str]
    """Other parts of the eval that were not imported."""
    tasks: TakenOut = Field(alias="report")


@router.post("/imported-evals", response={200: EvalTakenOut, 201: EvalTakenOut}, auth=Key(Scope.BUILD))
def import_openai_eval(request: HttpRequest, wanted: ImportedEvalIn) -> Status[EvalTaken]:
    """Create an environment from an eval of OpenAI's hosted service: its graders become a rubric, its items become
    tasks. If a grader can't be imported, the request is refused and names it, unless you set `partial`."""
    key = keyed(request)
    rows = None if wanted.rows is None else [json.dumps(row).encode() for row in wanted.rows]
    asked = EvalImport(
        name=wanted.name,
        document=wanted.eval,
        request=wanted.request,
        held_out_share=wanted.held_out_share,
        is_partial=wanted.partial or wanted.preview,
    )
    verb = preview_eval if wanted.preview else import_eval
    made = verb(project=key.project, actor=key.actor, wanted=asked, rows=rows)
    return Status(200 if wanted.preview else 201, made)


@router.post("/environments/{name}/tasks/import", response=TakenOut, auth=Key(Scope.BUILD))
def import_tasks(request: HttpRequest, name: str, preview: bool = False, match: str = "words") -> task_files.Taken:
    """Import tasks from the file in the request body, as JSON Lines, JSON, CSV or Parquet: NeMo Gym's JSONL, rows of a
    verifiers dataset, questions with their answers, or tasks exported from Flywheel. With `preview`, show what they
    would become without creating any. 413 if the file is too large."""
    environment = find_environment(request, name)
    with kept_aside(request, most=task_files.MAX_BYTES, command="import_tasks") as lines:
        if preview:
            return task_files.look(environment=environment, lines=lines, match=match)
        return task_files.import_tasks(environment=environment, lines=lines, actor=keyed(request).actor, match=match)
