"""A pipeline goes on by itself, once for each step, whoever dies on the way."""

import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, Membership, Role
from flywheel.edge.jobs import Job, State
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Split
from flywheel.evals.models import AuditOverride, EvalRun, Rescore, RewardAudit
from flywheel.training.datasets.dataset_builder import build
from flywheel.training.launch import reward_lock, run_control
from flywheel.training.models import Pipeline, TrainingRun
from flywheel.training.pipelines import pipeline_control, pipeline_steps, stage_gates
from tests.training.launch.test_reward_lock import RESULT, green, recipe, rollouts
from tests.training.pipelines.conftest import GATE, Line, run_to_its_death
from tests.waiting import PATIENCE_S


@pytest.mark.django_db
def test_the_next_stage_begins_with_what_the_one_before_made_once_that_is_evaluated(line: Line) -> None:
    pipeline = line.launch()
    first = line.run(pipeline)
    assert (first.algorithm, first.base, first.total) == ("sft", line.room.base, 7)
    pipeline_steps.sweep()
    assert TrainingRun.objects.count() == 1
    made = line.end(first)
    assert made is not None
    pipeline_steps.sweep()
    evaluation = EvalRun.objects.get(version=made, task_set=line.room.task_set, split=Split.HELD_OUT)
    assert (evaluation.state, evaluation.samples) == (State.QUEUED, line.room.baseline.samples)
    pipeline_steps.sweep()
    assert TrainingRun.objects.count() == 1
    line.measure(made)
    pipeline_steps.sweep()
    pipeline.refresh_from_db()
    second = line.run(pipeline)
    assert (pipeline.at, second.algorithm, second.base, second.total) == (2, "grpo", made, 5)
    assert second.baseline is not None
    assert second.baseline.version == made
    line.end(second)
    pipeline_steps.sweep()
    pipeline.refresh_from_db()
    assert (pipeline.state, pipeline.problem, TrainingRun.objects.count()) == (Pipeline.State.FINISHED, "", 2)
    assert pipeline.finished_at is not None


@pytest.mark.django_db
def test_a_gate_that_is_not_passed_stops_it_with_the_numbers(line: Line, at_gate: Callable[[], Pipeline]) -> None:
    pipeline = at_gate()
    assert (pipeline.state, pipeline.at) == (Pipeline.State.AT_GATE, 1)
    run = line.run(pipeline)
    assert pipeline.problem == (
        f"{run} did not pass the gate of stage 2: validation success: 40% of 20 tasks, at least 60% is required"
    )
    assert [(check["name"], check["holds"]) for check in pipeline.stages.get(number=2).entry["checks"]] == [
        ("min_success", False),
        ("max_unsafe", True),
    ]


@pytest.mark.django_db
def test_a_run_that_failed_stops_it_with_the_reason(line: Line) -> None:
    pipeline = line.launch()
    run = line.run(pipeline)
    TrainingRun.objects.filter(pk=run.pk).update(state=State.FAILED, error_kind="nan", error="the loss is no number")
    pipeline_steps.sweep()
    pipeline.refresh_from_db()
    assert pipeline.state == Pipeline.State.STOPPED
    assert pipeline.problem == f"stage 1 of {pipeline}: {run} failed: nan: the loss is no number"


@pytest.mark.django_db
def test_a_stage_that_may_not_begin_any_more_stops_it_with_the_reason(line: Line) -> None:
    pipeline = line.launch()
    made = line.end(line.run(pipeline))
    assert made is not None
    line.measure(made)
    AuditOverride.objects.all().delete()
    pipeline_steps.sweep()
    pipeline.refresh_from_db()
    assert (pipeline.state, pipeline.at) == (Pipeline.State.STOPPED, 2)
    assert pipeline.problem.startswith(f"stage 2 of {pipeline} cannot begin: reward: it learns from a reward")


