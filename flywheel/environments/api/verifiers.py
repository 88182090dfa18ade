"""For programs: trying a verifier before it is saved, and the proofs that a worker makes."""

import uuid
from dataclasses import asdict
from datetime import datetime
from typing import Any, cast

from django.http import HttpRequest
from ninja import Field, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.core.verifiers import CAUSES
from flywheel.core.verifiers.rubric_parts import PARTS
from flywheel.edge.answers import JobOut, Ref
from flywheel.edge.refusals import Missing, one
from flywheel.edge.schemas import Body, Schema
from flywheel.environments.api.environments import find_environment
from flywheel.environments.models import Proving, Trial
from flywheel.environments.proofs import labelled_attempts, proof_jobs
from flywheel.environments.versions import trials
from flywheel.environments.versions.environment_versions import latest

router = Router(tags=["environments"])


class SettingOut(Schema):
    name: str
    label: str
    kind: str
    """`text`, `prose`, `number`, `choice`, `json`, `code` or `flag`."""
    help: str
    choices: list[str]
    is_required: bool
    """Whether a part of this type must have it."""


class PartTypeOut(Schema):
    type: str
    label: str
    description: str
    needs: str
    """Requirements beyond pure code: `python` for a worker's sandbox, `judge` for an endpoint; usually empty."""
    only_shapes: bool
    """It judges nothing and is available in reward recipes only."""
    settings: list[SettingOut]


class PartTypesOut(Schema):
    items: list[PartTypeOut]
    causes: dict[str, str]
    """Explanations of the `cause` in results without a score."""


class VerifierTrialIn(Body):
    verifier: dict[str, Any]
    """`{"kind": "rubric", "parts": [{"type", "name", "weight", "required", …}]}`."""
    tasks: list[int] = []
    """Task numbers; the newest three if you name neither tasks nor trajectories."""
    rollouts: int = trials.ROLLOUTS_SHOWN
    """How many of each task's newest rollouts to judge as well."""
    trajectories: list[str] = []
    """Trace ids of rollouts, or of the trajectories that tasks were made from, to judge as well."""
    key: uuid.UUID | None = None
    """Your own UUID. Repeating a key returns the same trial."""


class VerifierTrialRow(Schema):
    what: str
    """A check of the proof, or a rollout."""
    wanted: str
    """For a check of the proof, the result that a sound verifier gives; empty for a rollout."""
    passed: bool | None
    score: float | None
    before: float | None
    """For a rollout, its stored score."""
    cause: str
    reason: str
    parts: dict[str, float | None]
    trace_id: str
    warns: bool = False
    """The verifier passes a common wrong answer. Check whether you intend that."""


class TrialTask(Schema):
    number: int
    is_proved: bool
    rows: list[VerifierTrialRow]


class VerifierTrialOut(JobOut):
    judges: dict[str, Any]
    """For each part with an LLM judge: the `models` that answered, `judged`, `canaries`, `tokens_in`, `tokens_out`, and
    `void`, the reason why its scores do not count."""
    tasks: list[TrialTask]

    @staticmethod
    def resolve_judges(row: Trial) -> dict[str, Any]:
        return cast(dict[str, Any], row.report.get("judges", {}))

    @staticmethod
    def resolve_tasks(row: Trial) -> list[dict[str, Any]]:
        return cast(list[dict[str, Any]], row.report.get("tasks", []))


class ProbeOut(Schema):
    trace_id: str
    task: Ref
    source: str
    """`training` for an attempt of a training run, `rollout` for one of an eval."""
    label: str
    """`pass` or `fail`, as the person labelled it."""
    by: str
    labelled_at: datetime | None
    judged: bool = Field(alias="is_judged")
    """Whether the newest verifier has judged it."""
    score: float | None
    agrees: bool | None
    """Null if it has not been judged yet, or got no score."""
    reason: str


class ProbesOut(Schema):
    environment_version: Ref
    items: list[ProbeOut]


class ProvingOut(JobOut):
    waiting: int
    """Tasks that have no proof under the newest version yet."""


