"""Launched runs for programs: several side by side, one repeated, and the attempts, alerts and files of one."""

import uuid
from typing import Any, Literal

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from ninja import Field, Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import EstimateOut, ListQuery, Ref, TraceId, page_of, paginate
from flywheel.edge.numbers import INTEGER
from flywheel.edge.refusals import Missing, one
from flywheel.edge.schemas import Body, Schema
from flywheel.training.api.runs import RunOut
from flywheel.training.launch.run_sweeps import MOST
from flywheel.training.models import TrainingRun
from flywheel.training.runs import (
    alert_evidence,
    compared_runs,
    kept_checkpoints,
    run_files,
    run_repeats,
    tried_attempts,
)
from flywheel.training.runs.compared_runs import Measure, Side
from flywheel.training.runs.kept_checkpoints import Kept
from flywheel.training.runs.step_points import step_points

router = Router(tags=["training"])


class CompareQuery(Schema):
    run: list[int] = Field([], max_length=MOST)
    """Ids of up to 16 runs: `run=1&run=2`."""
    success: float | None = Field(None, ge=0, le=1)
    """Share of held-out tasks that the runs are timed to; half-way from the start to the best if omitted."""


class AttemptsQuery(ListQuery):
    order: Literal["step", "reward", "worst", "longest"] = "step"
    """`step`: the newest step first, of each the best first. `reward` and `worst`: the best or the worst first, without
    the unscored ones. `longest`: by tokens written, without deleted trajectories."""
    only: Literal["", "unsafe", "invalid", "unscored", "broken_off", "out_of_turns", "overruled"] = ""
    """Only attempts that did harm, are unreadable, have no score, ended early, or passed the verifier and are labelled
    failures; empty for all."""
    first: int | None = Field(None, ge=0, le=INTEGER)
    """First step."""
    last: int | None = Field(None, ge=0, le=INTEGER)
    """Last step."""


class ReachedOut(Schema):
    step: int
    """Step of the first evaluation at or above the success."""
    seconds: float | None
    """Seconds of training steps and evaluations up to then, without loading and pauses."""
    tokens: int | None
    """Tokens processed up to then; null if the trainer counts none."""
    usd: float | None
    """Estimated dollars up to then: device-hours at the project's price at launch; null if there was none."""


class ComparedRunOut(Schema):
    run: int
    state: str
    algorithm: str
    produced: Ref | None
    """The version that it produced."""
    measure: int | None
    """Index in `measures` of the held-out tasks that it evaluates itself on; null before its first evaluation."""
    evaluations: list[tuple[int, float | None]]
    """Step and held-out success of each of its own evaluations, which are greedy."""
    validated: tuple[int, float, int] | None
    """Step, mean score and number of scored tasks of its best validation after the first step; null if it had none."""
    reached: ReachedOut | None
    """When it first reached its measure's `success`; null if it did not."""
    held_out: EstimateOut | None
    """Held-out success of the produced version."""
    baseline: EstimateOut | None
    """Held-out success of the base."""
    difference: EstimateOut | None
    """Produced version minus baseline; null until promotions have compared them."""
    verdict: str | None
    """The gate's verdict."""
    wall_seconds: float | None
    """From start to end, or to now, pauses included."""
    tokens: int | None
    """Tokens processed; null if the trainer counts none."""
    usd: float | None
    """Estimated dollars: device-hours at the project's price at launch; null if there was none."""


class MeasureOut(Schema):
    task_set: Ref
    """The set whose held-out tasks are used."""
    tasks: int
    """Number of tasks per evaluation."""
    success: float | None
    """The success that runs are timed to."""


class ComparedOut(Schema):
    runs: list[ComparedRunOut]
    """The runs in the order of the request."""
    measures: list[MeasureOut]
    """Only the `evaluations` of runs with one measure can be compared."""
    differing: dict[str, list[Any]]
    """What differs between the launches, by name, one value per run; null for a setting that a run does not have, the
    text `null` for one that is passed on as null."""
    equal: dict[str, list[Any]]
    """The same for what is equal."""


class RepeatIn(Body):
    key: uuid.UUID | None = None
    """Your own UUID. Repeating a key returns the same run."""
    seed: int | None = None
    """Another seed; the run's own if omitted."""


