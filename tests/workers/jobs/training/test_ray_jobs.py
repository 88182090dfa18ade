"""Runs on a Ray cluster, with a cluster that is played: one job for a run and attempt, whoever asks and how often."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused
from flywheel.training.launch import device_choice
from flywheel.training.models import TrainingRun
from tests.waiting import wait_for
from tests.workers.jobs.training.fake_ray import Cluster, cluster
from tests.workers.jobs.training.test_training_runs import launched
from workers.jobs.training import ray_jobs, training_runs
from workers.jobs.training.ray_jobs import RayTrainer
from workers.jobs.training.trainer_process import TrainingFailed

__all__ = ["launched"]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(ray_jobs, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(ray_jobs, "SETTLE_S", 0.0)
    monkeypatch.setenv("VLLM_API_KEY", "sk-secret")
    monkeypatch.setenv("DATABASE_URL", "postgresql://flywheel:secret@h/n")
    monkeypatch.setenv("FLYWHEEL_MODEL_MEMORY", "2G")
    with cluster() as found:
        monkeypatch.setenv("FLYWHEEL_RAY_ADDRESS", found.url)
        yield found


@pytest.fixture
def start(tmp_path: Path) -> Callable[[], RayTrainer]:
    place = tmp_path / "r 7"
    place.mkdir()
    (place / "spec.json").write_text("{}")
    return lambda: RayTrainer("flywheel-r-7-ab", "workers.trainers.sft", place, processes=2)


def test_a_job_is_submitted_once_and_adopted_by_whoever_comes_next(ray: Cluster, start: Any) -> None:
    first, second = start(), start()
    assert first.is_alive()
    assert second.is_alive()
    first.leave()
    assert second.is_alive()
    assert [job["submission_id"] for job in ray.asked] == ["flywheel-r-7-ab-a1"]
    second.stop()
    assert not second.is_alive()
    third = start()
    wait_for(lambda: third.is_alive() and len(ray.asked) == 2, "the next attempt is submitted")
    assert third.name == "Ray job flywheel-r-7-ab-a2"


def test_two_that_submit_at_once_make_one_job(ray: Cluster, start: Any) -> None:
    late = start()
    late._ask = lambda: None  # it looked before the other's job was there
    assert start().is_alive()
    assert late.is_alive()
    assert len(ray.asked) == 1


def test_it_asks_for_cores_or_gpus_and_carries_no_secret(
    ray: Cluster, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start().is_alive()
    (body,) = ray.asked
    assert (body["entrypoint_num_cpus"], body["entrypoint_num_gpus"]) == (2, 0)
    told = {"PYTHONUNBUFFERED": "1", "FLYWHEEL_MODEL_MEMORY": "2G", "CUDA_VISIBLE_DEVICES": ""}
    assert body["runtime_env"] == {"env_vars": told}
    assert "secret" not in str(body)
    monkeypatch.setenv("FLYWHEEL_RAY_DEVICE", "cuda")
    ray.jobs.clear()
    start().is_alive()
    assert (ray.asked[1]["entrypoint_num_cpus"], ray.asked[1]["entrypoint_num_gpus"]) == (2, 2)
    assert "CUDA_VISIBLE_DEVICES" not in ray.asked[1]["runtime_env"]["env_vars"]


def test_a_directory_that_is_not_shared_is_named(ray: Cluster, start: Any) -> None:
    """The job's own command is run here, on a machine that has another file in its place."""
    trainer = start()
    trainer.is_alive()
    (trainer.place / "spec.json").write_text('{"another": 1}')
    done = subprocess.run(["sh", "-c", ray.asked[0]["entrypoint"]], capture_output=True, text=True)
    assert done.returncode == 66
    ray.logs = "Ray says something first\n" + done.stdout
    ray.jobs[trainer.job] = {"status": "FAILED", "message": "entrypoint failed with exit code 66"}
    with pytest.raises(TrainingFailed, match=r"r 7/spec.json is not on this machine.* share FLYWHEEL_HOME") as failed:
        trainer.is_alive()
    assert failed.value.kind == "ray_storage"


def test_a_result_that_does_not_come_here_is_told(ray: Cluster, start: Any) -> None:
    trainer = start()
    trainer.is_alive()
    ray.jobs[trainer.job] = {"status": "SUCCEEDED", "message": ""}
    with pytest.raises(TrainingFailed, match="left no result here"):
        wait_for(lambda: not trainer.is_alive(), "it has ended")


