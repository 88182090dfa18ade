"""Training runs for programs: launch, follow, stop, go on."""

import uuid
from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Field, Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import ListQuery, Ref, cut_page, page_of, paginate
from flywheel.edge.refusals import Missing, one
from flywheel.edge.schemas import Body, Schema
from flywheel.evals.api.references import version_of
from flywheel.training.api.references import LaunchIn, RunIn, TuningOut, TypedSweepIn
from flywheel.training.launch import reward_lock, run_budgets, run_sweeps
from flywheel.training.launch import run_control as verbs
from flywheel.training.models import Point, TrainingRun
from flywheel.training.runs import run_forecasts

router = Router(tags=["training"])

POINTS_MAX = 1000


class RunsQuery(ListQuery):
    state: str = ""
    """`queued`, `running`, `succeeded`, `failed` or `cancelled`."""
    algorithm: str = ""
    """For example `sft`, `dpo` or `grpo`."""


class PointsQuery(Schema):
    kind: Point.Kind = Point.Kind.STEP
    """`step` for step metrics, `eval` for held-out evaluations, `validation` for the tasks that the best weights are
    chosen by, `samples` for sample rollouts."""
    after: int = Field(-1, ge=-1)
    """The last step that you have; -1 for all."""
    limit: int = Field(POINTS_MAX, ge=1, le=POINTS_MAX)
    """Points per page."""


class EventsQuery(Schema):
    after: int = Field(0, ge=0)
    """Id of the last event that you have; 0 for all."""
    limit: int = Field(POINTS_MAX, ge=1, le=POINTS_MAX)
    """Events per page."""


class ResumeRunIn(Body):
    budget: dict[str, float] | None = None
    """Replaces the run's budget from now on; what is spent already still counts. Empty for no limit."""


class HeldOut(Schema):
    host: str
    label: str
    names: list[str]
    """As `CUDA_VISIBLE_DEVICES` names GPUs; numbers otherwise."""


class RunOut(Schema):
    id: int
    sweep: uuid.UUID | None
    """Key of the sweep that it was launched with."""
    base: Ref
    task_set: Ref
    dataset: Ref
    algorithm: str
    tuning: TuningOut
    settings: dict[str, Any]
    seed: int
    budget: dict[str, float]
    outside_calls: dict[str, Any]
    """What its worker asks others for it: `expected`, the most `attempts`, `judgements` and `usd` by the forecast at
    launch, and of a hosted `teacher` the `questions`, `tokens` and `usd`, null where not known; `judges`, `simulator`
    and `teacher`, what they have answered and cost; `questions`, their number by kind. Empty if it asks nobody."""
    device_hour: float | None
    """Dollars of a device-hour, as the project had them at launch."""
    spec_digest: str
    """SHA-256 of everything that the run was launched with."""
    teacher: Ref | None
    """The version whose probabilities it learns, for `distillation`."""
    replay: Ref | None
    """Demonstrations that it imitates beside its attempts."""
    environment_weights: dict[str, list[float]]
    """Weight of each environment of a mix, at the first step and at the last."""
    override_reason: str
    reward: dict[str, Any]
    """Whether it learns from a reward, by which `recipe`, the audit of the reward, and who overrode it and why."""
    pipeline: int | None
    """Id of the pipeline that launched it; null if a person did."""
    stage: int | None
    """Number of its stage in that pipeline."""
    state: str
    cancelling: bool = Field(alias="is_cancelling")
    step: int = Field(alias="done")
    steps: int | None = Field(alias="total")
    """Steps in total."""
    checkpoint_step: int | None
    """Step of the newest checkpoint."""
    chosen_step: int | None
    """Step whose weights the produced version has, where validation chose them; null for the last step's."""
    attempt: int
    device: str
    """Label of the devices that it wants, `cuda` or `cpu`; empty for any."""
    held: HeldOut | None
    """The devices that it has, or had last; null before its first start."""
    error_kind: str
    """Kind of the error, in one word."""
    error: str
    message: str
    """What it waits for, or does between steps, for example comparing its data with held-out tasks."""
    baseline: int | None = Field(alias="baseline_id")
    """Id of the base's eval on held-out tasks."""
    evaluation: int | None = Field(alias="evaluation_id")
    """Id of the new version's eval on held-out tasks."""
    produced: Ref | None
    """The version that it produced."""
    reward_model: Ref | None
    """The reward model that it trained, which is no version."""
    created_by: Ref
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @staticmethod
    def resolve_pipeline(row: TrainingRun) -> int | None:
        return row.stage.pipeline_id if row.stage else None

    @staticmethod
    def resolve_stage(row: TrainingRun) -> int | None:
        return row.stage.number if row.stage else None

    @staticmethod
    def resolve_held(row: TrainingRun) -> dict[str, Any] | None:
        return row.held or None

    @staticmethod
    def resolve_reward(row: TrainingRun) -> dict[str, Any]:
        return reward_lock.kept(row)


