"""A pipeline may begin with a new prompt: evaluated beside the old one, judged at the gate, and learnt with."""

import json
import uuid
from typing import Any

import pytest

from flywheel.agents.models import Artifact
from flywheel.core.evidence.statistics.eval_metrics import Row
from flywheel.edge.jobs import StaleState, State
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Split, Task
from flywheel.evals.models import AuditOverride, EvalRun, RewardAudit
from flywheel.evals.runs.submission import RunSettings
from flywheel.training.datasets.dataset_builder import open_rows
from flywheel.training.fixes import trial_lifecycle
from flywheel.training.fixes.trial_lifecycle import DraftContent, TrialRequest
from flywheel.training.launch import reward_lock
from flywheel.training.launch.validation_split import choose_tasks
from flywheel.training.models import Pipeline, PipelineStage, TrainingRun
from flywheel.training.pipelines import pipeline_control, pipeline_steps, prompt_stages
from tests.evals.fake import FakeEngine, carry_out, right, work, wrong
from tests.training.launch.test_reward_lock import RESULT, rollouts
from tests.training.pipelines.conftest import Line, run_to_its_death
from workers.jobs import eval_runs

NEW: dict[str, Any] = {"algorithm": "prompt", "system_prompt": "Check the day."}
SFT: dict[str, Any] = {"algorithm": "sft", "settings": {"steps": 7}}
GATE = {"min_success": 0.6, "min_format": 0.9}


def swept(pipeline: Pipeline) -> Pipeline:
    pipeline_steps.sweep()
    pipeline.refresh_from_db()
    return pipeline


@pytest.mark.django_db
def test_what_follows_learns_with_the_new_prompt_once_it_has_passed_its_gate(line: Line) -> None:
    base = line.room.base
    pipeline = line.try_prompt(GATE)
    draft = pipeline.stages.get(number=1).draft
    assert draft is not None
    assert (draft.system_prompt, draft.parent, draft.weights) == ("Check the day.", base, base.weights)
    runs = line.evals(pipeline)
    assert [(run.version, run.split, run.samples, run.seed) for run in runs] == [
        (draft, Split.TRAIN, 4, 1),
        (base, Split.TRAIN, 4, 1),
    ]
    line.answer(runs[0], (True, True, True, False))
    assert swept(pipeline).at == 1, "its base is still asked"
    line.answer(runs[1], (False,))
    assert (swept(pipeline).state, pipeline.at) == (Pipeline.State.RUNNING, 2)
    entry = pipeline.stages.get(number=2).entry
    assert (entry["eval"], [(each["share"], each["n"], each["holds"]) for each in entry["checks"]]) == (
        runs[0].pk,
        [(0.75, 1, True), (1.0, 1, True)],
    )
    assert not TrainingRun.objects.exists(), "the draft is no baseline yet"
    line.measure(draft)
    run = line.run(swept(pipeline))
    assert (run.algorithm, run.base) == ("sft", draft)
    with open_rows(run.dataset) as rows:
        assert all(json.loads(row)["prompt"][0]["content"].startswith("Check the day.") for row in rows)
    assert EvalRun.objects.filter(split=Split.HELD_OUT, version=draft).count() == 2, "queued, and as the test measured"


@pytest.mark.django_db
def test_a_draft_that_fails_its_gate_stops_it_and_is_tried_again_with_the_next_seed(line: Line) -> None:
    pipeline = line.try_prompt(GATE)
    first = line.evals(pipeline)
    line.answer(first[0], (True, None))
    line.answer(first[1])
    assert swept(pipeline).state == Pipeline.State.AT_GATE
    assert pipeline.problem == (
        f"{first[0]} did not pass the gate of stage 2: validation success: 50% of 1 task, at least 60% is required; "
        "readable answers: 50% of 1 task, at least 90% is required"
    )
    pipeline = pipeline_control.retry(pipeline, line.actor)
    again = line.evals(pipeline)
    assert [(run.version, run.seed) for run in again] == [(run.version, 2) for run in first]
    line.answer(again[0])
    line.answer(again[1])
    assert (swept(pipeline).at, pipeline.problem) == (2, "")


@pytest.mark.django_db
def test_one_lets_it_on_from_a_draft_that_was_not_good_enough(line: Line) -> None:
    pipeline = line.try_prompt(GATE)
    for run in line.evals(pipeline):
        line.answer(run, (False,))
    pipeline = pipeline_control.let_on(swept(pipeline), line.actor, "the form is better")
    assert (pipeline.state, pipeline.at) == (Pipeline.State.RUNNING, 2)
    assert pipeline.stages.get(number=2).entry["let_on"]["reason"] == "the form is better"


