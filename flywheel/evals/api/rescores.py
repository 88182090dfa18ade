"""For programs: old rollouts under another verifier or a reward recipe."""

import uuid
from dataclasses import asdict
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import JobOut, ListQuery, Number, Ref, TraceId, page_of, paginate
from flywheel.edge.refusals import Refused, at_field, one
from flywheel.edge.schemas import Body, Schema
from flywheel.environments.models import Environment, EnvironmentVersion
from flywheel.environments.versions.environment_versions import latest
from flywheel.environments.versions.reward_recipes import find_reward_recipe
from flywheel.evals import run_rescores as verbs
from flywheel.evals.models import EvalRun, Rescore
from flywheel.evals.runs.rollout_looks import note_look
from flywheel.evals.verifier_agreement import Agreement, agreements, note_looks

router = Router(tags=["evals"])


class RescoreIn(Body):
    version: int | None = None
    """Number of the environment's version whose verifier judges. Give this or `reward`."""
    reward: str = ""
    """`name@version` of a reward recipe that judges instead, on top of the scores that the eval has."""
    key: uuid.UUID | None = None
    """Your own UUID. Repeating a key returns the same rescore."""


class RescoreOut(JobOut):
    eval: int = Field(alias="run_id")
    environment_version: Ref
    reward_recipe: Ref | None = Field(alias="recipe")
    """The recipe that judges; null if a verifier does."""
    verifier_digest: str
    judges: dict[str, Any]
    """The LLM judges, as for an eval."""
    changes: dict[str, Any]
    """Changes so far: `n`, `to_pass`, `to_fail`, `to_unscored`, `from_unscored`, `moved`, `same`, and the success rates
    `before` and `after` with their intervals."""

    @staticmethod
    def resolve_changes(row: Rescore) -> dict[str, Any]:
        return asdict(verbs.changes(row))


class RescoredOut(Schema):
    task: Number = Field(alias="result.task")
    sample: int = Field(alias="result.sample")
    trace_id: TraceId | None = Field(alias="result.trajectory")
    before: float | None = Field(alias="result.score")
    score: float | None
    success_before: bool | None = Field(alias="result.success")
    success: bool | None
    parts: dict[str, float | None]
    cause: str
    """Why there is no score, in one word; `GET /verifier-parts` explains it."""
    reason: str


class DisagreementOut(Schema):
    eval: int = Field(alias="result.run_id")
    task: Number = Field(alias="result.task")
    sample: int = Field(alias="result.sample")
    trace_id: TraceId | None = Field(alias="result.trajectory")
    person: bool
    """Whether a person passed it."""
    verdict: bool
    """Whether the verifier passed it."""
    reason: str


class VerifierAgreementOut(Schema):
    name: str
    """Name of the part that is a judge; empty for the whole verifier."""
    agreement: dict[str, Any]
    """Share of judgements on which both agree, with its interval."""
    kappa: dict[str, Any]
    """Cohen's kappa, with its interval and `n`."""
    sources: int
    false_passes: int
    """Outputs that the verifier passes and people fail."""
    false_failures: int
    """Outputs that the verifier fails and people pass."""
    disagreements: list[DisagreementOut]

    @staticmethod
    def resolve_agreement(row: Agreement) -> dict[str, Any]:
        return asdict(row.agreement)

    @staticmethod
    def resolve_kappa(row: Agreement) -> dict[str, Any]:
        return asdict(row.kappa)


class AgreementsOut(Schema):
    environment_version: str
    verifier_digest: str
    items: list[VerifierAgreementOut]


class RescoredQuery(ListQuery):
    flips: bool = False
    """Only attempts that passed before and fail now, or the reverse."""


@router.post("/evals/{pk}/rescores", response={202: RescoreOut}, auth=Key(Scope.BUILD))
def rescore_eval(request: HttpRequest, pk: int, wanted: RescoreIn) -> Status[Rescore]:
    """Score the run's rollouts again with the verifier of another environment version, or with a reward recipe. The
    evaluated version does not run again, and existing scores are kept."""
    actor, key = keyed(request).actor, wanted.key or uuid.uuid4()
    if bool(wanted.reward) == (wanted.version is not None):
        raise Refused("give either the number of a version or a reward recipe", field="version")
    rows = EvalRun.objects.select_related("task_set__environment_version__environment", "project")
    run = one(rows.filter(project=keyed(request).project), pk=pk)
    if wanted.reward:
        recipe = find_reward_recipe(keyed(request).project, wanted.reward)
        return Status(202, verbs.submit_recipe(run=run, recipe=recipe, actor=actor, key=key)[0])
    environment = run.task_set.environment_version.environment
    with at_field("version"):
        version = one(EnvironmentVersion.objects.filter(environment=environment), number=wanted.version)
    return Status(202, verbs.submit(run=run, version=version, actor=actor, key=key)[0])


@router.get("/environments/{name}/agreement", response=AgreementsOut, auth=Key(Scope.READ))
def get_verifier_agreement(request: HttpRequest, name: str) -> dict[str, Any]:
    """Return how far the environment's newest verifier, and each judge in it, agrees with people."""
    version = latest(one(Environment.objects.filter(project=keyed(request).project), name=name))
    found = agreements(version)
    note_looks(found, keyed(request).actor)
    return {"environment_version": str(version), "verifier_digest": version.verifier_digest, "items": found}


@router.get("/rescores/{pk}", response=RescoreOut, auth=Key(Scope.READ))
def get_rescore(request: HttpRequest, pk: int) -> Rescore:
    """Return a rescore with its progress and the changes so far."""
    rows = Rescore.objects.select_related("project", "environment_version__environment", "run__task_set", "recipe")
    return one(rows.filter(project=keyed(request).project), pk=pk)


@router.post("/rescores/{pk}/cancel", response=RescoreOut, auth=Key(Scope.BUILD))
def cancel_rescore(request: HttpRequest, pk: int) -> Rescore:
    """Cancel the rescore; scores so far are kept. 409 if it has finished."""
    return get_rescore(request, pk).cancel(keyed(request).actor)


@router.post("/rescores/{pk}/resume", response=RescoreOut, auth=Key(Scope.BUILD))
def resume_rescore(request: HttpRequest, pk: int) -> Rescore:
    """Resume the rescore with the attempts that have no new score yet. 409 unless it has failed or was cancelled, or if
    its result is void."""
    return get_rescore(request, pk).resume(keyed(request).actor)


@router.get("/rescores/{pk}/scores", response=page_of(RescoredOut), auth=Key(Scope.READ))
def list_rescored(request: HttpRequest, pk: int, query: Query[RescoredQuery]) -> dict[str, Any]:
    """List all attempts with their scores before and after, newest first."""
    job = get_rescore(request, pk)
    note_look(job.run, keyed(request).actor)
    rows = job.scores.select_related("result__task", "result__trajectory")
    return paginate(rows.filter(verbs.FLIP) if query.flips else rows, query)