class ForecastPartOut(Schema):
    name: str
    """For example `weights`, `activations` or `optimizer`."""
    bytes: int


class ForecastOut(Schema):
    """Forecast of the peak memory, of the process on a CPU, of what torch allocates on a GPU."""

    total: int
    """Bytes."""
    parts: list[ForecastPartOut]
    """Largest first."""
    moment: str
    """When the peak is reached: `learning`, `updating`, `answering`, `sampling` or `loading`."""
    longest: int
    """Tokens of the longest row, or prompt."""
    counted: bool
    """Whether a token preview counted them; otherwise they are estimated from characters."""
    device: str
    """`cpu` or `cuda`."""
    memory: int | None
    """Bytes that a run may take on the machine; null until a run has started on it."""
    step_seconds: float | None = None
    """Seconds of a step with its share of evaluations, from earlier runs; null if there are none."""
    rough: bool | None = None
    """Whether those runs had another size or batch, so that only the arithmetic of a step is compared."""


class ProposedOut(Schema):
    setting: str
    """`max_length` or `max_completion_length`."""
    value: int
    """Tokens."""
    why: str
    """What the data shows, with its numbers."""


class ForecastedOut(Schema):
    forecast: ForecastOut | None
    """Null if the run cannot be forecast."""
    problem: str
    """Why it cannot be forecast."""
    fits: bool | None
    """Null if the machine's memory is unknown."""
    proposal: dict[str, Any] | None
    """`settings`, `mode` and `total` of a run that would fit; null if this one fits, or none does."""
    lengths: list[ProposedOut]
    """Lengths that the longest row and the baseline's answers speak for; the run has them only if you set them."""


class UsageOut(Schema):
    forecast: ForecastOut | None
    """As it was at launch; null if it was not known."""
    peak_memory: int | None
    """Bytes, measured up to the newest step; null before the first one."""
    peak_ratio: float | None
    """Forecast over measured."""
    step_seconds: float | None
    """Seconds of a step, measured, with its share of evaluations; null before the second step and after a restart."""
    step_ratio: float | None
    """Forecast over measured."""
    device_hours: float | None
    """Time of steps, evaluations and validations of each process; null before the first step."""
    usd: float | None
    """Estimate: device-hours at the project's price at launch; null if there was none."""


class TrainingPointOut(Schema):
    step: int
    at: datetime
    values: Any
    """For `step`, numbers by metric; for `eval` and `validation`, `success`, `score`, `n`, `unscored`, `parts` (mean of
    each part of the verdict), `invalid` (share of unreadable answers), `tokens` and `latency_ms` of an attempt and
    `slices` (the same of each), of the first environment where the run has several: the others are under
    `environments`, and `overall` is the mean score of all; and of all together `seconds`, and `usd` of these seconds
    (null without a price per device-hour). Each of `environments` and `slices` has its own `seconds` and `usd`; a
    slice's are the share of its answer tokens. A `validation` of a run that practises also has `reward`, the mean that
    the run learns from, of the `rewarded` attempts that have one, and `overall_reward` of all environments. For
    `samples`, a list."""


class TrainingEventOut(Schema):
    id: int
    at: datetime
    level: str
    text: str


class SweepOut(Schema):
    key: uuid.UUID
    runs: list[RunOut]
    """A run for each combination, in the order of the grid: the last name's values change first."""


class Points(Schema):
    items: list[TrainingPointOut]
    next: int | None
    """`after` for the next page; null if these are the last points so far."""


class Events(Schema):
    items: list[TrainingEventOut]
    next: int | None
    """`after` for the next page; null if these are the last events so far."""


@router.post("/training-runs", response={200: RunOut, 201: RunOut}, auth=Key(Scope.TRAIN))
def launch_run(request: HttpRequest, asked: LaunchIn) -> Status[TrainingRun]:
    """Freeze all inputs and queue the run. Repeating a key returns the existing run with 200."""
    run, made = verbs.launch(_request(request, asked), keyed(request).actor)
    return Status(201 if made else 200, run)


def _request(request: HttpRequest, asked: RunIn) -> verbs.LaunchRequest:
    return asked.request(request, version_of(request, asked.base, "base"), asked.key or uuid.uuid4())


@router.post("/training-runs/forecast", response=ForecastedOut, auth=Key(Scope.TRAIN))
def forecast_run(request: HttpRequest, asked: LaunchIn) -> dict[str, Any]:
    """Forecast the memory and time of a run without launching it. Nothing is built or stored."""
    return run_forecasts.before(_request(request, asked))


@router.get("/training-runs/{run_id}/forecast", response=UsageOut, auth=Key(Scope.READ))
def get_run_forecast(request: HttpRequest, run_id: int) -> dict[str, Any]:
    """Return what was forecast for the run at launch, beside what was measured."""
    run = _run(request, run_id)
    found = run_forecasts.usage(run)
    step = found["step"]
    return {
        "forecast": run.forecast or None,
        "peak_memory": found["peak"],
        "peak_ratio": found["peak_ratio"],
        "step_seconds": step.total_seconds() if step else None,
        **{name: found[name] for name in ("step_ratio", "device_hours", "usd")},
    }


