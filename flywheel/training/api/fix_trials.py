"""Fixes that need no training, for programs: what fails, examples, drafts that are asked, and the best one measured."""

import uuid
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.references import find_agent
from flywheel.edge.answers import EstimateOut, ListQuery, Ref, TraceId, page_of, paginate
from flywheel.edge.refusals import Missing, one
from flywheel.edge.schemas import Body, RefIn, Schema
from flywheel.environments.models import TaskSet
from flywheel.evals.api.references import task_set_of, version_of
from flywheel.evals.runs.submission import RunSettings
from flywheel.failures.buckets import bucket_definitions
from flywheel.training.fixes import bucket_evidence, example_choice, trial_lifecycle, trial_results
from flywheel.training.fixes.trial_lifecycle import DraftContent, TrialRequest
from flywheel.training.models import FixTrial

router = Router(tags=["training"])


class DraftIn(Body):
    name: str
    system_prompt: str | None = None
    """The parent's prompt if omitted."""
    descriptions: dict[str, str] = {}
    """New descriptions of tools, by name. Other descriptions and all schemas stay as they are."""
    sampling: dict[str, Any] = {}
    """Any of `temperature`, `top_p` and `max_tokens`; the others stay as they are."""


class FixTrialIn(Body):
    key: uuid.UUID | None = None
    """Your own UUID. Repeating a key returns the same trial."""
    bucket: str
    """Key of the category to fix."""
    version: RefIn
    """`agent@number`: the parent, which the drafts change."""
    task_set: RefIn
    """`name@version`."""
    drafts: list[DraftIn]
    """From 1 to 8 drafts."""
    samples: int = 4
    """Attempts per task."""
    seed: int = 1
    """Seed that pairs the attempts of all versions."""
    engine: str = ""
    """`vllm` for this installation's vLLM server; empty for the version's endpoint."""


class ExamplesQuery(Schema):
    version: str
    """`agent@number` whose format the examples use."""
    bucket: str = ""
    """Key of a category; empty for all."""
    tokens: int = example_choice.TOKENS
    """Most tokens that the examples may use."""
    seed: int = 1
    """The same seed gives the same examples."""


class ExampleOut(Schema):
    task: Ref
    text: str
    tokens: int


class ExamplesOut(Schema):
    block: str
    """The text to put into a system prompt."""
    tokens: int
    """Estimate: one token for four ASCII characters, or for one other character."""
    pool: int
    """Corrected failures in the train split that the examples were chosen from."""
    left_out: int
    """Of those, the ones that share a source or a request with held-out or sealed tasks."""
    bucket: str
    """Empty if they come from all categories."""
    examples: list[ExampleOut]


class NeededOut(Schema):
    trajectory: TraceId = Field(alias="failure.trajectory")
    values: list[str]
    """What the right answer needed."""
    missing: list[str]
    """Those that were not in the context."""


class RetrievalOut(Schema):
    words: str
    checked: int
    absent: int
    """Failures whose context lacked something that the right answer needed."""
    unknown: int
    """Failures for which this is unknown."""
    rows: list[NeededOut]


class EvidenceOut(Schema):
    failures: int
    calls: list[tuple[str, str, int]]
    """`[called, expected, count]`; an empty text means no call."""
    arguments: list[tuple[str, int]]
    """`[argument, count]` of wrong arguments."""
    notes: list[str]
    retrieval: RetrievalOut | None
    attempts_left_out: int
    """Failures that are attempts at held-out or sealed tasks."""
    sources_left_out: int
    """Failures from sessions that such a task was made from."""
    left_out: str
    """Both in words, with the reason; empty if none was left out."""


class DraftOut(Schema):
    name: str = Field(alias="draft.name")
    version: Ref = Field(alias="draft.version")
    changes: list[str] = Field(alias="draft.changes")
    examples: list[str] = Field(alias="draft.examples")
    """Train tasks whose examples are in its prompt."""
    evaluation: int = Field(alias="draft.evaluation_id")
    """Id of its eval on the train tasks."""
    state: str = Field(alias="draft.evaluation.state")
    difference: EstimateOut | None
    """Difference in success on the train tasks from its parent; null until both have finished."""
    problem: str


