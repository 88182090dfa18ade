"""What the ladder is told, and that it is told anew only when something changed."""

import pytest

from flywheel.core import recipes
from flywheel.failures.models import Decision, Failure, Recurrence
from flywheel.promotions.models import Candidate, Policy
from flywheel.training.launch.fix_recommendation import baseline_of, evidence_of, recommendation_for
from flywheel.training.models import Recommendation, TrainingRun
from tests.training.conftest import Room

pytestmark = pytest.mark.django_db


def labelled(room: Room, bucket: str) -> Failure:
    trajectory = room.build.trajectory(version=room.base, agent=room.base.agent)
    return Failure.objects.create(
        project=room.cast.project,
        trajectory=trajectory,
        decision=Decision.ADDED if bucket else Decision.REJECTED,
        bucket=bucket,
        labelled_by=room.cast.reviewer,
    )


def judged(room: Room, run: TrainingRun, verdict: str) -> None:
    policy, _ = Policy.objects.get_or_create(
        project=room.cast.project, version=1, defaults={"rules": {}, "created_by": room.cast.admin}
    )
    Candidate.objects.create(
        project=room.cast.project,
        agent=room.base.agent,
        version=room.base,
        baseline=room.base,
        version_eval=room.evaluated(),
        baseline_eval=room.baseline,
        run=run,
        policy=policy,
        report={},
        report_digest="",
        verdict=verdict,
        proposed_by=room.cast.trainer,
    )


def test_it_counts_what_people_labelled_and_measured(room: Room) -> None:
    for bucket in ("wrong_tool", "wrong_tool", "format_error", ""):
        labelled(room, bucket)
    evidence = evidence_of(room.base, room.task_set, room.baseline)
    assert dict(evidence.buckets) == {"wrong_tool": 2, "format_error": 1}
    assert evidence.pass_at_1 is not None
    assert evidence.pass_at_k is not None
    assert (evidence.pass_at_1.mean, evidence.pass_at_k.mean, evidence.k) == (0.5, 1.0, 2)
    assert evidence.corrected == 6


def test_it_is_kept_until_something_changes(room: Room) -> None:
    first = recommendation_for(room.base, room.task_set)
    assert recommendation_for(room.base, room.task_set) == first
    labelled(room, "wrong_tool")
    assert recommendation_for(room.base, room.task_set) != first
    assert Recommendation.objects.count() == 2


def test_only_a_finished_held_out_eval_is_a_baseline(room: Room) -> None:
    room.evaluated(state="running")
    room.evaluated(split="train")
    assert baseline_of(room.base, room.task_set) == room.baseline


def test_only_scored_attempts_at_train_tasks_can_be_learnt_from_offline(room: Room) -> None:
    assert evidence_of(room.base, room.task_set, room.baseline).scored == 0
    rollouts = room.evaluated(split="train")
    count = rollouts.results.exclude(score=None).count()
    assert count
    assert evidence_of(room.base, room.task_set, room.baseline).scored == count


def test_a_fix_that_was_tried_in_vain_is_named_until_one_run_passes(room: Room) -> None:
    judged(room, room.launch(), "invalid")
    judged(room, room.launch(settings={"steps": 12}), "not_shown")
    assert not evidence_of(room.base, room.task_set, room.baseline).tried
    failed = room.launch()
    judged(room, failed, "not_shown")
    assert evidence_of(room.base, room.task_set, room.baseline).tried == {"sft": str(failed)}
    judged(room, room.launch(), "eligible")
    assert not evidence_of(room.base, room.task_set, room.baseline).tried


def test_the_fix_that_did_not_last_is_named(room: Room) -> None:
    made = room.build.version(room.base.agent, weights=room.base.weights, parent=room.base, system_prompt="Be exact.")
    found = Recurrence.objects.create(
        project=room.cast.project, bucket="wrong_tool", version=made, claim=0.02, sessions=9, failed=0.5, path=[]
    )
    later = room.build.version(room.base.agent, weights=room.base.weights, parent=made, system_prompt="Be kind.")
    for version in (room.base, made, later):
        assert evidence_of(version, room.task_set, None).returned == {
            "prompt": [
                f"{made} came of this, and wrong tool came back with it (by the watch, not confirmed yet): "
                "that fix did not last."
            ]
        }
    rungs = {rung["fix"]: rung["why"] for rung in recommendation_for(room.base, room.task_set).ladder}
    assert [fix for fix, why in rungs.items() if "that fix did not last" in why] == ["prompt"]
    run = room.launch()
    TrainingRun.objects.filter(pk=run.pk).update(produced=made)
    assert list(evidence_of(room.base, room.task_set, None).returned) == list(recipes.ALGORITHMS[run.algorithm].fixes)
    Recurrence.objects.filter(pk=found.pk).update(answer=Recurrence.Answer.NOT_SAME)
    assert evidence_of(room.base, room.task_set, None).returned == {}


def test_failures_of_the_parent_count_until_the_version_is_in_production(room: Room) -> None:
    for _ in range(3):
        labelled(room, "wrong_tool")
    copy = room.build.version(room.base.agent, weights=room.base.weights, parent=room.base, system_prompt="Be careful.")
    copied = room.build.version(room.base.agent, weights=room.base.weights, parent=copy, system_prompt="Be kind.")
    for version in (copy, copied):
        evidence = evidence_of(version, room.task_set, None)
        assert dict(evidence.buckets) == {"wrong_tool": 3}
        assert (evidence.inherited, evidence.inherited_from) == (3, str(room.base))
    rungs = recommendation_for(copied, room.task_set).ladder
    assert any("3 of the 3 are of assistant@1: this version has no production runs" in rung["why"] for rung in rungs)
    room.build.trajectory(version=copy, agent=copy.agent, source="rollout")
    assert evidence_of(copy, room.task_set, None).failures == 3, "a rollout is no production"
    room.build.trajectory(version=copy, agent=copy.agent)
    assert evidence_of(copy, room.task_set, None).failures == 0
    assert evidence_of(copied, room.task_set, None).failures == 0, "its parent is in production and nothing fails there"
    assert evidence_of(room.base, room.task_set, None).inherited == 0
