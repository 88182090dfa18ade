"""Environments for programs: environments and their versions, tasks of failures, frozen task sets."""

import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest
from ninja import Field, Query, Router, Schema, Status
from ninja.errors import HttpError

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.refs import UnknownReference, find_version
from flywheel.core.envs.kinds import KINDS
from flywheel.core.envs.tool_call import DEFAULT_WEIGHTS
from flywheel.core.verifiers import VerifierError
from flywheel.environments import bulk, environment_versions, figures, frozen_sets, generate, ledger, recorded_tasks
from flywheel.environments.choice import fresh
from flywheel.environments.environment_versions import CannotMake
from flywheel.environments.models import Environment, EnvironmentVersion, Generation, Opening, Split, Task, TaskSet
from flywheel.environments.retire import retire
from flywheel.failures.models import Failure
from flywheel.jobs import StaleState
from flywheel.paging import BadCursor, keyset

router = Router(tags=["environments"])


_COUNTED = ("train", "held_out", "sealed", "set_aside", "proved", "total")


class Paged(Schema):
    limit: int = Field(50, ge=1, le=200)
    cursor: str = ""


class EnvironmentVersionOut(Schema):
    number: int
    config: dict[str, Any]
    verifier: dict[str, Any]
    digest: str
    verifier_digest: str
    created_at: datetime


class EnvironmentOut(Schema):
    name: str
    kind: str
    description: str
    agent: str | None
    held_out_share: float
    sealed_share: float
    """Of all sources, out of those held out."""
    reserved_slices: list[str]
    created_at: datetime
    tasks: dict[str, int]
    latest: EnvironmentVersionOut | None

    @staticmethod
    def resolve_agent(row: Environment) -> str | None:
        return row.agent.name if row.agent else None

    @staticmethod
    def resolve_tasks(row: Environment) -> dict[str, int]:
        return {name: getattr(row, name, 0) for name in _COUNTED}

    @staticmethod
    def resolve_latest(row: Environment) -> EnvironmentVersion | None:
        known: list[EnvironmentVersion] | None = getattr(row, "newest", None)
        return row.versions.order_by("-number").first() if known is None else next(iter(known), None)


class EnvironmentPage(Schema):
    items: list[EnvironmentOut]
    next: str | None


class EnvironmentIn(Schema):
    name: str
    version: str = ""
    """`agent@number`, whose tools and system prompt are copied and whose agent's failures become tasks."""
    kind: str = "tool_call"
    config: dict[str, Any] = {}
    """Settings of a kind that makes its own tasks; its defaults when left out. Of `nemo_gym`, `{"base_url", "tools",
    "max_turns", "token_limit"}`, which wants a key with the scope `admin` too."""
    held_out_share: float = 0.4
    sealed_share: float | None = None
    """Of all sources, out of those held out: nobody looks at these tasks, and only a candidate's final comparison asks
    them. A quarter of the held-out share when left out, unless everything is held out; 0 for none."""
    reserved_slices: list[str] = []
    description: str = ""
    weights: dict[str, float] | None = None
    """Of the verifier's parts; the kind's own when left out."""
    verifier: dict[str, Any] | None = None
    """The whole verifier instead, such as a rubric: `{"kind": "rubric", "parts": […]}`."""


class VersionIn(Schema):
    """What is left out stays as it is in the newest version."""

    config: dict[str, Any] | None = None
    """All settings; of a kind that makes its own tasks."""
    system_prompt: str | None = None
    tools: list[dict[str, Any]] | None = None
    weights: dict[str, float] | None = None
    """Of the parts of the kind's own verifier."""
    verifier: dict[str, Any] | None = None
    """The whole verifier instead, such as a rubric: `{"kind": "rubric", "parts": […]}`."""


class TaskOut(Schema):
    number: int
    environment: str
    prompt: str
    state: dict[str, Any]
    target: dict[str, Any]
    cluster: str
    slice: str
    split: str
    bucket: str
    trace_id: str | None
    generation: int | None
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

    @staticmethod
    def resolve_environment(row: Task) -> str:
        return row.environment.name

    @staticmethod
    def resolve_generation(row: Task) -> int | None:
        return row.generation_id

    @staticmethod
    def resolve_trace_id(row: Task) -> str | None:
        return row.source.trace_id if row.source else None


class TaskPage(Schema):
    items: list[TaskOut]
    next: str | None


class TaskQuery(Paged):
    split: str = ""
    bucket: str = ""
    proved: bool | None = None
    synthetic: bool | None = None
    fresh: bool = False
    """Those alone that stand in no set yet."""
    retired: bool = False


