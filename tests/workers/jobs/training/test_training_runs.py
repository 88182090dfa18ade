"""Training runs as workers carry them out: real workers, real trainers, the policy that ships, and what can go wrong.

Trainers are killed, workers are killed and stopped, disks fill up. In the end every step is in the database once, and
every job that failed says why.
"""

import json
import os
import resource
import shutil
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.conf import settings
from django.test import Client
from safetensors.numpy import save_file

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.agents import artifacts
from flywheel.agents.models import Version
from flywheel.agents.weights import lora_adapters
from flywheel.edge.jobs import State
from flywheel.environments.models import Opening, Split, Task, TaskSet
from flywheel.evals.models import EvalRun
from flywheel.training.datasets.dataset_builder import build as dataset
from flywheel.training.datasets.dataset_mix import mix
from flywheel.training.launch import run_budgets
from flywheel.training.launch.run_control import LaunchRequest, launch
from flywheel.training.models import Point, TrainingRun
from flywheel.training.runs import run_files, run_repeats
from tests.conftest import Build, Cast
from tests.pages import page_of
from tests.worker import Worker
from workers.jobs.training import trainer_process, training_runs
from workers.jobs.training.trainer_process import TrainingFailed
from workers.trainers.run import checkpoints, run_spec

pytestmark = pytest.mark.django_db(transaction=True)

STEPS = 120
"""Evaluation and checkpoint come every 20 steps, and a step takes some 50 ms: enough to meet a run half-way."""
PATIENCE_S = 300.0
Launch = Callable[..., TrainingRun]


@pytest.fixture
def launched(build: Build, cast: Cast) -> Launch:
    """Launches a run on the policy that ships; any argument of `launch` can be given, `steps` too."""

    def go(steps: int = STEPS, algorithm: str = "sft", task_set: TaskSet | None = None, **fields: Any) -> TrainingRun:
        more = fields.pop("settings", {})
        base = fields.pop("base", None) or version(build)
        task_set = task_set or build.task_set(train=6, held_out=5)
        baseline(cast, base, task_set)
        build.overridden(base, task_set)
        batch = {"batch_size": 8} if algorithm != "sft" else {"batch_size": 4}
        answers = {} if algorithm == "reward_model" else {"max_completion_length": 32}
        request = LaunchRequest(
            key=uuid.uuid4(),
            base=base,
            algorithm=algorithm,
            task_set=task_set,
            settings={"steps": steps, "learning_rate": 1e-4, **answers, **batch, **more},
            override_reason="a test",
            **fields,
        )
        return launch(request, Actor(cast.trainer))[0]

    return go


def version(build: Build, **fields: Any) -> Version:
    weights = fields.pop("weights", None) or artifacts.store(Path(settings.REFERENCE_POLICY), "model")
    return build.version(weights=weights, base_model="flywheel-reference", **fields)


def baseline(cast: Cast, base: Version, task_set: TaskSet) -> EvalRun:
    """A finished eval of the base, as far as a launch looks at it."""
    success = {"mean": 0.4, "low": 0.2, "high": 0.6, "n": 5, "unscored": 0, "clusters": 5, "method": "given"}
    return EvalRun.objects.create(
        project=cast.project,
        created_by=cast.trainer,
        version=base,
        task_set=task_set,
        samples=1,
        sampling={"temperature": 0.7, "top_p": 1.0, "max_tokens": 32},
        state=State.SUCCEEDED,
        summary={"metrics": {"success": success}},
    )


def steps_of(run: TrainingRun) -> list[int]:
    return list(run.points.filter(kind=Point.Kind.STEP).order_by("step").values_list("step", flat=True))


def log_of(run: TrainingRun) -> str:
    return "\n".join(run.events.values_list("text", flat=True))


def trainer_of(run: TrainingRun) -> int:
    return int((run.directory / "trainer.pid").read_text())


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that is dead and not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def until_checkpoint(worker: Worker, run: TrainingRun) -> None:
    """Wait until the run is well under way and could be resumed."""

    def saved() -> bool:
        run.refresh_from_db()
        assert not run.is_finished, run.error
        return run.checkpoint_step is not None

    worker.wait_until(saved, f"{run} saves a checkpoint")
    assert run.done < STEPS


