"""Runs on a Ray cluster that shares only a storage, with a cluster that is played on a machine with another home: kills
at every turn, and a storage that is away. In the end every step is here once, and the weights are the job's."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flywheel.core import digests
from flywheel.edge.jobs import State
from flywheel.training.models import Point, TrainingRun
from flywheel.trajectories.models import Source, Trajectory
from tests.waiting import wait_for
from tests.workers.jobs.training.fake_ray import Cluster, cluster
from tests.workers.jobs.training.test_training_runs import carry_out, launched
from tests.workers.trainers.cast import Directory
from workers.jobs.training import ray_jobs, training_runs
from workers.jobs.training.ray_jobs import RayTrainer
from workers.jobs.training.trainer_process import TrainingFailed
from workers.trainers.run import checkpoints
from workers.trainers.stored.run_storage import Storage

__all__ = ["launched"]
KEY = "flywheel-r-7-ab"
STEPS = 4


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(ray_jobs, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(ray_jobs, "SETTLE_S", 0.0)
    for name in ("machine", "storage", "go", "base"):
        (tmp_path / name).mkdir()
    with cluster() as found:
        found.machine = tmp_path / "machine"
        monkeypatch.setenv("FLYWHEEL_RAY_ADDRESS", found.url)
        monkeypatch.setenv("FLYWHEEL_RAY_STORAGE", f"file://{tmp_path}/storage")
        yield found


@pytest.fixture
def run(tmp_path: Path, ray: Cluster) -> Directory:
    (tmp_path / "base" / "weight").write_text("the base")
    environment = {"kind": "tool_call", "go": str(tmp_path / "go")}
    home = tmp_path / "ours"
    home.mkdir()
    return Directory(home / "r 7", tmp_path / "base", steps=STEPS, environment=environment, checkpoint_every=2)


@pytest.fixture
def go(tmp_path: Path) -> Callable[[int], None]:
    """Lets the trainer make its steps up to this one."""

    def allow(step: int) -> None:
        for each in range(1, step + 1):
            (tmp_path / "go" / f"step-{each}").touch()

    return allow


def owner(run: Directory) -> RayTrainer:
    return RayTrainer(KEY, "tests.workers.trainers.stored.played_trainer", run.path)


def resumed(run: Directory) -> RayTrainer:
    """The owner of a run that was asked to stop and is to go on."""
    (run.path / "CANCEL").unlink()
    (run.path / "result.json").unlink()
    return owner(run)


def follow(trainer: RayTrainer, until: Callable[[], Any], what: str) -> None:
    def comes() -> bool:
        assert trainer.is_alive(), trainer.ending
        return bool(until())

    wait_for(comes, what)


def ends(trainer: RayTrainer) -> None:
    wait_for(lambda: not trainer.is_alive(), "it has ended")


def steps(run: Directory) -> list[int]:
    return [row["step"] for row in run.events("step")]


def folders(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "storage" / "runs" / KEY).glob("*"))


def test_a_run_trains_where_nothing_of_ours_is_seen(ray: Cluster, run: Directory, go: Any, tmp_path: Path) -> None:
    trainer = owner(run)
    go(STEPS)
    ends(trainer)
    assert (run.result["status"], trainer.status) == ("completed", "SUCCEEDED")
    assert (run.path / "final" / "weights").read_text() == "the base after 4"
    assert (steps(run), run.steps_kept) == ([1, 2, 3, 4], [2, 4])
    assert (run.path / "trainer.log").read_text().splitlines()[-1] == "step 4 from the base"
    assert sorted(path.name for path in (run.path / "attempts").iterdir()) == [f"step-{n}.jsonl" for n in range(1, 5)]
    key = checkpoints.key_of(run.path)
    (body,) = ray.asked
    assert str(run.path.parent) not in body["entrypoint"] + str(body["metadata"])
    assert body["runtime_env"]["env_vars"]["FLYWHEEL_RUN_KEY"] == key.hex()
    assert folders(tmp_path) == [], "a run that is over leaves nothing of its own in the storage"
    assert [key for path in (tmp_path / "storage").rglob("*") if path.is_file() and key in path.read_bytes()] == []
    assert [path.name for path in (tmp_path / "machine").iterdir()] == ["job.log"]


def test_a_run_is_cancelled_through_the_storage_and_another_job_goes_on(
    ray: Cluster, run: Directory, go: Any, tmp_path: Path
) -> None:
    trainer = owner(run)
    go(1)
    follow(trainer, lambda: steps(run) == [1], "its step is seen here")
    (run.path / "CANCEL").touch()
    ends(trainer)
    assert (run.result["status"], run.steps_kept) == ("cancelled", [1])
    again = resumed(run)
    go(STEPS)
    ends(again)
    assert (run.result["status"], steps(run), again.number) == ("completed", [1, 2, 3, 4], 2)
    assert run.events("training_start")[-1]["resumed_from"] == 1
    assert folders(tmp_path) == []


def test_a_job_that_is_killed_between_checkpoints_is_followed_by_one_from_the_last(
    ray: Cluster, run: Directory, go: Any
) -> None:
    trainer = owner(run)
    go(3)
    follow(
        trainer, lambda: steps(run) == [1, 2, 3] and (run.path / "checkpoints" / "step-2").exists(), "it came so far"
    )
    os.kill(ray.processes[0].pid, signal.SIGKILL)
    ends(trainer)
    assert trainer.status == "FAILED"
    again = owner(run)
    go(STEPS)
    ends(again)
    assert (run.result["status"], steps(run)) == ("completed", [1, 2, 3, 3, 4])
    assert run.events("training_start")[-1]["resumed_from"] == 2
    assert [path.name for path in (ray.machine or run.path).iterdir()] == ["job.log"], "what was left is swept"


def test_a_job_that_is_stopped_saves_what_there_is(ray: Cluster, run: Directory, go: Any) -> None:
    trainer = owner(run)
    go(1)
    follow(trainer, lambda: steps(run) == [1], "its step is seen here")
    trainer.stop()
    assert ray.wait() == 0
    again = owner(run)
    go(STEPS)
    ends(again)
    assert (run.events("training_start")[-1]["resumed_from"], steps(run)) == (1, [1, 2, 3, 4])


def test_another_owner_brings_what_was_made_while_nobody_followed(ray: Cluster, run: Directory, go: Any) -> None:
    """The first owner died in the middle of a piece; the job went on, to its end."""
    trainer = owner(run)
    go(1)
    follow(trainer, lambda: steps(run) == [1], "its step is seen here")
    content = (run.path / "events.jsonl").read_bytes()
    (run.path / "events.jsonl").write_bytes(content[:-20])
    go(STEPS)
    assert ray.wait() == 0
    second = owner(run)
    ends(second)
    assert (run.result["status"], steps(run), len(ray.asked)) == ("completed", [1, 2, 3, 4], 1)
    assert (run.path / "events.jsonl").read_bytes().startswith(content)


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_job_that_was_lost_and_lives_writes_over_nothing_and_is_asked_to_stop(
    is_seen: bool, ray: Cluster, run: Directory, go: Any, tmp_path: Path
) -> None:
    """The head forgot it, before or after its owner died."""
    trainer = owner(run)
    go(2)
    follow(trainer, lambda: (run.path / "checkpoints" / "step-2").exists(), "a checkpoint is here")
    ray.jobs.clear()
    if is_seen:
        ends(trainer)
        assert trainer.status == "LOST"
    again = owner(run)
    follow(again, lambda: len(ray.asked) == 2, "another job is submitted")
    assert ray.asked[1]["submission_id"] == ray.asked[0]["submission_id"]
    assert ray.wait(0) == 0, "the lost one saved and stopped"
    go(STEPS)
    ends(again)
    assert (run.result["status"], steps(run)) == ("completed", [1, 2, 3, 4])
    assert [row["resumed_from"] for row in run.events("training_start")] == [None, 2]
    assert len(folders(tmp_path)) == 1, "what the lost one still wrote is its own"


def test_a_job_that_was_lost_hears_of_a_cancel(ray: Cluster, run: Directory, go: Any) -> None:
    trainer = owner(run)
    go(1)
    follow(trainer, lambda: steps(run) == [1], "its step is seen here")
    ray.jobs.clear()
    (run.path / "CANCEL").touch()
    again = owner(run)
    ends(again)
    assert ray.wait() == 0
    assert len(ray.asked) == 1


def test_a_run_that_ended_before_the_head_forgot_it_is_not_trained_again(ray: Cluster, run: Directory, go: Any) -> None:
    trainer = owner(run)
    go(STEPS)
    follow(trainer, lambda: ray.processes, "it has begun")
    assert ray.wait() == 0
    ray.jobs.clear()
    again = owner(run)
    ends(again)
    assert (run.result["status"], steps(run), len(ray.asked)) == ("completed", [1, 2, 3, 4], 1)


def test_a_storage_that_is_away_for_a_while_costs_nothing(
    ray: Cluster, run: Directory, go: Any, tmp_path: Path
) -> None:
    trainer = owner(run)
    go(1)
    follow(trainer, lambda: steps(run) == [1], "its step is seen here")
    (tmp_path / "storage").rename(tmp_path / "away")
    go(STEPS)
    assert ray.machine is not None
    log = ray.machine / "job.log"
    follow(trainer, lambda: "is no folder on this machine" in log.read_text(), "the job has seen it too")
    (tmp_path / "away").rename(tmp_path / "storage")
    ends(trainer)
    assert (run.result["status"], steps(run), run.steps_kept) == ("completed", [1, 2, 3, 4], [2, 4])


def test_a_storage_that_stays_away_is_named_and_the_run_can_be_resumed(
    ray: Cluster, run: Directory, go: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = owner(run)
    go(2)
    follow(trainer, lambda: (run.path / "checkpoints" / "step-2").exists(), "a checkpoint is here")
    (tmp_path / "storage").rename(tmp_path / "away")
    with monkeypatch.context() as short:
        short.setattr(ray_jobs, "AWAY_S", 1.0)
        with pytest.raises(TrainingFailed, match=r"is no folder on this machine.* Resume the run") as failed:
            ends(trainer)
    assert failed.value.kind == "ray_storage"
    ray.end()
    (tmp_path / "away").rename(tmp_path / "storage")
    again = owner(run)
    go(STEPS)
    ends(again)
    assert (run.result["status"], run.events("training_start")[-1]["resumed_from"]) == ("completed", 2)


def test_what_was_put_by_half_is_put_again(
    ray: Cluster, run: Directory, go: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner dies with each file in turn, before it has its name."""
    put = Storage.put
    for dies_at in range(3):
        count = iter(range(10))

        def dies(self: Storage, source: Path, name: str, count: Any = count, dies_at: int = dies_at) -> None:
            if next(count) == dies_at:
                raise SystemExit
            put(self, source, name)

        with monkeypatch.context() as dying:
            dying.setattr(Storage, "put", dies)
            with pytest.raises(SystemExit):
                owner(run).is_alive()
        assert not ray.asked
        assert not list((tmp_path / "storage").rglob("given.json"))
    trainer = owner(run)
    go(STEPS)
    ends(trainer)
    assert run.result["status"] == "completed"