class TaskIn(Schema):
    trace_id: str
    """Of a labelled trajectory: its decision becomes the task."""


class BulkOut(Schema):
    made: list[int]
    """Numbers of the new tasks."""
    unproved: int
    existing: int
    refused: dict[str, int]
    """Reason → how many failures it kept out."""
    left: int


class GenerateIn(Schema):
    count: int
    """From 1 to 2000."""
    seed: int = 1
    """The same seed makes the same tasks; those that are there already are not made again."""
    options: dict[str, float] = {}
    """As the kind knows them: `low` and `high` of `tictactoe`."""
    key: uuid.UUID | None = None
    """Of your own making: the same key again is the same generation."""


class GenerationOut(Schema):
    id: int
    environment: str
    count: int
    seed: int
    options: dict[str, Any]
    origin: int | None
    """The number of the task whose variants these are."""
    state: str
    done: int
    made: int
    error: str
    created_at: datetime
    finished_at: datetime | None

    @staticmethod
    def resolve_environment(row: Generation) -> str:
        return row.environment.name

    @staticmethod
    def resolve_origin(row: Generation) -> int | None:
        return row.origin.number if row.origin else None


class RetireIn(Schema):
    reason: str


class TaskSetIn(Schema):
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


@router.get("/environments", response=EnvironmentPage, auth=Key(Scope.READ), operation_id="list_environments")
def list_environments(request: HttpRequest, asked: Query[Paged]) -> dict[str, Any]:
    rows = figures.counts(Environment.objects.filter(project=keyed(request).project).select_related("agent"))
    newest = EnvironmentVersion.objects.order_by("environment", "-number").distinct("environment")
    return _page(rows.prefetch_related(Prefetch("versions", newest, to_attr="newest")), asked)


@router.post("/environments", response={201: EnvironmentOut}, auth=Key(Scope.BUILD), operation_id="create_environment")
def create_environment(request: HttpRequest, wanted: EnvironmentIn) -> Status[Environment]:
    """A new environment with its first version. The shares and the reserved slices never change."""
    project = keyed(request).project
    _refuse_attaching(request, wanted.kind)
    config, agent = wanted.config, None
    verifier: dict[str, Any] = {"kind": wanted.kind}
    try:
        if wanted.kind in KINDS and KINDS[wanted.kind].from_failures:
            version = find_version(project, wanted.version)
            config, agent = {"system_prompt": version.system_prompt, "tools": version.tools}, version.agent
            verifier |= {"weights": wanted.weights or DEFAULT_WEIGHTS}
        elif wanted.weights is not None:
            verifier |= {"weights": wanted.weights}
        verifier = wanted.verifier or verifier
        made = environment_versions.environment(
            project=project,
            name=wanted.name,
            actor=keyed(request).actor,
            kind=wanted.kind,
            agent=agent,
            config=config,
            verifier=verifier,
            held_out_share=wanted.held_out_share,
            sealed_share=_sealed_share(wanted),
            reserved_slices=wanted.reserved_slices,
            description=wanted.description,
            through=keyed(request).through,
        )
    except UnknownReference as error:
        raise HttpError(422, f"version: {error}") from None
    except (CannotMake, VerifierError) as error:
        raise HttpError(422, str(error)) from None
    return Status(201, made)


def _sealed_share(wanted: EnvironmentIn) -> float:
    if wanted.sealed_share is None:
        is_external = wanted.kind in KINDS and KINDS[wanted.kind].is_external
        return 0 if is_external or wanted.held_out_share == 1 else wanted.held_out_share / 4
    return wanted.sealed_share


@router.get("/environments/{name}", response=EnvironmentOut, auth=Key(Scope.READ), operation_id="get_environment")
def get_environment(request: HttpRequest, name: str) -> Environment:
    return figures.counts(Environment.objects.filter(pk=_environment(request, name).pk)).select_related("agent").get()


@router.post(
    "/environments/{name}/versions",
    response={201: EnvironmentVersionOut},
    auth=Key(Scope.BUILD),
    operation_id="make_environment_version",
)
def make_environment_version(request: HttpRequest, name: str, wanted: VersionIn) -> Status[EnvironmentVersion]:
    """The next version; the newest when nothing changes. Every task is proved again under it."""
    row = _environment(request, name)
    _refuse_attaching(request, row.kind)
    newest = row.versions.order_by("-number").first()
    config = dict(newest.config) if newest else {}
    verifier = dict(newest.verifier) if newest else {"kind": row.kind}
    if wanted.config is not None:
        config = wanted.config
    if wanted.system_prompt is not None:
        config["system_prompt"] = wanted.system_prompt
    if wanted.tools is not None:
        config["tools"] = wanted.tools
    if wanted.verifier is not None:
        verifier = wanted.verifier
    elif wanted.weights is not None:
        verifier["weights"] = wanted.weights
    try:
        made = environment_versions.environment_version(
            environment=row,
            actor=keyed(request).actor,
            config=config,
            verifier=verifier,
            through=keyed(request).through,
        )
    except VerifierError as error:
        raise HttpError(422, str(error)) from None
    return Status(201, made)


