"""The critic of PPO (https://arxiv.org/abs/1707.06347): a value head over the policy's hidden states, and generalised
advantage estimation (GAE, https://arxiv.org/abs/1506.02438) over the tokens that the policy wrote.

What tools, users and templates wrote is no action: a mask leaves it out, and estimates go from one token of the policy
to its next one.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import TrainerCallback

FILE = "value_head.safetensors"
"""The head's weights in a checkpoint; the final artifact, which only answers, has none."""


class ValueHead(TrainerCallback):
    """Predicts an episode's reward from a hidden state, and learns beside the policy without being part of it, so that
    the policy is saved as if there were no head."""

    def __init__(self, hidden_size: int, device: torch.device) -> None:
        self.layer = nn.Linear(hidden_size, 1, device=device, dtype=torch.float32)
        # The same for every state, and without drawing random numbers.
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Values (B, T) of hidden states (B, T, H), in 32 bits whatever the policy computes in."""
        with torch.autocast(hidden.device.type, enabled=False):
            values: Tensor = self.layer(hidden.float()).squeeze(-1)
        return values

    def begin(self, mean: float) -> None:
        """Predict the mean of the first rewards, or the weights would first have to learn it from states that vary."""
        nn.init.constant_(self.layer.bias, mean)

    def load(self, checkpoint: Path) -> None:
        self.layer.load_state_dict(load_file(checkpoint / FILE))

    # TRL's loop clips and clears the gradients of the policy alone.

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        nn.utils.clip_grad_norm_(self.layer.parameters(), args.max_grad_norm)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.layer.zero_grad()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        save_file(self.layer.state_dict(), Path(args.output_dir) / f"checkpoint-{state.global_step}" / FILE)


def advantages(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """GAE advantages (B, T) of episodes with values (B, T) of the states before each token, and a mask (B, T) of the
    policy's own tokens; 0 at all others. Rewards come at the end of each episode (B), or each with a token of the
    policy's (B, T). At `lam` 1 they and the values add up to what was earned from there on."""
    if rewards.dim() == 1:
        rewards = rewards[:, None] * mask * (mask.cumsum(1) == mask.sum(1, keepdim=True))
    found = torch.zeros_like(values)
    value = advantage = values.new_zeros(len(values))
    for at in reversed(range(values.shape[1])):
        own = mask[:, at].bool()
        stepped = rewards[:, at] + gamma * value - values[:, at] + gamma * lam * advantage
        advantage = torch.where(own, stepped, advantage)
        value = torch.where(own, values[:, at], value)
        found[:, at] = torch.where(own, stepped, 0.0)
    return found


def value_losses(values: Tensor, before: Tensor, returns: Tensor, clip: float) -> Tensor:
    """Clipped losses (B, T): half the squared error of the values, or of the values as far as they may move from those
    before the step, whichever is larger."""
    clipped = before + (values - before).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns).square(), (clipped - returns).square())


def explained_variance(values: Tensor, returns: Tensor) -> float | None:
    """The share of the variance of returns (N) that values (N) foresaw: 1 is all, 0 no more than a constant would, and
    below 0 less. None where returns do not vary."""
    if not returns.numel() or (spread := returns.var(correction=0)) < 1e-12:
        return None
    return float(1 - (returns - values).var(correction=0) / spread)


def normalized(found: Tensor, mask: Tensor) -> Tensor:
    """Advantages (B, T) with mean 0 and spread 1 where the mask is; 0 elsewhere."""
    chosen = found[mask.bool()]
    if chosen.numel() < 2:
        return found
    return (found - chosen.mean()) / (chosen.std() + 1e-8) * mask
