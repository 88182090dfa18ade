"""The installed TRL has what `trl_seams` uses of it beyond its documented surface."""

import inspect
from typing import Any

import pytest
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

MARKED = ("env_mask", "self.rollout_func(prompts, self)", "logprobs")


def test_grpo_asks_its_rollout_func_for_tokens_and_a_mask() -> None:
    source = inspect.getsource(GRPOTrainer._generate)
    assert [part for part in MARKED if part not in source] == []


def test_rloo_asks_for_prompts_and_completions_apart() -> None:
    assert not hasattr(RLOOTrainer, "rollout_func")
    source = inspect.getsource(RLOOTrainer._generate)
    assert "prompt_ids, images, multimodal_fields = self._tokenize_prompts(prompts)" in source
    assert "completion_ids = self._generate_single_turn(prompt_ids, images, multimodal_fields)" in source


@pytest.mark.parametrize("trainer", [GRPOTrainer, RLOOTrainer])
def test_both_count_micro_steps_and_load_weights_under_these_names(trainer: Any) -> None:
    assert "self._step" in inspect.getsource(trainer.training_step) + inspect.getsource(trainer._prepare_inputs)
    assert callable(trainer._load_from_checkpoint)
