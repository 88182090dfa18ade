"""Training for programs: ask the ladder, build data, launch, follow, stop, go on."""

import json
import uuid
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema, Status
from ninja.errors import HttpError

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.refs import UnknownReference, find_version
from flywheel.environments import leaks
from flywheel.environments.models import TaskSet
from flywheel.evals.models import EvalRun
from flywheel.evals.refs import find_task_set
from flywheel.jobs import StaleState
from flywheel.paging import BadCursor, keyset
from flywheel.training import contamination, reward
from flywheel.training import dataset as datasets
from flywheel.training import launch as verbs
from flywheel.training.models import Dataset, Point, Recommendation, TrainingRun
from flywheel.training.recommend import recommendation_for

router = Router(tags=["training"])

LIST_MAX = 200
POINTS_MAX = 1000
ROWS_MAX = 1000


class ListQuery(Schema):
    limit: int = Field(50, ge=1, le=LIST_MAX)
    cursor: str = ""


class RunsQuery(ListQuery):
    state: str = ""
    algorithm: str = ""


class RecommendationQuery(Schema):
    version: str
    """`agent@number` or `agent@live`."""
    task_set: str
    """`name@version`."""


class PointsQuery(Schema):
    kind: Point.Kind = Point.Kind.STEP
    after: int = Field(-1, ge=-1)
    """Steps up to this one are left out; give the last one that you have."""
    limit: int = Field(POINTS_MAX, ge=1, le=POINTS_MAX)


class EventsQuery(Schema):
    after: int = Field(0, ge=0)
    """Events up to this id are left out."""
    limit: int = Field(POINTS_MAX, ge=1, le=POINTS_MAX)


class RowsQuery(Schema):
    start: int = Field(0, ge=0, le=10**9)
    limit: int = Field(ROWS_MAX, ge=1, le=ROWS_MAX)


class DatasetIn(Schema):
    name: str
    kind: Dataset.Kind
    task_set: str
    rollouts: int | None = None
    """A finished eval run on the set's train split, whose attempts are used too."""


class RunIn(Schema):
    key: uuid.UUID | None = None
    """Yours, so that a call which is repeated launches one run."""
    base: str
    task_set: str
    algorithm: str
    dataset: str = ""
    """`name@version`; without one it is built."""
    rollouts: int | None = None
    settings: dict[str, Any] = {}
    tuning: dict[str, Any] = {"mode": "full"}
    seed: int = 1
    override_reason: str = ""
    """Why not the fix that is recommended; wanted then."""
    leave_out: list[int] = []
    """Numbers of train tasks that are not learnt from; for a dataset that is built."""


class RungOut(Schema):
    fix: str
    label: str
    why: str
    evidence: dict[str, Any]
    blocked_by: str


class RecommendationOut(Schema):
    id: int
    version: str
    task_set: str
    eval_run: int | None
    evidence: dict[str, Any]
    ladder: list[RungOut]
    created_at: datetime

    @staticmethod
    def resolve_version(row: Recommendation) -> str:
        return str(row.version)

    @staticmethod
    def resolve_task_set(row: Recommendation) -> str:
        return str(row.task_set)

    @staticmethod
    def resolve_eval_run(row: Recommendation) -> int | None:
        return row.eval_run_id


class DatasetOut(Schema):
    name: str
    version: int
    kind: str
    task_set: str
    digest: str
    rows: int
    recipe: dict[str, Any]
    created_by: str
    created_at: datetime

    @staticmethod
    def resolve_task_set(row: Dataset) -> str:
        return str(row.task_set)

    @staticmethod
    def resolve_created_by(row: Dataset) -> str:
        return row.created_by.username


class FindingOut(Schema):
    level: str
    held_out: str
    train: str
    times: int
    """Training tasks that show it."""
    shared: str
    asked: str
    trained: str
    likeness: float | None


class ContaminationOut(Schema):
    dataset: str
    task_set: str
    verdict: str
    """`clean`, `warned` (what was found does not block) or `contaminated`."""
    opened: int
    """How often the held-out part was measured."""
    counts: dict[str, int]
    """Held-out tasks by level; `task`, `source` and `content` block."""
    blocked: list[str]
    flagged: list[str]
    findings: list[FindingOut]
    """The first 50 of each level."""

    @staticmethod
    def resolve_dataset(row: leaks.Beside) -> str:
        return str(row.dataset)

    @staticmethod
    def resolve_task_set(row: leaks.Beside) -> str:
        return str(row.task_set)

    @staticmethod
    def resolve_opened(row: leaks.Beside) -> int:
        return row.openings.times

    @staticmethod
    def resolve_counts(row: leaks.Beside) -> dict[str, int]:
        return dict(row.report["counts"])

    @staticmethod
    def resolve_blocked(row: leaks.Beside) -> list[str]:
        return list(row.report["blocked"])

    @staticmethod
    def resolve_flagged(row: leaks.Beside) -> list[str]:
        return list(row.report["flagged"])


