"""Training runs for programs: launch, follow, stop, go on."""

import uuid
from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Field, Query, Router, Schema, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import ListQuery, Ref, cut_page, page_of, paginate
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Body, RefIn
from flywheel.evals.api.references import task_set_of, version_of
from flywheel.training.api.references import dataset_by_ref, eval_of
from flywheel.training.launch import reward_lock
from flywheel.training.launch import run_control as verbs
from flywheel.training.models import Point, TrainingRun

router = Router(tags=["training"])

POINTS_MAX = 1000


class RunsQuery(ListQuery):
    state: str = ""
    algorithm: str = ""


class PointsQuery(Schema):
    kind: Point.Kind = Point.Kind.STEP
    after: int = Field(-1, ge=-1)
    """Steps up to this one are left out; give the last one that you have."""
    limit: int = Field(POINTS_MAX, ge=1, le=POINTS_MAX)


class EventsQuery(Schema):
    after: int = Field(0, ge=0)
    """Events up to this id are left out."""
    limit: int = Field(POINTS_MAX, ge=1, le=POINTS_MAX)


class RunIn(Body):
    key: uuid.UUID | None = None
    """Yours, so that a call which is repeated launches one run."""
    base: RefIn
    task_set: RefIn
    algorithm: str
    dataset: RefIn = ""
    """`name@version`; without one it is built."""
    rollouts: int | None = None
    settings: dict[str, Any] = {}
    tuning: dict[str, Any] = {"mode": "full"}
    seed: int = 1
    override_reason: str = ""
    """Why not the fix that is recommended; wanted then."""
    leave_out: list[int] = []
    """Numbers of train tasks that are not learnt from; for a dataset that is built."""


class RunOut(Schema):
    id: int
    base: Ref
    task_set: Ref
    dataset: Ref
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
    message: str
    """What it does where no step says so, such as comparing its data with held-out tasks before it trains."""
    baseline: int | None = Field(alias="baseline_id")
    evaluation: int | None = Field(alias="evaluation_id")
    produced: Ref | None
    created_by: Ref
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @staticmethod
    def resolve_reward(row: TrainingRun) -> dict[str, Any]:
        return reward_lock.kept(row)


class TrainingPointOut(Schema):
    step: int
    at: datetime
    values: Any


class TrainingEventOut(Schema):
    id: int
    at: datetime
    level: str
    text: str


class Points(Schema):
    items: list[TrainingPointOut]
    next: int | None
    """`after` of the next page, or null when these were the last so far."""


class Events(Schema):
    items: list[TrainingEventOut]
    next: int | None


@router.post("/training-runs", response={200: RunOut, 201: RunOut}, auth=Key(Scope.TRAIN))
def launch_run(request: HttpRequest, asked: RunIn) -> Status[TrainingRun]:
    """Freeze all inputs and queue the run. Repeating a key returns the existing run with 200."""
    chosen = verbs.LaunchRequest(
        key=asked.key or uuid.uuid4(),
        base=version_of(request, asked.base, "base"),
        algorithm=asked.algorithm,
        task_set=task_set_of(request, asked.task_set),
        dataset=dataset_by_ref(request, asked.dataset),
        rollouts=eval_of(request, asked.rollouts),
        settings=asked.settings,
        tuning=asked.tuning,
        seed=asked.seed,
        leave_out=asked.leave_out,
        override_reason=asked.override_reason,
    )
    run, made = verbs.launch(chosen, keyed(request).actor)
    return Status(201 if made else 200, run)


@router.get("/training-runs", response=page_of(RunOut, "Runs"), auth=Key(Scope.READ))
def list_runs(request: HttpRequest, query: Query[RunsQuery]) -> dict[str, Any]:
    """List training runs, newest first, optionally of one `state` and one `algorithm`."""
    wanted = {name: value for name in ("state", "algorithm") if (value := getattr(query, name))}
    return paginate(_runs(request).filter(**wanted), query)


@router.get("/training-runs/{run_id}", response=RunOut, auth=Key(Scope.READ))
def get_run(request: HttpRequest, run_id: int) -> TrainingRun:
    return _run(request, run_id)


@router.post("/training-runs/{run_id}/cancel", response=RunOut, auth=Key(Scope.TRAIN))
def cancel_run(request: HttpRequest, run_id: int) -> TrainingRun:
    """Cancel the run. It saves a checkpoint first, so this takes a moment."""
    return _run(request, run_id).cancel(keyed(request).actor)


@router.post("/training-runs/{run_id}/resume", response=RunOut, auth=Key(Scope.TRAIN))
def resume_run(request: HttpRequest, run_id: int) -> TrainingRun:
    """Resume a failed or cancelled run from its newest checkpoint."""
    return _run(request, run_id).resume(keyed(request).actor)


@router.get("/training-runs/{run_id}/points", response=Points, auth=Key(Scope.READ))
def list_run_points(request: HttpRequest, run_id: int, asked: Query[PointsQuery]) -> dict[str, Any]:
    """List a run's measurements by step: step metrics, held-out evaluations or sample rollouts."""
    points = _run(request, run_id).points.filter(kind=asked.kind, step__gt=asked.after).order_by("step")
    return cut_page(points, asked.limit, "step")


@router.get("/training-runs/{run_id}/events", response=Events, auth=Key(Scope.READ))
def list_run_events(request: HttpRequest, run_id: int, asked: Query[EventsQuery]) -> dict[str, Any]:
    """List the run's log, oldest first."""
    events = _run(request, run_id).events.filter(id__gt=asked.after).order_by("id")
    return cut_page(events, asked.limit, "pk")


def _runs(request: HttpRequest) -> QuerySet[TrainingRun]:
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
    return one(_runs(request), pk=run_id)
