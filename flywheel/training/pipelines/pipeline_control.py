"""Launch a pipeline, and what a person can do about one: stop, resume, retry a stage, let it on, end it.

Every verb takes the pipeline's lock, checks that the state is still the one it starts from, writes and records what
was done, and takes the steps that are then due (`pipeline_steps`), all in one transaction.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from django.db import transaction
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.core import recipes
from flywheel.core.errors import FieldError
from flywheel.edge.jobs import StaleState, State
from flywheel.edge.refusals import Refused
from flywheel.evals.models import EvalRun
from flywheel.evals.runs import submission
from flywheel.training.launch import leak_refusals, run_budgets, run_control
from flywheel.training.launch.run_control import LaunchRequest
from flywheel.training.models import Pipeline, PipelineStage, TrainingRun
from flywheel.training.pipelines import pipeline_steps, prompt_stages, stage_gates
from flywheel.training.pipelines.prompt_stages import PromptRequest

MOST_STAGES = 6
GOES_ON = ("resume", "retry", "let_on")
"""Verbs after which its stages are launched in the name of whoever asked."""
OPEN = (Pipeline.State.RUNNING, Pipeline.State.AT_GATE, Pipeline.State.STOPPED)


@dataclass(frozen=True, kw_only=True)
class StageRequest:
    """A person's choices for a stage: those of a launch or of a new prompt, whose base is the pipeline's, and the gate
    before it."""

    run: LaunchRequest | PromptRequest
    gate: Mapping[str, Any] = field(default_factory=dict)
    """Shares by the names of `stage_gates.LIMITS`; the first stage has none."""


def create(*, key: uuid.UUID, stages: Sequence[StageRequest], actor: Actor) -> tuple[Pipeline, bool]:
    """Check every stage as a launch is checked, freeze them, and begin the first. Returns the pipeline and whether it
    is new.

    The version that a later stage starts from does not exist yet. It will have the prompt, tools and form of the
    pipeline's base or of the newest draft, for which its rows are written, and will have learnt from the data of the
    stages before: their rows are compared with its held-out tasks as well. In all else the base stands for it here.
    Each stage is checked again when it begins.

    Raises Refused, with `stages.2.settings.steps` for a field of the second stage.
    """
    if not 2 <= len(stages) <= MOST_STAGES:
        raise Refused(f"a pipeline has 2 to {MOST_STAGES} stages, and these are {len(stages)}", field="stages")
    base, project = stages[0].run.base, stages[0].run.task_set.project
    if made := Pipeline.objects.filter(project=project, idempotency_key=key).first():
        return made, False
    frozen = check(stages, actor)
    if frozen[-1].draft:
        raise Refused("a new prompt is for the stages after it; end with one that trains", field="stages")
    with transaction.atomic():
        pipeline, is_new = Pipeline.objects.get_or_create(
            project=project, idempotency_key=key, defaults={"base": base, "created_by": actor.user}
        )
        if is_new:
            for each in frozen:
                each.pipeline = pipeline
            PipelineStage.objects.bulk_create(frozen)
            actor.record(
                project=project,
                action="training.pipeline",
                subject=pipeline,
                base=str(base),
                stages=[f"{each.algorithm} on {each.dataset or each.draft}" for each in frozen],
            )
            pipeline_steps.follow(pipeline)
    return pipeline, is_new


def check(stages: Sequence[StageRequest], actor: Actor) -> list[PipelineStage]:
    """The stages as they would be frozen, in order; one alone may be the first of more. Raises Refused."""
    frozen: list[PipelineStage] = []
    for number, stage in enumerate(stages, 1):
        with at_stage(number):
            if stage.run.base != stages[0].run.base:
                raise Refused("a further stage starts from the version that the one before it makes", field="base")
            frozen.append(_freeze(number, stage, frozen, actor))
    return frozen


@contextmanager
def at_stage(number: int) -> Iterator[None]:
    """Refuse what is refused inside as a problem of this stage's field."""
    try:
        yield
    except FieldError as error:
        raise Refused(error.problem, field=f"stages.{number}.{error.field}") from error


def _freeze(number: int, stage: StageRequest, before: Sequence[PipelineStage], actor: Actor) -> PipelineStage:
    """A stage with every reference resolved, after those that are checked already. Raises Refused."""
    draft = before[-1].draft if before else None
    if isinstance(stage.run, PromptRequest):
        if before and draft is None:
            raise Refused("prompts come before what trains: rows are written for the prompt", field="algorithm")
        frozen = prompt_stages.freeze(number, stage.run, draft or stage.run.base, actor)
    else:
        frozen = _freeze_run(number, stage.run, before, actor)
    if before:
        last = before[-1]
        share = last.settings.get("validation_share", 0.0)
        frozen.gate = stage_gates.check_gate(stage.gate, validation_share=share, task_sets=last.task_sets)
    elif any(limit is not None for limit in stage.gate.values()):
        raise Refused("the first stage has no gate: nothing comes before it", field="gate")
    return frozen


