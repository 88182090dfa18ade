"""On-policy distillation over TRL's GRPOTrainer: the policy plays, and each token that it wrote is judged by a teacher.

The advantage of a token is the teacher's log-probability of it less the policy's own, so that the loss's gradient is
that of the reverse KL from the policy to the teacher, estimated by the tokens that were sampled
(https://arxiv.org/abs/2306.13649, https://thinkingmachines.ai/blog/on-policy-distillation).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer

from workers.trainers.attempts import trl_seams
from workers.trainers.objectives.served_teacher import ServedTeacher


class DistillationTrainer(GRPOTrainer):
    """GRPOTrainer that learns what its teacher would have said. Its `rollout_func` is an `Attempts`, whose rewards are
    told and not learnt from."""

    def __init__(self, *args: Any, teacher: Any, **kwargs: Any) -> None:
        """`teacher`: a model with the policy's tokens, or a ServedTeacher."""
        super().__init__(*args, **kwargs)
        here = None if isinstance(teacher, ServedTeacher) else teacher.to(self.accelerator.device)
        self._taught = teacher.log_probs if here is None else partial(self._log_probs, here)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """A step's attempts as TRL takes them, with advantages by token (B, T), in nats; 0 where others wrote."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        mask = output["completion_mask"] * output["tool_mask"]
        gaps = (self._log_probs(self.model, output) - self._taught(output)) * mask
        trl_seams.measured(self, "teacher_kl", (gaps.sum() / mask.sum().clamp(min=1)).item())
        trl_seams.unmeasured(self, "frac_reward_zero_std")  # of rewards, which teach nothing here
        return output | {"advantages": -gaps}

    @torch.no_grad()
    def _log_probs(self, model: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Log-probabilities (B, T) of the completions' tokens at the temperature of the attempts, a part of the batch
        at a time."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        seen = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        count, size = batch["completion_ids"].shape[1], self.args.per_device_train_batch_size
        found = []
        for start in range(0, len(ids), size):
            rows = slice(start, start + size)
            with self.accelerator.autocast():
                out = model(input_ids=ids[rows], attention_mask=seen[rows], logits_to_keep=count + 1, use_cache=False)
            logits = out.logits[:, :-1].float() / self.temperature
            found.append(logits.log_softmax(-1).gather(-1, batch["completion_ids"][rows, :, None])[..., 0])
        return torch.cat(found)
