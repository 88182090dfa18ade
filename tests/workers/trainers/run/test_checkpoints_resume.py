"""A run goes on from its newest verified checkpoint, and what comes out is what would have come out."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.workers.trainers.cast import NAMES, QLORA, Make, Start, slow

TIMES = {"step_time_s", "peak_memory"}


def same_training(left: dict[int, dict[str, float]], right: dict[int, dict[str, float]]) -> None:
    assert left.keys() == right.keys()
    for step, metrics in left.items():
        wanted = {name: value for name, value in right[step].items() if name not in TIMES}
        assert {name: value for name, value in metrics.items() if name not in TIMES} == pytest.approx(wanted), step


TUNINGS = [
    pytest.param({"mode": "full"}, id="full"),
    pytest.param({"mode": "lora", "rank": 4, "alpha": 8}, id="lora"),
    pytest.param({"mode": "qlora", "rank": 4, "alpha": 8}, id="qlora", marks=QLORA),
]


@pytest.mark.parametrize("tuning", TUNINGS)
def test_killed_and_resumed_is_as_uninterrupted(tuning: dict[str, Any], make: Make, start: Start) -> None:
    # Ten rows in batches of four: epochs end in a short batch, and checkpoints fall within them.
    fields = {"names": NAMES[:8], "steps": 14, "tuning": tuning, "checkpoint_every": 4, "eval_every": 4}
    fields["settings"] = {"batch_size": 3}
    whole, broken = make(name="whole", **fields), make(name="broken", **fields)
    other = start(whole)
    trainer = start(broken, hook=slow, given=0.1)
    broken.until(lambda run: len(run.events("checkpoint")) >= 1 and len(run.events("step")) >= 6)
    trainer.signal(signal.SIGKILL)
    assert trainer.wait() == -signal.SIGKILL
    assert not (broken.path / "result.json").exists()

    assert start(broken).wait() == 0, broken.errors()
    assert other.wait() == 0, whole.errors()
    assert broken.events("training_start")[1]["resumed_from"] in (4, 8, 12)
    same_training(broken.metrics(), whole.metrics())
    assert broken.result["digest"] == whole.result["digest"]
    assert {row["step"] for row in broken.events("eval")} == {0, 4, 8, 12, 14}
    assert broken.steps_kept == [12, 14]


@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "dpo", "kto", "awr", "distillation"])
def test_cancelled_and_resumed_is_as_uninterrupted(algorithm: str, make: Make, start: Start, trained: Path) -> None:
    fields = {"on": trained, "steps": 5, "checkpoint_every": 2, "names": NAMES[:3], "held_out": False}
    whole, broken = make(algorithm, name="whole", **fields), make(algorithm, name="broken", **fields)
    other = start(whole)
    trainer = start(broken, hook=slow, given=0.3)
    broken.until(lambda run: len(run.events("step")) >= 2)
    (broken.path / "CANCEL").touch()
    assert trainer.wait() == 0, broken.errors()
    assert broken.result["status"] == "cancelled"
    stopped = broken.result["step"]
    assert stopped in (2, 3, 4)

    (broken.path / "CANCEL").unlink()
    assert start(broken).wait() == 0, broken.errors()
    assert other.wait() == 0, whole.errors()
    assert broken.events("training_start")[1]["resumed_from"] == stopped
    same_training(broken.metrics(), whole.metrics())
    assert broken.result["digest"] == whole.result["digest"]


def test_resume_in_the_middle_of_reused_attempts(make: Make, start: Start, trained: Path) -> None:
    run = make("grpo", on=trained, steps=5, settings={"num_iterations": 3}, held_out=False)
    trainer = start(run, hook=slow, given=0.3)
    run.until(lambda run: len(run.events("step")) >= 1)
    (run.path / "CANCEL").touch()
    assert trainer.wait() == 0, run.errors()
    (run.path / "CANCEL").unlink()
    assert start(run).wait() == 0, run.errors()
    assert run.result["step"] == 5


def test_a_damaged_checkpoint_is_passed_over(make: Make, start: Start) -> None:
    run = make(steps=4, checkpoint_every=2, held_out=False)
    assert start(run).wait() == 0, run.errors()
    (run.path / "result.json").unlink()
    pickle = run.path / "checkpoints/step-4/optimizer.pt"
    pickle.write_bytes(pickle.read_bytes()[:-1] + b"?")
    assert start(run).wait() == 0, run.errors()
    assert run.events("training_start")[1]["resumed_from"] == 2
    assert "step-4 is not used: optimizer.pt changed" in run.events("warning")[0]["message"]
    assert run.result["step"] == 4


def test_killed_between_the_last_checkpoint_and_its_event(make: Make, start: Start) -> None:
    run = make(steps=2, held_out=False)
    assert start(run).wait() == 0, run.errors()
    first, told, checkpoint = run.result, run.events(), run.events("checkpoint")[0]
    (run.path / "result.json").unlink()
    events = run.path / "events.jsonl"
    lines = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(b"".join(lines[: [row["event"] for row in told].index("checkpoint")]))
    assert start(run).wait() == 0, run.errors()
    assert (run.result["digest"], run.result["step"]) == (first["digest"], 2)
    assert [len(run.events(event)) for event in ("step", "checkpoint")] == [2, 1]
    assert run.events("checkpoint")[0]["digest"] == checkpoint["digest"]


def test_a_complete_run_is_left_alone(make: Make, start: Start) -> None:
    run = make(steps=1, held_out=False)
    assert start(run).wait() == 0, run.errors()
    before = run.events()
    assert start(run).wait() == 0
    assert run.events() == before


def test_evaluation_does_not_change_training(make: Make, start: Start, trained: Path) -> None:
    often = make("grpo", name="often", on=trained, eval_every=1)
    never = make("grpo", name="never", on=trained, held_out=False)
    trainers = start(often), start(never)
    assert [trainer.wait() for trainer in trainers] == [0, 0], often.errors() + never.errors()
    same_training(often.metrics(), never.metrics())
    assert often.result["digest"] == never.result["digest"]


def test_half_a_line_is_cut_off(make: Make, start: Start) -> None:
    run = make(steps=1, held_out=False)
    (run.path / "events.jsonl").write_text('{"event": "step", "step": 1}\n{"event": "st')
    assert start(run).wait() == 0, run.errors()
    assert [row["event"] for row in run.events()][:2] == ["step", "training_start"]
