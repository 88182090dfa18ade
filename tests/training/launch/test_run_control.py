"""What a launch refuses, what it freezes, and that it happens once."""

import importlib.util
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, WorkerDevice
from flywheel.accounts.project_settings.gateway_upstream import set_upstream
from flywheel.agents.models import Artifact
from flywheel.core.envs import tictactoe
from flywheel.edge.jobs import StaleState, State
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Split, Task, TaskSet
from flywheel.environments.versions import environment_versions
from flywheel.environments.versions.environment_terms import Terms
from flywheel.environments.versions.reward_recipes import reward_recipe
from flywheel.evals.serving import loaded_adapters
from flywheel.training.datasets import dataset_builder
from flywheel.training.launch.fix_recommendation import lightest, recommendation_for
from flywheel.training.launch.run_control import LaunchRequest, launch
from flywheel.training.models import TrainingRun
from tests.conftest import TOOLS
from tests.training.conftest import Room

pytestmark = pytest.mark.django_db


def recommended(room: Room, count: int = 24) -> None:
    """Make SFT the recommended fix: many corrected failures, and held-out tasks that no attempt solves."""
    for _ in range(count):
        task = room.build.task(Split.TRAIN, bucket="wrong_tool")
        room.task_set.members.create(task=task, split=Split.TRAIN)
    room.baseline = room.evaluated(success=(False, False))
    first = lightest(recommendation_for(room.base, room.task_set))
    assert first is not None
    assert first["fix"] == "sft"


