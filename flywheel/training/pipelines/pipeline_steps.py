"""The steps that a pipeline takes by itself: begin a stage, judge a gate, stop, finish.

    advance(pk)      one pipeline, as far as it can go now
    sweep()          all that are running; beat does it every few seconds

A step reads the rows and writes its result in one transaction under the pipeline's lock, the next stage's run among it,
so that a kill at any moment leaves the state before the step or after it, and whoever comes next finds the same step or
the following. The run's key is of stage and attempt: even without the lock there would be one.

Nothing waits here. What trains or evaluates is a job of its own, and a step that finds it unfinished does nothing.
"""

import logging
import uuid
from contextlib import suppress

from django.db import InterfaceError, OperationalError, transaction
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Permission
from flywheel.agents.models import Version
from flywheel.core.errors import FieldError
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Split
from flywheel.evals import run_rescores
from flywheel.evals.models import EvalRun
from flywheel.evals.reward_audits.reward_standing import runs_of, scores_of
from flywheel.evals.runs import submission
from flywheel.training.launch import reward_lock, run_control
from flywheel.training.launch.fix_recommendation import baseline_of
from flywheel.training.models import Pipeline, PipelineStage, TrainingRun
from flywheel.training.pipelines import prompt_stages, stage_gates

OUTPUTS = 120
"""Attempts in which a small reward audit finds enough different ones."""

log = logging.getLogger(__name__)


def sweep() -> None:
    """Advance every pipeline that runs. One that breaks stops with its reason and holds up no other."""
    for pk in Pipeline.objects.filter(state=Pipeline.State.RUNNING).order_by("pk").values_list("pk", flat=True):
        try:
            advance(pk)
        except (OperationalError, InterfaceError):
            raise  # the database is away; everything is tried again
        except Exception as error:
            log.exception("pipeline %s cannot go on", pk)
            problem = f"it cannot go on: {type(error).__name__}: {error}"[:10_000]
            Pipeline.objects.filter(pk=pk, state=Pipeline.State.RUNNING).update(
                state=Pipeline.State.STOPPED, problem=problem
            )


def advance(pk: int) -> None:
    """Take the steps that are due now. Whoever is at it already, a person or another sweep, is left alone."""
    with transaction.atomic():
        rows = Pipeline.objects.select_for_update(skip_locked=True, of=("self",)).select_related("project")
        if pipeline := rows.filter(pk=pk, state=Pipeline.State.RUNNING).first():
            follow(pipeline)


def follow(pipeline: Pipeline) -> None:
    """Take the steps that are due now, under the lock that the caller holds. What is refused stops the pipeline."""
    try:
        while pipeline.state == Pipeline.State.RUNNING:
            with transaction.atomic():
                if not _step(pipeline):
                    return
    except FieldError as error:
        _halt(pipeline, Pipeline.State.STOPPED, f"{current(pipeline)} cannot begin: {error}")


def current(pipeline: Pipeline) -> PipelineStage:
    """The stage that it is at."""
    return _stage(pipeline, pipeline.at)


def _stage(pipeline: Pipeline, number: int) -> PipelineStage:
    rows = pipeline.stages.select_related(
        "task_set__project", "dataset", "replay", "draft__agent", "draft_eval__task_set", "base_eval__task_set"
    )
    stage = rows.get(number=number)
    stage.pipeline = pipeline
    return stage


def run_of_stage(stage: PipelineStage) -> TrainingRun | None:
    """The run of the stage's present attempt; None before it has begun."""
    return stage.runs.filter(idempotency_key=stage.run_key).select_related("produced__agent").first()


def jobs_of_stage(stage: PipelineStage) -> list[TrainingRun | EvalRun]:
    """The run of the stage's present attempt, or its draft's evals; nothing before it has begun."""
    if stage.draft:
        return [*prompt_stages.evals_of(stage)]
    run = run_of_stage(stage)
    return [run] if run else []


def _step(pipeline: Pipeline) -> bool:
    """Take one step, and answer whether another may be due. Raises Refused for a stage that may not begin."""
    stage = current(pipeline)
    jobs = jobs_of_stage(stage)
    if not jobs:
        return _begin(pipeline, stage)
    if broken := next((job for job in jobs if job.state in (State.FAILED, State.CANCELLED)), None):
        why = f": {broken.error_kind}: {broken.error}" if broken.error else ""
        _halt(pipeline, Pipeline.State.STOPPED, f"{stage}: {broken} {broken.state}{why}")
    elif all(job.state == State.SUCCEEDED for job in jobs):
        return _leave(pipeline, stage, jobs[0])
    elif isinstance(run := jobs[0], TrainingRun) and stage.number > 1 and stage.reward_recipe is not None:
        _ask_for_outputs(pipeline, run, Actor(pipeline.led_by))
    return False


def _begin(pipeline: Pipeline, stage: PipelineStage) -> bool:
    """Queue a draft's evals; launch the stage's run, once the version that it starts from has been evaluated."""
    actor, base = Actor(pipeline.led_by), _base_of(pipeline, stage)
    _check_may_launch(pipeline)
    if stage.draft:
        prompt_stages.begin(stage, base, actor)
        return True
    if not _is_evaluated(pipeline, stage, base, actor):
        return False
    run, _ = run_control.launch(
        run_control.LaunchRequest(
            key=stage.run_key,
            base=base,
            algorithm=stage.algorithm,
            task_set=stage.task_set,
            dataset=stage.dataset,
            teacher=stage.teacher,
            reward=stage.reward_recipe,
            replay=stage.replay,
            environment_weights=stage.environment_weights,
            settings=stage.settings,
            has_all_settings=True,
            tuning=stage.tuning,
            seed=stage.seed_now,
            budget=stage.budget,
            override_reason=stage.override_reason,
            stage=stage,
        ),
        actor,
    )
    _ask_for_outputs(pipeline, run, actor)
    return False


