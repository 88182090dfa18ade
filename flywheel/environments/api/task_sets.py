"""Task sets for programs: frozen, listed, and who opened their held-out part."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Query, Router, Schema, Status
from ninja.errors import HttpError

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.schemas import Body
from flywheel.environments import ledger, task_statistics
from flywheel.environments.api.environments import Paged, find_environment, page_of
from flywheel.environments.models import Opening, Split, TaskSet
from flywheel.environments.task_sets import frozen_sets
from flywheel.environments.versions.environment_versions import CannotMake

router = Router(tags=["environments"])


class TaskSetIn(Body):
    name: str
    tasks: list[int] | None = None
    """Numbers; all proved tasks when left out."""


class TaskSetOut(Schema):
    name: str
    version: int
    environment: str
    digest: str
    train: int
    held_out: int
    sealed: int
    opened: int
    """How often the held-out part was measured, by evals and while training."""
    created_at: datetime

    @staticmethod
    def resolve_environment(row: TaskSet) -> str:
        return str(row.environment_version)


class MemberOut(Schema):
    number: int
    split: str
    digest: str
    cluster: str


class TaskSetWithMembers(TaskSetOut):
    members: list[MemberOut]
    """Without the sealed ones."""

    @staticmethod
    def resolve_members(row: TaskSet) -> list[dict[str, Any]]:
        members = row.members.exclude(split=Split.SEALED).select_related("task").order_by("task__number")
        return [
            {"number": m.task.number, "split": m.split, "digest": m.task.digest, "cluster": m.task.cluster}
            for m in members
        ]


class OpeningOut(Schema):
    kind: str
    """`eval` and `training` measured the held-out part; `page` and `export` are looks at tasks or rollouts; `sealed` is
    a candidate's final comparison on the sealed part."""
    subject: str
    actor: str | None
    times: int
    first_at: datetime
    last_at: datetime

    @staticmethod
    def resolve_actor(row: Opening) -> str | None:
        return row.actor.username if row.actor else None


class OpeningPage(Schema):
    items: list[OpeningOut]
    next: str | None


class TaskSetPage(Schema):
    items: list[TaskSetOut]
    next: str | None


@router.post(
    "/environments/{name}/task-sets",
    response={201: TaskSetOut},
    auth=Key(Scope.BUILD),
    operation_id="freeze_task_set",
)
def freeze_task_set(request: HttpRequest, name: str, wanted: TaskSetIn) -> Status[TaskSet]:
    """Freeze proved tasks as the next version of a set; the newest version when it has the same content."""
    row = find_environment(request, name)
    tasks = None
    if wanted.tasks is not None:
        tasks = list(row.tasks.filter(number__in=wanted.tasks).order_by("number"))
        if missing := sorted(set(wanted.tasks) - {task.number for task in tasks}):
            raise HttpError(422, f"tasks: {row} has no task {missing[0]}")
    try:
        made = frozen_sets.freeze(environment=row, name=wanted.name, actor=keyed(request).actor, tasks=tasks)
    except CannotMake as error:
        raise HttpError(422, str(error)) from None
    return Status(201, _told(_task_sets(request).filter(pk=made.pk))[0])


@router.get("/task-sets", response=TaskSetPage, auth=Key(Scope.READ), operation_id="list_task_sets")
def list_task_sets(request: HttpRequest, asked: Query[Paged]) -> dict[str, Any]:
    page = page_of(_task_sets(request), asked)
    return {**page, "items": _told(page["items"])}


@router.get(
    "/task-sets/{name}/{int:version}", response=TaskSetWithMembers, auth=Key(Scope.READ), operation_id="get_task_set"
)
def get_task_set(request: HttpRequest, name: str, version: int) -> TaskSet:
    found = _told(_task_sets(request).filter(name=name, version=version))
    if not found:
        raise HttpError(404, f"there is no task set {name[:100]}@{version}")
    return found[0]


@router.get(
    "/task-sets/{name}/{int:version}/openings",
    response=OpeningPage,
    auth=Key(Scope.READ),
    operation_id="list_task_set_openings",
)
def list_task_set_openings(request: HttpRequest, name: str, version: int, asked: Query[Paged]) -> dict[str, Any]:
    """Who or what opened the held-out part, how often, and when."""
    return page_of(get_task_set(request, name, version).openings.order_by("-pk").select_related("actor"), asked)


def _task_sets(request: HttpRequest) -> QuerySet[TaskSet]:
    rows = TaskSet.objects.filter(project=keyed(request).project)
    return task_statistics.sizes(rows.select_related("environment_version__environment"))


def _told(rows: Iterable[TaskSet]) -> list[TaskSet]:
    """Sized task sets with how often each was `opened`."""
    found = list(rows)
    opened = ledger.openings_of(found)
    for row in found:
        row.opened = opened[row.pk].times  # type: ignore[attr-defined]
    return found
