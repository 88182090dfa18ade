"""RLOO over TRL's GRPOTrainer: REINFORCE with a leave-one-out baseline (https://arxiv.org/abs/2402.14740), on episodes.

The advantage of attempt i, of a group with n scored attempts of rewards R, is by how much it did better than the others

    A[i] = R[i] - sum over scored j other than i of R[j] / (n - 1)

and the loss is `-A[i]` times the log-probability of all that the policy wrote in it, in the mean over all attempts of
the batch. An attempt without a score has no say in the others' mean, and no advantage; nor has one that nobody is left
to be compared with. With `beta` an attempt's reward is first less `beta` times the sum of `log p - log p_start` over
its tokens: the distance from the start is a part of the reward, and not of the loss as in GRPO.

TRL has an RLOOTrainer, but without a mask of what others wrote. On answers of one turn the gradient is its, as long as
each attempt is learnt from once. When attempts are used again (`num_iterations`) or sampled elsewhere, the importance
ratio and its clip are of each token, and not of the whole attempt, whose ratio over many tokens is soon beyond any
clip.
"""

from typing import Any

import torch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer

from workers.trainers.attempts import trl_seams
from workers.trainers.objectives.turn_credit import EPSILON


class LeaveOneOutTrainer(GRPOTrainer):
    """GRPOTrainer, with `loss_type: dapo`, whose baseline of an attempt is its siblings. Its `rollout_func` is an
    `Attempts`."""

    def __init__(self, *args: Any, normalize: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.normalize = normalize

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """A step's attempts as TRL takes them, with advantages (B). The loss's sum is divided by how many they are."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        attempts: Any = self.rollout_func
        totals = [float("nan") if total is None else total for total in attempts.totals()]
        rewards = torch.tensor(totals, device=self.accelerator.device)
        if self.beta:
            rewards = rewards - self.beta * self._distances(output)
        group: Any = self.num_generations
        # Processes have whole groups each, and the batch is that of all.
        found = self.accelerator.gather(advantages(rewards, group))
        known = found[~found.isnan()]
        if self.normalize and known.numel() > 1:
            found = (found - known.mean()) / (known.std() + EPSILON)
        own = found.nan_to_num().view(-1, len(rewards))[self.accelerator.process_index]
        return output | {"advantages": own, "num_items_in_batch": torch.tensor(found.numel(), device=found.device)}

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        beta, self.beta = self.beta, 0.0  # it has been taken off the rewards
        try:
            loss: Tensor = super()._compute_loss(model, inputs)  # type: ignore[no-untyped-call]
        finally:
            self.beta = beta
        return loss

    def _distances(self, output: dict[str, Any]) -> Tensor:
        """Distances of attempts (B) from the start: the summed gaps of their tokens' log-probabilities, in nats."""
        mask = output["completion_mask"] * output["tool_mask"]
        now = output.get("old_per_token_logps")  # where an attempt is learnt from at once, TRL needs none
        now = trl_seams.log_probs(self, output) if now is None else now
        gaps: Tensor = (now - output.pop("ref_per_token_logps")) * mask
        total, tokens = self.accelerator.reduce(torch.stack([gaps.sum(), mask.sum()])).tolist()
        trl_seams.measured(self, "kl", total / max(1, tokens))
        return gaps.sum(1)


def advantages(rewards: Tensor, group: int) -> Tensor:
    """Advantages (B) of attempts with rewards (B), which are NaN where there is no score, in groups of so many in a
    row. NaN of those without a score, or without another one that has any."""
    grouped = rewards.view(-1, group)
    others = (~grouped.isnan()).sum(1, keepdim=True) - 1
    return (grouped - (grouped.nansum(1, keepdim=True) - grouped) / others).view(-1)
