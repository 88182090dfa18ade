"""Pipelines of training for programs: launch one, follow it, decide at its gates."""

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Field, Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.models import Version
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Body, RefIn, Schema
from flywheel.evals.api.references import task_set_of, version_of
from flywheel.training.api.references import ChoicesIn, TuningOut, by_algorithm
from flywheel.training.models import Pipeline, PipelineStage
from flywheel.training.pipelines import pipeline_control, prompt_stages
from flywheel.training.pipelines.pipeline_control import MOST_STAGES
from flywheel.training.pipelines.prompt_stages import PromptRequest

router = Router(tags=["training"])


class PipelineGateIn(Body):
    """Limits on what the stage before reached on validation, as shares; null for none."""

    min_success: float | None = Field(None, ge=0, le=1)
    """Smallest share of the validation tasks that it solves."""
    min_format: float | None = Field(None, ge=0, le=1)
    """Smallest share of its answers that the agent's program can read."""
    max_unsafe: float | None = Field(None, ge=0, le=1)
    """Greatest share of its attempts that do harm."""


class PipelineStageIn(ChoicesIn):
    gate: PipelineGateIn | None = None
    """What the stage before must reach for this one to begin; the first stage has none."""


class PromptSettingsIn(Body):
    samples: int = prompt_stages.SAMPLES
    """Attempts at each train task, 1 to 64."""
    validation_share: float = prompt_stages.VALIDATION_SHARE
    """Share of the training sources whose tasks the gate after it looks at, 0 to 0.5. A run with the same share and
    seed keeps the same tasks aside."""


class PromptStageIn(Body):
    """A new prompt on the same weights: evaluated on train tasks beside the version that it changes, and taken over by
    the stages after it. Only stages of this kind may come before it."""

    algorithm: Literal["prompt"]
    """Says that this stage tries a prompt."""
    task_set: RefIn
    """`name@version` whose train tasks it is tried on."""
    system_prompt: str | None = None
    """The new system prompt; a version with it is made at the launch."""
    draft: RefIn = ""
    """Instead of a text: `agent@number` with the weights of the version before, such as a fix trial's draft."""
    settings: PromptSettingsIn = Field(default_factory=PromptSettingsIn)
    """How it is tried."""
    seed: int = 1
    """Seed of both evaluations."""
    gate: PipelineGateIn | None = None
    """What the prompt before must reach for this one to begin; the first stage has none."""

    def request(self, request: HttpRequest, base: Version, key: uuid.UUID) -> PromptRequest:
        """The choices, with what they name. Raises Refused."""
        return PromptRequest(
            base=base,
            task_set=task_set_of(request, self.task_set),
            system_prompt=self.system_prompt,
            draft=version_of(request, self.draft, "draft") if self.draft else None,
            settings=self.settings.model_dump(),
            seed=self.seed,
        )


if TYPE_CHECKING:
    TypedStageIn = PipelineStageIn | PromptStageIn
else:
    TypedStageIn = by_algorithm(PipelineStageIn, "Stage", PromptStageIn)


class PipelineIn(Body):
    key: uuid.UUID | None = None
    """Your own UUID. Repeating a key returns the same pipeline."""
    base: RefIn
    """`agent@number` that the first stage starts from; each further stage starts from the version that the stage before
    made."""
    stages: list[TypedStageIn] = Field(max_length=MOST_STAGES)
    """2 to 6 stages, in order."""


class PipelineReasonIn(Body):
    reason: str
    """Why it may go on; kept with the pipeline."""


class PipelineCheckOut(Schema):
    name: str
    """`min_success`, `min_format` or `max_unsafe`."""
    label: str
    limit: float
    share: float | None
    """Share that was measured; null if it was not measured."""
    n: int
    """Validation tasks that were scored."""
    holds: bool


class PipelineLetOnOut(Schema):
    by: str
    reason: str
    at: datetime


class PipelineEntryOut(Schema):
    run: int | None = None
    """Id of the run that was judged."""
    eval: int | None = None
    """Id of the evaluation that was judged instead: of a new prompt."""
    checks: list[PipelineCheckOut]
    let_on: PipelineLetOnOut | None = None
    """Who let the pipeline go on though a check does not hold."""


class PipelineStageOut(Schema):
    number: int
    algorithm: str
    """That of its runs, or `prompt`."""
    task_set: Ref
    dataset: Ref | None
    """Rows that it learns from; null for a new prompt."""
    draft: Ref | None
    """Version with the new prompt; null for a stage that trains."""
    evals: list[int]
    """Ids of its present attempt's evaluations of a new prompt, on train tasks: the draft's and that of the version it
    changes. Empty for a stage that trains, or before it begins."""
    teacher: Ref | None
    """Version whose probabilities `distillation` learns."""
    reward: Ref | None = Field(alias="reward_recipe")
    """Reward recipe that it learns from; null for each task's own verifier."""
    replay: Ref | None
    """Demonstrations that it imitates beside its attempts."""
    environment_weights: dict[str, list[float]]
    """Weight of each environment of a mix, at the first step and at the last."""
    tuning: TuningOut | None
    """Null for a new prompt."""
    settings: dict[str, Any]
    seed: int
    """Seed of the first attempt; each further attempt takes the next."""
    override_reason: str
    gate: dict[str, float]
    """Limits by name."""
    entry: PipelineEntryOut | None
    """How its gate was judged last; null before that."""
    attempt: int
    """How many times it has been begun, including now."""
    runs: list[int]
    """Ids of its training runs, one for each attempt, oldest first."""
    produced: Ref | None
    """Version that its last attempt made; for a new prompt, the draft."""

    @staticmethod
    def resolve_tuning(row: PipelineStage) -> dict[str, Any] | None:
        return row.tuning or None

    @staticmethod
    def resolve_entry(row: PipelineStage) -> dict[str, Any] | None:
        return row.entry or None

    @staticmethod
    def resolve_runs(row: PipelineStage) -> list[int]:
        return sorted(run.pk for run in row.runs.all())

    @staticmethod
    def resolve_evals(row: PipelineStage) -> list[int]:
        return [pk for pk in (row.draft_eval_id, row.base_eval_id) if pk]

    @staticmethod
    def resolve_produced(row: PipelineStage) -> Any:
        if row.draft:
            return row.draft
        newest = max(row.runs.all(), key=lambda run: run.pk, default=None)
        return newest.produced if newest else None


