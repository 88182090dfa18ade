"""What a run tells about itself while it goes: metrics in our names, and warnings once a spell."""

from types import SimpleNamespace
from typing import Any

import pytest

from workers.trainers import training_loop
from workers.trainers.run.run_directory import Run
from workers.trainers.run.run_failures import TrainingError


class Told(Run):
    """A run that only listens."""

    def __init__(self, data: str = "tasks") -> None:
        self.spec: Any = SimpleNamespace(recipe=SimpleNamespace(data=data))
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


def run(told: Told, rows: list[dict[str, Any]]) -> list[str]:
    watch = training_loop.Watch(told)
    for step, metrics in enumerate(rows):
        watch(step, metrics, [])
    return told.warnings


def test_groups_that_teach_nothing() -> None:
    dull, fine = {"zero_variance_groups": 0.9}, {"zero_variance_groups": 0.2}
    assert len(run(Told(), [dull] * 30)) == 1
    assert len(run(Told(), [*[dull] * 12, fine, *[dull] * 12])) == 2
    assert run(Told(), [*[dull] * 9, fine] * 3) == []
    assert run(Told("sft"), [dull] * 30) == []


def test_entropy_collapse() -> None:
    (warning,) = run(Told(), [{"entropy": 2.0}, *[{"entropy": 0.1}] * 20])
    assert "entropy fell from 2 to 0.1" in warning
    assert run(Told(), [{"entropy": 2.0}, *[{"entropy": 1.0}] * 20]) == []


def test_what_is_no_number() -> None:
    told = Told()
    watch = training_loop.Watch(told)
    watch(1, {}, ["entropy"])
    watch(2, {}, ["entropy"])
    assert told.warnings == ["step 1: no number for entropy, left out"]
    with pytest.raises(TrainingError, match="grad_norm is not a number at step 3"):
        watch(3, {}, ["grad_norm"])
