"""Task sets for programs: frozen, listed, and who opened their held-out part."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Field, Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate
from flywheel.edge.refusals import Missing, Refused
from flywheel.edge.schemas import Body, Schema
from flywheel.environments import ledger, task_statistics
from flywheel.environments.api.environments import find_environment
from flywheel.environments.models import Split, TaskSet, TaskSetMember
from flywheel.environments.task_sets import frozen_sets
from flywheel.environments.task_sets.set_power import SetPower, set_power

router = Router(tags=["environments"])


class TaskSetIn(Body):
    name: str
    """An existing name makes the set's next version."""
    tasks: list[int] | None = None
    """Task numbers; all proved tasks if omitted."""


class TaskSetOut(Schema):
    name: str
    version: int
    environment: Ref = Field(alias="environment_version")
    digest: str
    train: int
    """Number of tasks in the train split."""
    held_out: int
    """Number of tasks in the held-out split."""
    sealed: int
    """Number of tasks in the sealed split."""
    opened: int
    """How often evals and training have measured the held-out split."""
    warnings: list[str]
    """Reasons to trust its numbers less, for example one source with more than a third of the tasks."""
    created_at: datetime


class TaskSetMemberOut(Schema):
    number: int = Field(alias="task.number")
    split: str
    digest: str = Field(alias="task.digest")
    cluster: str = Field(alias="task.cluster")
    """Source of the task, for example a session. Tasks of one source are in the same split."""


class TaskSetWithMembers(TaskSetOut):
    members: list[TaskSetMemberOut]
    """All tasks except sealed ones."""

    @staticmethod
    def resolve_members(row: TaskSet) -> QuerySet[TaskSetMember]:
        return row.members.exclude(split=Split.SEALED).select_related("task").order_by("task__number")


class OpeningOut(Schema):
    kind: str
    """`eval` and `training` measured the held-out split; `page` and `export` are looks at tasks or rollouts; `sealed`
    is a candidate's final comparison on the sealed split."""
    subject: str
    actor: Ref | None
    times: int
    first_at: datetime
    last_at: datetime


class MoreOut(Schema):
    held_out: int
    sealed: int


class OutlookOut(Schema):
    gain: float
    """True gain in success, as a fraction."""
    is_shown: float
    """Probability that the held-out tasks show it."""
    is_eligible: float
    """Probability that it also passes every guard."""
    passes: float
    """Probability that the sealed tasks also confirm it, so that the candidate passes everything except suites."""
    more: MoreOut | None
    """Additional tasks that would bring `passes` to 0.8; null if no number of them would."""


class GuardPowerOut(Schema):
    name: str
    field: str
    """The field of the gate policy that sets it."""
    passes: float
    """Probability that a candidate which is worse in nothing passes it."""
    margin: float | None
    """For a strict policy, the smallest margin at which nine of ten such candidates pass."""


class TaskSetPowerOut(Schema):
    outlooks: list[OutlookOut] = Field(alias="power.outlooks")
    """For true gains of 0.1 and 0.2."""
    least_gain: float | None = Field(alias="power.least_gain")
    """Smallest gain that the held-out tasks show in four of five cases."""
    least_confirmed: float | None = Field(alias="power.least_confirmed")
    """Smallest gain that the sealed tasks confirm in four of five cases."""
    falls: dict[str, float | None] = Field(alias="power.falls")
    """By slice, the smallest fall that is seen in four of five cases; null if a slice has too few tasks."""
    guards: list[GuardPowerOut] = Field(alias="power.guards")
    assumed: str
    """Assumptions of the estimate."""


@router.post("/environments/{name}/task-sets", response={201: TaskSetOut}, auth=Key(Scope.BUILD))
def freeze_task_set(request: HttpRequest, name: str, wanted: TaskSetIn) -> Status[TaskSet]:
    """Freeze proved tasks as the next version of a set. Returns the newest version if it has the same content."""
    row = find_environment(request, name)
    tasks = None
    if wanted.tasks is not None:
        tasks = list(row.tasks.filter(number__in=wanted.tasks).order_by("number"))
        if missing := sorted(set(wanted.tasks) - {task.number for task in tasks}):
            raise Refused(f"{row} has no task {missing[0]}", field="tasks")
    made = frozen_sets.freeze(environment=row, name=wanted.name, actor=keyed(request).actor, tasks=tasks)
    return Status(201, _with_openings(_task_sets(request).filter(pk=made.pk))[0])


@router.get("/task-sets", response=page_of(TaskSetOut), auth=Key(Scope.READ))
def list_task_sets(request: HttpRequest, query: Query[ListQuery]) -> dict[str, Any]:
    """List all versions of all task sets, newest first, without their tasks."""
    page = paginate(_task_sets(request), query)
    return {**page, "items": _with_openings(page["items"])}


@router.get("/task-sets/{name}/{int:version}", response=TaskSetWithMembers, auth=Key(Scope.READ))
def get_task_set(request: HttpRequest, name: str, version: int) -> TaskSet:
    """Return one version of a task set with its train and held-out tasks."""
    found = _with_openings(_task_sets(request).filter(name=name, version=version))
    if not found:
        raise Missing(f"there is no task set {name[:100]}@{version}")
    return found[0]


@router.get("/task-sets/{name}/{int:version}/openings", response=page_of(OpeningOut), auth=Key(Scope.READ))
def list_task_set_openings(request: HttpRequest, name: str, version: int, query: Query[ListQuery]) -> dict[str, Any]:
    """List who or what opened the held-out part, how often and when."""
    return paginate(get_task_set(request, name, version).openings.select_related("actor"), query)


@router.get("/task-sets/{name}/{int:version}/power", response=TaskSetPowerOut, auth=Key(Scope.READ))
def get_task_set_power(request: HttpRequest, name: str, version: int) -> SetPower:
    """Estimate, before you run anything, what the set can show under the project's gate policy, and state the
    assumptions."""
    found = set_power(get_task_set(request, name, version))
    if found is None:
        raise Refused("this set has no held-out tasks, so nothing can be shown by it")
    return found


def _task_sets(request: HttpRequest) -> QuerySet[TaskSet]:
    rows = TaskSet.objects.filter(project=keyed(request).project)
    return task_statistics.sizes(rows.select_related("environment_version__environment"))


def _with_openings(rows: Iterable[TaskSet]) -> list[TaskSet]:
    """Sized task sets with how often each was `opened`, and what there is to warn of."""
    found = list(rows)
    opened, spread = ledger.openings_of(found), task_statistics.source_shares(found)
    for row in found:
        row.opened = opened[row.pk].times  # type: ignore[attr-defined]
        row.warnings = [shares.words for shares in spread[row.pk] if shares.is_lopsided]  # type: ignore[attr-defined]
    return found
