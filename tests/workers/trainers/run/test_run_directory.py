"""Who owns a run, and how it is asked to stop: cancel, signals, the lock, a supervisor that dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.workers.trainers.cast import Make, Start, slow, supervised_by


@pytest.mark.parametrize("ask", ["CANCEL", signal.SIGTERM, signal.SIGINT])
def test_saves_and_stops_when_asked(ask: str | signal.Signals, make: Make, start: Start) -> None:
    run = make(steps=1000, held_out=False)
    trainer = start(run, hook=slow, given=0.1)
    run.until(lambda run: len(run.events("step")) >= 1)
    if isinstance(ask, signal.Signals):
        trainer.signal(ask)
    else:
        (run.path / ask).touch()
    assert trainer.wait() == 0, run.errors()
    step = run.result["step"]
    assert run.result == {
        "status": "cancelled",
        "step": step,
        "checkpoint": f"checkpoints/step-{step}",
        "seconds": run.result["seconds"],
    }
    assert run.events()[-1]["status"] == "cancelled"
    assert run.steps_kept == [step]
    assert not (run.path / "final").exists()


def test_a_cancelled_run_does_not_begin(make: Make, start: Start) -> None:
    run = make(held_out=False)
    (run.path / "CANCEL").touch()
    assert start(run).wait() == 0, run.errors()
    assert run.result["status"] == "cancelled"
    assert run.result["checkpoint"] is None
    assert not run.events("step")


def test_one_trainer_at_a_time(make: Make, start: Start) -> None:
    run = make(steps=1000, held_out=False)
    first = start(run, hook=slow, given=0.1)
    run.until(lambda run: len(run.events("step")) >= 1)
    assert start(run).wait() == 75
    assert "another trainer holds" in run.errors()
    waiting = start(run, "--wait-lock", "60")
    time.sleep(0.3)
    first.signal(signal.SIGKILL)
    run.until(lambda run: len(run.events("training_start")) == 2)
    waiting.signal(signal.SIGTERM)
    assert waiting.wait() == 0, run.errors()


def test_stops_at_once_when_the_supervisor_dies(make: Make, start: Start, tmp_path: Path) -> None:
    run = make(steps=1000, held_out=False)
    fifo = tmp_path / "supervisor"
    os.mkfifo(fifo)
    supervisor = os.open(fifo, os.O_RDWR)
    trainer = start(run, hook=supervised_by, given=str(fifo))
    run.until(lambda run: len(run.events("step")) >= 1)
    os.close(supervisor)
    assert trainer.wait() == 76
    assert not (run.path / "result.json").exists()


def test_the_command_line(make: Make) -> None:
    """A real process: supervised and alive before the libraries are loaded, silent towards their makers."""
    run = make()
    environment = {**os.environ, "FLYWHEEL_SUPERVISED": "1"}
    command = [sys.executable, "-m", "workers.trainers.sft", str(run.path)]
    with (run.path / "stderr").open("wb") as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors, stdout=errors, env=environment)
        run.until(lambda run: (run.path / "heartbeat").exists())
        beat = json.loads((run.path / "heartbeat").read_text())
        assert beat["pid"] == process.pid == int((run.path / "trainer.pid").read_text())
        assert beat["step"] == 0
        assert not run.events("training_start")
        assert process.stdin
        process.stdin.close()
        assert process.wait(10) == 76


def test_is_silent_towards_the_makers_of_libraries() -> None:
    """The libraries read the environment when they are imported, so nothing may have imported them by then."""
    code = (
        "from workers.trainers import dpo, grpo, kto, sft; "
        "from workers.trainers.run import run_directory; import os, sys;"
        "run_directory.keep_to_ourselves();"
        "print(os.environ['HF_HUB_OFFLINE'], os.environ['HF_HUB_DISABLE_TELEMETRY'],"
        "sorted({'torch', 'trl', 'transformers', 'huggingface_hub', 'datasets', 'django'} & set(sys.modules)))"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "0"}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert out.stdout.split() == ["1", "1", "[]"]


def test_no_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "workers.trainers.grpo", str(tmp_path / "nowhere")]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.returncode == 1
    assert "is not a run directory" in out.stderr
