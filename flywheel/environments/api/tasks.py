"""Tasks for programs: made of labelled trajectories, listed, retired."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import ListQuery, Number, Ref, TraceId, page_of, paginate
from flywheel.edge.refusals import Missing, Unreadable, check_choice, one
from flywheel.edge.schemas import Body, Schema
from flywheel.environments import ledger
from flywheel.environments.api.environments import find_environment
from flywheel.environments.models import Opening, Split, Task
from flywheel.environments.task_sets.task_selection import fresh
from flywheel.environments.tasks import bulk_tasks, recorded_tasks
from flywheel.environments.tasks.retirement import retire
from flywheel.environments.tasks.taskless_failures import look_at, without_any_task
from flywheel.failures.buckets.bucket_definitions import every
from flywheel.failures.models import Failure

router = Router(tags=["environments"])


class TaskOut(Schema):
    number: int
    environment: Ref
    prompt: str
    state: dict[str, Any]
    target: dict[str, Any]
    cluster: str
    """Source of the task, for example a session. Tasks of one source are in the same split."""
    slice: str
    split: str
    bucket: str
    """Category of the failure that it was made from."""
    trace_id: TraceId | None = Field(alias="source")
    """The trajectory that it was made from."""
    generation: int | None = Field(alias="generation_id")
    """The generation that created it; null for a task made from a recorded trajectory."""
    synthetic: bool = Field(alias="is_synthetic")
    """Whether it was generated rather than recorded. This never changes."""
    digest: str
    is_proved: bool
    awaits_proof: bool
    """A worker has not made its proof yet, so `is_proved` is not final."""
    proof: dict[str, Any]
    """`checks`; `missing` checks with their reasons; and `warnings`, for example that the verifier passes the most
    common wrong answer."""
    retired_at: datetime | None
    created_at: datetime


class TaskQuery(ListQuery):
    split: str = ""
    """`train`, `held_out`, `sealed` or `set_aside`; empty for all except sealed ones."""
    bucket: str = ""
    """Key of a category."""
    proved: bool | None = None
    """Only proved tasks, or with false only unproved ones; all if omitted."""
    synthetic: bool | None = None
    """Only generated tasks, or with false only recorded ones; all if omitted."""
    fresh: bool = False
    """Only tasks that are in no task set yet."""
    retired: bool = False
    """Retired tasks in place of those in use."""


class TaskIn(Body):
    trace_id: str
    """A labelled trajectory, whose current decision becomes the task."""


class BulkTasksOut(Schema):
    made: list[Number]
    """Numbers of the new tasks."""
    unproved: int
    existing: int
    """Failures whose task already exists."""
    refused: dict[str, int]
    """Number of failures that could not become tasks, by reason."""
    left: int
    """Failures that are left for the next request."""


class TaskRetireIn(Body):
    reason: str


class TasklessOut(Schema):
    failure: int = Field(alias="failure.pk")
    trace_id: str = Field(alias="failure.trajectory.trace_id")
    bucket: str = Field(alias="failure.bucket")
    step: str = Field(alias="failure.step")
    corrected: dict[str, Any] | None = Field(alias="failure.corrected")
    labelled_by: Ref = Field(alias="failure.labelled_by")
    labelled_at: datetime = Field(alias="failure.labelled_at")
    can_be_made: bool
    """Whether an environment of kind `episode` can make a task from it."""
    reason: str
    """Why it cannot become a task; empty if it can."""


class TasklessQuery(ListQuery):
    bucket: str = ""
    """Key of a category."""
    corrected: bool | None = None
    """Only failures with a corrected action, or with false only those without; all if omitted."""


@router.get("/failures/without-task", response=page_of(TasklessOut), auth=Key(Scope.READ))
def list_failures_without_task(request: HttpRequest, query: Query[TasklessQuery]) -> dict[str, Any]:
    """List confirmed failures that have no task in any environment, newest first, each with the reason if it can't
    become one."""
    project = keyed(request).project
    if query.bucket:
        check_choice(query.bucket, every(project), field="bucket", error=Unreadable)
    rows = without_any_task(project, bucket=query.bucket, corrected=query.corrected)
    page = paginate(rows, query)
    return page | {"items": look_at(page["items"])}


@router.get("/environments/{name}/tasks", response=page_of(TaskOut), auth=Key(Scope.READ))
def list_tasks(request: HttpRequest, name: str, query: Query[TaskQuery]) -> dict[str, Any]:
    """List the environment's tasks, newest first; sealed ones only if you request them with `split`. Reading
    held-out or sealed tasks is recorded in the ledger of their task sets."""
    rows = find_environment(request, name).tasks.select_related("environment", "source")
    rows = rows.filter(retired_at__isnull=not query.retired)
    if not query.split:
        rows = rows.exclude(split=Split.SEALED)
    else:
        check_choice(query.split, Split.values, field="split", error=Unreadable)
        rows = rows.filter(split=query.split)
    if query.bucket:
        rows = rows.filter(bucket=query.bucket)
    if query.proved is not None:
        rows = rows.filter(is_proved=query.proved)
    if query.synthetic is not None:
        rows = rows.filter(is_synthetic=query.synthetic)
    rows = fresh(rows) if query.fresh else rows
    page = paginate(rows, query)
    ledger.looked(page["items"], keyed(request).actor, Opening.Kind.EXPORT)
    return page


@router.post("/environments/{name}/tasks", response={200: TaskOut, 201: TaskOut}, auth=Key(Scope.BUILD))
def make_task(request: HttpRequest, name: str, wanted: TaskIn) -> Status[Task]:
    """Create a task, with its proof, from a labelled trajectory: 201 if it is new, 200 if it already exists."""
    failures = Failure.objects.filter(project=keyed(request).project, current=True).select_related("trajectory")
    failure = failures.filter(trajectory__trace_id=wanted.trace_id).first()
    if failure is None:
        raise Missing(f"no decision on a trajectory {wanted.trace_id[:64]!r} in this project")
    environment = find_environment(request, name)
    task, is_new = recorded_tasks.task_from(failure=failure, environment=environment, actor=keyed(request).actor)
    return Status(201 if is_new else 200, task)


@router.post("/environments/{name}/tasks/bulk", response=BulkTasksOut, auth=Key(Scope.BUILD))
def make_all_tasks(request: HttpRequest, name: str) -> bulk_tasks.Made:
    """Create a task from each labelled failure that has none, at most 200 at a time."""
    return bulk_tasks.tasks_from_all(environment=find_environment(request, name), actor=keyed(request).actor)


@router.get("/environments/{name}/tasks/{int:number}", response=TaskOut, auth=Key(Scope.READ))
def get_task(request: HttpRequest, name: str, number: int) -> Task:
    """Return one task with its proof. Reading a held-out or sealed task is recorded in the ledger of its task sets."""
    row = find_task(request, name, number)
    ledger.looked([row], keyed(request).actor, Opening.Kind.EXPORT)
    return row


@router.post("/environments/{name}/tasks/{int:number}/retire", response=TaskOut, auth=Key(Scope.BUILD))
def retire_task(request: HttpRequest, name: str, number: int, wanted: TaskRetireIn) -> Task:
    """Exclude a task from all future task sets; frozen sets keep it."""
    return retire(task=find_task(request, name, number), actor=keyed(request).actor, reason=wanted.reason)


def find_task(request: HttpRequest, name: str, number: int) -> Task:
    """The task of the environment in the key's project, or 404."""
    rows = find_environment(request, name).tasks
    return one(rows.select_related("environment__project", "source", "generation__origin"), number=number)
