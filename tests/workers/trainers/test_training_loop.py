"""What a run tells about itself while it goes: metrics in our names, and what is no number."""

from typing import Any

import pytest

from workers.trainers import training_loop
from workers.trainers.run.run_directory import Run
from workers.trainers.run.run_failures import TrainingError


class Told(Run):
    """A run that only listens."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def test_names() -> None:
    logs: dict[str, Any] = {
        "loss": 1.0,
        "rewards/exact/mean": 0.5,
        "rewards/exact/std": 0.1,
        "rewards/margins": 2.0,
        "epoch": 1.0,
    }
    logs |= {"loss": 1.0, "clip_ratio/low_mean": 0.0, "logps/chosen": -3.0, "reward": None, "kl": float("nan")}
    metrics, bad = training_loop.canonical(logs)
    assert metrics == {
        "loss": 1.0,
        "reward/exact": 0.5,
        "reward_std/exact": 0.1,
        "margin": 2.0,
        "clip_low": 0.0,
        "chosen_logp": -3.0,
    }
    assert bad == ["reward_mean", "kl"]


def test_a_part_that_judged_nothing_in_a_step_is_left_out_without_a_word() -> None:
    """A watched judge is asked about a sample; one attempt has no spread."""
    nothing = float("nan")
    logs = {"rewards/tone/mean": nothing, "rewards/tone/std": nothing, "rewards/exact/mean": 0.5, "loss": nothing}
    assert training_loop.canonical(logs) == ({"reward/exact": 0.5}, ["loss"])


def test_what_is_no_number() -> None:
    told = Told()
    watch = training_loop.Watch(told)
    watch(1, ["entropy"])
    watch(2, ["entropy"])
    assert told.warnings == ["step 1: no number for entropy, left out"]
    with pytest.raises(TrainingError, match="grad_norm is not a number at step 3"):
        watch(3, ["grad_norm"])