class FixTrialRow(Schema):
    id: int
    bucket: str
    version: Ref = Field(alias="parent")
    """The parent, which the drafts change."""
    task_set: Ref
    parent_eval: int = Field(alias="parent_eval_id")
    """Id of the parent's eval on the train tasks."""
    evaluation: int | None = Field(alias="evaluation_id")
    """Id of the best draft's eval on held-out tasks; null until it is measured."""
    baseline: int | None = Field(alias="baseline_id")
    """Id of the parent's eval on held-out tasks; null until it is measured."""
    created_by: Ref
    created_at: datetime


class FixTrialOut(FixTrialRow):
    drafts: list[DraftOut]
    best: str | None
    """Name of the draft with the largest gain, once all have finished; null if none gains."""
    level: float
    """Level of each interval, so that all hold together at 95%."""
    is_over: bool
    candidate: int | None
    """Id of the candidate that was created from it."""


@router.get("/buckets/{key}/evidence", response=EvidenceOut, auth=Key(Scope.READ))
def get_bucket_evidence(request: HttpRequest, key: str, agent: str = "") -> Any:
    """Return what a category's newest failures have in common. For retrieval failures, also return whether the
    context contained what the right answer needed."""
    project = keyed(request).project
    if key not in bucket_definitions.every(project):
        raise Missing(f"there is no category {key[:100]!r}")
    return bucket_evidence.evidence_of(project, key, find_agent(project, agent) if agent else None)


@router.get("/task-sets/{name}/{int:version}/examples", response=ExamplesOut, auth=Key(Scope.READ))
def choose_examples(request: HttpRequest, name: str, version: int, query: Query[ExamplesQuery]) -> Any:
    """Return few-shot examples from corrected failures of the train split, as different as possible, in a version's
    format."""
    rows = TaskSet.objects.filter(project=keyed(request).project).select_related("environment_version__environment")
    task_set, parent = one(rows, name=name, version=version), version_of(request, query.version)
    return example_choice.examples_for(task_set, parent, bucket=query.bucket, budget=query.tokens, seed=query.seed)


@router.get("/fix-trials", response=page_of(FixTrialRow, "FixTrialPage"), auth=Key(Scope.READ))
def list_fix_trials(request: HttpRequest, query: Query[ListQuery]) -> Any:
    """List fix trials, newest first."""
    return paginate(trial_results.trials().filter(project=keyed(request).project), query)


@router.post("/fix-trials", response={200: FixTrialOut, 201: FixTrialOut}, auth=Key(Scope.BUILD))
def try_fix(request: HttpRequest, body: FixTrialIn) -> Status[Any]:
    """Create versions from the drafts, and run them and their parent on the train tasks. Repeating a key returns the
    existing trial with 200."""
    wanted = TrialRequest(
        key=body.key or uuid.uuid4(),
        bucket=body.bucket,
        parent=version_of(request, body.version),
        task_set=task_set_of(request, body.task_set),
        drafts=[DraftContent(**draft.dict()) for draft in body.drafts],
        settings=RunSettings(samples=body.samples, seed=body.seed, engine=body.engine),
    )
    trial, is_new = trial_lifecycle.start(wanted, keyed(request).actor)
    return Status(201 if is_new else 200, _whole(_trial(request, trial.pk)))


@router.get("/fix-trials/{trial_id}", response=FixTrialOut, auth=Key(Scope.READ))
def get_fix_trial(request: HttpRequest, trial_id: int) -> Any:
    """Return one fix trial with its drafts, and the best of them once all have finished."""
    return _whole(_trial(request, trial_id))


@router.post("/fix-trials/{trial_id}/measure", response=FixTrialOut, auth=Key(Scope.TRAIN))
def measure_fix(request: HttpRequest, trial_id: int) -> Any:
    """Run the best draft on the held-out tasks, and its parent if it has not run there. When both have finished,
    they become a candidate. 409 until all runs on the train tasks have succeeded, 422 if no draft improves on its
    parent."""
    trial_lifecycle.measure(_trial(request, trial_id), keyed(request).actor)
    return _whole(_trial(request, trial_id))


def _trial(request: HttpRequest, pk: int) -> FixTrial:
    return one(trial_results.trials().filter(project=keyed(request).project), pk=pk)


def _whole(trial: FixTrial) -> dict[str, Any]:
    found, candidate = trial_results.results_of(trial), trial_results.candidate_of(trial)
    row = FixTrialRow.from_orm(trial).dict(by_alias=True)
    return row | {
        "drafts": found.drafts,
        "best": found.best.draft.name if found.is_over and found.best else None,
        "level": found.level,
        "is_over": found.is_over,
        "candidate": candidate.pk if candidate else None,
    }
