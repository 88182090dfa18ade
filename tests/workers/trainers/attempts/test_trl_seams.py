"""The installed TRL has what `trl_seams` uses of it beyond its documented surface."""

import dataclasses
import inspect
from typing import Any

import torch
from trl.trainer import utils
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.sft_trainer import SFTTrainer

from workers.trainers.attempts import trl_seams

MARKED = ("env_mask", "self.rollout_func(prompts, self)", "logprobs")


def test_grpo_asks_its_rollout_func_for_tokens_and_a_mask() -> None:
    source = inspect.getsource(GRPOTrainer._generate)
    assert [part for part in MARKED if part not in source] == []


def test_grpo_synchronises_and_weighs_what_another_sampler_gave_it() -> None:
    source = inspect.getsource(GRPOTrainer._generate)
    assert "if self.use_vllm and self.state.global_step != self._last_loaded_step:" in source
    assert source.index("self.vllm_generation.sync_weights()") < source.index("self.rollout_func(prompts, self)")
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    assert "if self.use_vllm and self.vllm_importance_sampling_correction:" in source
    for name in ("sampling_logp_difference/mean", "sampling_logp_difference/max", "importance_sampling_ratio/min"):
        assert f'"sampling/{name}"' in source
    assert 'per_token_loss * inputs["importance_sampling_ratio"]' in inspect.getsource(GRPOTrainer._compute_loss)


def test_grpo_scores_completions_by_the_policy_as_by_the_reference() -> None:
    asked = [*inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters][1:6]
    assert asked == ["model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"]
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    for name in ("old_per_token_logps", "ref_per_token_logps"):
        assert f'output["{name}"] = {name}' in source
    assert source.count("if self.beta != 0.0:") == 1, "with beta it scores by the reference"
    assert "self.beta" in inspect.getsource(GRPOTrainer._compute_loss), "and takes the distance as a loss"


def test_grpos_loss_takes_advantages_by_token_and_divides_by_all_tokens_of_the_batch() -> None:
    source = inspect.getsource(GRPOTrainer._compute_loss)
    assert "if advantages.dim() == 1:" in source
    assert 'elif self.loss_type in ["cispo", "dapo", "vespo"]:' in source
    assert 'inputs["num_items_in_batch"]' in source


def test_grpo_shuffles_and_splits_whatever_its_scored_attempts_have() -> None:
    source = inspect.getsource(GRPOTrainer._prepare_inputs)
    assert "generation_batch = shuffle_sequence_dict(generation_batch)" in source
    batch: Any = {"advantages": torch.arange(4), "values": torch.arange(4.0)[:, None].expand(4, 3)}
    shuffled: Any = utils.shuffle_sequence_dict(batch)
    assert torch.equal(shuffled["values"][:, 0].long(), shuffled["advantages"])
    halves: Any = utils.split_tensor_dict(batch, 2)
    assert [len(half["values"]) for half in halves] == [2, 2]


def test_attempts_of_like_length_share_a_part_without_the_columns_that_are_padding_in_all_of_it() -> None:
    prompts, answers = [3, 1, 2, 3], [1, 4, 2, 5]
    prompt = torch.stack([torch.tensor([0] * (3 - length) + [1] * length) for length in prompts])
    answer = torch.stack([torch.tensor([1] * length + [0] * (6 - length)) for length in answers])
    number = torch.arange(4)
    whole = {
        "prompt_ids": prompt * (number[:, None] + 10),
        "prompt_mask": prompt,
        "completion_ids": answer * (number[:, None] + 20),
        "completion_mask": answer,
        "advantages": number.float(),
        "values": number[:, None].expand(4, 6),
        "num_items_in_batch": torch.tensor(12),
        "num_images": None,
    }
    short, long = trl_seams.by_length(utils.split_tensor_dict(whole, 2))
    assert (short["advantages"].tolist(), long["advantages"].tolist()) == ([0, 2], [1, 3])
    assert short["prompt_ids"].tolist() == [[10, 10, 10], [0, 12, 12]]
    assert short["completion_ids"].tolist() == [[20, 0], [22, 22]]
    assert (long["values"].shape, long["completion_mask"].shape, long["prompt_mask"].shape) == ((2, 5), (2, 5), (2, 3))
    assert int(long["num_items_in_batch"]) == 12
    assert long["num_images"] is None
    (masked,) = trl_seams.by_length([whole | {"completion_mask": torch.zeros_like(answer)}])
    assert masked["completion_ids"].shape == (4, 1), "every answer was cut off, and is not learnt from"


def test_grpo_keeps_a_steps_attempts_under_the_name_that_they_are_put_in_order_by() -> None:
    source = inspect.getsource(GRPOTrainer._prepare_inputs)
    assert "inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]" in source
    assert source.index("shuffle_sequence_dict(") < source.index("self._buffered_inputs = [")


def test_the_fused_head_reads_the_hidden_states_that_the_value_head_reads() -> None:
    source = inspect.getsource(utils.add_fused_lm_head)
    assert "getattr(self, backbone_attr)(*args, **kwargs)" in source
    assert 'backbone_attr = "base_model"' in source
    assert "hidden_states = backbone_outputs.last_hidden_state[:, :-1]" in source


def test_sft_makes_its_loss_of_the_log_probabilities_that_one_forward_pass_of_the_model_gives_out() -> None:
    source = inspect.getsource(SFTTrainer.compute_loss)
    usual = source[source.rindex("model(**inputs, fused_lm_head=True)") :]
    assert "per_token_loss = -outputs.log_probs" in usual
    assert 'self._metrics[mode]["entropy"]' in usual, "under that name a metric of ours is logged beside TRL's"
    assert "for key, val in self._metrics[mode].items()" in inspect.getsource(SFTTrainer.log)
    (given,) = [field for field in dataclasses.fields(utils.FusedCausalLMOutput) if field.name == "log_probs"]
    assert given.default is None
    assert "shape `(batch, seq_len - 1)`" in (utils.FusedCausalLMOutput.__doc__ or "")


def test_grpo_logs_the_mean_of_what_was_measured_in_a_step() -> None:
    source = inspect.getsource(GRPOTrainer.log)
    assert "for key, val in self._metrics[mode].items()" in source
    assert "sum(valid) / len(valid)" in source
    assert '["frac_reward_zero_std"]' in inspect.getsource(GRPOTrainer._generate_and_score_completions)


def test_grpo_counts_micro_steps_and_loads_weights_under_these_names() -> None:
    assert "self._step" in inspect.getsource(GRPOTrainer.training_step)
    assert "self._step" in inspect.getsource(GRPOTrainer._prepare_inputs)
    assert callable(GRPOTrainer._load_from_checkpoint)
