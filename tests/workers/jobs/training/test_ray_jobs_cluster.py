"""The same on Ray itself, by `make test-ray`: a cluster of one head on this machine, in an environment of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from django.conf import settings

from tests.benching.processes import free_port
from tests.waiting import wait_for
from tests.workers.trainers.cast import Directory
from tests.workers.trainers.conftest import base
from workers.jobs.training import ray_jobs
from workers.jobs.training.ray_jobs import RayTrainer
from workers.jobs.training.trainer_process import TrainingFailed
from workers.trainers.run import checkpoints

__all__ = ["base"]
STEPS = 1000
RAY = settings.BASE_DIR / ".venv-ray" / "bin" / "ray"
HEAD = "--head --block --node-ip-address=127.0.0.1 --dashboard-host=127.0.0.1 --disable-usage-stats --num-cpus=2"

pytestmark = pytest.mark.skipif(
    os.environ.get("FLYWHEEL_TEST_RAY") != "yes" or not RAY.exists(), reason="make test-ray installs and tries Ray"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a head that ends with the module, with everything that it started. Its jobs have another home, and
    `python` is one with Flywheel."""
    place = tempfile.mkdtemp(prefix="ray")  # its sockets want a short path
    home = tmp_path_factory.mktemp("machine")
    known = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(settings.BASE_DIR),
        "HOME": str(home),
        "TMPDIR": str(home),
        "FLYWHEEL_HOME": str(home / "flywheel"),
    }
    gcs, dashboard = free_port(), free_port()
    ports = [f"--port={gcs}", f"--dashboard-port={dashboard}", "--min-worker-port=0", "--max-worker-port=0"]
    memory = ["--object-store-memory=80000000", f"--temp-dir={place}", f"--ray-client-server-port={free_port()}"]
    with open(f"{place}.log", "wb") as log:
        head = subprocess.Popen(
            [RAY, "start", *HEAD.split(), *ports, *memory], stdout=log, stderr=log, start_new_session=True, env=known
        )

    def answers() -> bool:
        assert head.poll() is None, Path(f"{place}.log").read_text()[-3000:]
        try:
            return bool(urlopen(f"http://127.0.0.1:{dashboard}/api/version", timeout=2).status == 200)
        except (URLError, OSError):
            return False

    try:
        wait_for(answers, "Ray is up")
        yield f"http://127.0.0.1:{dashboard}"
    finally:
        head.terminate()
        try:
            head.wait(20)
        finally:
            for pid in [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]:
                if _session(pid) == head.pid:
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(place, ignore_errors=True)
            os.unlink(f"{place}.log")


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


