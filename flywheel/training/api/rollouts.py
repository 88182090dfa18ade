"""Rollouts to learn from, for programs: collect them, look at what a choice leaves, drop one, write a dataset."""

import uuid
from typing import Any

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Query, Router, Schema, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.models import Version
from flywheel.agents.references import find_version
from flywheel.edge.refusals import Refused, at_field, check_choice
from flywheel.edge.schemas import Body, RefIn
from flywheel.environments.models import Split, TaskSet
from flywheel.environments.task_sets.task_set_references import find_task_set
from flywheel.evals.api.runs import EvalRow
from flywheel.evals.models import EvalRun, Result
from flywheel.evals.runs import submission
from flywheel.training.api.datasets import DatasetOut
from flywheel.training.models import Dataset
from flywheel.training.rollouts import rollout_choice as choices
from flywheel.training.rollouts import selection_overview as show
from flywheel.training.rollouts.rollout_datasets import write
from flywheel.training.rollouts.rollout_selection import drop, take_back
from flywheel.training.rollouts.teachers import teacher

router = Router(tags=["training"])


class TeacherIn(Body):
    base_url: str
    model: str
    api_key_env: str = Field(
        "", description="name of the worker's environment variable that contains the key, ending in _API_KEY"
    )


class CollectIn(Body):
    version: RefIn = Field("", description="`agent@number` or `agent@live`; alternatively, set `teacher`")
    teacher: TeacherIn | None = None
    task_set: RefIn = Field(..., description="`set@version`; only its train split runs")
    samples: int = 4
    seed: int = 1
    sampling: dict[str, Any] = Field(default_factory=dict, description="overrides the version's own settings")
    engine: str = ""
    budget: dict[str, float] = Field(default_factory=dict, description="`tokens`, `usd`, `minutes`")
    key: uuid.UUID | None = Field(
        None, description="repeating a key does not create a second run; omit it for a new run"
    )


class RolloutQuery(Schema):
    # What is not said of the choice stands at its default; an empty `reward`, `alike` or `cap` takes that filter away.

    form: str | None = Field(None, description="`sft`, `pairs` or `tasks`")
    reward: str | None = None
    parts: str | None = Field(
        None, description="conditions on parts of the verdict, for example `format >= 1, invalid <= 0`"
    )
    turns: str | None = None
    tokens: str | None = None
    synthetic: str | None = Field(None, description="`no`, `only`, or empty for both")
    alike: str | None = None
    cap: str | None = None
    gap: str | None = None
    solved_min: str | None = None
    solved_max: str | None = None
    show: str = Field("kept", description="`kept`, `left`, `unscored`, `dropped` or `all`")
    limit: int = Field(50, ge=1, le=500)
    cursor: str = ""


class WriteIn(Body):
    name: str
    version: RefIn = Field(
        "", description="`agent@number` to write the rows for; if empty, the version that ran, or a teacher's learner"
    )
    choice: dict[str, Any] = Field(
        default_factory=dict, description="filters, named like the parameters of `list_rollouts`; null turns one off"
    )


class DropIn(Body):
    reason: str


class RolloutStepOut(Schema):
    name: str
    words: str
    before: int
    after: int


class RolloutOut(Schema):
    task: str = Field(alias="rollout.task_name")
    sample: int = Field(alias="rollout.sample")
    trajectory: str = Field(alias="rollout.trace_id")
    """Its trace id; empty where nothing was answered."""
    reward: float | None = Field(alias="rollout.score")
    """None: unscored."""
    parts: dict[str, Any] = Field(alias="rollout.parts")
    turns: int = Field(alias="rollout.turns")
    tokens: int | None = Field(alias="rollout.tokens")
    synthetic: bool = Field(alias="rollout.is_synthetic")
    dropped: str = Field(alias="rollout.why_dropped")
    left_out: str
    """The step at which it was left out; empty for one that is kept."""
    like: str
    """The trajectory that it nearly repeats, where that is why."""


class RolloutsOut(Schema):
    items: list[RolloutOut]
    next: str | None
    steps: list[RolloutStepOut]
    kept: int
    rows: int | None
    """That a dataset would have; None where there are too many to make them now."""
    problem: str
    contamination: str
    """The verdict beside the set's own held-out part, empty where it was not made now."""
    blocked: str
    """Why these rows may not be trained on."""


