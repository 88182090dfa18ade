"""Every algorithm of the table builds its TRL config and trains for real."""

from pathlib import Path

import pytest

from flywheel.core.recipes import ALGORITHMS
from tests.workers.trainers.cast import Make, Start

EVERYWHERE = {"loss", "grad_norm", "learning_rate", "entropy", "step_time_s", "peak_memory", "tokens"}
OF_ATTEMPTS = {
    "reward_mean",
    "reward_std",
    "zero_variance_groups",
    "completion_length_mean",
    "completion_length_max",
    "truncated_fraction",
    "unscored",
    "reward/unsafe",
    "reward/exact",
    "reward_std/exact",
}
OWN = {
    "sft": {"accuracy"},
    "dpo": {"margin", "chosen_logp", "rejected_logp", "pair_accuracy"},
    "kto": {"margin", "chosen_logp", "rejected_logp", "kl"},
    "awr": {"accuracy"},
    "cispo": OF_ATTEMPTS | {"clip_high"},
    "importance_sampling": OF_ATTEMPTS | {"clip_high"},
    "ppo": OF_ATTEMPTS - {"zero_variance_groups"} | {"clip_low", "clip_high", "value_loss", "explained_variance"},
    "distillation": OF_ATTEMPTS - {"zero_variance_groups"} | {"clip_low", "clip_high", "teacher_kl"},
    "reward_model": {"margin", "pair_accuracy", "raw_mean", "raw_min", "raw_max"},
    "rloo": OF_ATTEMPTS | {"clip_low", "clip_high", "clip_region", "kl"},
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_trains(algorithm: str, make: Make, start: Start, trained: Path) -> None:
    run = make(algorithm, on=trained, steps=2, eval_every=1)
    assert start(run).wait() == 0, run.errors()
    events = [row["event"] for row in run.events()]
    assert events[0] == "training_start"
    assert events[-2:] == ["checkpoint", "training_end"]
    acts = ALGORITHMS[algorithm].makes_policy
    everywhere = EVERYWHERE if acts else EVERYWHERE - {"entropy"}
    wanted = everywhere | OWN.get(algorithm, OF_ATTEMPTS | {"clip_low", "clip_high", "clip_region"})
    assert wanted <= set(run.metrics()[2])
    assert [row["step"] for row in run.events("eval" if acts else "validation")] == [0, 1, 2]
    assert run.result["status"] == "completed"
