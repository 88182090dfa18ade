"""The lock: what learns from a reward is not launched, and not started, before the reward is audited or overridden."""

import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.accounts.project_settings.gateway_upstream import set_upstream
from flywheel.core import verifiers
from flywheel.core.evidence.reward_audit_rule import REVISION
from flywheel.edge.jobs import Lease
from flywheel.edge.refusals import Refused
from flywheel.environments.models import RewardRecipe, Split, TaskSet
from flywheel.environments.versions.reward_recipes import reward_recipe
from flywheel.evals import run_rescores
from flywheel.evals.models import AuditOverride, EvalRun, RewardAudit
from flywheel.training.datasets.dataset_builder import build as build_dataset
from flywheel.training.launch import reward_lock
from flywheel.training.models import Dataset, TrainingRun
from tests.pages import page_of
from tests.training.conftest import Room, right
from workers.jobs.training.trainer_process import TrainingFailed
from workers.jobs.training.training_runs import spec_of, train


@pytest.fixture
def locked(room: Room) -> Room:
    AuditOverride.objects.all().delete()
    return room


def rollouts(room: Room) -> EvalRun:
    """Attempts at the train tasks of which one in two passes, in words of its own."""
    run = room.evaluated(
        lambda task, sample: f"Here: {right(task)}" if sample == 0 else "I cannot.",
        split=Split.TRAIN,
        success=(True, False),
    )
    EvalRun.objects.filter(pk=run.pk).update(verifier_digest=verifiers.digest({"kind": "tool_call"}))
    run.refresh_from_db()
    return run


@pytest.mark.parametrize("algorithm", ["grpo", "cispo", "rloo"])
def test_reinforcement_is_locked_until_somebody_who_may_lets_it_pass(locked: Room, algorithm: str) -> None:
    with pytest.raises(Refused, match="no audit has shown") as caught:
        locked.launch(algorithm=algorithm)
    assert caught.value.field == "reward"
    leave = locked.build.overridden(locked.base, locked.task_set)
    run = locked.launch(algorithm=algorithm)
    assert (run.reward_audit, run.audit_override) == (None, leave)
    assert reward_lock.kept(run)["override"] == {"by": "approver", "reason": "a test"}


def recipe(room: Room, *more: dict[str, Any]) -> RewardRecipe:
    parts = [
        {"type": "environment", "name": "task", "weight": 1},
        {"type": "length", "name": "length", "weight": -0.5, "free": 64, "most": 96},
        *more,
    ]
    return reward_recipe(project=room.cast.project, name="short", parts=parts, actor=Actor(room.cast.builder))[0]


def test_a_recipe_that_only_shapes_is_let_pass_by_what_lets_the_verifier_pass(locked: Room) -> None:
    short = recipe(locked)
    with pytest.raises(Refused, match="no audit has shown"):
        locked.launch(algorithm="grpo", reward=short)
    leave = locked.build.overridden(locked.base, locked.task_set)
    run, plain = locked.launch(algorithm="grpo", reward=short), locked.launch(algorithm="grpo")
    assert (run.audit_override, run.reward_recipe, reward_lock.refusal(run)) == (leave, short, "")
    assert run.spec_digest != plain.spec_digest
    kept = reward_lock.kept(run)
    assert kept["recipe"] == {"name": "short", "number": 1, "digest": short.digest}
    assert kept["words"].endswith("; by the reward recipe short@1, which passes what the verifier passes")
    assert spec_of(run, {})["reward"] == {"kind": "reward", "parts": short.parts}
    assert "reward" not in spec_of(plain, {})
    assert reward_lock.kept(plain)["recipe"] is None


def test_a_recipe_that_judges_wants_an_audit_or_an_override_of_its_own(
    locked: Room, sign_in: Callable[[User], Client]
) -> None:
    judging = recipe(locked, {"type": "text", "name": "polite", "weight": 1, "value": "please", "compare": "contain"})
    locked.build.overridden(locked.base, locked.task_set)
    with pytest.raises(Refused, match=r"the reward recipe short@1 judges by parts of its own") as caught:
        locked.launch(algorithm="grpo", reward=judging)
    assert caught.value.field == "reward"
    client, slug = sign_in(locked.cast.approver), locked.cast.project.slug
    named = {"version": str(locked.base), "task_set": str(locked.task_set), "reward": "short@1"}
    assert "short@1 judges by parts of its own" in page_of(client.get(reverse("evals:reward", args=[slug]), named))
    client.post(reverse("evals:override_reward_audit", args=[slug]), {**named, "reason": "to try it"})
    run = locked.launch(algorithm="grpo", reward=judging)
    assert run.audit_override is not None
    assert run.audit_override.reason == "to try it"
    assert reward_lock.kept(run)["words"].endswith("which judges by parts of its own")
    audit = green(locked, judging, rollouts(locked))
    run = locked.launch(algorithm="grpo", reward=judging)
    assert (run.reward_audit, run.audit_override, reward_lock.refusal(run)) == (audit, None, "")
    assert "reviewers agree with short@1 on" in reward_lock.kept(run)["words"]
    with pytest.raises(Refused, match=r"is green, but not for this: the recipe was short@1"):
        locked.launch(algorithm="grpo", reward=recipe(locked, {"type": "text", "name": "kind", "value": "thanks"}))