class RunOut(Schema):
    id: int
    base: str
    task_set: str
    dataset: str
    algorithm: str
    tuning: dict[str, Any]
    settings: dict[str, Any]
    seed: int
    spec_digest: str
    override_reason: str
    reward: dict[str, Any]
    """Whether it learns from a reward, the audit of that, and who overrode it and why."""
    state: str
    cancelling: bool = Field(alias="is_cancelling")
    step: int = Field(alias="done")
    steps: int | None = Field(alias="total")
    checkpoint_step: int | None
    attempt: int
    error_kind: str
    error: str
    baseline: int | None = Field(alias="baseline_id")
    evaluation: int | None = Field(alias="evaluation_id")
    produced: str | None
    created_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @staticmethod
    def resolve_base(row: TrainingRun) -> str:
        return str(row.base)

    @staticmethod
    def resolve_task_set(row: TrainingRun) -> str:
        return str(row.task_set)

    @staticmethod
    def resolve_dataset(row: TrainingRun) -> str:
        return str(row.dataset)

    @staticmethod
    def resolve_reward(row: TrainingRun) -> dict[str, Any]:
        return reward.kept(row)

    @staticmethod
    def resolve_produced(row: TrainingRun) -> str | None:
        return str(row.produced) if row.produced else None

    @staticmethod
    def resolve_created_by(row: TrainingRun) -> str:
        return row.created_by.username


class PointOut(Schema):
    step: int
    at: datetime
    values: Any


class EventOut(Schema):
    id: int
    at: datetime
    level: str
    text: str


class Recommendations(Schema):
    items: list[RecommendationOut]
    next: str | None


class Datasets(Schema):
    items: list[DatasetOut]
    next: str | None


class Rows(Schema):
    items: list[dict[str, Any]]
    next: int | None
    """`start` of the next page, or null."""


class Runs(Schema):
    items: list[RunOut]
    next: str | None


class Points(Schema):
    items: list[PointOut]
    next: int | None
    """`after` of the next page, or null when these were the last so far."""


class Events(Schema):
    items: list[EventOut]
    next: int | None


@router.get("/recommendations", response=Recommendations, auth=Key(Scope.READ), operation_id="list_recommendations")
def list_recommendations(request: HttpRequest, asked: Query[ListQuery]) -> dict[str, Any]:
    """What the fix ladder said, newest first."""
    rows = Recommendation.objects.filter(project=keyed(request).project)
    return _page(rows.select_related("version__agent", "task_set"), asked)


@router.post("/recommendations", response=RecommendationOut, auth=Key(Scope.TRAIN), operation_id="recommend_fix")
def recommend_fix(request: HttpRequest, asked: RecommendationQuery) -> Recommendation:
    """Ask the fix ladder about a version and a task set; the lightest fix that the evidence supports comes first."""
    version, task_set = _version(request, asked.version, "version"), _task_set(request, asked.task_set)
    return recommendation_for(version, task_set)


@router.get("/datasets", response=Datasets, auth=Key(Scope.READ), operation_id="list_datasets")
def list_datasets(request: HttpRequest, asked: Query[ListQuery]) -> dict[str, Any]:
    """Newest first."""
    rows = Dataset.objects.filter(project=keyed(request).project)
    return _page(rows.select_related("task_set", "created_by"), asked)


@router.post("/datasets", response={201: DatasetOut}, auth=Key(Scope.TRAIN), operation_id="build_dataset")
def build_dataset(request: HttpRequest, asked: DatasetIn) -> Status[Dataset]:
    """Build the rows of a kind from a task set's train split; the same rows are the same dataset."""
    task_set = _task_set(request, asked.task_set)
    try:
        made = datasets.build(
            name=asked.name,
            kind=asked.kind,
            task_set=task_set,
            actor=keyed(request).actor,
            rollouts=_rollouts(request, asked.rollouts),
            through=keyed(request).through,
        )
    except datasets.CannotBuild as error:
        raise HttpError(422, str(error)) from None
    return Status(201, made)