@pytest.mark.parametrize(("status", "words"), [("FAILED", "exit code 1 Killed"), (None, "knows it no more")])
def test_a_job_that_died_or_is_unknown_says_so(status: str | None, words: str, ray: Cluster, start: Any) -> None:
    trainer = start()
    trainer.is_alive()
    del ray.jobs[trainer.job]
    ray.logs = "step 3\nKilled\n"
    if status:
        ray.jobs[trainer.job] = {"status": status, "message": "exit code 1\nmore"}
    assert not trainer.is_alive()
    assert words in trainer.ending


@pytest.mark.parametrize("trouble", [500, 0.3, "away"])
def test_a_cluster_that_is_away_for_a_while_is_waited_for_and_then_named(
    trouble: Any, ray: Cluster, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_jobs, "CALL_S", 0.2)
    trainer = start()
    if trouble == "away":
        monkeypatch.setenv("FLYWHEEL_RAY_ADDRESS", "http://127.0.0.1:9")
    else:
        ray.trouble = trouble
    assert trainer.is_alive()
    if trouble == 500:
        ray.trouble = None
        assert trainer.is_alive()
        ray.trouble = trouble
    monkeypatch.setattr(ray_jobs, "AWAY_S", 0.0)
    with pytest.raises(TrainingFailed, match=r"has not answered for .* Resume the run") as failed:
        trainer.is_alive()
    assert failed.value.kind == "ray_away"


def test_what_ray_refuses_is_told(ray: Cluster, start: Any) -> None:
    trainer = start()
    trainer._ask = lambda: None
    ray.trouble = 403
    with pytest.raises(TrainingFailed, match="Ray refuses flywheel-r-7-ab-a1 with 403: no"):
        trainer.is_alive()


def test_a_job_that_still_waits_is_stopped_at_once_and_none_is_begun(ray: Cluster, start: Any) -> None:
    trainer = start()
    trainer.is_alive()
    ray.jobs[trainer.job]["status"] = "PENDING"
    (trainer.place / "CANCEL").touch()
    wait_for(lambda: not trainer.is_alive(), "it has stopped")
    ray.jobs.clear()
    assert not start().is_alive()
    assert len(ray.asked) == 1


@pytest.mark.django_db(transaction=True)
def test_a_run_trains_there_under_another_owner_too(
    ray: Cluster, launched: Callable[..., TrainingRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_runs, "POLL_S", 0.05)
    run = launched(steps=2, settings={"device": "ray"})
    first = TrainingRun.claim(run.pk)
    assert first is not None
    monkeypatch.setattr(training_runs, "_read_events", lambda *_: first._lost.set())
    with first:
        training_runs.train(first)
    run.refresh_from_db()
    assert (run.state, run.held["label"], len(ray.asked)) == (State.QUEUED, "ray", 1)
    monkeypatch.undo()
    monkeypatch.setenv("FLYWHEEL_RAY_ADDRESS", ray.url)
    monkeypatch.setattr(ray_jobs, "LOOK_EVERY_S", 0.0)
    done = subprocess.run(["sh", "-c", ray.asked[0]["entrypoint"]], check=False)
    ray.jobs[ray.asked[0]["submission_id"]] = {"status": "SUCCEEDED", "message": ""}
    second = TrainingRun.claim(run.pk)
    assert done.returncode == 0
    assert second is not None
    with second:
        training_runs.train(second)
    run.refresh_from_db()
    assert run.state == State.SUCCEEDED, run.error
    assert (run.points.filter(kind="step").count(), len(ray.asked)) == (2, 1)


def test_a_launch_without_a_cluster_or_with_vllm_is_refused(ray: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    device_choice.refuse_cluster("sft", {}, [])
    for algorithm, asking in (("grpo", {"rollouts": "vllm"}), ("distillation", {"teacher_from": "vllm"})):
        with pytest.raises(Refused, match="its key would be readable in the job"):
            device_choice.refuse_cluster(algorithm, asking, [])
    with pytest.raises(Refused, match="starts no vLLM server"):
        device_choice.refuse_cluster("grpo", {"rollouts": "colocate"}, [])
    monkeypatch.setattr(device_choice, "expected_questions", lambda *_: "judgements")
    with pytest.raises(Refused, match="which a job on a Ray cluster does not reach"):
        device_choice.refuse_cluster("grpo", {}, [])
    monkeypatch.delenv("FLYWHEEL_RAY_ADDRESS")
    with pytest.raises(Refused, match="no Ray cluster is set"):
        device_choice.refuse_cluster("sft", {}, [])