@pytest.mark.django_db
def test_a_trials_draft_is_taken_over_with_what_was_asked_of_it(line: Line) -> None:
    room = line.room
    trial, _ = trial_lifecycle.start(
        TrialRequest(
            key=uuid.uuid4(),
            bucket="wrong_tool",
            parent=room.base,
            task_set=room.task_set,
            drafts=[DraftContent(name="Day", system_prompt="Check the day.")],
            settings=RunSettings(samples=4),
        ),
        line.actor,
    )
    draft = trial.drafts.get()
    for run in (draft.evaluation, trial.parent_eval):
        line.answer(run)
    pipeline = line.try_prompt(GATE, draft=draft.version)
    pipeline.refresh_from_db()
    assert (pipeline.at, EvalRun.objects.filter(split=Split.TRAIN).count()) == (2, 2)


@pytest.mark.django_db
def test_a_second_prompt_starts_from_the_first(line: Line) -> None:
    stages = line.stages(NEW, {"algorithm": "prompt", "system_prompt": "Check the day twice.", "gate": GATE}, SFT)
    pipeline, _ = pipeline_control.create(key=uuid.uuid4(), stages=stages, actor=line.actor)
    one, two, trained = pipeline.stages.select_related("draft__parent", "dataset")
    assert two.draft is not None
    assert two.draft.parent == one.draft
    assert trained.dataset is not None
    assert trained.dataset.recipe["version"] == str(two.draft)
    for run in line.evals(pipeline):
        line.answer(run)
    assert swept(pipeline).at == 2
    assert [run.version for run in line.evals(pipeline)] == [two.draft, one.draft]
    assert EvalRun.objects.filter(split=Split.TRAIN).count() == 3, "the first draft was asked already"