def test_damaged_weights_are_named_and_put_again_once_removed(
    ray: Cluster, run: Directory, go: Any, tmp_path: Path
) -> None:
    trainer = owner(run)
    go(STEPS)
    ends(trainer)
    (run.path / "result.json").unlink()
    sources = tmp_path / "storage" / "sources"
    digest = run.spec["base"]["digest"]
    (sources / digest / "weight").write_text("the bose")
    again = owner(run)
    with pytest.raises(
        TrainingFailed, match=r"weight is not what its SHA-256 says.* Remove sources/\w+\.json"
    ) as failed:
        ends(again)
    assert failed.value.kind == "ray_storage"
    (sources / f"{digest}.json").unlink()
    shutil.rmtree(sources / digest)
    third = owner(run)
    ends(third)
    assert (run.result["status"], third.number) == ("completed", 3)


def test_what_somebody_else_wrote_there_is_not_taken(ray: Cluster, run: Directory, go: Any, tmp_path: Path) -> None:
    trainer = owner(run)
    go(2)
    follow(trainer, lambda: (run.path / "checkpoints" / "step-2").exists(), "a checkpoint is here")
    ray.processes[0].kill()
    ray.wait()
    (made,) = (tmp_path / "storage").rglob("made.json")
    made.write_bytes(made.read_bytes().replace(b'"size":9', b'"size":8'))
    with pytest.raises(TrainingFailed, match="was not signed by this run's job"):
        ends(trainer)