class RepeatOut(Schema):
    run: int = Field(alias="run.pk")
    is_earlier: bool
    """Whether it was launched before this one."""
    has_same_weights: bool | None
    """Whether the weights are the same bit by bit; null until both runs have produced a version."""


class CheckpointOut(Schema):
    step: int
    score: float | None
    """Mean score of the validation tasks at this step; null if nothing was validated then."""
    is_there: bool
    """Whether the files are still kept."""
    version: Ref | None
    """The version that was made of it; `null` until then."""
    state: str
    """Of the job that makes the version: `queued`, `running`, `succeeded`, `failed` or `cancelled`; empty if none was
    asked for."""
    error: str
    """Why no version was made."""

    @staticmethod
    def resolve_state(row: Kept) -> str:
        return row.job.state if row.job else ""

    @staticmethod
    def resolve_error(row: Kept) -> str:
        return row.job.error if row.job else ""


class RunFileOut(Schema):
    name: str
    """Path within the run, to append to the address of the list."""
    about: str
    size: int
    """Bytes."""
    sha256: str
    """Empty while the file still grows, and for large logs."""


class AttemptOut(Schema):
    step: int
    """The step that learnt from it."""
    task: str
    seed: int
    reward: float | None
    """The score less penalties; null if it was not scored."""
    score: float | None
    parts: dict[str, float | None]
    reason: str
    trajectory: TraceId | None
    """Trace id of its trajectory; null once that was deleted."""


class AlertOut(Schema):
    kind: str
    """`reward_hacking`, `overruled`, `overfitting`, `no_better`, `unsafe`, `invalid`, `unscored`, `entropy_collapse`,
    `no_variance`, `length`, `truncated`, `repetition`, `plateau`, `unlearning`, `broken_off`, `out_of_turns`,
    `sampler_mismatch`, `sampler_weight`, or `trainer` for the trainer's own warnings."""
    saw: str
    """What the measurements show, with numbers and steps."""
    act: str
    """What would help; empty where `saw` says it."""
    first: int | None
    """First step whose attempts show it."""
    last: int | None
    order: str
    """Lists the attempts that show it first."""
    only: str
    """Kind of the attempts that show it; empty for all."""
    attempts: int
    """How many of them are kept: list them with `first`, `last`, `order` and `only`."""


@router.get("/training-runs/compare", response=ComparedOut, auth=Key(Scope.READ))
def compare_training_runs(request: HttpRequest, query: Query[CompareQuery]) -> dict[str, Any]:
    """Compare up to 16 runs: held-out success by step, results, cost, and the settings that differ."""
    found = compared_runs.rows(keyed(request).project).in_bulk(query.run)
    if missing := [pk for pk in query.run if pk not in found]:
        raise Missing(f"there is no training run {missing[0]}")
    sides = [compared_runs.side_of(found[pk]) for pk in dict.fromkeys(query.run)]
    groups = compared_runs.measures(sides, query.success)
    differing, equal = compared_runs.given_rows(sides)
    measures = [
        {"task_set": each.sides[0].run.task_sets[0], "tasks": each.tasks, "success": each.threshold} for each in groups
    ]
    runs = [_compared(side, groups) for side in sides]
    return {"runs": runs, "measures": measures, "differing": differing, "equal": equal}


@router.post("/training-runs/{run_id}/repeat", response={200: RunOut, 201: RunOut}, auth=Key(Scope.TRAIN))
def repeat_run(request: HttpRequest, run_id: int, asked: RepeatIn) -> Status[TrainingRun]:
    """Launch a finished run again with the same base, dataset, task set, settings, tuning and seed. Repeating a key
    returns the existing run with 200. 409 if the run has not finished."""
    key = asked.key or uuid.uuid4()
    run, made = run_repeats.repeat(_run(request, run_id), key=key, actor=keyed(request).actor, seed=asked.seed)
    return Status(201 if made else 200, run)


@router.get("/training-runs/{run_id}/repeats", response=list[RepeatOut], auth=Key(Scope.READ))
def list_repeats(request: HttpRequest, run_id: int) -> list[run_repeats.Repeat]:
    """List the runs with the same `spec_digest`, oldest first, and whether they produced the same weights."""
    return run_repeats.repeats_of(_run(request, run_id))