def green(room: Room, by: RewardRecipe, run: EvalRun, renews: RewardAudit | None = None) -> RewardAudit:
    """A green audit of a recipe that has scored the run."""
    version, who = run.task_set.environment_version, room.cast.builder
    job, _ = run_rescores.submit_recipe(run=run, recipe=by, actor=Actor(who), key=uuid.uuid4())
    assert job.verifier_digest == by.judged_by(version.verifier)
    audit = RewardAudit.objects.create(project=run.project, run=run, rescore=job, renews=renews, seed=1, created_by=who)
    RewardAudit.objects.filter(pk=audit.pk).update(is_green=True, finished_at=timezone.now(), result=RESULT)
    return audit


def test_a_recipe_that_the_run_cannot_learn_from_is_refused(locked: Room) -> None:
    locked.build.overridden(locked.base, locked.task_set)
    set_upstream(project=locked.cast.project, actor=Actor(locked.cast.admin), base_url="http://127.0.0.1:9/v1")
    with pytest.raises(Refused, match="SFT learns from no reward"):
        locked.launch(reward=recipe(locked))
    for part, said in (
        ({"type": "judge", "criteria": "good", "model": "m"}, "the reward recipe short@2 judges by parts of its own"),
        ({"type": "state"}, "short@3 does not go with .*: parts.2.type: this environment keeps no state"),
        ({"type": "python", "source": "def verify(trace, target):\n    return 1.0\n"}, "parts of its own"),
    ):
        with pytest.raises(Refused, match=said):
            locked.launch(algorithm="grpo", reward=recipe(locked, part))


def test_what_people_wrote_needs_no_audit_and_what_a_reward_chose_does(locked: Room) -> None:
    written = locked.launch()
    assert reward_lock.judged("sft", locked.base, written.dataset) == []
    assert reward_lock.kept(written)["learns_from_reward"] is False
    for algorithm in ("sft", "dpo"):
        with pytest.raises(Refused, match="no audit has shown"):
            locked.launch(algorithm=algorithm, rollouts=rollouts(locked))


def test_rows_that_a_reward_chose_want_an_audit_of_whose_they_are(locked: Room) -> None:
    """A teacher's rollouts were judged, not the base's: the audit must be of the teacher's outputs."""
    run = rollouts(locked)
    teacher = locked.build.version(system_prompt="I know better")
    EvalRun.objects.filter(pk=run.pk).update(version=teacher)
    made = build_dataset(
        name="imitate",
        kind="sft",
        task_set=locked.task_set,
        actor=Actor(locked.cast.trainer),
        version=locked.base,
        rollouts=EvalRun.objects.get(pk=run.pk),
    )
    (found,) = reward_lock.judged("sft", locked.base, made)
    assert found.version == teacher
    locked.build.overridden(locked.base, locked.task_set)
    with pytest.raises(Refused, match="no audit has shown"):
        locked.launch(dataset=made)
    locked.build.overridden(teacher, locked.task_set)
    assert locked.launch(dataset=made).audit_override is not None


def test_rows_that_an_earlier_verifier_chose_say_that_nothing_lets_them_pass_but_a_new_eval(locked: Room) -> None:
    run = rollouts(locked)
    EvalRun.objects.filter(pk=run.pk).update(verifier_digest="earlier")
    locked.build.overridden(locked.base, locked.task_set)
    said = "judged by a verifier that has changed since; evaluate again first; audit outputs of"
    with pytest.raises(Refused, match=said):
        locked.launch(rollouts=EvalRun.objects.get(pk=run.pk))