def test_a_storage_that_takes_no_more_ends_the_job_which_says_so(
    ray: Cluster, run: Directory, go: Any, tmp_path: Path
) -> None:
    trainer = owner(run)
    go(1)
    follow(trainer, lambda: steps(run) == [1], "its step is seen here")
    (made,) = (tmp_path / "storage").rglob("made")
    (made / "checkpoints").write_text("a file in its place, which is no matter of time")
    go(2)
    with pytest.raises(TrainingFailed, match=r"checkpoints/step-2/.* cannot be looked at") as failed:
        ends(trainer)
    assert failed.value.kind == "ray_storage"
    assert ray.wait() == 66


def test_a_package_that_is_missing_and_a_disk_that_is_full_are_named(
    run: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = owner(run)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    assert trainer.stored is not None
    monkeypatch.setattr(trainer.stored.storage._files, "put_file", full)
    with pytest.raises(TrainingFailed, match="the disk is full; make room and resume") as failed:
        trainer.is_alive()
    assert failed.value.kind == "ray_storage"
    monkeypatch.setenv("FLYWHEEL_RAY_STORAGE", "gs://bucket/flywheel")
    with pytest.raises(TrainingFailed, match=r"needs a Python package that this machine lacks: .*gcsfs"):
        owner(run)


def test_a_machine_without_flywheel_is_named(ray: Cluster, run: Directory, tmp_path: Path) -> None:
    ray.machine = None
    trainer = owner(run)
    trainer.is_alive()
    command = ray.asked[0]["entrypoint"]
    done = subprocess.run(["/bin/sh", "-c", command], env={"PATH": "/nowhere"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[0][:40]) == (66, "flywheel: `python` of Ray's jobs has no ")


@pytest.mark.django_db(transaction=True)
def test_a_version_comes_of_it_and_another_owner_finds_the_job(
    ray: Cluster, launched: Callable[..., TrainingRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a real trainer: the first owner loses the run as soon as it has read something."""
    monkeypatch.setattr(training_runs, "POLL_S", 0.05)
    run = launched(steps=4, settings={"device": "ray"})
    first = TrainingRun.claim(run.pk)
    assert first is not None
    with monkeypatch.context() as losing, first:
        losing.setattr(training_runs, "_read_events", lambda *_: first._lost.set() if ray.processes else None)
        training_runs.train(first)
    second = TrainingRun.claim(run.pk)
    assert second is not None
    with second:
        training_runs.train(second)
    run.refresh_from_db()
    assert run.state == State.SUCCEEDED, run.error
    assert (run.points.filter(kind="step").count(), len(ray.asked)) == (4, 1)
    assert run.produced is not None
    assert "training from the start" in " ".join(event.text for event in run.events.all())
    spec = (run.directory / "spec.json").read_bytes()
    kept, rejected = checkpoints.newest(run.directory, digests.digest(json.loads(spec)))
    assert (kept is not None, rejected) == (True, []), "the paths on the other machine are no part of the spec"


@pytest.mark.django_db(transaction=True)
def test_a_policy_is_reinforced_there(ray: Cluster, launched: Callable[..., TrainingRun]) -> None:
    """The job samples, scores and learns; what it sampled comes back as trajectories."""
    run = carry_out(launched(algorithm="grpo", steps=2, settings={"device": "ray", "num_generations": 4}))
    assert run.state == State.SUCCEEDED, run.error
    assert len(ray.asked) == 1
    assert run.produced is not None
    assert run.trained is not None
    assert run.base.weights is not None
    assert run.trained.digest != run.base.weights.digest
    figures = [point.values for point in run.points.filter(kind=Point.Kind.STEP).order_by("step")]
    assert [each["unscored"] for each in figures] == [0, 0]
    assert all(-1 <= each["reward_mean"] <= 1 for each in figures)
    assert {each.step for each in run.tried.all()} <= {1, 2}
    assert run.tried.count() == Trajectory.objects.filter(source=Source.TRAINING).count() > 0
