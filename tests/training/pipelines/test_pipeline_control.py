"""What launching a pipeline refuses before anything trains, and what a person can do about one that stands still."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from flywheel.accounts.models import AuditEntry
from flywheel.edge.jobs import StaleState, State
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Split
from flywheel.evals.models import AuditOverride
from flywheel.training.launch import reward_lock
from flywheel.training.models import Dataset, Pipeline, TrainingRun
from flywheel.training.pipelines import pipeline_control, pipeline_steps
from tests.training.pipelines.conftest import GATE, Line

pytestmark = pytest.mark.django_db
SFT: dict[str, Any] = {"algorithm": "sft", "settings": {"steps": 7, "validation_share": 0.34}}
GRPO: dict[str, Any] = {"algorithm": "grpo", "settings": {"steps": 5}}


def launch(line: Line, *stages: dict[str, Any]) -> Pipeline:
    return pipeline_control.create(key=uuid.uuid4(), stages=line.stages(*stages), actor=line.actor)[0]


@pytest.mark.parametrize(
    ("stages", "field", "problem"),
    [
        ([SFT], "stages", "2 to 6 stages, and these are 1"),
        ([SFT, {**GRPO, "settings": {"stpes": 5}}], "stages.2.settings.stpes", "did you mean steps"),
        ([{**SFT, "override_reason": ""}, GRPO], "stages.1.override_reason", "give a reason"),
        ([{**SFT, "gate": {"min_success": 0.5}}, GRPO], "stages.1.gate", "nothing comes before it"),
        ([SFT, {**GRPO, "gate": {"min_success": 50}}], "stages.2.gate.min_success", "50 is not a share from 0 to 1"),
        ([SFT, {**GRPO, "gate": {"min_reward": 0.5}}], "stages.2.gate.min_reward", "use min_success, min_format"),
        ([GRPO, {**GRPO, "gate": {"min_success": 0.5}}], "stages.2.gate", "set its validation_share above 0"),
    ],
)
def test_what_is_wrong_names_the_stage_and_the_field_and_nothing_begins(
    line: Line, stages: list[dict[str, Any]], field: str, problem: str
) -> None:
    with pytest.raises(Refused, match=problem) as refused:
        launch(line, *stages)
    assert refused.value.field == field
    assert not TrainingRun.objects.exists()
    assert not Pipeline.objects.exists()


def test_a_later_stage_needs_no_reason_and_a_launch_twice_makes_one(line: Line) -> None:
    key, stages = uuid.uuid4(), line.stages(SFT, {**GRPO, "override_reason": ""})
    made, is_new = pipeline_control.create(key=key, stages=stages, actor=line.actor)
    again, is_new_again = pipeline_control.create(key=key, stages=stages, actor=line.actor)
    assert (again, is_new, is_new_again) == (made, True, False)
    assert TrainingRun.objects.count() == 1
    assert made.stages.get(number=2).override_reason == "stage 2 of a pipeline"


def test_rows_of_an_earlier_stage_must_have_nothing_of_what_measures_a_later(line: Line) -> None:
    room = line.room
    later = room.build.task_set(name="later", train=6)
    taught = room.task_set.tasks.filter(split=Split.TRAIN).first()
    measured = later.members.filter(split=Split.HELD_OUT).first()
    assert taught is not None
    assert measured is not None
    same = {"prompt": taught.prompt, "target": taught.target, "state": taught.state, "cluster": taught.cluster}
    type(measured.task).objects.filter(pk=measured.task_id).update(**same)
    room.evaluated(task_set=later)
    room.build.overridden(room.base, later)
    with pytest.raises(Refused, match="the data is mail-sft@1") as refused:
        launch(line, SFT, {**GRPO, "task_set": later})
    assert refused.value.field == "stages.2.dataset"


def test_the_audit_of_the_base_counts_for_all_stages_until_the_stages_own_is_judged(line: Line) -> None:
    room = line.room
    leave = AuditOverride.objects.get()
    AuditOverride.objects.all().delete()
    with pytest.raises(Refused, match="no audit has shown") as refused:
        launch(line, SFT, GRPO)
    assert refused.value.field == "stages.2.reward"
    leave.save(force_insert=True)
    pipeline = launch(line, SFT, GRPO)
    made = line.end(line.run(pipeline))
    assert made is not None
    line.measure(made)
    pipeline_steps.sweep()
    pipeline.refresh_from_db()
    second = line.run(pipeline)
    assert (second.base, second.audit_override) == (made, leave)
    assert reward_lock.refusal(second) == ""
    assert reward_lock.kept(second)["words"].endswith(
        f"this is about outputs of {room.base}, from which {made} was trained"
    )
    with pytest.raises(Refused, match="no audit has shown"):  # by hand there is no pipeline whose audit could count
        room.launch(base=made, algorithm="grpo")
    own = room.build.overridden(made, room.task_set)
    found = reward_lock.standing_of("grpo", made, second.dataset, second.stage)
    assert found is not None
    assert found[1].override == own


def test_a_person_lets_it_on_with_a_reason_that_is_kept(line: Line, at_gate: Callable[[], Pipeline]) -> None:
    pipeline = at_gate()
    with pytest.raises(Refused, match="give a reason"):
        pipeline_control.let_on(pipeline, line.actor, " ")
    pipeline = pipeline_control.let_on(pipeline, line.actor, " the tasks are hard ")
    assert (pipeline.state, pipeline.at, pipeline.problem) == (Pipeline.State.RUNNING, 2, "")
    assert line.run(pipeline).algorithm == "grpo"
    kept = pipeline.stages.get(number=2).entry["let_on"]
    assert (kept["by"], kept["reason"]) == ("trainer", "the tasks are hard")
    entry = AuditEntry.objects.get(action="training.pipeline_let_on")
    assert entry.reason == "the tasks are hard"
    assert "at least 60% is required" in entry.data["was"]
    with pytest.raises(StaleState, match="is running"):
        pipeline_control.let_on(pipeline, line.actor, "again")


def test_a_retry_trains_the_stage_anew_and_judges_what_came_of_that(
    line: Line, at_gate: Callable[[], Pipeline]
) -> None:
    pipeline = at_gate()
    before = line.run(pipeline)
    pipeline = pipeline_control.retry(pipeline, line.actor)
    run = line.run(pipeline)
    assert (run.seed, run.base, run.stage) == (before.seed + 1, before.base, before.stage)
    assert run != before
    made = line.end(run, success=0.7, n=20, parts={"unsafe": 0.05})
    assert made is not None
    line.measure(made)
    pipeline_steps.sweep()
    pipeline.refresh_from_db()
    assert (pipeline.state, line.run(pipeline).base) == (Pipeline.State.RUNNING, made)


def test_stopping_cancels_the_run_and_resuming_goes_on_with_it(line: Line) -> None:
    pipeline = line.launch()
    run = line.run(pipeline)
    pipeline = pipeline_control.stop(pipeline, line.actor)
    run.refresh_from_db()
    assert (pipeline.state, run.state) == (Pipeline.State.STOPPED, State.CANCELLED)
    pipeline = pipeline_control.resume(pipeline, line.actor)
    run.refresh_from_db()
    assert (pipeline.state, pipeline.problem, run.state) == (Pipeline.State.RUNNING, "", State.QUEUED)
    assert TrainingRun.objects.count() == 1


def test_a_run_that_still_saves_is_waited_for(line: Line) -> None:
    pipeline = line.launch()
    assert TrainingRun.claim(line.run(pipeline).pk)
    pipeline = pipeline_control.stop(pipeline, line.actor)
    for verb in (pipeline_control.resume, pipeline_control.retry):
        with pytest.raises(StaleState, match="is saving its checkpoint"):
            verb(pipeline, line.actor)


def test_one_that_has_ended_stays_so_and_keeps_what_it_made(line: Line, at_gate: Callable[[], Pipeline]) -> None:
    pipeline = pipeline_control.end(at_gate(), line.actor)
    pipeline_steps.sweep()
    for verb in (pipeline_control.resume, pipeline_control.retry, pipeline_control.stop, pipeline_control.end):
        with pytest.raises(StaleState, match="is ended"):
            verb(pipeline, line.actor)
    assert line.run(pipeline).produced is not None
    assert Dataset.objects.count() == 2


def test_what_passes_its_gate_by_a_hair_is_let_through(line: Line) -> None:
    pipeline = line.launch(GATE)
    made = line.end(line.run(pipeline), success=0.6, n=20, parts={"unsafe": 0.05})
    assert made is not None
    pipeline_steps.sweep()
    pipeline.refresh_from_db()
    assert pipeline.at == 2