@pytest.fixture(autouse=True)
def address(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_RAY_ADDRESS", cluster)
    monkeypatch.setattr(ray_jobs, "LOOK_EVERY_S", 0.2)


def test_a_run_trains_on_ray_and_the_same_again_is_the_same_job(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Directory(tmp_path / "r-1", base, steps=2)
    first, second = (RayTrainer("flywheel-r-1", "workers.trainers.sft", run.path) for _ in range(2))
    assert first.is_alive()
    monkeypatch.setattr(first, "_ask", lambda: None)  # as if it had not heard that its job was taken
    first.status = ""
    assert first.is_alive(), "Ray refuses the id, so the job is there"
    wait_for(lambda: not second.is_alive(), "the other owner follows it to its end")
    assert (second.status, second.number) == ("SUCCEEDED", 1)
    assert (run.result["status"], len(run.events("step"))) == ("completed", 2)
    assert len(run.events("training_start")) == 1


def test_a_job_is_stopped_in_order_or_at_once_and_another_one_goes_on(base: Path, tmp_path: Path) -> None:
    run = Directory(tmp_path / "r-2", base, steps=100_000, checkpoint_every=100_000)

    def trains() -> RayTrainer:
        trainer = RayTrainer("flywheel-r-2", "workers.trainers.sft", run.path)
        before = len(run.events("step"))
        wait_for(lambda: trainer.is_alive() and len(run.events("step")) > before, "it trains")
        return trainer

    trainer = trains()
    (run.path / "CANCEL").touch()
    wait_for(lambda: not trainer.is_alive(), "it has saved and stopped")
    assert (run.result["status"], trainer.status) == ("cancelled", "SUCCEEDED")
    (run.path / "CANCEL").unlink()
    (run.path / "result.json").unlink()
    again = trains()
    assert run.events("training_start")[-1]["resumed_from"]
    again.stop()
    assert (again.status, again.number) == ("STOPPED", 2)
    assert not again.is_alive()


def test_a_directory_that_the_cluster_does_not_see_is_named(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Directory(tmp_path / "r-3", base, steps=2)
    trainer = RayTrainer("flywheel-r-3", "workers.trainers.sft", run.path)
    command = trainer._command().replace("spec.json", "other.json")
    monkeypatch.setattr(trainer, "_command", lambda: command)
    with pytest.raises(TrainingFailed, match=r"other\.json is not on this machine"):
        wait_for(lambda: not trainer.is_alive(), "it has failed")


def test_a_run_goes_there_and_back_through_a_storage(
    base: Path, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped in order, then at once, and completes; the base is not where it was from the start of the first
    job."""
    (tmp_path / "storage").mkdir()
    monkeypatch.setenv("FLYWHEEL_RAY_STORAGE", f"file://{tmp_path}/storage")
    ours = tmp_path / "ours"
    shutil.copytree(base, ours / "base")
    run = Directory(ours / "r-4", ours / "base", steps=STEPS, checkpoint_every=20)
    trainer = RayTrainer("flywheel-r-4", "workers.trainers.sft", run.path)
    assert trainer.is_alive()
    (ours / "base").rename(tmp_path / "base")
    wait_for(lambda: trainer.is_alive() and run.steps_kept, "a checkpoint is here")
    (run.path / "CANCEL").touch()
    wait_for(lambda: not trainer.is_alive(), "it has saved and stopped", lambda: trainer.ending)
    assert (run.result["status"], trainer.status) == ("cancelled", "SUCCEEDED")
    stopped_at = run.result["step"]
    assert max(run.steps_kept) == stopped_at
    for name in ("CANCEL", "result.json"):
        (run.path / name).unlink()
    again = RayTrainer("flywheel-r-4", "workers.trainers.sft", run.path)
    wait_for(lambda: again.is_alive() and max(run.steps_kept) > stopped_at, "it goes on")
    again.stop()
    assert (again.status, again.number) == ("STOPPED", 2)
    last = RayTrainer("flywheel-r-4", "workers.trainers.sft", run.path)
    wait_for(lambda: not last.is_alive(), "it has ended", lambda: last.ending)
    assert (run.result["status"], last.number) == ("completed", 3)
    assert sorted(run.metrics()) == list(range(1, STEPS + 1))
    starts = [row["resumed_from"] for row in run.events("training_start")]
    assert starts[:2] == [None, stopped_at]
    assert starts[2] > stopped_at
    assert checkpoints.files_of(run.path / "final") == run.result["files"]
    assert list((tmp_path / "storage" / "runs").rglob("*.json*")) == []
    seen = json.loads(urlopen(f"{cluster}/api/jobs/").read())
    told = [str(job) for job in seen if job["submission_id"].startswith("flywheel-r-4")]
    assert len(told) == 3
    assert not any(str(ours) in job for job in told)


@pytest.mark.parametrize("is_stored", [False, True], ids=["shared home", "storage"])
def test_a_policy_is_reinforced_on_ray(
    is_stored: bool, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job samples its groups and scores them where it is; each step and what was sampled is seen here."""
    if is_stored:
        (tmp_path / "storage").mkdir()
        monkeypatch.setenv("FLYWHEEL_RAY_STORAGE", f"file://{tmp_path}/storage")
    run = Directory(tmp_path / "r-5", base, "grpo", steps=3, keep_attempts=24)
    trainer = RayTrainer(f"flywheel-r-5-{is_stored}", "workers.trainers.grpo", run.path)
    wait_for(lambda: not trainer.is_alive(), "it has ended", lambda: trainer.ending)
    assert (run.result["status"], trainer.status) == ("completed", "SUCCEEDED"), trainer.ending
    assert [row["step"] for row in run.events("step")] == [1, 2, 3]
    assert all("reward_mean" in figures for figures in run.metrics().values())
    assert len(list((run.path / "attempts").iterdir())) == 3
    assert checkpoints.files_of(run.path / "final") == run.result["files"]
