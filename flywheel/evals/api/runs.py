"""Eval runs for programs: submit, follow, stop, go on, read every result, compare."""

import uuid
from datetime import datetime
from typing import Any, cast

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Query, Router, Schema, Status
from ninja.errors import HttpError

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.references import UnknownReference, find_version
from flywheel.edge.jobs import StaleState
from flywheel.edge.paging import BadCursor, keyset
from flywheel.edge.schemas import Body
from flywheel.environments.models import Opening, Split
from flywheel.environments.task_sets.task_set_references import find_task_set
from flywheel.evals.api.task_grid import TrainedOnOut
from flywheel.evals.comparisons.run_comparison import CannotCompare, comparison, doubts, leaks_of, trained_on
from flywheel.evals.models import EvalRun, Result
from flywheel.evals.runs import rollout_looks, submission
from flywheel.evals.serving import version_isolation

router = Router(tags=["evals"])

EVENTS = 200


class Paged(Schema):
    limit: int = Field(50, ge=1, le=200)
    cursor: str = ""


class EvalQuery(Paged):
    agent: str = ""
    task_set: str = ""
    """A set's name, without its version."""
    split: str = ""
    state: str = ""


class ResultQuery(Paged):
    limit: int = Field(200, ge=1, le=1000)


class EvalIn(Body):
    version: str = Field(..., description="`agent@number` or `agent@live`")
    task_set: str = Field(..., description="`set@version`")
    split: str = Split.HELD_OUT.value
    samples: int = 4
    seed: int = 1
    sampling: dict[str, Any] = Field(default_factory=dict, description="over the version's own")
    engine: str = Field("", description="`vllm` for this installation's vLLM server; empty for the version's endpoint")
    budget: dict[str, float] = Field(
        default_factory=dict,
        description="`tokens`, `usd`, `minutes`: what is spent stops the run, which keeps its results",
    )
    key: uuid.UUID | None = Field(None, description="the same key twice makes one run; leave it out for a new one")


class ResumeIn(Body):
    budget: dict[str, float] | None = Field(
        None, description="from now on, instead of the run's own; what was spent of tokens and dollars stays spent"
    )


class EvalRow(Schema):
    id: int
    version: str
    task_set: str
    split: str
    samples: int
    seed: int
    sampling: dict[str, Any]
    budget: dict[str, float]
    verifier_digest: str
    engine: str
    """`vllm`, or empty for the version's own endpoint."""
    state: str
    done: int
    total: int | None
    message: str
    error_kind: str
    error: str
    success: dict[str, Any] | None
    """The estimate, once every attempt is judged."""
    created_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @staticmethod
    def resolve_version(row: EvalRun) -> str:
        return str(row.version)

    @staticmethod
    def resolve_task_set(row: EvalRun) -> str:
        return str(row.task_set)

    @staticmethod
    def resolve_created_by(row: EvalRun) -> str:
        return row.created_by.username

    @staticmethod
    def resolve_success(row: EvalRun) -> dict[str, Any] | None:
        return cast("dict[str, Any] | None", row.summary.get("metrics", {}).get("success"))


class EventOut(Schema):
    at: datetime
    level: str
    text: str


class EvalOut(EvalRow):
    summary: dict[str, Any]
    isolation: dict[str, Any]
    """What the self-test of the vLLM server found: `arms`, the names of what it asked, its own version's first, and
    `passed`, which is missing while it is made; empty for another engine."""
    judges: dict[str, Any]
    """Of each LLM judge in the verifier, by its part: `models` that answered, `judged`, `remembered`, `canaries`,
    `requests`, `tokens_in`, `tokens_out`, and `void`, which says why nothing of it counts."""
    contamination: TrainedOnOut | None
    """Whether the version learnt from these tasks; null for train tasks."""
    events: list[EventOut]

    @staticmethod
    def resolve_contamination(row: EvalRun) -> Any:
        return leaks_of(row)

    @staticmethod
    def resolve_events(row: EvalRun) -> list[Any]:
        return list(row.events.order_by("-id")[:EVENTS])[::-1]


class EvalPage(Schema):
    items: list[EvalRow]
    next: str | None


class ResultOut(Schema):
    task: str
    sample: int
    seed: int
    trajectory: str | None
    """Trace id of the rollout."""
    score: float | None
    """Null when unscored; `cause` says why in a word, `error` in a sentence."""
    success: bool | None
    parts: dict[str, float | None]
    reason: str
    error: str
    cause: str
    """Such as `timeout`, `memory`, `refused`, `away` or `not_answered`; all of them stand in `GET /verifier-parts`."""
    tokens_in: int | None
    tokens_out: int | None
    cost_usd: float | None
    latency_ms: float | None

    @staticmethod
    def resolve_task(row: Result) -> str:
        return str(row.task)

    @staticmethod
    def resolve_trajectory(row: Result) -> str | None:
        return row.trajectory.trace_id if row.trajectory else None


class ResultPage(Schema):
    items: list[ResultOut]
    next: str | None


class SelfTestOut(Schema):
    """Of the vLLM server: it passed, and asked both versions."""

    eval: int
    """Before whose attempts it was made."""
    answers: int


class ComparisonOut(Schema):
    candidate: int
    baseline: int
    doubts: list[str]
    """In what the two differ besides the version."""
    is_valid: bool
    """False where a version learnt from tasks that it is measured by: then no difference says anything."""
    self_test: SelfTestOut | None
    """The newest that has shown the server to keep the two apart; null where nothing could mix them up."""
    contamination: dict[str, TrainedOnOut]
    """Of each version that is measured by held-out tasks."""
    comparison: dict[str, Any]


