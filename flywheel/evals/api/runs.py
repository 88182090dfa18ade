"""Eval runs for programs: submit, follow, stop, go on, read every result, compare."""

import uuid
from datetime import datetime
from typing import Any, cast

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Field, Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.core.evidence.statistics.eval_scope import BASELINE_SAMPLES, SAMPLES
from flywheel.edge.answers import JobOut, ListQuery, Ref, TraceId, page_of, paginate
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Body, RefIn, Schema
from flywheel.environments.models import Opening, Split
from flywheel.evals.api.references import task_set_of, version_of
from flywheel.evals.api.task_grid import TrainedOnOut
from flywheel.evals.comparisons.run_comparison import comparison, doubts, leaks_of, trained_on
from flywheel.evals.models import EvalRun
from flywheel.evals.runs import rollout_looks, submission
from flywheel.evals.runs.first_requests import differences
from flywheel.evals.serving import version_isolation

router = Router(tags=["evals"])

EVENTS = 200


class EvalQuery(ListQuery):
    agent: str = ""
    """Name of an agent."""
    task_set: str = ""
    """Name of a task set, without its version."""
    split: str = ""
    """`train`, `held_out` or `sealed`."""
    state: str = ""
    """`queued`, `running`, `succeeded`, `failed` or `cancelled`."""


class ResultQuery(ListQuery):
    limit: int = Field(200, ge=1, le=1000)
    """Items per page."""


class EvalIn(Body):
    version: RefIn = Field(..., description="`agent@number` or `agent@live`.")
    task_set: RefIn = Field(..., description="`set@version`.")
    split: str = Split.HELD_OUT.value
    """`held_out` or `train`."""
    samples: int | None = Field(
        None,
        description=f"Attempts per task; by default {SAMPLES}, or {BASELINE_SAMPLES} for a live version on held-out "
        "tasks unless its temperature is 0, since this baseline runs once and is compared with every candidate.",
    )
    seed: int = 1
    """Use the same seed on two versions for a paired comparison."""
    sampling: dict[str, Any] = Field(default_factory=dict, description="Overrides the version's own settings.")
    engine: str = Field("", description="`vllm` for this installation's vLLM server; empty for the version's endpoint.")
    budget: dict[str, float] = Field(
        default_factory=dict,
        description="Limits: `tokens`, `usd`, `minutes`. A run that reaches one stops and keeps its results.",
    )
    key: uuid.UUID | None = Field(None, description="Your own UUID. Repeating a key returns the same run.")


class ResumeIn(Body):
    budget: dict[str, float] | None = Field(
        None, description="Replaces the run's budget from now on; tokens and dollars already spent still count."
    )


class EvalRow(JobOut):
    version: Ref
    task_set: Ref
    split: str
    samples: int
    seed: int
    sampling: dict[str, Any]
    budget: dict[str, float]
    verifier_digest: str
    engine: str
    """`vllm`, or empty for the version's own endpoint."""
    message: str
    """Current activity, if the run is not running attempts."""
    error_kind: str
    """Kind of the error, in one word."""
    success: dict[str, Any] | None
    """Success rate with its interval, once every attempt is judged."""
    created_by: Ref
    started_at: datetime | None
    finished_at: datetime | None

    @staticmethod
    def resolve_success(row: EvalRun) -> dict[str, Any] | None:
        return cast("dict[str, Any] | None", row.summary.get("metrics", {}).get("success"))


class EvalEventOut(Schema):
    at: datetime
    level: str
    text: str


class EvalOut(EvalRow):
    summary: dict[str, Any]
    """Each metric with its interval, over all tasks and by slice and category."""
    isolation: dict[str, Any]
    """Self-test of the vLLM server: `arms`, the models that were compared, starting with the run's own; and `passed`,
    missing while the test is running. Empty for other engines."""
    judges: dict[str, Any]
    """For each part with an LLM judge: the `models` that answered, `judged`, `remembered`, `canaries`, `requests`,
    `tokens_in`, `tokens_out`, and `void`, the reason why its scores do not count."""
    simulator: dict[str, Any]
    """The model that simulated tools: `models` that answered, `requests`, `tokens_in`, `tokens_out`, and `cost_usd`,
    null if an answer did not report it. Empty if no model simulated tools."""
    unlike_live: list[str]
    """What differed from the version as it would be live: `system prompt`, `tools` or `sampling`. If there is any, the
    gate calls a comparison invalid. Empty before the first attempt."""
    contamination: TrainedOnOut | None
    """Whether the version was trained on these tasks; null for train tasks."""
    events: list[EvalEventOut]
    """The run's log, oldest first; at most the newest 200 entries."""

    @staticmethod
    def resolve_unlike_live(row: EvalRun) -> list[str]:
        return differences(row) if row.done else []

    @staticmethod
    def resolve_contamination(row: EvalRun) -> Any:
        return leaks_of(row)

    @staticmethod
    def resolve_events(row: EvalRun) -> list[Any]:
        return list(row.events.order_by("-id")[:EVENTS])[::-1]


