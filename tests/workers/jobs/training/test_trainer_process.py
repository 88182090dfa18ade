"""Trainers that the worker starts under torchrun: they share a run, and end with whoever started them."""

import os
from pathlib import Path

import pytest

from tests.waiting import wait_for
from tests.workers.trainers.cast import Directory
from tests.workers.trainers.conftest import base
from workers.jobs.training import trainer_process

__all__ = ["base"]


def processes_of(run: Directory) -> list[int]:
    """Everything alive that was started on the directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(run.path).encode() in command:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("is_ended", [False, True])
def test_two_processes_carry_a_run_out_or_end_with_it(is_ended: bool, base: Path, tmp_path: Path) -> None:
    steps = 100_000 if is_ended else 2
    run = Directory(tmp_path / "run", base, steps=steps, settings={"processes": 2}, checkpoint_every=steps)
    trainer = trainer_process.start("workers.trainers.sft", run.path, processes=2)
    if is_ended:
        run.until(lambda run: bool(run.events("step")))
        assert len(processes_of(run)) >= 3, "torchrun and two trainers"
        trainer.stop()
    else:
        assert trainer.process.wait() == 0, (run.path / "trainer.log").read_text()[-3000:]
        assert run.result["status"] == "completed"
        assert run.events("training_start")[0]["seed"] == 1
        trainer.leave()
    wait_for(lambda: not processes_of(run), "nothing is left of it")
    assert os.path.exists(run.path / "trainer.log")


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", "it wrote nothing"),
        ("Loading weights\nKilled\n", "Killed"),
        ("ERROR run: nan: the loss\n" + "frame\n" * 20 + "====\n", "ERROR run: nan: the loss"),
        ("ERROR run: of an earlier start\n" + "step\n" * 80, "step"),
    ],
)
def test_the_last_words_are_the_trainers_own(log: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "trainer.log").write_text(log)
    assert trainer_process.last_words(tmp_path) == words