@pytest.mark.worker
def test_a_killed_trainer_resumes_and_its_version_is_evaluated(worker: Worker, launched: Launch) -> None:
    run = launched()
    until_checkpoint(worker, run)
    os.kill(trainer_of(run), signal.SIGKILL)
    worker.finish(run)

    assert run.state == State.SUCCEEDED, run.error
    assert run.attempt == 1
    assert "killed by SIGKILL" in log_of(run)
    assert "training from step" in log_of(run)
    assert steps_of(run) == list(range(1, STEPS + 1))
    assert run.points.filter(kind=Point.Kind.EVAL, step=0).exists()
    assert run.points.filter(kind=Point.Kind.SAMPLES, step=STEPS).exists()

    assert run.produced is not None
    assert run.produced.parent == run.base
    assert run.produced.weights != run.base.weights
    assert run.evaluation is not None
    evaluation = EvalRun.objects.get(pk=run.evaluation.pk)
    assert (evaluation.version, evaluation.samples) == (run.produced, 1)
    worker.finish(evaluation)
    assert evaluation.state == State.SUCCEEDED, evaluation.error


@pytest.mark.worker
def test_a_mix_is_learnt_from_and_every_environment_of_it_is_evaluated(
    worker: Worker, launched: Launch, build: Build, cast: Cast
) -> None:
    sets = [build.task_set(train=4, held_out=3), build.task_set(2, 3, "notes", build.environment("notes"))]
    Task.objects.filter(split=Split.TRAIN).update(bucket="wrong_tool")
    base, who = version(build), Actor(cast.trainer)
    parts = [(dataset(name=row.name, kind="sft", task_set=row, version=base, actor=who), 1.0) for row in sets]
    both = mix(name="both", parts=parts, actor=Actor(cast.trainer))
    run = launched(base=base, steps=6, task_set=sets[0], dataset=both)
    worker.finish(run)
    assert run.state == State.SUCCEEDED, run.error
    measured = run.points.filter(kind=Point.Kind.EVAL).first()
    assert measured is not None
    assert (measured.values["n"], measured.values["environments"]["notes"]["n"]) == (3, 3)
    evaluated = EvalRun.objects.filter(version=run.produced).values_list("task_set", flat=True)
    assert set(evaluated) == {row.pk for row in sets}
    assert Opening.objects.filter(task_set=sets[1], kind=Opening.Kind.TRAINING).exists()


@pytest.mark.worker
def test_another_worker_takes_over_from_a_killed_one(start_worker: Callable[..., Worker], launched: Launch) -> None:
    first = start_worker("-c", "1")
    run = launched()
    until_checkpoint(first, run)
    orphan = trainer_of(run)
    first.kill9()
    second = start_worker("-c", "1")
    second.wait_until(lambda: not is_alive(orphan), "the trainer ends with its worker")
    second.finish(run)

    assert run.state == State.SUCCEEDED, run.error
    assert run.attempt == 2
    assert "went silent" in log_of(run)
    assert "training from step" in log_of(run)
    assert steps_of(run) == list(range(1, STEPS + 1))


@pytest.mark.worker
def test_a_stopped_worker_loses_its_run_and_writes_nothing(
    start_worker: Callable[..., Worker], launched: Launch
) -> None:
    first = start_worker("-c", "1")
    run = launched()
    until_checkpoint(first, run)
    orphan = trainer_of(run)
    first.signal_all(signal.SIGSTOP)
    second = start_worker("-c", "1")
    second.wait_until(lambda: not is_alive(orphan), "the new owner ends the old trainer")
    second.finish(run)
    lines = run.events.count()
    first.signal_all(signal.SIGCONT)
    first.wait_until(lambda: "lease" in first.log, "the stopped worker notices")

    run.refresh_from_db()
    assert run.state == State.SUCCEEDED, run.error
    assert (run.attempt, run.events.count()) == (2, lines)
    assert steps_of(run) == list(range(1, STEPS + 1))