class ResultOut(Schema):
    task: Ref
    sample: int
    seed: int
    trajectory: TraceId | None
    """Trace id of the rollout."""
    score: float | None
    """Null if unscored. `cause` gives the reason in one word, `error` in a sentence."""
    success: bool | None
    parts: dict[str, float | None]
    reason: str
    error: str
    cause: str
    """For example `timeout`, `memory`, `refused`, `away` or `not_answered`; `GET /verifier-parts` lists all."""
    tokens_in: int | None
    tokens_out: int | None
    cost_usd: float | None
    latency_ms: float | None


class SelfTestOut(Schema):
    """A self-test of the vLLM server that passed and ran both versions."""

    eval: int
    """Id of the eval that the test preceded."""
    answers: int
    """Number of answers that were compared."""


class ComparisonOut(Schema):
    candidate: int
    baseline: int
    doubts: list[str]
    """What differs between the runs besides the version."""
    is_valid: bool
    """False if a version was trained on tasks that measure it. The differences then mean nothing."""
    self_test: SelfTestOut | None
    """The newest self-test that showed the vLLM server to keep the two versions apart; null if nothing could mix them
    up."""
    contamination: dict[str, TrainedOnOut]
    """By version, for versions measured on held-out tasks."""
    comparison: dict[str, Any]
    """Paired differences by metric, candidate minus baseline, with their intervals."""


@router.get("/evals", response=page_of(EvalRow, "EvalPage"), auth=Key(Scope.READ))
def list_evals(request: HttpRequest, query: Query[EvalQuery]) -> dict[str, Any]:
    """List evals, newest first."""
    wanted = {
        "version__agent__name": query.agent,
        "task_set__name": query.task_set,
        "split": query.split,
        "state": query.state,
    }
    return paginate(_runs(request).filter(**{column: value for column, value in wanted.items() if value}), query)


@router.post("/evals", response={200: EvalOut, 201: EvalOut}, auth=Key(Scope.BUILD))
def create_eval(request: HttpRequest, body: EvalIn) -> Status[EvalRun]:
    """Queue a run: 201 if it is new, 200 with the existing run if `key` was used before."""
    version = version_of(request, body.version)
    samples = submission.usual_samples(version, body.split) if body.samples is None else body.samples
    run, made = submission.submit(
        key=body.key or uuid.uuid4(),
        version=version,
        task_set=task_set_of(request, body.task_set),
        actor=keyed(request).actor,
        split=body.split,
        settings=submission.RunSettings(
            samples=samples, seed=body.seed, sampling=body.sampling, engine=body.engine, budget=body.budget
        ),
    )
    return Status(201 if made else 200, run)


@router.get("/evals/{eval_id}", response=EvalOut, auth=Key(Scope.READ))
def get_eval(request: HttpRequest, eval_id: int) -> EvalRun:
    """Return one eval with its progress, its metrics and its log."""
    return one(_runs(request), pk=eval_id)


@router.post("/evals/{eval_id}/cancel", response=EvalOut, auth=Key(Scope.BUILD))
def cancel_eval(request: HttpRequest, eval_id: int) -> EvalRun:
    """Cancel the eval. Results so far are kept, and `POST /evals/{id}/resume` continues it. 409 if it has finished."""
    return get_eval(request, eval_id).cancel(keyed(request).actor)


@router.post("/evals/{eval_id}/resume", response=EvalOut, auth=Key(Scope.BUILD))
def resume_eval(request: HttpRequest, eval_id: int, body: ResumeIn | None = None) -> EvalRun:
    """Resume the attempts that have no result, under a new budget if you give one. Attempts for which the server was
    away (`cause` is `away`) run again. In a run that has succeeded, they do so only if it has no budget of tokens or
    dollars and nothing depends on it (a candidate, a training run, a rescore or a reward audit). 409 for any other run
    that has succeeded, and for one that is queued, running or void."""
    budget = body.budget if body else None
    submission.resume(run=get_eval(request, eval_id), actor=keyed(request).actor, budget=budget)
    return get_eval(request, eval_id)


@router.get("/evals/{eval_id}/results", response=page_of(ResultOut), auth=Key(Scope.READ))
def list_eval_results(request: HttpRequest, eval_id: int, query: Query[ResultQuery]) -> dict[str, Any]:
    """List all attempts, latest first."""
    run = get_eval(request, eval_id)
    rollout_looks.note_look(run, keyed(request).actor, Opening.Kind.EXPORT)
    return paginate(run.results.select_related("task", "trajectory"), query)


@router.get("/evals/{candidate}/against/{baseline}", response=ComparisonOut, auth=Key(Scope.READ))
def compare_evals(request: HttpRequest, candidate: int, baseline: int) -> dict[str, Any]:
    """Return the paired differences of two finished runs, candidate minus baseline. They mean nothing if `is_valid`
    is false. 409 if the runs can't be compared, for example two on vLLM whose versions no self-test has shown to be
    kept apart."""
    new, old = get_eval(request, candidate), get_eval(request, baseline)
    found = comparison(new, old)
    rollout_looks.note_looks((new, old), keyed(request).actor)
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


def _runs(request: HttpRequest) -> QuerySet[EvalRun]:
    return EvalRun.objects.filter(project=keyed(request).project).select_related(
        "version__agent", "task_set__environment_version", "created_by", "project"
    )