@router.post("/rollouts", response={200: EvalRow, 201: EvalRow}, auth=Key(Scope.TRAIN))
def collect_rollouts(request: HttpRequest, body: CollectIn) -> Status[EvalRun]:
    """Run a policy on a set's train split as an eval run: 201 if it is new. No held-out tasks are used."""
    asked = keyed(request)
    with at_field("task_set"):
        task_set = find_task_set(asked.project, body.task_set)
    version = _policy(request, body, task_set)
    run, made = submission.submit(
        key=body.key or uuid.uuid4(),
        version=version,
        task_set=task_set,
        actor=asked.actor,
        split=Split.TRAIN,
        settings=submission.RunSettings(
            samples=body.samples, seed=body.seed, sampling=body.sampling, engine=body.engine, budget=body.budget
        ),
    )
    return Status(201 if made else 200, run)


@router.get("/rollouts/{eval_id}", response=RolloutsOut, auth=Key(Scope.READ))
def list_rollouts(request: HttpRequest, eval_id: int, query: Query[RolloutQuery]) -> dict[str, Any]:
    """List a run's rollouts under a selection of filters, by task and sample, with how many each filter leaves."""
    given = query.dict(exclude_none=True, exclude={"show", "limit", "cursor"})
    found = show.shown(_run(request, eval_id), given)
    if found.errors:
        raise Refused("; ".join(f"{name}: {problem}" for name, problem in found.errors.items()))
    check_choice(query.show, show.SHOW, field="show")
    page = show.listed(found, query.show, query.cursor, query.limit)
    return {
        "items": page.items,
        "next": page.next_cursor or None,
        "steps": found.selection.steps,
        "kept": len(found.selection.kept),
        "rows": len(found.draft.rows) if found.draft else 0 if found.problem else None,
        "problem": found.problem,
        "contamination": found.verdict,
        "blocked": found.blocked,
    }


@router.post("/rollouts/{eval_id}/dataset", response={201: DatasetOut}, auth=Key(Scope.TRAIN))
def write_dataset(request: HttpRequest, eval_id: int, body: WriteIn) -> Status[Dataset]:
    """Save the rollouts that a selection leaves as a dataset. The same rows give the same dataset."""
    choice = choices.read(body.choice)
    asked = keyed(request)
    with at_field("version"):
        version = find_version(asked.project, body.version) if body.version else None
    made = write(name=body.name, run=_run(request, eval_id), choice=choice, actor=asked.actor, version=version)
    return Status(201, made)


@router.put("/rollouts/{eval_id}/t-{number}/{sample}/drop", response={204: None}, auth=Key(Scope.TRAIN))
def drop_rollout(request: HttpRequest, eval_id: int, number: int, sample: int, body: DropIn) -> Status[None]:
    """Exclude the rollout from training, with a reason. Dropping it again changes nothing."""
    found = _result(request, eval_id, number, sample)
    drop(result=found, reason=body.reason, actor=keyed(request).actor)
    return Status(204, None)


@router.delete("/rollouts/{eval_id}/t-{number}/{sample}/drop", response={204: None}, auth=Key(Scope.TRAIN))
def take_rollout_back(request: HttpRequest, eval_id: int, number: int, sample: int) -> Status[None]:
    """Allow a dropped rollout to be used again."""
    take_back(result=_result(request, eval_id, number, sample), actor=keyed(request).actor)
    return Status(204, None)


def _policy(request: HttpRequest, body: CollectIn, task_set: TaskSet) -> Version:
    asked = keyed(request)
    if bool(body.version) == (body.teacher is not None):
        raise Refused("name a version or a teacher, one of them", field="version")
    if body.teacher is None:
        with at_field("version"):
            return find_version(asked.project, body.version)
    try:
        return teacher(task_set=task_set, actor=asked.actor, **body.teacher.dict())
    except Refused as error:
        raise Refused(error.problem, field=f"teacher.{error.field}") from None


def _run(request: HttpRequest, eval_id: int) -> EvalRun:
    rows = EvalRun.objects.select_related("project", "version__agent", "task_set__environment_version__environment")
    return get_object_or_404(rows, project=keyed(request).project, pk=eval_id)


def _result(request: HttpRequest, eval_id: int, number: int, sample: int) -> Result:
    rows = Result.objects.select_related("run__project", "task").filter(run__project=keyed(request).project)
    return get_object_or_404(rows, run=eval_id, run__split=Split.TRAIN, task__number=number, sample=sample)