def _freeze_run(number: int, asked: LaunchRequest, before: Sequence[PipelineStage], actor: Actor) -> PipelineStage:
    known = recipes.ALGORITHMS.get(asked.algorithm)
    if known and not known.makes_policy:
        raise Refused(f"{known.label} makes no version for a stage to start from; launch it alone", field="algorithm")
    if before:
        # The ladder cannot be asked about a version that is not there.
        reason = asked.override_reason.strip() or f"stage {number} of a pipeline"
        speaker = next((each.draft for each in reversed(before) if each.draft), None)
        asked = replace(asked, recommendation=None, override_reason=reason, follows=True, speaker=speaker)
    columns = run_control.check(asked, actor)
    for earlier in before:
        if earlier.dataset:
            leak_refusals.refuse_at_hand(asked.base, earlier.dataset, asked.task_set, replay=earlier.replay)
    return PipelineStage(
        number=number,
        algorithm=asked.algorithm,
        task_set=asked.task_set,
        teacher=asked.teacher,
        reward_recipe=asked.reward,
        replay=asked.replay,
        override_reason=asked.override_reason,
        **{name: columns[name] for name in ("dataset", "tuning", "settings", "seed", "budget", "environment_weights")},
    )


def stop(pipeline: Pipeline, actor: Actor) -> Pipeline:
    """Stop it where it is; the run that trains saves a checkpoint and is cancelled, and so are evals of a draft. Raises
    StaleState."""
    with _moved(pipeline, actor, "stop", Pipeline.State.RUNNING) as row:
        row.state, row.problem = Pipeline.State.STOPPED, f"stopped by {actor.user}"
        _cancel_jobs(row, actor)
    return row


def resume(pipeline: Pipeline, actor: Actor) -> Pipeline:
    """Go on where it stopped: with the run from its newest checkpoint, with the attempts that a draft's evals have not
    made, or with what could not begin. Raises StaleState."""
    with _moved(pipeline, actor, "resume", Pipeline.State.STOPPED) as row:
        for job in _jobs_at_rest(row):
            if job.state in (State.FAILED, State.CANCELLED):
                _resume(job, actor)
        row.state, row.problem = Pipeline.State.RUNNING, ""
    return row


def retry(pipeline: Pipeline, actor: Actor) -> Pipeline:
    """Train the stage that it is at once more, from its start and with the next seed, in a new run, or evaluate its
    draft so. Raises StaleState."""
    with _moved(pipeline, actor, "retry", Pipeline.State.STOPPED, Pipeline.State.AT_GATE) as row:
        stage, jobs = pipeline_steps.current(row), _jobs_at_rest(row)
        if going := next((job for job in jobs if not job.is_finished), None):
            raise StaleState(f"{going} is {going.state}; resume the pipeline instead")
        if jobs:
            stage.attempt += 1
            stage.draft_eval = stage.base_eval = None
            stage.save(update_fields=["attempt", "draft_eval", "base_eval"])
        row.state, row.problem = Pipeline.State.RUNNING, ""
    return row


def let_on(pipeline: Pipeline, actor: Actor, reason: str) -> Pipeline:
    """Let it go on though the gate was not passed, for a reason that is kept. Raises Refused and StaleState."""
    if not reason.strip():
        raise Refused("give a reason for the record", field="reason")
    with _moved(pipeline, actor, "let_on", Pipeline.State.AT_GATE, reason=reason.strip()) as row:
        stage = row.stages.get(number=row.at + 1)
        stage.entry |= {"let_on": {"by": str(actor.user), "reason": reason.strip(), "at": timezone.now().isoformat()}}
        stage.save(update_fields=["entry"])
        pipeline_steps.enter(row, stage)
    return row


def end(pipeline: Pipeline, actor: Actor) -> Pipeline:
    """End it for good; what its stages made is kept. Raises StaleState."""
    with _moved(pipeline, actor, "end", *OPEN) as row:
        row.state, row.finished_at = Pipeline.State.ENDED, timezone.now()
        _cancel_jobs(row, actor)
    return row


@contextmanager
def _moved(
    pipeline: Pipeline, actor: Actor, verb: str, *states: Pipeline.State, reason: str = ""
) -> Iterator[Pipeline]:
    """The pipeline's row, locked and in one of these states; what changes of it is saved, recorded and followed."""
    with transaction.atomic():
        row = Pipeline.objects.select_for_update(of=("self",)).select_related("project").get(pk=pipeline.pk)
        if row.state not in states:
            raise StaleState(f"{row} is {row.get_state_display()}")
        if verb in GOES_ON:
            row.taken_over_by = actor.user
        about = {"was": row.problem} if row.problem else {}
        yield row
        row.save()
        actor.record(
            project=row.project, action=f"training.pipeline_{verb}", subject=row, reason=reason, stage=row.at, **about
        )
        pipeline_steps.follow(row)


def _jobs_at_rest(row: Pipeline) -> list[TrainingRun | EvalRun]:
    """The jobs of the stage that it is at. Raises StaleState while any of it is being cancelled."""
    jobs = pipeline_steps.jobs_of_stage(pipeline_steps.current(row))
    if ending := next((job for job in jobs if not job.is_finished and job.cancel_requested_at), None):
        what = "saving its checkpoint" if isinstance(ending, TrainingRun) else "being cancelled"
        raise StaleState(f"{ending} is {what}; try again when it has ended")
    return jobs


def _resume(job: TrainingRun | EvalRun, actor: Actor) -> None:
    if isinstance(job, TrainingRun):
        run_budgets.resume(job, actor)
    else:
        submission.resume(run=job, actor=actor)


def _cancel_jobs(row: Pipeline, actor: Actor) -> None:
    for job in pipeline_steps.jobs_of_stage(pipeline_steps.current(row)):
        if not job.is_finished:
            with suppress(StaleState):  # it has ended this moment
                job.cancel(actor)