def _ask_for_outputs(pipeline: Pipeline, run: TrainingRun, actor: Actor) -> None:
    """Queue an eval on train tasks whose outputs can renew the reward audit, where that is due and there is none; then
    their scores by the reward recipe that the run learns from."""
    due = reward_lock.unrenewed(run)
    if due is None or due[0].task_set is None:
        return
    judged, task_set = due[0], due[0].task_set
    if outputs := runs_of(judged).first():
        if judged.is_by_recipe and judged.recipe and not scores_of(judged).exists():
            with suppress(Refused):
                key = uuid.uuid5(pipeline.idempotency_key, f"{judged.recipe} on {outputs.pk}")
                run_rescores.submit_recipe(run=outputs, recipe=judged.recipe, actor=actor, key=key)
        return
    tasks = max(1, task_set.members.filter(split=Split.TRAIN).count())
    with suppress(Refused):  # the pipeline's page asks a person for it then
        submission.submit(
            key=uuid.uuid5(pipeline.idempotency_key, f"renewal of {run.base_id} on {task_set.pk}"),
            version=run.base,
            task_set=task_set,
            actor=actor,
            split=Split.TRAIN,
            settings=submission.RunSettings(samples=min(submission.MAX_SAMPLES, -(-OUTPUTS // tasks))),
        )


def _check_may_launch(pipeline: Pipeline) -> None:
    """Raise Refused where the person in whose name the stages are launched may not train here any more."""
    known = pipeline.led_by.project(pipeline.project.slug)
    if known is None or Permission.TRAIN not in known[1]:
        raise Refused(
            f"{pipeline.led_by} can no longer train in this project; somebody who can may resume it in their own name",
            field="created_by",
        )


def _base_of(pipeline: Pipeline, stage: PipelineStage) -> Version:
    if stage.number == 1:
        return pipeline.base
    before = _stage(pipeline, stage.number - 1)
    if before.draft:
        return before.draft
    run = run_of_stage(before)
    assert run is not None
    assert run.produced is not None
    return run.produced


def _is_evaluated(pipeline: Pipeline, stage: PipelineStage, base: Version, actor: Actor) -> bool:
    """Whether the baseline of the stage is there. It is waited for, and queued where nobody did: a stage on another
    set than the one before has none. Raises Refused for one that did not end well."""
    if baseline_of(base, stage.task_set):
        return True
    runs = EvalRun.objects.filter(version=base, task_set=stage.task_set, split=Split.HELD_OUT)
    newest = runs.order_by("-pk").first()
    if newest is None:
        first = baseline_of(pipeline.base, stage.task_set)
        submission.submit(
            key=uuid.uuid5(pipeline.idempotency_key, f"baseline of {base.pk} on {stage.task_set_id}"),
            version=base,
            task_set=stage.task_set,
            actor=actor,
            settings=submission.RunSettings.of(first) if first else submission.USUAL,
        )
    elif newest.is_finished:
        raise Refused(
            f"{newest}, which evaluates {base} on the held-out tasks of {stage.task_set}, {newest.state}; "
            "resume it, and then the pipeline",
            field="base",
        )
    return False


def _leave(pipeline: Pipeline, stage: PipelineStage, made: TrainingRun | EvalRun) -> bool:
    """Go from a stage that is over to the next if its gate is passed; finish after the last."""
    following = pipeline.stages.filter(number=stage.number + 1).first()
    if following is None:
        _halt(pipeline, Pipeline.State.FINISHED)
        return False
    if isinstance(made, TrainingRun):
        if stage.number > 1 and (due := reward_lock.unrenewed(made)):
            _ask_for_outputs(pipeline, made, Actor(pipeline.led_by))
            judged, holds = due
            _halt(
                pipeline,
                Pipeline.State.STOPPED,
                f"the reward audit waits to be renewed on outputs of {judged.version} ({holds.words}); do that, or "
                f"have an approver override it, and resume",
            )
            return False
        following.entry = {"run": made.pk, "checks": stage_gates.judge(following.gate, made)}
    else:
        following.entry = {"eval": made.pk, "checks": prompt_stages.judge(following.gate, stage)}
    following.save(update_fields=["entry"])
    if problem := stage_gates.sentence(following.entry["checks"]):
        _halt(pipeline, Pipeline.State.AT_GATE, f"{made} did not pass the gate of stage {following.number}: {problem}")
        return False
    enter(pipeline, following)
    return True


def enter(pipeline: Pipeline, stage: PipelineStage) -> None:
    """Let the pipeline be at this stage."""
    pipeline.state, pipeline.at, pipeline.problem = Pipeline.State.RUNNING, stage.number, ""
    pipeline.save(update_fields=["state", "at", "problem"])


def _halt(pipeline: Pipeline, state: Pipeline.State, problem: str = "") -> None:
    pipeline.state, pipeline.problem = state, problem[:10_000]
    pipeline.finished_at = timezone.now() if pipeline.is_over else None
    pipeline.save(update_fields=["state", "problem", "finished_at"])
