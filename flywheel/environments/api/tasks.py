"""Tasks for programs: made of labelled trajectories, listed, retired."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import ListQuery, Number, Ref, TraceId, page_of, paginate
from flywheel.edge.refusals import Missing, Unreadable, check_choice, one
from flywheel.edge.schemas import Body
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
    slice: str
    split: str
    bucket: str
    trace_id: TraceId | None = Field(alias="source")
    generation: int | None = Field(alias="generation_id")
    """What made it; null for a task of something that happened."""
    synthetic: bool = Field(alias="is_synthetic")
    """Whether it was made and never happened. That never changes."""
    digest: str
    is_proved: bool
    awaits_proof: bool
    """A worker has yet to make its proof: that it is not proved says nothing against it."""
    proof: dict[str, Any]
    """`checks`, what is `missing` by its reason, and `warnings`: the most common wrong answer, where the verifier
    passes it although it does not do what the target wants."""
    retired_at: datetime | None
    created_at: datetime


class TaskQuery(ListQuery):
    split: str = ""
    bucket: str = ""
    proved: bool | None = None
    synthetic: bool | None = None
    fresh: bool = False
    """Those alone that stand in no set yet."""
    retired: bool = False


class TaskIn(Body):
    trace_id: str
    """Of a labelled trajectory: its decision becomes the task."""


class BulkTasksOut(Schema):
    made: list[Number]
    """Numbers of the new tasks."""
    unproved: int
    existing: int
    refused: dict[str, int]
    """Reason → how many failures it kept out."""
    left: int


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
    """Whether an environment of kind `episode` can take it as it is."""
    reason: str
    """Why not, as making a task would be refused; empty where it can."""


class TasklessQuery(ListQuery):
    bucket: str = ""
    corrected: bool | None = None
    """Those with a corrected action alone, or those without."""


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
