"""What is made of a checkpoint is what the run would have given at its step."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.workers.trainers.cast import Directory, Make, Start, owned

FULL = {"mode": "full"}
LORA = {"mode": "lora", "rank": 4, "alpha": 8}


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize(("algorithm", "tuning"), [("sft", FULL), ("sft", LORA), ("ppo", FULL), ("grpo", FULL)])
def test_a_checkpoint_gives_what_the_run_gives(
    algorithm: str, tuning: dict[str, Any], make: Make, start: Start, base: Path, tmp_path: Path
) -> None:
    """Bit by bit, in the base's 16 bits; and a step before the last gives other weights. PPO keeps its value head, and
    GRPO its curriculum."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from workers.trainers.run import checkpoints
    from workers.trainers.weights import trained_policy

    half = tmp_path / "half"
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(half)
    AutoTokenizer.from_pretrained(base).save_pretrained(half)
    settings = {"curriculum": True} if algorithm == "grpo" else {}
    run = make(algorithm, on=half, held_out=False, steps=2, checkpoint_every=1, tuning=tuning, settings=settings)
    assert start(run).wait() == 0, run.errors()
    assert run.steps_kept == [1, 2]

    def given(step: int) -> str:
        place = Directory.read(run.path)
        place.path, place.trainer = tmp_path / f"step-{step}", run.trainer
        place.path.mkdir()
        shutil.copy(run.path / "spec.json", place.path)
        shutil.copytree(run.path / "data", place.path / "data")
        files = trained_policy.save_kept(owned(place), run.path / f"checkpoints/step-{step}")
        assert set(files) == set(run.result["files"])
        return checkpoints.digest_of(files)

    assert given(2) == run.result["digest"]
    if algorithm == "sft":  # an untrained policy earns nothing to learn from
        assert given(1) != run.result["digest"]