class PipelineOut(Schema):
    id: int
    base: Ref
    state: str
    """`running`, `at_gate` (a gate was not passed), `stopped`, `finished` or `ended`."""
    at: int
    """Number of the current stage."""
    problem: str
    """Why it does not go on; empty while it does."""
    stages: list[PipelineStageOut]
    created_by: Ref
    created_at: datetime
    finished_at: datetime | None

    @staticmethod
    def resolve_stages(row: Pipeline) -> list[PipelineStage]:
        return list(row.stages.all())


@router.post("/training-pipelines", response={200: PipelineOut, 201: PipelineOut}, auth=Key(Scope.TRAIN))
def launch_pipeline(request: HttpRequest, asked: PipelineIn) -> Status[Pipeline]:
    """Check every stage as a training run is checked, freeze all inputs, and begin the first stage. A new prompt
    becomes a version and is evaluated on train tasks; rows of the stages after it are written for it. An error names
    the stage and its field, such as `stages.2.settings.steps`. Repeating a key returns the existing pipeline with
    200."""
    key = asked.key or uuid.uuid4()
    base = version_of(request, asked.base, "base")
    stages = []
    for number, stage in enumerate(asked.stages, 1):
        with pipeline_control.at_stage(number):
            run = stage.request(request, base, uuid.uuid4())
        stages.append(pipeline_control.StageRequest(run=run, gate=stage.gate.model_dump() if stage.gate else {}))
    made, is_new = pipeline_control.create(key=key, stages=stages, actor=keyed(request).actor)
    return Status(201 if is_new else 200, _pipeline(request, made.pk))


@router.get("/training-pipelines", response=page_of(PipelineOut), auth=Key(Scope.READ))
def list_pipelines(request: HttpRequest, query: Query[ListQuery]) -> dict[str, Any]:
    """List pipelines, newest first."""
    return paginate(_pipelines(request), query)


@router.get("/training-pipelines/{pipeline_id}", response=PipelineOut, auth=Key(Scope.READ))
def get_pipeline(request: HttpRequest, pipeline_id: int) -> Pipeline:
    """Return one pipeline with its stages."""
    return _pipeline(request, pipeline_id)


@router.post("/training-pipelines/{pipeline_id}/stop", response=PipelineOut, auth=Key(Scope.TRAIN))
def stop_pipeline(request: HttpRequest, pipeline_id: int) -> Pipeline:
    """Stop it; the current run saves a checkpoint. 409 unless it is running."""
    pipeline_control.stop(_pipeline(request, pipeline_id), keyed(request).actor)
    return _pipeline(request, pipeline_id)


@router.post("/training-pipelines/{pipeline_id}/resume", response=PipelineOut, auth=Key(Scope.TRAIN))
def resume_pipeline(request: HttpRequest, pipeline_id: int) -> Pipeline:
    """Continue where it stopped, with the run from its newest checkpoint or the rest of the evaluations. 409 unless it
    is stopped."""
    pipeline_control.resume(_pipeline(request, pipeline_id), keyed(request).actor)
    return _pipeline(request, pipeline_id)


@router.post("/training-pipelines/{pipeline_id}/retry", response=PipelineOut, auth=Key(Scope.TRAIN))
def retry_pipeline(request: HttpRequest, pipeline_id: int) -> Pipeline:
    """Train the current stage again in a new run, or evaluate its prompt again, with the next seed. 409 unless it is
    stopped or at a gate."""
    pipeline_control.retry(_pipeline(request, pipeline_id), keyed(request).actor)
    return _pipeline(request, pipeline_id)


@router.post("/training-pipelines/{pipeline_id}/let-on", response=PipelineOut, auth=Key(Scope.TRAIN))
def let_pipeline_on(request: HttpRequest, pipeline_id: int, asked: PipelineReasonIn) -> Pipeline:
    """Let it continue though its gate was not passed, with a reason for the record. 409 unless it is at a gate."""
    pipeline_control.let_on(_pipeline(request, pipeline_id), keyed(request).actor, asked.reason)
    return _pipeline(request, pipeline_id)


@router.post("/training-pipelines/{pipeline_id}/end", response=PipelineOut, auth=Key(Scope.TRAIN))
def end_pipeline(request: HttpRequest, pipeline_id: int) -> Pipeline:
    """End it for good. Everything that its stages made is kept. 409 if it is over."""
    pipeline_control.end(_pipeline(request, pipeline_id), keyed(request).actor)
    return _pipeline(request, pipeline_id)


def _pipelines(request: HttpRequest) -> QuerySet[Pipeline]:
    rows = Pipeline.objects.filter(project=keyed(request).project).select_related("base__agent", "created_by")
    return rows.prefetch_related(
        *(
            "stages__task_set",
            "stages__dataset",
            "stages__draft__agent",
            "stages__replay",
            "stages__teacher__agent",
            "stages__reward_recipe",
        ),
        "stages__runs__produced__agent",
    )


def _pipeline(request: HttpRequest, pipeline_id: int) -> Pipeline:
    return one(_pipelines(request), pk=pipeline_id)