@router.post("/training-sweeps", response={200: SweepOut, 201: SweepOut}, auth=Key(Scope.TRAIN))
def launch_training_sweep(request: HttpRequest, asked: TypedSweepIn) -> Status[dict[str, Any]]:
    """Launch a run for each combination of a grid's values. All are checked before any is launched: 422 names the
    setting, the value and the combination. Compare them with `GET /training-runs/compare`. Repeating a key returns the
    existing runs with 200."""
    launched = _request(request, asked)
    runs, made = run_sweeps.launch_sweep(launched, asked.grid, keyed(request).actor)
    return Status(201 if made else 200, {"key": launched.key, "runs": runs})


@router.get("/training-sweeps/{key}", response=SweepOut, auth=Key(Scope.READ))
def get_training_sweep(request: HttpRequest, key: uuid.UUID) -> dict[str, Any]:
    """Return the runs of a sweep."""
    return {"key": key, "runs": _sweep(request, key)}


@router.post("/training-sweeps/{key}/cancel", response=SweepOut, auth=Key(Scope.TRAIN))
def cancel_training_sweep(request: HttpRequest, key: uuid.UUID) -> dict[str, Any]:
    """Cancel all runs of a sweep that have not finished."""
    run_sweeps.cancel_rest(_sweep(request, key), keyed(request).actor)
    return {"key": key, "runs": _sweep(request, key)}


@router.get("/training-runs", response=page_of(RunOut, "Runs"), auth=Key(Scope.READ))
def list_runs(request: HttpRequest, query: Query[RunsQuery]) -> dict[str, Any]:
    """List training runs, newest first, optionally of one `state` and one `algorithm`."""
    wanted = {name: value for name in ("state", "algorithm") if (value := getattr(query, name))}
    return paginate(_runs(request).filter(**wanted), query)


@router.get("/training-runs/{run_id}", response=RunOut, auth=Key(Scope.READ))
def get_run(request: HttpRequest, run_id: int) -> TrainingRun:
    """Return one training run with its progress and, once it has succeeded, the version that it produced."""
    return _run(request, run_id)


@router.post("/training-runs/{run_id}/cancel", response=RunOut, auth=Key(Scope.TRAIN))
def cancel_run(request: HttpRequest, run_id: int) -> TrainingRun:
    """Cancel the run. It saves a checkpoint first, so this takes a moment. 409 if it has finished."""
    return _run(request, run_id).cancel(keyed(request).actor)


@router.post("/training-runs/{run_id}/resume", response=RunOut, auth=Key(Scope.TRAIN))
def resume_run(request: HttpRequest, run_id: int, body: ResumeRunIn | None = None) -> TrainingRun:
    """Resume a failed or cancelled run from its newest checkpoint, under a new budget if you give one. 409 unless it
    has failed or was cancelled; 422 if its budget is spent."""
    budget = body.budget if body else None
    return run_budgets.resume(_run(request, run_id), keyed(request).actor, budget)


@router.get("/training-runs/{run_id}/points", response=Points, auth=Key(Scope.READ))
def list_run_points(request: HttpRequest, run_id: int, asked: Query[PointsQuery]) -> dict[str, Any]:
    """List a run's measurements by step: step metrics, held-out evaluations, validations or sample rollouts."""
    run = _run(request, run_id)
    page = cut_page(run.points.filter(kind=asked.kind, step__gt=asked.after).order_by("step"), asked.limit, "step")
    for point in page["items"] if asked.kind in (Point.Kind.EVAL, Point.Kind.VALIDATION) else ():
        point.values = run.with_usd(point.values)
    return page


@router.get("/training-runs/{run_id}/events", response=Events, auth=Key(Scope.READ))
def list_run_events(request: HttpRequest, run_id: int, asked: Query[EventsQuery]) -> dict[str, Any]:
    """List the run's log, oldest first."""
    events = _run(request, run_id).events.filter(id__gt=asked.after).order_by("id")
    return cut_page(events, asked.limit, "pk")


def _sweep(request: HttpRequest, key: uuid.UUID) -> list[TrainingRun]:
    if not (runs := list(_runs(request).filter(sweep=key).order_by("pk"))):
        raise Missing(f"there is no sweep {key}")
    return runs


def _runs(request: HttpRequest) -> QuerySet[TrainingRun]:
    rows = TrainingRun.objects.filter(project=keyed(request).project)
    rows = rows.select_related("base__agent", "teacher__agent", "produced__agent", "reward_model", "reward_recipe")
    rows = rows.select_related("task_set", "dataset", "replay", "created_by", "stage", "audit_override__created_by")
    audit = ("reward_audit__run__version__agent", "reward_audit__rescore__recipe")
    return rows.select_related(*audit, "audit_override__version__agent")


def _run(request: HttpRequest, run_id: int) -> TrainingRun:
    return one(_runs(request), pk=run_id)