def test_a_spent_budget_ends_a_run_in_order_and_more_lets_it_go_on(launched: Launch, cast: Cast) -> None:
    run = launched(budget={"tokens": 1})

    def train() -> None:
        lease = TrainingRun.claim(run.pk)
        assert lease is not None
        with lease:
            training_runs.train(lease)
        run.refresh_from_db()

    train()
    assert (run.state, run.error_kind) == (State.CANCELLED, run_budgets.SPENT)
    assert run.error == "the budget of 1 tokens is spent"
    assert run.checkpoint_step == run.done < STEPS
    stopped_at = run.done
    run_budgets.resume(run, Actor(cast.trainer), {})
    train()
    assert run.state == State.SUCCEEDED, run.error
    assert f"training from step {stopped_at}" in log_of(run)
    assert steps_of(run) == list(range(1, STEPS + 1))


@pytest.mark.worker
def test_cancelled_runs_keep_their_checkpoint_and_the_slot_goes_to_the_next(
    worker: Worker, launched: Launch, cast: Cast
) -> None:
    run, waiting = launched(), launched(steps=6)
    until_checkpoint(worker, run)
    waiting.refresh_from_db()
    assert waiting.state == State.QUEUED
    run.cancel(Actor(cast.trainer))
    worker.finish(run)
    assert run.state == State.CANCELLED
    assert run.checkpoint_step is not None
    assert 0 < run.checkpoint_step < STEPS
    assert f"cancelled at step {run.checkpoint_step}" in log_of(run)

    worker.finish(waiting)
    assert waiting.state == State.SUCCEEDED, waiting.error

    run.resume(Actor(cast.trainer))
    worker.finish(run)
    assert run.state == State.SUCCEEDED, run.error
    assert log_of(run).count("training from the start") == 1
    assert steps_of(run) == list(range(1, STEPS + 1))


# What fails, fails with its kind and its reason, and the page shows them. These run in this process.


def carry_out(run: TrainingRun) -> TrainingRun:
    lease = TrainingRun.claim(run.pk)
    assert lease is not None
    with lease:
        training_runs.train(lease)
    run.refresh_from_db()
    return run


@pytest.fixture
def page(cast: Cast, sign_in: Callable[[User], Client]) -> Callable[[TrainingRun], str]:
    def read(run: TrainingRun) -> str:
        response = sign_in(cast.viewer).get(f"/p/{cast.project.slug}/training/runs/{run.pk}/")
        assert response.status_code == 200
        return page_of(response)

    return read