@pytest.mark.django_db
def test_stopping_cancels_its_evals_and_resuming_goes_on_with_them(line: Line) -> None:
    pipeline = line.try_prompt()
    runs = line.evals(pipeline)
    pipeline = pipeline_control.stop(pipeline, line.actor)
    assert {run.state for run in line.evals(pipeline)} == {State.CANCELLED}
    pipeline = pipeline_control.resume(pipeline, line.actor)
    assert line.evals(pipeline) == runs
    assert {run.state for run in line.evals(pipeline)} == {State.QUEUED}
    assert EvalRun.claim(runs[0].pk)
    pipeline = pipeline_control.stop(pipeline, line.actor)
    for verb in (pipeline_control.resume, pipeline_control.retry):
        with pytest.raises(StaleState, match=f"{runs[0]} is being cancelled"):
            verb(pipeline, line.actor)
    EvalRun.objects.filter(pk=runs[0].pk).update(state=State.CANCELLED)
    pipeline_control.resume(pipeline, line.actor)
    EvalRun.objects.filter(pk=runs[1].pk).update(state=State.FAILED, error_kind="engine", error="no answer")
    assert swept(pipeline).problem == f"stage 1 of {pipeline}: {runs[1]} failed: engine: no answer"
    pipeline = pipeline_control.end(pipeline, line.actor)
    assert {run.state for run in line.evals(pipeline)} == {State.CANCELLED, State.FAILED}


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_is_stopped_half_way_asks_nothing_twice(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Carried out as a worker does, with an engine behind the version that says what it was asked."""
    pipeline = line.try_prompt(GATE)
    draft, base = line.evals(pipeline)
    monkeypatch.setattr(eval_runs, "CHUNK", 8)
    engine = FakeEngine(right)
    real = engine.chat

    def killed(requests: Any) -> Any:
        if len(engine.asked) >= 8:
            raise SystemExit
        return real(requests)

    engine.chat = killed  # type: ignore[method-assign]
    monkeypatch.setattr(eval_runs, "open_version", lambda _: engine)
    with pytest.raises(SystemExit):
        work(draft)
    draft.refresh_from_db()
    assert (draft.state, draft.results.count()) == (State.QUEUED, 8)
    assert swept(pipeline).at == 1
    second = carry_out(draft, monkeypatch)
    assert {request.messages[0].content.splitlines()[0] for request in second.asked} == {"Check the day."}
    assert len(engine.asked) + len(second.asked) == draft.total == 24
    carry_out(base, monkeypatch, wrong)
    assert swept(pipeline).at == 2
    found = prompt_stages.results_of(pipeline.stages.get(number=1))
    assert found is not None
    assert (found.success, found.before, found.difference.mean) == (1.0, 0.0, 1.0)


DIES = """
import os, signal, django
django.setup()
from flywheel.training.pipelines import pipeline_steps, prompt_stages

real, asked = prompt_stages.equal_or_new, []

def die(*given):
    asked.append(real(*given))
    if len(asked) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return asked[-1]

prompt_stages.equal_or_new = die
pipeline_steps.sweep()
"""


@pytest.mark.django_db(transaction=True)
def test_a_kill_while_it_begins_leaves_both_evals_or_none(line: Line) -> None:
    pipeline = line.try_prompt()
    PipelineStage.objects.update(draft_eval=None, base_eval=None)
    EvalRun.objects.filter(split=Split.TRAIN).delete()
    run_to_its_death(DIES)
    assert not EvalRun.objects.filter(split=Split.TRAIN).exists()
    for _ in range(2):
        swept(pipeline)
    assert set(line.evals(pipeline)) == set(EvalRun.objects.filter(split=Split.TRAIN))


@pytest.mark.parametrize(
    ("stages", "field", "problem"),
    [
        ([SFT, NEW, SFT], "stages.2.algorithm", "prompts come before what trains"),
        ([NEW, NEW | {"system_prompt": "Another."}], "stages", "end with one that trains"),
        ([{"algorithm": "prompt"}, SFT], "stages.1.system_prompt", "as a text or as a version"),
        ([NEW | {"system_prompt": "x" * 200_001}, SFT], "stages.1.system_prompt", "200001 characters, 200000 at most"),
        ([NEW | {"settings": {"samples": 65}}, SFT], "stages.1.settings.samples", "65 is not a whole number from 1"),
        ([NEW | {"settings": {"validation_share": 1}}, SFT], "stages.1.settings.validation_share", "from 0 to 0.5"),
        ([NEW | {"settings": {"steps": 5}}, SFT], "stages.1.settings.steps", "use samples, validation_share"),
        ([NEW | {"seed": -1}, SFT], "stages.1.seed", "-1 is not a whole number"),
        ([NEW | {"gate": GATE}, SFT], "stages.1.gate", "nothing comes before it"),
        (
            [NEW | {"settings": {"validation_share": 0}}, SFT | {"gate": GATE}],
            "stages.2.gate",
            "validation_share above",
        ),
        ([NEW, SFT | {"settings": {"steps": "many"}}], "stages.2.settings.steps", "is not a whole number"),
    ],
)
@pytest.mark.django_db
def test_what_is_wrong_names_the_stage_and_the_field_and_nothing_is_asked(
    line: Line, stages: list[dict[str, Any]], field: str, problem: str
) -> None:
    with pytest.raises(Refused, match=problem) as refused:
        pipeline_control.create(key=uuid.uuid4(), stages=line.stages(*stages), actor=line.actor)
    assert refused.value.field == field
    assert not EvalRun.objects.filter(split=Split.TRAIN).exists()
    assert not Pipeline.objects.exists()


@pytest.mark.django_db
def test_a_prompt_with_what_is_measured_is_refused_however_it_comes(line: Line) -> None:
    room = line.room
    measured = room.task_set.members.filter(split=Split.HELD_OUT).first()
    assert measured is not None
    prompt = "Meet the whole team of the other office on the next working day, please"
    type(measured.task).objects.filter(pk=measured.task_id).update(prompt=prompt)
    with pytest.raises(Refused, match="request of a held-out") as refused:
        line.try_prompt(system_prompt=f"For example: {prompt}")
    assert refused.value.field == "stages.1.system_prompt"
    draft = room.build.version(weights=room.base.weights, system_prompt=f"For example: {prompt}")
    with pytest.raises(Refused, match=f"{draft} holds the whole request of a held-out") as refused:
        line.try_prompt(draft=draft)
    assert refused.value.field == "stages.1.draft"


@pytest.mark.django_db
def test_a_prompt_that_is_the_old_one_is_refused(line: Line) -> None:
    base = line.room.base
    same: dict[str, Any] = {"system_prompt": base.system_prompt, "draft": base}
    for name, value in same.items():
        with pytest.raises(Refused, match=f"changes nothing of {base}") as refused:
            line.try_prompt(None, **{name: value})
        assert refused.value.field == f"stages.1.{name}"


@pytest.mark.django_db
def test_a_version_with_other_weights_is_no_draft(line: Line) -> None:
    weights = Artifact.objects.create(digest="b" * 64, manifest={}, kind="model", size=9)
    other = line.room.build.version(weights=weights, system_prompt="Check the day.")
    with pytest.raises(Refused, match=f"{other} differs from .* in more than what it is told") as refused:
        line.try_prompt(draft=other)
    assert refused.value.field == "stages.1.draft"


@pytest.mark.django_db
def test_reinforcement_after_a_prompt_has_the_audit_of_the_base_and_says_so(line: Line) -> None:
    room = line.room
    stages = line.stages(NEW, {"algorithm": "grpo", "settings": {"steps": 5}})
    pipeline, _ = pipeline_control.create(key=uuid.uuid4(), stages=stages, actor=line.actor)
    for asked in line.evals(pipeline):
        line.answer(asked)
    draft = pipeline.stages.get(number=1).draft
    assert draft is not None
    swept(pipeline)
    line.measure(draft)
    run = line.run(swept(pipeline))
    assert (pipeline.problem, run.base) == ("", draft)
    assert run.audit_override is not None
    assert run.audit_override.version == room.base
    told = reward_lock.kept(run)["words"]
    assert f"this is about outputs of {room.base}, from which {draft} differs in what it is told" in told


@pytest.mark.django_db
def test_outputs_of_a_draft_that_was_not_made_from_what_was_audited_are_audited_too(line: Line) -> None:
    room = line.room
    AuditOverride.objects.all().delete()
    first = RewardAudit.objects.create(
        project=room.cast.project, run=rollouts(room), seed=1, created_by=line.actor.user
    )
    RewardAudit.objects.filter(pk=first.pk).update(is_green=True, finished_at=first.created_at, result=RESULT)
    draft = room.build.version(weights=room.base.weights, system_prompt="Check the day.")
    practise: dict[str, Any] = {"algorithm": "grpo", "settings": {"steps": 5}}
    stages = line.stages({"algorithm": "prompt", "draft": draft}, practise, practise)
    pipeline, _ = pipeline_control.create(key=uuid.uuid4(), stages=stages, actor=line.actor)
    for asked in line.evals(pipeline):
        line.answer(asked)
    swept(pipeline)
    line.measure(draft)
    run = line.run(swept(pipeline))
    assert (run.base, run.reward_audit, draft.parent) == (draft, first, None)
    line.end(run)
    assert swept(pipeline).state == Pipeline.State.STOPPED
    assert f"the reward audit waits to be renewed on outputs of {draft}" in pipeline.problem


def test_an_attempt_without_a_score_is_neither_solved_nor_readable_nor_safe() -> None:
    def row(task: str, success: bool | None, **parts: float) -> Row:
        return Row(task, task, 0, None if success is None else float(success), success, parts)

    rows = [row("a", True, form=1.0, unsafe=0.0), row("a", None), row("b", False, form=1.0, unsafe=1.0), row("c", None)]
    assert prompt_stages.figures_of(rows) == {
        "success": 0.25,
        "n": 2,
        "unscored": 1,
        "parts": {"form": 0.75, "unsafe": 0.5},
    }
    assert prompt_stages.figures_of([]) == {"success": None, "n": 0, "unscored": 0, "parts": {}}


@pytest.mark.django_db
def test_a_gate_that_could_look_at_no_task_is_refused_before_anything_is_asked(line: Line) -> None:
    members = line.room.task_set.members.filter(split=Split.TRAIN)
    Task.objects.filter(pk__in=members.values("task")).update(cluster="one customer")
    with pytest.raises(Refused, match=f"the train tasks of {line.room.task_set} come from a single source") as refused:
        line.try_prompt(GATE)
    assert refused.value.field == "stages.2.gate"
    pipeline = line.try_prompt()
    for run in line.evals(pipeline):
        line.answer(run)
    assert swept(pipeline).at == 2, "without a limit there is nothing to look at"
    found = prompt_stages.results_of(pipeline.stages.get(number=1))
    assert found is not None
    assert (found.success, found.before, found.difference.n) == (None, None, 0)


@pytest.mark.django_db
def test_the_gate_looks_at_the_tasks_that_a_run_of_this_seed_keeps_aside(line: Line) -> None:
    pipeline = line.try_prompt(system_prompt="Check.", settings={"validation_share": 0.5, "samples": 1}, seed=3)
    draft, base = line.evals(pipeline)
    for run in (draft, base):
        line.answer(run, (False,))
    kept = choose_tasks(line.room.task_set, 0.5, 3)
    draft.results.filter(task__in=kept).update(success=True, score=1.0)
    found = prompt_stages.results_of(pipeline.stages.get(number=1))
    assert found is not None
    assert (len(kept), found.figures["n"], found.figures["success"], found.before) == (3, 3, 1.0, 0.0)