def test_of_a_mix_every_reward_counts_and_the_weakest_is_told(locked: Room) -> None:
    there = locked.build.environment("elsewhere").latest
    other = TaskSet.objects.create(
        project=locked.cast.project,
        environment_version=there,
        name="other",
        version=1,
        digest="0" * 64,
        created_by=locked.cast.builder,
    )
    mixed = Dataset(
        task_set=locked.task_set, recipe={"mix": [{"task_set": locked.task_set.pk}, {"task_set": other.pk}]}
    )
    assert [each.environment_version for each in reward_lock.judged("grpo", locked.base, mixed)] == [
        locked.task_set.environment_version,
        there,
    ]
    for task_set, state in ((locked.task_set, "none"), (other, "overridden")):
        locked.build.overridden(locked.base, task_set)
        found = reward_lock.standing_of("grpo", locked.base, mixed)
        assert found is not None
        assert found[1].state == state


def test_the_worker_asks_once_more(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    run = room.launch(algorithm="grpo")
    assert reward_lock.refusal(run) == ""
    monkeypatch.setattr(verifiers, "digest", lambda _: "another")
    assert reward_lock.refusal(run).startswith("it learns from a reward that no audit has shown to be right")
    with pytest.raises(TrainingFailed, match="no audit has shown") as caught:
        train(cast(Lease, SimpleNamespace(job=run)))
    assert caught.value.kind == "reward_audit"


def test_the_form_says_where_the_reward_stands_and_keeps_the_button(
    locked: Room, sign_in: Callable[[User], Client]
) -> None:
    client = sign_in(locked.cast.trainer)
    address = f"/p/acme/training/launch/?base={locked.base}&task_set={locked.task_set}&algorithm="
    page = page_of(client.get(f"{address}grpo"))
    assert "Locked." in page
    assert 'id="launch-button" disabled' in page
    assert "trains on people’s corrections" in page_of(client.get(f"{address}sft"))
    sent = {"base": locked.base, "task_set": locked.task_set, "algorithm": "grpo", "reason": "to see"}
    assert client.post("/p/acme/training/launch/", sent).status_code == 422
    assert not TrainingRun.objects.exists()
    locked.build.overridden(locked.base, locked.task_set)
    page = page_of(client.get(f"{address}grpo"))
    assert "The audit is overridden." in page
    assert 'id="launch-button" disabled' not in page
    answer = client.post("/p/acme/training/launch/", sent)
    shown = page_of(client.get(answer.headers["Location"]))
    assert "audit overridden" in shown
    assert "by approver: a test" in shown


def test_tasks_that_teach_nothing_are_left_out_with_a_click(room: Room, sign_in: Callable[[User], Client]) -> None:
    run = rollouts(room)
    solved = run.results.order_by("task__number").values_list("task", "task__number")[0]
    run.results.filter(task=solved[0]).update(success=True)
    client = sign_in(room.cast.trainer)
    sent: dict[str, Any] = {"base": room.base, "task_set": room.task_set, "algorithm": "grpo", "reason": "to see"}
    page = page_of(client.get("/p/acme/training/launch/", {**sent, "leave_out": run.pk}))
    assert "Leave out the 1 task" in page
    client.post("/p/acme/training/launch/", {**sent, "leave_out": run.pk})
    made = TrainingRun.objects.get().dataset
    assert (made.rows, made.recipe["left_out"]) == (5, 1)
    with pytest.raises(Refused, match="has its rows already"):
        room.launch(algorithm="grpo", dataset=made, leave_out=[solved[1]])


def test_the_api_refuses_with_the_same_words(locked: Room, client: Client, key: Callable[..., dict[str, str]]) -> None:
    body = {"base": str(locked.base), "task_set": str(locked.task_set), "algorithm": "grpo", "override_reason": "x"}
    headers = key("train", by=locked.cast.trainer)
    answer = client.post("/api/v1/training-runs", body, "application/json", headers=headers)
    assert (answer.status_code, answer.json()["detail"].partition(":")[0]) == (422, "reward")
    audit = RewardAudit.objects.create(
        project=locked.cast.project, run=rollouts(locked), seed=1, created_by=locked.cast.builder
    )
    assert RewardAudit.objects.filter(pk=audit.pk).update(is_green=True, finished_at=audit.created_at, result=RESULT)
    answer = client.post("/api/v1/training-runs", body, "application/json", headers=headers)
    assert answer.status_code == 201
    assert (answer.json()["reward"]["audit"], answer.json()["reward"]["is_green"]) == (audit.pk, True)


RESULT: dict[str, Any] = {
    name: {"mean": 1.0, "low": 0.9, "high": 1.0, "n": 50} for name in ("agreement", "kappa", "false_passes")
} | {"faults": [], "rule": REVISION}