@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        ({"algorithm": "a2c"}, "algorithm", "'a2c' is unknown"),
        ({"settings": {"steps": 0}}, "settings.steps", "out of range"),
        ({"settings": {"stpes": 5}}, "settings.stpes", "did you mean steps"),
        ({"settings": {"num_generations": 4}}, "settings.num_generations", "does not apply to SFT"),
        ({"settings": {"trl.output_dir": "/"}}, "settings.trl.output_dir", "cannot be set"),
        ({"algorithm": "grpo", "settings": {"batch_size": 9}}, "settings.batch_size", "8 would be right"),
        ({"tuning": {"mode": "half"}}, "tuning.mode", "use full, lora, qlora"),
        ({"tuning": {"mode": "lora", "rank": 0}}, "tuning.rank", "from 1 to 512"),
        ({"tuning": {"mode": "full", "rank": 4}}, "tuning.rank", "not part of full"),
        ({"seed": -1}, "seed", "whole number"),
        ({"override_reason": " "}, "override_reason", "give a reason"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_queued(
    room: Room, fields: dict[str, Any], field: str, problem: str
) -> None:
    with pytest.raises(Refused, match=problem) as refused:
        room.launch(**fields)
    assert refused.value.field == field
    assert not TrainingRun.objects.exists()


def test_a_server_that_could_not_sample_what_is_trained_is_refused(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {"algorithm": "grpo", "tuning": {"mode": "lora", "rank": 4}}
    served = {"rollouts": "vllm"}
    assert room.base.weights is not None
    name = loaded_adapters.base_name(room.base.weights.digest)

    def refused(**fields: Any) -> str:
        with pytest.raises(Refused) as error:
            room.launch(**(asked | {"settings": served} | fields))
        assert error.value.field == "settings.rollouts"
        return str(error.value)

    assert "here all weights are trained" in refused(tuning={"mode": "full"})
    assert "no vLLM server is set" in refused()
    monkeypatch.setenv("FLYWHEEL_VLLM_URL", "http://127.0.0.1:1")
    assert "DoRA" in refused(settings=served | {"lora.use_dora": True})
    assert "does not answer" in refused()
    monkeypatch.setattr(loaded_adapters, "_call", lambda *_, **__: {"data": [{"id": "base-other", "parent": None}]})
    assert f"serves base-other, and {room.base} is made of {name}" in refused()
    monkeypatch.setattr(loaded_adapters, "_call", lambda *_, **__: {"data": [{"id": name, "parent": None}]})
    assert room.launch(**(asked | {"settings": served})).settings["rollouts"] == "vllm"


def test_a_server_of_the_runs_own_wants_a_worker_that_has_vllm(room: Room) -> None:
    asked: dict[str, Any] = {"algorithm": "grpo", "tuning": {"mode": "lora"}}
    own = {"rollouts": "colocate", "device": "cuda"}
    assert room.launch(**asked, settings=own).settings["vllm_memory_share"] == 0.4, "no worker lives to say so"
    later = timezone.now() + timedelta(hours=1)
    WorkerDevice.objects.create(host="a", label="cuda", name="0", modes=["full", "lora"], at=later)
    with pytest.raises(Refused) as error:
        room.launch(**asked, settings=own)
    assert (error.value.field, error.value.problem) == (
        "settings.rollouts",
        "rollouts colocate needs vLLM, which no worker with a GPU has; run make .venv-serve/.installed there and "
        "restart it",
    )
    with pytest.raises(Refused, match="DoRA"):
        room.launch(**asked, settings=own | {"lora.use_dora": True, "device": "cpu"})
    WorkerDevice.objects.create(host="b", label="cuda", name="0", modes=["full", "lora", "colocate"], at=later)
    assert room.launch(**asked, settings=own).device == "cuda"


def test_deepspeed_is_refused_where_it_is_not_installed(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "deepspeed" else there(name))
    with pytest.raises(Refused, match="install it as the operator's guide says and restart the worker") as error:
        room.launch(algorithm="grpo", tuning={"mode": "full"}, settings={"processes": 2, "sharding": "deepspeed"})
    assert error.value.field == "settings.sharding"


def test_base_in_four_bits_is_refused_where_no_worker_could_train_on_it(room: Room) -> None:
    """Whatever is installed beside the web: only workers train."""
    asked: dict[str, Any] = {"algorithm": "grpo", "tuning": {"mode": "qlora", "rank": 4}}
    later = timezone.now() + timedelta(hours=1)
    WorkerDevice.objects.create(host="a", label="cuda", name="0", modes=["full", "lora"], at=later)
    WorkerDevice.objects.create(host="b", label="cpu", name="0", modes=["full", "lora", "qlora"], at=later)

    def refused(**settings: Any) -> tuple[str, str]:
        with pytest.raises(Refused) as error:
            room.launch(**asked, settings=settings)
        return error.value.field, error.value.problem

    needed = "QLoRA needs bitsandbytes, which no worker with a GPU has; install flywheel[qlora] there and restart it"
    assert refused() == ("tuning.mode", needed)
    assert room.launch(**asked, settings={"device": "cpu"}).device == "cpu"
    WorkerDevice.objects.create(host="c", label="cuda", name="0", modes=["full", "lora", "qlora"], at=later)
    assert refused(rollouts="vllm")[0] == "settings.rollouts"
    assert refused(processes=2)[1] == "2 processes do not share a base in 4 bits; expected 1"
    assert room.launch(**asked).tuning == {"mode": "qlora", "rank": 4, "alpha": 16}
    asked |= {"tuning": {"mode": "qlora"}, "algorithm": "reward_model"}
    assert refused() == ("tuning.mode", "'qlora' does not train a reward model, which is saved whole; use lora")


def test_turns_are_not_judged_where_somebody_else_would_be_asked_each_time(room: Room) -> None:
    set_upstream(project=room.cast.project, actor=Actor(room.cast.admin), base_url="http://127.0.0.1:9/v1")
    judge = {"type": "judge", "name": "right", "criteria": "It books.", "endpoint": "upstream", "model": "m"}
    recipe, _ = reward_recipe(
        project=room.cast.project, name="judged", parts=[{**judge, "weight": 1}], actor=Actor(room.cast.builder)
    )
    with pytest.raises(Refused, match="each turn is judged, and judged@1 asks a judge") as refused:
        room.launch(algorithm="grpo", reward=recipe, settings={"step_rewards": True})
    assert refused.value.field == "settings.step_rewards"


def test_tasks_of_several_turns_are_trained_on(room: Room) -> None:
    games = of_games(room)
    room.build.overridden(room.base, games)
    assert room.launch(algorithm="rloo", task_set=games).dataset.kind == "tasks"


def test_tasks_at_a_tool_server_are_trained_on(room: Room) -> None:
    config = {"base_url": "http://tools:8000", "tools": TOOLS, "max_turns": 3}
    task_set = of_kind(room, "tool_server", config)
    room.evaluated(task_set=task_set)
    room.build.overridden(room.base, task_set)
    assert room.launch(algorithm="grpo", task_set=task_set).task_set == task_set


def test_somebody_elses_benchmark_is_never_trained_on(room: Room) -> None:
    task_set = of_kind(room, "nemo_gym", {"base_url": "http://gym:8000", "tools": [], "max_turns": 1})
    room.evaluated(task_set=task_set)
    with pytest.raises(Refused, match=r"all its tasks are held-out.* Attach a tool server of your own") as refused:
        room.launch(algorithm="grpo", task_set=task_set)
    assert refused.value.field == "algorithm"


def test_tasks_of_several_turns_are_recommended_to_who_plays_episodes(room: Room) -> None:
    blocked = {
        task_set.name: next(fix for fix in recommendation_for(room.base, task_set).ladder if fix["fix"] == "rlvr")
        for task_set in (room.task_set, of_games(room))
    }
    assert "turns" not in blocked["mail"]["blocked_by"]
    assert "take up to 8 turns" in blocked["games"]["blocked_by"]


def of_kind(room: Room, kind: str, config: dict[str, Any], name: str = "") -> TaskSet:
    """A set of another kind, without a baseline."""
    environment = environment_versions.environment(
        project=room.cast.project,
        name=name or kind,
        actor=Actor(room.cast.admin),
        config=config,
        verifier={"kind": kind},
        terms=Terms(kind),
    )
    return room.build.task_set(name=name or kind, environment=environment)


def of_games(room: Room) -> TaskSet:
    """A set of a kind whose episodes have several turns, with its baseline."""
    task_set = of_kind(room, "tictactoe", {}, name="games")
    for number, (task, game) in enumerate(zip(task_set.tasks.all(), tictactoe.generate(12, seed=1), strict=True)):
        Task.objects.filter(pk=task.pk).update(prompt=f"{game.prompt} {number}", target=game.target, state=game.state)
    room.evaluated(task_set=task_set)
    return task_set


def test_a_version_without_weights_cannot_be_trained(room: Room) -> None:
    with pytest.raises(Refused, match="uses a hosted model"):
        room.launch(base=room.build.version(system_prompt="another"))


def test_without_a_baseline_nothing_compares(room: Room) -> None:
    with pytest.raises(Refused, match=r"evaluate assistant@1 on the held-out tasks of other@\d+ first"):
        room.launch(task_set=room.build.task_set(name="other"))


def test_another_fix_than_the_recommended_needs_a_reason_that_is_kept(room: Room) -> None:
    recommended(room)
    with pytest.raises(Refused, match="SFT on corrected actions is recommended and GRPO was chosen"):
        room.launch(algorithm="grpo", override_reason="")
    run = room.launch(algorithm="grpo", override_reason=" we want to see it ")
    assert run.override_reason == "we want to see it"
    assert AuditEntry.objects.get(action="training.launch").reason == "we want to see it"


def test_the_recommended_fix_needs_none(room: Room) -> None:
    recommended(room)
    run = room.launch(override_reason="")
    assert run.override_reason == ""
    assert run.recommendation is not None
    assert run.recommendation.ladder[0]["fix"] == "sft"


def test_a_recommendation_about_something_else_does_not_count(room: Room) -> None:
    other = room.build.task_set(name="other")
    with pytest.raises(Refused, match="is not about"):
        room.launch(recommendation=recommendation_for(room.base, other))


def test_a_judge_is_a_reward_where_somebody_can_ask_it(room: Room) -> None:
    set_upstream(project=room.cast.project, actor=Actor(room.cast.admin), base_url="http://127.0.0.1:9/v1")
    part = {"type": "judge", "criteria": "It books.", "endpoint": "upstream", "model": "m"}
    version = room.task_set.environment_version
    environment_versions.environment_version(
        environment=version.environment,
        actor=Actor(room.cast.builder),
        config=version.config,
        verifier={"kind": "rubric", "parts": [part]},
    )
    room.task_set = room.build.task_set()
    room.baseline = room.evaluated()
    room.build.overridden(room.base, room.task_set)
    assert room.launch(algorithm="grpo").algorithm == "grpo"
    with pytest.raises(Refused, match=r"each turn is judged, and .* asks a judge"):
        room.launch(algorithm="grpo", settings={"step_rewards": True})
    set_upstream(project=room.cast.project, actor=Actor(room.cast.admin), base_url="")
    with pytest.raises(Refused, match=r"parts\.0\.endpoint: this project has no upstream") as refused:
        room.launch(algorithm="grpo")
    assert refused.value.field == "algorithm"


def test_a_double_click_makes_one_run(room: Room) -> None:
    key = uuid.uuid4()
    fields: dict[str, Any] = {"key": key, "base": room.base, "algorithm": "sft", "task_set": room.task_set}
    first, made = launch(LaunchRequest(**fields, override_reason="a test"), Actor(room.cast.trainer))
    again, made_again = launch(LaunchRequest(**fields), Actor(room.cast.trainer))
    assert (again, made, made_again) == (first, True, False)
    assert AuditEntry.objects.filter(action="training.launch").count() == 1


def test_everything_is_frozen(room: Room) -> None:
    run = room.launch(settings={"steps": 7})
    assert (run.base, run.baseline, run.task_set) == (room.base, room.baseline, room.task_set)
    assert (run.settings["steps"], run.total, run.state) == (7, 7, State.QUEUED)
    assert run.settings["learning_rate"] == 1e-3
    assert run.spec_digest == room.launch(settings={"steps": 7}).spec_digest
    assert run.spec_digest != room.launch(settings={"steps": 8}).spec_digest


def test_a_big_model_gets_the_learning_rate_of_big_models(room: Room) -> None:
    weights = Artifact.objects.create(digest="b" * 64, manifest={}, kind="model", size=16_000_000_000)
    room.base = room.build.version(weights=weights)
    room.baseline = room.evaluated()
    assert room.launch().tuning["mode"] == "lora"
    assert room.launch().settings["learning_rate"] == 1e-4
    assert room.launch(tuning={"mode": "full"}).settings["learning_rate"] == 1e-5
    assert room.launch(settings={"learning_rate": 3e-3}).settings["learning_rate"] == 3e-3


def test_a_dataset_must_fit_the_algorithm_and_the_set(room: Room) -> None:
    tasks = dataset_builder.build(name="practice", kind="tasks", task_set=room.task_set, actor=Actor(room.cast.trainer))
    assert room.launch(algorithm="grpo", dataset=tasks).dataset == tasks
    with pytest.raises(Refused, match="SFT wants demonstrations"):
        room.launch(dataset=tasks)


def test_cancel_and_resume_are_written_down_and_refused_when_too_late(room: Room) -> None:
    run = room.launch()
    run.cancel(Actor(room.cast.trainer))
    run.refresh_from_db()
    assert run.state == State.CANCELLED
    with pytest.raises(StaleState):
        run.cancel(Actor(room.cast.trainer))
    run.resume(Actor(room.cast.trainer))
    run.refresh_from_db()
    assert run.state == State.QUEUED
    with pytest.raises(StaleState):
        run.resume(Actor(room.cast.trainer))
    assert [entry.action for entry in AuditEntry.objects.filter(subject=str(run))] == [
        "training.resume",
        "training.cancel",
        "training.launch",
    ]


def test_a_replay_whose_tools_a_model_plays_is_trained_on_where_somebody_can_ask_it(room: Room) -> None:
    set_upstream(project=room.cast.project, actor=Actor(room.cast.admin), base_url="http://127.0.0.1:9/v1")
    simulator = {"endpoint": "upstream", "model": "m"}
    config = {"tools": TOOLS, "judged": "end", "unknown": "model", "simulator": simulator}
    task_set = of_kind(room, "episode", config)
    room.evaluated(task_set=task_set)
    room.build.overridden(room.base, task_set)
    assert room.launch(algorithm="grpo", task_set=task_set).task_set == task_set
    set_upstream(project=room.cast.project, actor=Actor(room.cast.admin), base_url="")
    with pytest.raises(Refused, match=r"simulator\.endpoint: this project has no upstream") as refused:
        room.launch(algorithm="grpo", task_set=task_set)
    assert refused.value.field == "algorithm"
