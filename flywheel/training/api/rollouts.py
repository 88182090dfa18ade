"""Rollouts to learn from, for programs: collect them, look at what a choice leaves, drop one, write a dataset."""

import uuid
from typing import Any

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.models import Version
from flywheel.agents.references import find_version
from flywheel.edge.refusals import Refused, at_field, check_choice
from flywheel.edge.schemas import Body, RefIn, Schema
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
    """Address of an OpenAI-compatible server."""
    model: str
    """Name of the model on the server."""
    api_key_env: str = Field(
        "", description="Name of the worker's environment variable that contains the key, ending in _API_KEY."
    )


class CollectIn(Body):
    version: RefIn = Field("", description="`agent@number` or `agent@live`; alternatively, set `teacher`.")
    teacher: TeacherIn | None = None
    """A model on another server to learn from, in place of `version`."""
    task_set: RefIn = Field(..., description="`set@version`; only its train split runs.")
    samples: int = 4
    """Attempts per task."""
    seed: int = 1
    """Seed of the attempts."""
    sampling: dict[str, Any] = Field(default_factory=dict, description="Overrides the version's own settings.")
    engine: str = ""
    """`vllm` for this installation's vLLM server; empty for the version's endpoint."""
    budget: dict[str, float] = Field(default_factory=dict, description="Limits: `tokens`, `usd`, `minutes`.")
    key: uuid.UUID | None = Field(None, description="Your own UUID. Repeating a key returns the same run.")


class RolloutQuery(Schema):
    """Omitted filters have their default; an empty `reward`, `alike` or `cap` turns that filter off."""

    form: str | None = Field(None, description="`sft`, `pairs`, `tasks` or `scored`.")
    reward: str | None = None
    """Least reward of a rollout to imitate; empty for any."""
    parts: str | None = Field(
        None, description="Conditions on parts of the verdict, for example `format >= 1, invalid <= 0`."
    )
    turns: str | None = None
    """Most answers in a rollout."""
    tokens: str | None = None
    """Most tokens that the policy wrote in a rollout."""
    synthetic: str | None = Field(None, description="`no`, `only`, or empty for both.")
    alike: str | None = None
    """Rollouts with at least this similarity count once; empty to keep them all."""
    cap: str | None = None
    """Most rollouts per task, best first; empty for no limit."""
    gap: str | None = None
    """For pairs, the least difference in reward."""
    solved_min: str | None = None
    """For tasks, the least share of attempts that pass."""
    solved_max: str | None = None
    """For tasks, the greatest share of attempts that pass."""
    show: str = Field("kept", description="`kept`, `left`, `unscored`, `dropped` or `all`.")
    limit: int = Field(50, ge=1, le=500)
    """Items per page."""
    cursor: str = ""
    """`next` of the previous page; empty for the first page."""


class WriteIn(Body):
    name: str
    """An existing name makes the dataset's next version."""
    version: RefIn = Field(
        "", description="`agent@number` to write the rows for; if empty, the version that ran, or a teacher's learner."
    )
    choice: dict[str, Any] = Field(
        default_factory=dict, description="Filters, named like the parameters of `list_rollouts`; null turns one off."
    )


class DropIn(Body):
    reason: str
    """Why it must not be trained on."""


class RolloutStepOut(Schema):
    name: str
    words: str
    before: int
    after: int


class RolloutOut(Schema):
    task: str = Field(alias="rollout.task_name")
    sample: int = Field(alias="rollout.sample")
    trajectory: str = Field(alias="rollout.trace_id")
    """Trace id; empty if there was no answer."""
    reward: float | None = Field(alias="rollout.score")
    """Null if unscored."""
    parts: dict[str, Any] = Field(alias="rollout.parts")
    turns: int = Field(alias="rollout.turns")
    tokens: int | None = Field(alias="rollout.tokens")
    synthetic: bool = Field(alias="rollout.is_synthetic")
    dropped: str = Field(alias="rollout.why_dropped")
    """Reason why a person dropped it; empty otherwise."""
    left_out: str
    """The filter that left it out; empty if it is kept."""
    like: str
    """Trace id of the rollout that it nearly repeats, if that is why it was left out."""


class RolloutsOut(Schema):
    items: list[RolloutOut]
    next: str | None
    steps: list[RolloutStepOut]
    """How many rollouts each filter leaves."""
    kept: int
    rows: int | None
    """Rows that a dataset would have; null if there are too many to make them now."""
    problem: str
    contamination: str
    """Verdict of the comparison with the set's own held-out tasks; empty if it was not made."""
    blocked: str
    """Why these rows may not be trained on; empty if they may."""


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
    """List a run's rollouts under a selection of filters, by task and sample, with how many each filter leaves. 409 if
    nothing may be learnt from this run, for example because it has not finished."""
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
    """Save the rollouts that a selection leaves as a dataset. The same rows give the same dataset. 409 if nothing may
    be learnt from this run."""
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
    """Allow a dropped rollout to be used again. 409 if it is not dropped."""
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