@pytest.mark.django_db
def test_one_that_breaks_stops_with_its_reason_and_holds_up_no_other(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, other = line.launch(), line.launch()
    line.end(line.run(broken))
    made = line.end(line.run(other))
    assert made is not None
    real = stage_gates.judge

    def judge(gate: Any, run: TrainingRun) -> Any:
        if run.stage and run.stage.pipeline_id == broken.pk:
            raise RuntimeError("a defect")
        return real(gate, run)

    monkeypatch.setattr(stage_gates, "judge", judge)
    pipeline_steps.sweep()
    for each in (broken, other):
        each.refresh_from_db()
    assert (broken.state, broken.problem) == (Pipeline.State.STOPPED, "it cannot go on: RuntimeError: a defect")
    assert (other.state, other.at) == (Pipeline.State.RUNNING, 2)


@pytest.mark.django_db
def test_a_stage_begins_in_the_name_of_somebody_who_still_may_launch(line: Line) -> None:
    pipeline = line.launch()
    made = line.end(line.run(pipeline))
    assert made is not None
    line.measure(made)
    cast = line.room.cast
    cast.trainer.memberships.all().delete()
    pipeline_steps.sweep()
    pipeline.refresh_from_db()
    assert (pipeline.state, TrainingRun.objects.count()) == (Pipeline.State.STOPPED, 1)
    assert "trainer can no longer train in this project" in pipeline.problem
    Membership.objects.create(user=cast.builder, project=cast.project, role=Role.TRAINER)
    pipeline_control.resume(pipeline, Actor(cast.builder))
    pipeline.refresh_from_db()
    assert (pipeline.problem, pipeline.created_by, line.run(pipeline).created_by) == ("", cast.trainer, cast.builder)


@pytest.mark.django_db
def test_a_later_stage_may_learn_from_the_base_as_its_teacher_and_the_first_may_not(line: Line) -> None:
    base = line.room.base
    distil = {"algorithm": "distillation", "teacher": base, "settings": {"steps": 5}}
    with pytest.raises(Refused, match="which can teach it nothing"):
        pipeline_control.check(line.stages(distil, {"algorithm": "sft"}), line.actor)
    pipeline, _ = pipeline_control.create(
        key=uuid.uuid4(), stages=line.stages({"algorithm": "sft", "settings": {"steps": 7}}, distil), actor=line.actor
    )
    made = line.end(line.run(pipeline))
    assert made is not None
    line.measure(made)
    pipeline_steps.sweep()
    pipeline_steps.sweep()
    pipeline.refresh_from_db()
    assert (pipeline.problem, line.run(pipeline).teacher, line.run(pipeline).base) == ("", base, made)


@pytest.mark.django_db
def test_reinforcement_starts_from_what_awr_learnt_from_attempts_that_were_there(line: Line) -> None:
    room = line.room
    teacher = room.build.version(system_prompt="I know better")
    kept = rollouts(room)
    EvalRun.objects.filter(pk=kept.pk).update(version=teacher)
    kept.refresh_from_db()
    scored = build(
        name="tried", kind="scored", task_set=room.task_set, actor=line.actor, version=room.base, rollouts=kept
    )
    stages = line.stages(
        {"algorithm": "awr", "dataset": scored, "settings": {"steps": 7}},
        {"algorithm": "grpo", "settings": {"steps": 5}},
    )
    with pytest.raises(Refused, match=f"audit outputs of {teacher} on {room.task_set}, or have an approver") as caught:
        pipeline_control.check(stages, line.actor)
    assert caught.value.field == "stages.1.reward"
    let_pass = room.build.overridden(teacher, room.task_set)
    pipeline, _ = pipeline_control.create(key=uuid.uuid4(), stages=stages, actor=line.actor)
    first = line.run(pipeline)
    assert (first.algorithm, first.base, first.dataset, first.audit_override) == ("awr", room.base, scored, let_pass)
    made = line.end(first)
    assert made is not None
    line.measure(made)
    pipeline_steps.sweep()
    pipeline.refresh_from_db()
    second = line.run(pipeline)
    assert (pipeline.problem, second.algorithm, second.base, second.dataset.kind) == ("", "grpo", made, "tasks")
    assert second.audit_override is not None
    assert second.audit_override.version == room.base


@pytest.mark.django_db
def test_a_later_stage_trains_while_its_reward_audit_is_renewed_and_no_further_one_begins_before(line: Line) -> None:
    room, who = line.room, line.room.cast.builder
    AuditOverride.objects.all().delete()
    first = RewardAudit.objects.create(project=room.cast.project, run=rollouts(room), seed=1, created_by=who)
    RewardAudit.objects.filter(pk=first.pk).update(is_green=True, finished_at=first.created_at, result=RESULT)
    practise: dict[str, Any] = {"algorithm": "grpo", "settings": {"steps": 5}}
    stages = line.stages({"algorithm": "sft", "settings": {"steps": 7}}, practise, practise)
    pipeline, _ = pipeline_control.create(key=uuid.uuid4(), stages=stages, actor=line.actor)
    made = line.end(line.run(pipeline))
    assert made is not None
    line.measure(made)
    pipeline_steps.sweep()
    pipeline_steps.sweep()
    pipeline.refresh_from_db()
    second = line.run(pipeline)
    assert (pipeline.at, second.base, second.reward_audit) == (2, made, first)
    outputs = EvalRun.objects.get(version=made, split=Split.TRAIN)
    assert (outputs.state, outputs.samples) == (State.QUEUED, 20)
    line.measure(line.end(second) or made)
    pipeline_steps.sweep()
    pipeline.refresh_from_db()
    assert pipeline.state == Pipeline.State.STOPPED
    assert f"the reward audit waits to be renewed on outputs of {made}" in pipeline.problem
    small = RewardAudit.objects.create(
        project=room.cast.project, run=outputs, seed=1, renews=first, created_by=room.cast.builder
    )
    RewardAudit.objects.filter(pk=small.pk).update(is_green=True, finished_at=small.created_at, result=RESULT)
    pipeline_control.resume(pipeline, line.actor)
    pipeline_steps.sweep()
    pipeline.refresh_from_db()
    assert (pipeline.problem, pipeline.at) == ("", 3)
    assert f"renewed on outputs of {made}" in reward_lock.kept(second)["words"]


@pytest.mark.django_db
def test_the_audit_of_a_recipe_is_renewed_on_outputs_that_the_recipe_has_scored(line: Line) -> None:
    room = line.room
    AuditOverride.objects.all().delete()
    polite = recipe(room, {"type": "text", "name": "polite", "weight": 1, "value": "please", "compare": "contain"})
    first = green(room, polite, rollouts(room))
    practise: dict[str, Any] = {"algorithm": "grpo", "settings": {"steps": 5}, "reward": polite}
    stages = line.stages({"algorithm": "sft", "settings": {"steps": 7}}, practise, practise)
    pipeline, _ = pipeline_control.create(key=uuid.uuid4(), stages=stages, actor=line.actor)
    made = line.end(line.run(pipeline))
    assert made is not None
    line.measure(made)
    for _ in range(2):
        pipeline_steps.sweep()
    pipeline.refresh_from_db()
    second = line.run(pipeline)
    assert (second.base, second.reward_audit) == (made, first)
    outputs = EvalRun.objects.get(version=made, split=Split.TRAIN)
    old = room.base
    room.base = made
    moved = rollouts(room)
    room.base = old
    EvalRun.objects.filter(pk=outputs.pk).delete()
    for _ in range(2):
        pipeline_steps.sweep()
    job = Rescore.objects.get(run=moved)
    assert (job.recipe, job.created_by) == (polite, line.actor.user)
    line.measure(line.end(second) or made)
    pipeline_steps.sweep()
    pipeline.refresh_from_db()
    assert f"the reward audit waits to be renewed on outputs of {made}" in pipeline.problem
    green(room, polite, moved, renews=first)
    pipeline_control.resume(pipeline, line.actor)
    pipeline_steps.sweep()
    pipeline.refresh_from_db()
    assert (pipeline.problem, pipeline.at) == ("", 3)
    assert f"renewed on outputs of {made}: reviewers agree with short@1" in reward_lock.kept(second)["words"]


def ready_for_the_second(line: Line) -> Pipeline:
    pipeline = line.launch(GATE)
    made = line.end(line.run(pipeline), success=0.9, n=20, parts={"unsafe": 0.0})
    assert made is not None
    line.measure(made)
    return pipeline


DIES = """
import os, signal, django
django.setup()
from flywheel.edge.jobs import Job
from flywheel.training.launch import run_control
from flywheel.training.pipelines import pipeline_steps

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

real = run_control.launch
if {point!r} == "before the commit":
    run_control.launch = lambda *given: (real(*given), die())
else:
    Job.nudge = die
pipeline_steps.sweep()
"""


@pytest.mark.parametrize(("point", "runs"), [("before the commit", 1), ("after the commit", 2)])
@pytest.mark.django_db(transaction=True)
def test_a_kill_neither_loses_nor_doubles_a_stage(line: Line, point: str, runs: int) -> None:
    pipeline = ready_for_the_second(line)
    run_to_its_death(DIES.format(point=point))
    assert TrainingRun.objects.count() == runs
    for _ in range(2):
        pipeline_steps.sweep()
    pipeline.refresh_from_db()
    assert (pipeline.state, pipeline.at) == (Pipeline.State.RUNNING, 2)
    assert list(TrainingRun.objects.order_by("pk").values_list("stage__number", flat=True)) == [1, 2]
    assert AuditEntry.objects.filter(action="training.launch").count() == 2


@pytest.mark.django_db(transaction=True)
def test_two_at_once_begin_a_stage_once_and_neither_waits(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = ready_for_the_second(line)
    inside, may_go = threading.Event(), threading.Event()
    real = run_control.launch

    def slow(*given: Any) -> Any:
        inside.set()
        assert may_go.wait(PATIENCE_S)
        return real(*given)

    monkeypatch.setattr(run_control, "launch", slow)

    def first() -> None:
        try:
            pipeline_steps.sweep()
        finally:
            connection.close()

    thread = threading.Thread(target=first)
    thread.start()
    try:
        assert inside.wait(PATIENCE_S)
        pipeline_steps.sweep()  # comes back though the other is in the middle of it
        assert TrainingRun.objects.count() == 1
    finally:
        may_go.set()
        thread.join(PATIENCE_S)
    pipeline_steps.sweep()
    assert list(TrainingRun.objects.order_by("pk").values_list("stage__number", flat=True)) == [1, 2]
    pipeline.refresh_from_db()
    assert pipeline.at == 2


@pytest.mark.django_db
def test_a_stage_that_was_stopped_is_left_alone_whatever_becomes_of_its_run(line: Line) -> None:
    pipeline = line.launch()
    run = line.run(pipeline)
    lease = TrainingRun.claim(run.pk)
    assert isinstance(lease.job if lease else None, Job)
    pipeline_control.stop(pipeline, line.actor)
    line.end(run)  # the trainer was done before it saw the request
    pipeline_steps.sweep()
    pipeline.refresh_from_db()
    assert (pipeline.state, pipeline.at, pipeline.problem) == (Pipeline.State.STOPPED, 1, "stopped by trainer")