@router.get("/datasets/{name}/{version}", response=DatasetOut, auth=Key(Scope.READ), operation_id="get_dataset")
def get_dataset(request: HttpRequest, name: str, version: int) -> Dataset:
    return _dataset(request, name, version)


@router.get("/datasets/{name}/{version}/rows", response=Rows, auth=Key(Scope.READ), operation_id="list_dataset_rows")
def list_dataset_rows(request: HttpRequest, name: str, version: int, asked: Query[RowsQuery]) -> dict[str, Any]:
    """The rows in order from `start` on."""
    found = _dataset(request, name, version)
    try:
        items = list(_rows(found, asked.start, asked.limit))
    except FileNotFoundError:
        raise HttpError(
            410, f"the storage has lost the rows of {found}; build it again from {found.task_set}"
        ) from None
    following = asked.start + asked.limit
    return {"items": items, "next": following if following < found.rows else None}


@router.get(
    "/datasets/{name}/{version}/contamination",
    response=list[ContaminationOut],
    auth=Key(Scope.READ),
    operation_id="list_dataset_contamination",
)
def list_dataset_contamination(request: HttpRequest, name: str, version: int) -> list[leaks.Beside]:
    """The dataset beside every held-out part of the project; those that are too large to check now are left out."""
    return leaks.beside(contamination.shown(_dataset(request, name, version)))


@router.post(
    "/datasets/{name}/{version}/contamination",
    response=list[ContaminationOut],
    auth=Key(Scope.TRAIN),
    operation_id="check_dataset_contamination",
)
def check_dataset_contamination(request: HttpRequest, name: str, version: int) -> list[leaks.Beside]:
    """The same, with all that was not checked yet, however long it takes."""
    return leaks.beside(contamination.check_all(_dataset(request, name, version)))


@router.get(
    "/task-sets/{name}/{int:version}/contamination",
    response=list[ContaminationOut],
    auth=Key(Scope.READ),
    operation_id="list_task_set_contamination",
)
def list_task_set_contamination(request: HttpRequest, name: str, version: int) -> list[leaks.Beside]:
    """The newest datasets that were checked beside the held-out part of this set."""
    return leaks.of_task_set(_task_set(request, f"{name}@{version}"), LIST_MAX)


@router.post("/training-runs", response={200: RunOut, 201: RunOut}, auth=Key(Scope.TRAIN), operation_id="launch_run")
def launch_run(request: HttpRequest, asked: RunIn) -> Status[TrainingRun]:
    """Freeze everything and queue the run. The same key again answers the run that is there, with 200."""
    base, task_set = _version(request, asked.base, "base"), _task_set(request, asked.task_set)
    try:
        run, made = verbs.launch(
            key=asked.key or uuid.uuid4(),
            base=base,
            algorithm=asked.algorithm,
            task_set=task_set,
            actor=keyed(request).actor,
            dataset=_dataset_ref(request, asked.dataset),
            rollouts=_rollouts(request, asked.rollouts),
            settings=asked.settings,
            tuning=asked.tuning,
            seed=asked.seed,
            leave_out=asked.leave_out,
            override_reason=asked.override_reason,
            through=keyed(request).through,
        )
    except (verbs.CannotLaunch, datasets.CannotBuild) as error:
        raise HttpError(422, str(error)) from None
    return Status(201 if made else 200, run)


@router.get("/training-runs", response=Runs, auth=Key(Scope.READ), operation_id="list_runs")
def list_runs(request: HttpRequest, asked: Query[RunsQuery]) -> dict[str, Any]:
    """Newest first, of a state and an algorithm when they are given."""
    wanted = {name: value for name in ("state", "algorithm") if (value := getattr(asked, name))}
    return _page(_runs(request).filter(**wanted), asked)


@router.get("/training-runs/{run_id}", response=RunOut, auth=Key(Scope.READ), operation_id="get_run")
def get_run(request: HttpRequest, run_id: int) -> TrainingRun:
    return _run(request, run_id)


@router.post("/training-runs/{run_id}/cancel", response=RunOut, auth=Key(Scope.TRAIN), operation_id="cancel_run")
def cancel_run(request: HttpRequest, run_id: int) -> TrainingRun:
    """Ask for an end; a checkpoint is saved first, so it takes a moment."""
    run = _run(request, run_id)
    try:
        verbs.cancel(run=run, actor=keyed(request).actor, through=keyed(request).through)
    except StaleState as error:
        raise HttpError(409, str(error)) from None
    return _run(request, run_id)


