"""A server of the run's own: it is started and proved, sleeps while the trainer learns, and outlives no trainer."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from flywheel.core import recipes
from tests.waiting import wait_for
from tests.workers.trainers.attempts.served_policy import BASE, installed
from tests.workers.trainers.attempts.test_remote_policy import directory, proofs
from tests.workers.trainers.cast import Directory, Make, Start, owned, slow
from workers.trainers.attempts import own_server
from workers.trainers.attempts.own_server import OwnServer
from workers.trainers.run.run_failures import TrainingError

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning")

OWN = {"rollouts": "colocate", "vllm_memory_share": 0.3}


def beside(place: str) -> None:
    """A hook: vLLM is installed there."""
    recipes.SERVE = Path(place)


def slowly(place: str) -> None:
    """A hook: and steps last."""
    beside(place)
    slow(0.3)


def on_a_gpu(place: str) -> None:
    """A hook: and the server takes this machine for one with a GPU."""
    beside(place)
    own_server.on_gpu = lambda: True


def told(run: Directory) -> list[dict[str, Any]]:
    """What each server said of itself when it started."""
    lines = (run.path / "vllm.log").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def is_gone(run: Directory) -> bool:
    return not Path(f"/proc/{told(run)[-1]['pid']}").exists()


def test_the_run_starts_it_with_a_key_of_its_own_proves_it_and_ends_it(
    make: Make, start: Start, trained: Path, tmp_path: Path
) -> None:
    place = installed(tmp_path / "serve")
    run = directory(make, on=trained, settings=OWN)
    assert start(run, hook=beside, given=str(place)).wait() == 0, run.errors()
    assert [row["step"] for row in proofs(run)] == [0, 1, 2]
    assert all(row["mean"] < 1e-5 for row in proofs(run))
    (server,) = told(run)
    words = server["words"]
    assert words[words.index("--served-model-name") + 1] == BASE
    assert words[words.index("--max-lora-rank") + 1] == "8", "the least that takes rank 4"
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert not server["dev"]
    assert "--enable-sleep-mode" not in words
    assert is_gone(run)
    assert [row["message"].split(" after")[0] for row in run.events("sampler")] == [
        "vLLM starts for this run, which may take 900 s",
        "vLLM is ready",
    ]
    key = (place / "key").read_bytes()
    assert len(key) >= 40
    assert not [path for path in run.path.rglob("*") if path.is_file() and key in path.read_bytes()]


def test_on_a_gpu_it_sleeps_whenever_nothing_is_sampled(
    make: Make, start: Start, trained: Path, tmp_path: Path
) -> None:
    place = installed(tmp_path / "serve", is_cpu_build=False)
    run = directory(make, on=trained, settings=OWN, steps=2)
    assert start(run, hook=on_a_gpu, given=str(place)).wait() == 0, run.errors()
    (server,) = told(run)
    words = server["words"]
    assert words[-5:] == ["--gpu-memory-utilization", "0.3", "--max-model-len", "auto", "--enable-sleep-mode"]
    assert server["dev"], "only then vLLM takes /sleep"
    lines = (run.path / "vllm.log").read_text().splitlines()
    asked = [line.removeprefix("POST ") for line in lines if line.startswith("POST ")]
    assert [path for path in asked if not path.startswith("/v1")] == [
        "/sleep?level=1", "/wake_up", "/sleep?level=1", "/wake_up", "/sleep?level=1",
    ]  # fmt: skip
    woken = [number for number, path in enumerate(asked) if path == "/wake_up"]
    assert {asked[number + 1] for number in woken} == {"/v1/load_lora_adapter"}, "weights are given to who is awake"


def test_whoever_is_killed_the_run_goes_on_with_another_and_none_is_left(
    make: Make, start: Start, trained: Path, tmp_path: Path
) -> None:
    given = str(installed(tmp_path / "serve"))
    run = directory(make, on=trained, settings=OWN, checkpoint_every=1)
    trainer = start(run, hook=slowly, given=given)
    run.until(lambda it: bool(it.events("checkpoint")))
    os.kill(told(run)[-1]["pid"], signal.SIGKILL)
    assert trainer.wait() == 1
    assert run.result["kind"] == "sampler"
    assert "the run's own vLLM server is gone: it ended with code -9. Its last words:" in run.result["message"]
    done = len(proofs(run))

    trainer = start(run, hook=slowly, given=given)
    run.until(lambda it: len(proofs(it)) > done)
    trainer.signal(signal.SIGKILL)
    trainer.wait()
    wait_for(lambda: is_gone(run), "the server ends with its trainer")

    assert start(run, hook=beside, given=given).wait() == 0, run.errors()
    assert sorted(run.metrics()) == [1, 2, 3]
    assert proofs(run)[-1]["name"].endswith("-a3-s2")
    assert len(told(run)) == 3
    assert is_gone(run)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (
            "echo no kernel image; exit 3",
            "vLLM did not start: it ended with code 3. Its last words:\nno kernel image\n",
        ),
        ("echo compiling; exec sleep 60", "vLLM was not ready after 2 s. Its last words:\ncompiling\n"),
    ],
)
def test_one_that_does_not_start_fails_the_run_with_its_last_words(
    said: str, problem: str, make: Make, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_server, "START_S", 2.0)
    monkeypatch.setattr(recipes, "SERVE", installed(tmp_path / "serve", said))
    run = owned(directory(make, settings=OWN))
    with pytest.raises(TrainingError) as failed:
        OwnServer(run)
    assert (failed.value.kind, problem in failed.value.message) == ("sampler", True), failed.value.message
    assert "All of it is in vllm.log" in failed.value.message


def test_what_is_not_installed_here_or_for_another_device_is_said(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = owned(directory(make, settings=OWN))
    monkeypatch.setattr(recipes, "SERVE", tmp_path / "none")
    with pytest.raises(TrainingError, match="none does not hold vLLM"):
        OwnServer(run)
    monkeypatch.setattr(recipes, "SERVE", installed(tmp_path / "gpu", is_cpu_build=False))
    with pytest.raises(TrainingError, match="trains on a CPU, and vLLM is installed here in its build for GPUs"):
        OwnServer(run)
    monkeypatch.setattr(recipes, "SERVE", installed(tmp_path / "cpu"))
    monkeypatch.setattr(own_server, "on_gpu", lambda: True)
    with pytest.raises(TrainingError, match="trains on a GPU, and vLLM is installed here in its build for CPUs"):
        OwnServer(run)