@router.post(
    "/environments/{name}/tasks/generate",
    response={202: GenerationOut},
    auth=Key(Scope.BUILD),
    operation_id="generate_tasks",
)
def generate_tasks(request: HttpRequest, name: str, wanted: GenerateIn) -> Status[Generation]:
    """Make tasks out of a seed in the background, for a kind that needs no recorded failure."""
    try:
        job = generate.submit(
            environment=_environment(request, name),
            actor=keyed(request).actor,
            count=wanted.count,
            seed=wanted.seed,
            options=wanted.options,
            key=wanted.key or uuid.uuid4(),
            through=keyed(request).through,
        )
    except CannotMake as error:
        raise HttpError(422, str(error)) from None
    return Status(202, job)


@router.get("/generations/{pk}", response=GenerationOut, auth=Key(Scope.READ), operation_id="get_generation")
def get_generation(request: HttpRequest, pk: int) -> Generation:
    """How far it is."""
    return _generation(request, pk)


@router.post(
    "/generations/{pk}/cancel", response=GenerationOut, auth=Key(Scope.BUILD), operation_id="cancel_generation"
)
def cancel_generation(request: HttpRequest, pk: int) -> Generation:
    """Ask for an end; tasks that are made stay."""
    job = _generation(request, pk)
    try:
        generate.cancel(job=job, actor=keyed(request).actor, through=keyed(request).through)
    except StaleState as error:
        raise HttpError(409, str(error)) from None
    job.refresh_from_db()
    return job


@router.get("/environments/{name}/tasks", response=TaskPage, auth=Key(Scope.READ), operation_id="list_tasks")
def list_tasks(request: HttpRequest, name: str, asked: Query[TaskQuery]) -> dict[str, Any]:
    """Newest first; sealed ones only where `split` asks for them. Who reads what is not trained on stands in the ledger
    of its sets."""
    rows = _environment(request, name).tasks.select_related("environment", "source")
    rows = rows.filter(retired_at__isnull=not asked.retired)
    if not asked.split:
        rows = rows.exclude(split=Split.SEALED)
    else:
        if asked.split not in Split.values:
            raise HttpError(400, f"split: {asked.split!r} is unknown, one of {', '.join(Split.values)} is wanted")
        rows = rows.filter(split=asked.split)
    if asked.bucket:
        rows = rows.filter(bucket=asked.bucket)
    if asked.proved is not None:
        rows = rows.filter(is_proved=asked.proved)
    if asked.synthetic is not None:
        rows = rows.filter(is_synthetic=asked.synthetic)
    rows = fresh(rows) if asked.fresh else rows
    page = _page(rows, asked)
    ledger.looked(page["items"], keyed(request).actor, Opening.Kind.EXPORT)
    return page


@router.post(
    "/environments/{name}/tasks",
    response={200: TaskOut, 201: TaskOut},
    auth=Key(Scope.BUILD),
    operation_id="make_task",
)
def make_task(request: HttpRequest, name: str, wanted: TaskIn) -> Status[Task]:
    """A task of a labelled trajectory, with its proof: 201 for a new one, 200 for one that is there already."""
    failures = Failure.objects.filter(project=keyed(request).project, current=True).select_related("trajectory")
    failure = failures.filter(trajectory__trace_id=wanted.trace_id).first()
    if failure is None:
        raise HttpError(404, f"nobody decided about a trajectory {wanted.trace_id[:64]!r} in this project")
    try:
        task, is_new = recorded_tasks.task_from(
            failure=failure,
            environment=_environment(request, name),
            actor=keyed(request).actor,
            through=keyed(request).through,
        )
    except CannotMake as error:
        raise HttpError(422, str(error)) from None
    return Status(201 if is_new else 200, task)


@router.post("/environments/{name}/tasks/bulk", response=BulkOut, auth=Key(Scope.BUILD), operation_id="make_all_tasks")
def make_all_tasks(request: HttpRequest, name: str) -> dict[str, Any]:
    """A task of every labelled failure that has none, at most 200 at a time."""
    made = bulk.tasks_from_all(
        environment=_environment(request, name), actor=keyed(request).actor, through=keyed(request).through
    )
    return {
        "made": [task.number for task in made.made],
        "unproved": made.unproved,
        "existing": made.existing,
        "refused": dict(made.refused),
        "left": made.left,
    }