@router.post("/training-runs/{run_id}/resume", response=RunOut, auth=Key(Scope.TRAIN), operation_id="resume_run")
def resume_run(request: HttpRequest, run_id: int) -> TrainingRun:
    """Let a failed or cancelled run go on from its newest checkpoint."""
    run = _run(request, run_id)
    try:
        verbs.resume(run=run, actor=keyed(request).actor, through=keyed(request).through)
    except StaleState as error:
        raise HttpError(409, str(error)) from None
    return _run(request, run_id)


@router.get("/training-runs/{run_id}/points", response=Points, auth=Key(Scope.READ), operation_id="list_run_points")
def list_run_points(request: HttpRequest, run_id: int, asked: Query[PointsQuery]) -> dict[str, Any]:
    """What was measured: metrics of steps, held-out evaluations, or sample rollouts, by step."""
    points = _run(request, run_id).points.filter(kind=asked.kind, step__gt=asked.after).order_by("step")
    items = list(points[: asked.limit + 1])
    more, items = len(items) > asked.limit, items[: asked.limit]
    return {"items": items, "next": items[-1].step if more else None}


@router.get("/training-runs/{run_id}/events", response=Events, auth=Key(Scope.READ), operation_id="list_run_events")
def list_run_events(request: HttpRequest, run_id: int, asked: Query[EventsQuery]) -> dict[str, Any]:
    """The run's log, oldest first."""
    items = list(_run(request, run_id).events.filter(id__gt=asked.after).order_by("id")[: asked.limit + 1])
    more, items = len(items) > asked.limit, items[: asked.limit]
    return {"items": items, "next": items[-1].pk if more else None}


def _page(rows: Any, asked: ListQuery) -> dict[str, Any]:
    try:
        page = keyset(rows, cursor=asked.cursor, limit=asked.limit)
    except BadCursor as error:
        raise HttpError(400, str(error)) from None
    return {"items": page.items, "next": page.next_cursor or None}


def _version(request: HttpRequest, ref: str, name: str) -> Any:
    try:
        return find_version(keyed(request).project, ref)
    except UnknownReference as error:
        raise HttpError(422, f"{name}: {error}") from None


def _task_set(request: HttpRequest, ref: str) -> TaskSet:
    try:
        return find_task_set(keyed(request).project, ref)
    except UnknownReference as error:
        raise HttpError(422, f"task_set: {error}") from None


def _rollouts(request: HttpRequest, number: int | None) -> EvalRun | None:
    if number is None:
        return None
    found = EvalRun.objects.filter(project=keyed(request).project, pk=number).first()
    if found is None:
        raise HttpError(422, f"rollouts: there is no eval {number}")
    return found


def _dataset(request: HttpRequest, name: str, version: int) -> Dataset:
    rows = Dataset.objects.filter(project=keyed(request).project).select_related("task_set", "created_by")
    found = rows.filter(name=name, version=version).first()
    if found is None:
        raise HttpError(404, f"there is no dataset {name[:100]}@{version}")
    return found


def _dataset_ref(request: HttpRequest, ref: str) -> Dataset | None:
    if not ref:
        return None
    name, _, version = ref.partition("@")
    if not (version.isascii() and version.isdigit() and len(version) < 10):
        raise HttpError(422, f"dataset: {ref[:100]!r} is not of the form name@version")
    try:
        return _dataset(request, name, int(version))
    except HttpError as error:
        raise HttpError(422, f"dataset: {error}") from None


def _rows(found: Dataset, start: int, limit: int) -> Iterator[dict[str, Any]]:
    with datasets.open_rows(found) as file:
        for line in islice(file, start, start + limit):
            yield json.loads(line)


def _runs(request: HttpRequest) -> Any:
    return TrainingRun.objects.filter(project=keyed(request).project).select_related(
        "base__agent",
        "task_set",
        "dataset",
        "produced__agent",
        "created_by",
        "reward_audit",
        "audit_override__created_by",
    )


def _run(request: HttpRequest, run_id: int) -> TrainingRun:
    found: TrainingRun | None = _runs(request).filter(pk=run_id).first()
    if found is None:
        raise HttpError(404, f"there is no training run {run_id}")
    return found