@router.get("/evals", response=EvalPage, auth=Key(Scope.READ), operation_id="list_evals")
def list_evals(request: HttpRequest, page: Query[EvalQuery]) -> dict[str, Any]:
    """Newest first."""
    wanted = {
        "version__agent__name": page.agent,
        "task_set__name": page.task_set,
        "split": page.split,
        "state": page.state,
    }
    return _page(_runs(request).filter(**{column: value for column, value in wanted.items() if value}), page)


@router.post("/evals", response={200: EvalOut, 201: EvalOut}, auth=Key(Scope.BUILD), operation_id="create_eval")
def create_eval(request: HttpRequest, body: EvalIn) -> Status[EvalRun]:
    """Queue a run: 201 when it is new, 200 when its key made one before."""
    asked = keyed(request)
    try:
        version = find_version(asked.project, body.version)
    except UnknownReference as error:
        raise HttpError(422, f"version: {error}") from error
    try:
        task_set = find_task_set(asked.project, body.task_set)
    except UnknownReference as error:
        raise HttpError(422, f"task_set: {error}") from error
    try:
        run, made = submission.submit(
            key=body.key or uuid.uuid4(),
            version=version,
            task_set=task_set,
            actor=asked.actor,
            split=body.split,
            samples=body.samples,
            seed=body.seed,
            sampling=body.sampling,
            engine=body.engine,
            budget=body.budget,
        )
    except submission.CannotEvaluate as error:
        raise HttpError(422, str(error)) from error
    return Status(201 if made else 200, run)


@router.get("/evals/{eval_id}", response=EvalOut, auth=Key(Scope.READ), operation_id="get_eval")
def get_eval(request: HttpRequest, eval_id: int) -> EvalRun:
    return _run(request, eval_id)


@router.post("/evals/{eval_id}/cancel", response=EvalOut, auth=Key(Scope.BUILD), operation_id="cancel_eval")
def cancel_eval(request: HttpRequest, eval_id: int) -> EvalRun:
    asked = keyed(request)
    try:
        submission.cancel(run=_run(request, eval_id), actor=asked.actor)
    except StaleState as error:
        raise HttpError(409, str(error)) from error
    return _run(request, eval_id)


@router.post("/evals/{eval_id}/resume", response=EvalOut, auth=Key(Scope.BUILD), operation_id="resume_eval")
def resume_eval(request: HttpRequest, eval_id: int, body: ResumeIn | None = None) -> EvalRun:
    """Go on with the attempts that have no result; under another budget where one is given. Those for which
    the server was away (`cause` is `away`) are asked again, also of a run that succeeded, on which nothing rests (a
    candidate, a training run, a rescore, a reward audit) and which has no budget of tokens or dollars."""
    asked, budget = keyed(request), body.budget if body else None
    try:
        submission.resume(run=_run(request, eval_id), actor=asked.actor, budget=budget)
    except StaleState as error:
        raise HttpError(409, str(error)) from error
    except submission.CannotEvaluate as error:
        raise HttpError(422, str(error)) from error
    return _run(request, eval_id)


@router.get("/evals/{eval_id}/results", response=ResultPage, auth=Key(Scope.READ), operation_id="list_eval_results")
def list_eval_results(request: HttpRequest, eval_id: int, page: Query[ResultQuery]) -> dict[str, Any]:
    """Every attempt, the latest first."""
    run = _run(request, eval_id)
    rollout_looks.note_look(run, keyed(request).actor, Opening.Kind.EXPORT)
    return _page(run.results.select_related("task", "trajectory"), page)


@router.get(
    "/evals/{candidate}/against/{baseline}",
    response=ComparisonOut,
    auth=Key(Scope.READ),
    operation_id="compare_evals",
)
def compare_evals(request: HttpRequest, candidate: int, baseline: int) -> dict[str, Any]:
    """Paired differences of two finished runs, candidate minus baseline; they say nothing where `is_valid` is false.
    409 where they cannot be compared, such as two on vLLM that no self-test has shown to be kept apart."""
    new, old = _run(request, candidate), _run(request, baseline)
    try:
        found = comparison(new, old)
    except CannotCompare as error:
        raise HttpError(409, str(error)) from error
    for run in (new, old):
        rollout_looks.note_look(run, keyed(request).actor)
    learnt = trained_on(new, old)
    return {
        "candidate": new.pk,
        "baseline": old.pk,
        "doubts": doubts(new, old),
        "self_test": version_isolation.of(new, old).test,
        "is_valid": not any(each.is_invalid for each in learnt),
        "contamination": {str(each.version): each for each in learnt},
        "comparison": found,
    }


def _runs(request: HttpRequest) -> Any:
    return EvalRun.objects.filter(project=keyed(request).project).select_related(
        "version__agent", "task_set__environment_version", "created_by", "project"
    )


def _run(request: HttpRequest, pk: int) -> EvalRun:
    return cast(EvalRun, get_object_or_404(_runs(request), pk=pk))


def _page(rows: Any, asked: Paged) -> dict[str, Any]:
    try:
        page = keyset(rows, cursor=asked.cursor, limit=asked.limit)
    except BadCursor as error:
        raise HttpError(400, str(error)) from error
    return {"items": page.items, "next": page.next_cursor or None}