@router.get("/verifier-parts", response=PartTypesOut, auth=Key(Scope.READ))
def list_verifier_parts(request: HttpRequest) -> dict[str, Any]:
    """List the types of part that a rubric can contain, with their settings."""
    items = [
        {
            "type": name,
            "label": kind.label,
            "description": kind.description,
            "needs": kind.runner,
            "only_shapes": kind.only_shapes,
            "settings": [
                {**asdict(each), "name": key, "choices": list(each.choices)} for key, each in kind.settings.items()
            ],
        }
        for name, kind in PARTS.items()
    ]
    return {"items": items, "causes": CAUSES}


@router.post("/environments/{name}/trials", response={202: VerifierTrialOut}, auth=Key(Scope.BUILD))
def try_verifier(request: HttpRequest, name: str, wanted: VerifierTrialIn) -> Status[Trial]:
    """Have a worker try a verifier on the proofs and rollouts of tasks; nothing is saved as a score."""
    job = trials.submit(
        environment=find_environment(request, name),
        verifier=wanted.verifier,
        actor=keyed(request).actor,
        key=wanted.key or uuid.uuid4(),
        tasks=wanted.tasks,
        rollouts=wanted.rollouts,
        trajectories=wanted.trajectories,
    )
    return Status(202, job)


@router.get("/trials/{pk}", response=VerifierTrialOut, auth=Key(Scope.BUILD))
def get_trial(request: HttpRequest, pk: int) -> Trial:
    """Return a trial with its progress and its report on each finished task. It is deleted an hour after the next
    trial."""
    return one(Trial.objects.filter(project=keyed(request).project), pk=pk)


@router.post("/trials/{pk}/cancel", response=VerifierTrialOut, auth=Key(Scope.BUILD))
def cancel_trial(request: HttpRequest, pk: int) -> Trial:
    """Cancel the trial; results so far are kept. 409 if it has finished."""
    return get_trial(request, pk).cancel(keyed(request).actor)


@router.post("/environments/{name}/proofs", response={202: ProvingOut}, auth=Key(Scope.BUILD))
def prove_tasks(request: HttpRequest, name: str) -> Status[Proving]:
    """Queue the proofs that need a worker under the newest verifier and are still waiting."""
    row = find_environment(request, name)
    latest(row)
    proof_jobs.forget_spoiled(row)
    return Status(202, _proving(proof_jobs.ask(row, keyed(request).actor)))


@router.get("/environments/{name}/probes", response=ProbesOut, auth=Key(Scope.READ))
def list_verifier_probes(request: HttpRequest, name: str) -> dict[str, Any]:
    """List attempts at train tasks that people labelled, beside the newest verifier's verdict: disagreements first,
    then those that it has not judged yet. At most the newest 200."""
    version = latest(find_environment(request, name))
    return {"environment_version": version, "items": labelled_attempts.probes_of(version)}


@router.post("/environments/{name}/probes/judge", response={202: ProvingOut}, auth=Key(Scope.BUILD))
def judge_verifier_probes(request: HttpRequest, name: str) -> Status[Proving]:
    """Have a worker judge the labelled attempts that the newest verifier has not judged yet, with the proofs of their
    tasks."""
    row = find_environment(request, name)
    labelled_attempts.let_wait(latest(row))
    return Status(202, _proving(proof_jobs.ask(row, keyed(request).actor)))


@router.get("/environments/{name}/proofs", response=ProvingOut, auth=Key(Scope.READ))
def get_proofs(request: HttpRequest, name: str) -> Proving:
    """Return the newest job that proves tasks of the environment."""
    return _proving(_newest(request, name))


@router.post("/environments/{name}/proofs/cancel", response=ProvingOut, auth=Key(Scope.BUILD))
def cancel_proofs(request: HttpRequest, name: str) -> Proving:
    """Cancel the newest job that proves tasks; tasks proved so far stay proved. 409 if it has finished."""
    return _proving(_newest(request, name).cancel(keyed(request).actor))


def _newest(request: HttpRequest, name: str) -> Proving:
    job = find_environment(request, name).provings.first()
    if job is None:
        raise Missing(f"no worker was asked to prove tasks of {name[:100]}")
    return job


def _proving(job: Proving) -> Proving:
    """The job with how many proofs still wait."""
    job.waiting = proof_jobs.waiting(job.environment, latest(job.environment)).count()  # type: ignore[attr-defined]
    return job