@router.get("/training-runs/{run_id}/checkpoints", response=list[CheckpointOut], auth=Key(Scope.READ))
def list_checkpoints(request: HttpRequest, run_id: int) -> list[Kept]:
    """List a run's kept checkpoints, newest first, with their validation score and the versions made of them."""
    return kept_checkpoints.kept_of(_run(request, run_id))


@router.post(
    "/training-runs/{run_id}/checkpoints/{step}/version",
    response={200: CheckpointOut, 201: CheckpointOut},
    auth=Key(Scope.TRAIN),
)
def make_checkpoint_version(request: HttpRequest, run_id: int, step: int) -> Status[Kept]:
    """Make a version of a kept checkpoint. A worker does it: follow its `state` in the list of checkpoints. A repeated
    call returns the same version with 200, and tries again if the last try failed. 404 if the checkpoint is not kept.
    """
    run = _run(request, run_id)
    _, made = kept_checkpoints.make_version(run, step, keyed(request).actor)
    return Status(201 if made else 200, next(each for each in kept_checkpoints.kept_of(run) if each.step == step))


@router.get("/training-runs/{run_id}/files", response=list[RunFileOut], auth=Key(Scope.READ))
def list_run_files(request: HttpRequest, run_id: int) -> list[run_files.RunFile]:
    """List a run's files: weights or adapter, kept checkpoints, spec, result, events and the trainer's output."""
    return run_files.files_of(_run(request, run_id))


@router.get(
    "/training-runs/{run_id}/files/{path:name}",
    auth=Key(Scope.READ),
    openapi_extra={
        "responses": {
            200: {"description": "The file", "content": {"application/octet-stream": {}}},
            206: {"description": "The bytes that `Range` names", "content": {"application/octet-stream": {}}},
        }
    },
)
def get_run_file(request: HttpRequest, run_id: int, name: str) -> HttpResponseBase:
    """Download one of a run's files, or with `Range` a part of it, so that a download can go on where it broke off:
    `If-Range` with the ETag gives the whole file if it has changed. Answers 304 if `If-None-Match` names its current
    ETag. Downloading `events.jsonl`, which has answers to held-out tasks, is recorded as a look at them."""
    return run_files.download(request, _run(request, run_id), name, keyed(request).actor)


@router.get("/training-runs/{run_id}/attempts", response=page_of(AttemptOut), auth=Key(Scope.READ))
def list_run_attempts(request: HttpRequest, run_id: int, asked: Query[AttemptsQuery]) -> dict[str, Any]:
    """List the kept attempts that a reinforcement run learnt from, optionally `only` of one kind."""
    about = {name: getattr(asked, name) for name in ("order", "only", "first", "last")}
    rows = tried_attempts.attempts_of(_run(request, run_id), **about)
    return paginate(rows, asked, keys=tried_attempts.ORDERS[asked.order])


@router.get("/training-runs/{run_id}/alerts", response=list[AlertOut], auth=Key(Scope.READ))
def list_run_alerts(request: HttpRequest, run_id: int) -> list[dict[str, Any]]:
    """List what a run's measurements show that a person should act on, as its page does."""
    run = _run(request, run_id)
    return alert_evidence.alerts_of(run, step_points(run)[0])


def _compared(side: Side, groups: list[Measure]) -> dict[str, Any]:
    at = next((at for at, group in enumerate(groups) if side in group.sides), None)
    run = side.run
    elapsed = run.elapsed
    return {
        "run": run.pk,
        "state": run.state,
        "algorithm": run.algorithm,
        "produced": run.produced,
        "measure": at,
        "evaluations": side.evals,
        "validated": side.validated,
        "reached": None if at is None else groups[at].reached(side),
        "held_out": side.held_out,
        "baseline": side.baseline,
        "difference": side.difference,
        "verdict": side.candidate.verdict if side.candidate else None,
        "wall_seconds": None if elapsed is None else elapsed.total_seconds(),
        "tokens": side.tokens,
        "usd": side.run.usd(),
    }


def _run(request: HttpRequest, run_id: int) -> TrainingRun:
    rows = TrainingRun.objects.filter(project=keyed(request).project).select_related(
        "project",
        "base__agent",
        "base__weights",
        "base__adapter",
        "dataset",
        "replay",
        "task_set",
        "created_by",
        "produced__agent",
        "produced__weights",
        "produced__adapter",
    )
    return one(rows, pk=run_id)