@router.get("/environments/{name}/tasks/{int:number}", response=TaskOut, auth=Key(Scope.READ), operation_id="get_task")
def get_task(request: HttpRequest, name: str, number: int) -> Task:
    row = _task(request, name, number)
    ledger.looked([row], keyed(request).actor, Opening.Kind.EXPORT)
    return row


@router.post(
    "/environments/{name}/tasks/{int:number}/retire",
    response=TaskOut,
    auth=Key(Scope.BUILD),
    operation_id="retire_task",
)
def retire_task(request: HttpRequest, name: str, number: int, wanted: RetireIn) -> Task:
    """Keep a task out of every future task set; frozen sets keep it."""
    try:
        return retire(
            task=_task(request, name, number),
            actor=keyed(request).actor,
            reason=wanted.reason,
            through=keyed(request).through,
        )
    except CannotMake as error:
        raise HttpError(422, str(error)) from None


@router.post(
    "/environments/{name}/task-sets",
    response={201: TaskSetOut},
    auth=Key(Scope.BUILD),
    operation_id="freeze_task_set",
)
def freeze_task_set(request: HttpRequest, name: str, wanted: TaskSetIn) -> Status[TaskSet]:
    """Freeze proved tasks as the next version of a set; the newest version when it has the same content."""
    row = _environment(request, name)
    tasks = None
    if wanted.tasks is not None:
        tasks = list(row.tasks.filter(number__in=wanted.tasks).order_by("number"))
        if missing := sorted(set(wanted.tasks) - {task.number for task in tasks}):
            raise HttpError(422, f"tasks: {row} has no task {missing[0]}")
    try:
        made = frozen_sets.freeze(
            environment=row, name=wanted.name, actor=keyed(request).actor, tasks=tasks, through=keyed(request).through
        )
    except CannotMake as error:
        raise HttpError(422, str(error)) from None
    return Status(201, _told(_task_sets(request).filter(pk=made.pk))[0])


@router.get("/task-sets", response=TaskSetPage, auth=Key(Scope.READ), operation_id="list_task_sets")
def list_task_sets(request: HttpRequest, asked: Query[Paged]) -> dict[str, Any]:
    page = _page(_task_sets(request), asked)
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
    return _page(get_task_set(request, name, version).openings.order_by("-pk").select_related("actor"), asked)


def _refuse_attaching(request: HttpRequest, kind: str) -> None:
    """To whose server this installation talks, an admin says, with a key that may."""
    asked = keyed(request)
    if kind not in KINDS or not KINDS[kind].is_external:
        return
    if Scope.ADMIN not in asked.key.scopes or not environment_versions.may_attach(asked.project, asked.actor):
        raise HttpError(403, "only an admin attaches a server: a key with the scope 'admin' too is wanted")


def _generation(request: HttpRequest, pk: int) -> Generation:
    rows = Generation.objects.select_related("environment")
    found = rows.filter(project=keyed(request).project, pk=pk).first()
    if found is None:
        raise HttpError(404, f"there is no generation {pk}")
    return found


def _environment(request: HttpRequest, name: str) -> Environment:
    row = Environment.objects.filter(project=keyed(request).project, name=name).first()
    if row is None:
        raise HttpError(404, f"there is no environment {name[:100]!r}")
    return row


def _task(request: HttpRequest, name: str, number: int) -> Task:
    row = (
        _environment(request, name)
        .tasks.filter(number=number)
        .select_related("environment__project", "source", "generation__origin")
        .first()
    )
    if row is None:
        raise HttpError(404, f"there is no task {number} in {name}")
    return row


def _task_sets(request: HttpRequest) -> QuerySet[TaskSet]:
    rows = TaskSet.objects.filter(project=keyed(request).project)
    return figures.sizes(rows.select_related("environment_version__environment"))


def _told(rows: Iterable[TaskSet]) -> list[TaskSet]:
    """Sized task sets with how often each was `opened`."""
    found = list(rows)
    opened = ledger.openings_of(found)
    for row in found:
        row.opened = opened[row.pk].times  # type: ignore[attr-defined]
    return found


def _page(rows: Any, asked: Paged) -> dict[str, Any]:
    try:
        page = keyset(rows, cursor=asked.cursor, limit=asked.limit)
    except BadCursor as error:
        raise HttpError(400, str(error)) from None
    return {"items": page.items, "next": page.next_cursor or None}