def test_a_model_that_does_not_load_is_named(
    launched: Launch, build: Build, tmp_path: Path, page: Callable[[TrainingRun], str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nonsense"}))
    save_file({"weight": np.zeros((2, 2), dtype=np.float32)}, tmp_path / "model.safetensors")
    run = carry_out(launched(base=version(build, weights=artifacts.store(tmp_path, "model"))))

    assert (run.state, run.error_kind) == (State.FAILED, "model")
    assert "does not load" in run.error
    assert "Failed: model" in page(run)
    assert "does not load" in page(run)


def test_an_adapter_whose_shapes_do_not_fit_is_named(
    launched: Launch, build: Build, tmp_path: Path, page: Callable[[TrainingRun], str]
) -> None:
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    wrong = {f"{name}.lora_A.weight": (4, 7), f"{name}.lora_B.weight": (7, 4)}
    save_file({key: np.zeros(shape, dtype=np.float32) for key, shape in wrong.items()},
              tmp_path / "adapter_model.safetensors")  # fmt: skip
    base = version(build, adapter=artifacts.store(tmp_path, "adapter"))
    run = carry_out(launched(base=base, tuning={"mode": "lora", "rank": 4, "alpha": 8}))

    assert (run.state, run.error_kind) == (State.FAILED, "adapter")
    assert "does not fit" in run.error
    assert "Failed: adapter" in page(run)


def test_what_was_trained_is_kept_when_it_cannot_be_evaluated_as_its_baseline_was(
    launched: Launch, page: Callable[[TrainingRun], str]
) -> None:
    """vLLM was stopped to make room for the training, or takes no such adapter."""
    run = launched(steps=2)
    EvalRun.objects.update(engine="vllm")
    run = carry_out(run)
    assert (run.state, run.error) == (State.SUCCEEDED, "")
    assert run.produced is not None
    assert run.evaluation is None
    assert "no vLLM server is set here" in log_of(run)
    assert "no vLLM server is set here" in page(run)


def test_a_full_disk_keeps_what_was_measured(launched: Launch, page: Callable[[TrainingRun], str]) -> None:
    run = launched(steps=6)
    assert run.base.weights is not None
    artifacts.local(run.base.weights)  # what lies in the cache already
    with files_up_to(1_000_000):
        carry_out(run)

    assert (run.state, run.error_kind) == (State.FAILED, "disk_full")
    assert steps_of(run), "the steps before it are kept"
    assert "Free some disk space, then resume" in page(run)
    run.resume(Actor(run.created_by))
    assert carry_out(run).state == State.SUCCEEDED, run.error


def test_a_verifier_that_raises_is_named(launched: Launch, build: Build, page: Callable[[TrainingRun], str]) -> None:
    task_set = build.task_set(train=2, held_out=2)
    task_set.tasks.filter(split="train").update(target={})
    run = carry_out(launched(algorithm="grpo", task_set=task_set))

    assert (run.state, run.error_kind) == (State.FAILED, "verifier")
    assert "KeyError" in run.error
    assert "Failed: verifier" in page(run)


def test_a_damaged_dataset_is_refused_before_a_trainer_starts(launched: Launch) -> None:
    run = launched()
    (settings.HOME / "artifacts" / run.dataset.file).write_text("{}\n")
    carry_out(run)
    assert (run.state, run.error_kind) == (State.FAILED, "data")
    assert "damaged" in run.error


@pytest.mark.parametrize("tuning", [{"mode": "full"}, {"mode": "lora", "rank": 4}], ids=["full", "lora"])
def test_a_repeat_makes_the_same_weights_and_the_page_says_so(
    tuning: dict[str, Any], launched: Launch, cast: Cast, page: Callable[[TrainingRun], str]
) -> None:
    run = carry_out(launched(steps=4, tuning=tuning))
    assert run.state == State.SUCCEEDED, run.error
    actor = Actor(cast.trainer)
    again = carry_out(run_repeats.repeat(run, key=uuid.uuid4(), actor=actor)[0])
    other = carry_out(run_repeats.repeat(run, key=uuid.uuid4(), actor=actor, seed=2)[0])
    assert [(each.run, each.has_same_weights) for each in run_repeats.repeats_of(again)] == [(run, True)]
    assert run.trained is not None
    assert other.trained is not None
    assert run.trained.digest != other.trained.digest
    assert "same weights, bit by bit" in page(again)
    names = {file.name for file in run_files.files_of(again)}
    assert names >= {"final/config.json" if tuning["mode"] == "full" else "final/adapter_config.json", "trainer.log"}
    assert not [name for name in names if name.endswith((".pt", ".pth", ".key"))]


def test_the_chat_template_is_set_in_training_as_in_evals(launched: Launch, build: Build) -> None:
    settings = {"enable_thinking": False}
    base = version(build, endpoint={"kind": "transformers", "chat_template_kwargs": settings})
    run = launched(base=base)
    training_runs.prepare(run, run.directory)
    training_runs.prepare(run, run.directory)  # as after a kill: it is the same run's
    spec = run_spec.read(run.directory, "sft")
    assert spec.base.chat_template_kwargs == settings


def test_a_run_has_its_teachers_weights_in_its_directory(launched: Launch, build: Build, tmp_path: Path) -> None:
    better = shutil.copytree(settings.REFERENCE_POLICY, tmp_path / "better")
    (better / "config.json").write_text((better / "config.json").read_text() + "\n")
    run = launched(algorithm="distillation", teacher=version(build, weights=artifacts.store(better, "model")))
    training_runs.prepare(run, run.directory)
    training_runs.prepare(run, run.directory)  # as after a kill: it is the same run's
    spec = run_spec.read(run.directory, "grpo")
    assert spec.teacher is not None
    assert spec.teacher.base is not None
    assert spec.teacher.base.digest == checkpoints.directory_digest(spec.teacher.base.path) != spec.base.digest
    run.teacher = version(build)
    with pytest.raises(TrainingFailed, match="holds another run"):
        training_runs.prepare(run, run.directory)


def test_a_trainer_is_told_of_the_vllm_server_where_it_samples_and_the_directory_holds_no_key(
    launched: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = launched(algorithm="grpo")
    monkeypatch.setenv("FLYWHEEL_VLLM_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("VLLM_API_KEY", "a-secret-key")
    run.settings["rollouts"] = "vllm"
    run.tuning = {"mode": "lora", "rank": 4, "alpha": 8}
    training_runs.prepare(run, run.directory)
    assert run.base.weights is not None
    assert run_spec.read(run.directory, "grpo").served_base == f"base-{run.base.weights.digest[:12]}"
    assert b"a-secret-key" not in (run.directory / "spec.json").read_bytes()
    plain, told = trainer_process._trainer_env(), trainer_process._trainer_env(*trainer_process.SERVER)
    assert {name: told[name] for name in told.keys() - plain.keys()} == {
        "FLYWHEEL_VLLM_URL": "http://127.0.0.1:1",
        "VLLM_API_KEY": "a-secret-key",
    }
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    own = trainer_process._trainer_env(*trainer_process.told_of_vllm({"rollouts": "colocate"}))
    assert (own["VLLM_CPU_KVCACHE_SPACE"], "VLLM_API_KEY" in own) == ("2", False), "that is the other server's"


def test_a_teacher_on_the_server_has_an_adapter_there_in_any_case_and_its_trainer_is_told_of_the_server(
    launched: Launch, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    better = shutil.copytree(settings.REFERENCE_POLICY, tmp_path / "better")
    (better / "config.json").write_text((better / "config.json").read_text() + "\n")
    weights = artifacts.store(better, "model")
    run = launched(algorithm="distillation", teacher=version(build, weights=weights))
    run.settings["teacher_from"] = "vllm"
    for _ in range(2):
        training_runs.prepare(run, run.directory)
    taught = run_spec.read(run.directory, "grpo").teacher
    assert taught is not None
    assert taught.adapter is not None
    assert (taught.served_base, taught.adapter.path) == (f"base-{weights.digest[:12]}", lora_adapters.identity(weights))
    monkeypatch.setattr(trainer_process, "start", lambda *given, **_: given)
    run.held = {"label": "cpu"}
    assert training_runs._start(run, run.directory, None)[2:] == trainer_process.SERVER  # type: ignore[index]


def test_a_directory_of_another_run_is_refused(launched: Launch) -> None:
    run = launched()
    training_runs.prepare(run, run.directory)
    spec = run.directory / "spec.json"
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "seed": 7}))
    carry_out(run)
    assert (run.state, run.error_kind) == (State.FAILED, "run_directory")


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file may grow beyond so many bytes, as on a disk with no room left; child processes inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.worker
def test_a_run_with_validation_gives_the_best_weights_and_says_which(worker: Worker, launched: Launch) -> None:
    run = launched(steps=24, settings={"validation_share": 0.4, "patience": 2})
    worker.finish(run)
    assert run.state == State.SUCCEEDED, run.error
    spec = json.loads((run.directory / "spec.json").read_text())
    kept = [json.loads(line) for line in (run.directory / "data/validation.jsonl").read_text().splitlines()]
    assert len(kept) == spec["data"]["validation"]["rows"] == 2
    assert spec["validation"] == {"every": 4, "limit": 64}
    points = {point.step: point.values for point in run.points.filter(kind=Point.Kind.VALIDATION)}
    assert 0 in points
    assert run.chosen_step in points
    assert points[run.chosen_step]["score"] == max(values["score"] for step, values in points.items() if step)
    assert run.produced is not None
    assert run.produced.note == f"SFT, run {run}, step {run.chosen_step}"
    assert f"the weights of step {run.chosen_step} did best on validation" in log_of(run)
    assert "4 rows, 2 aside for validation" in log_of(run)
