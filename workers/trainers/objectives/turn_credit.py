"""GRPO with credit by turn: what an answer is told to have been worth is what its episode earned from there on.

The reward of a turn is by how much the reward of the episode changed through it (`Attempts.turns`). The return of turn
t of attempt i is `G[i, t] = sum over k of discount**k * reward[i, t + k]`, and the advantage of each token of that turn

    A[i, t] = (G[i, t] - mean over the group's scored attempts j of G[j, t]) / (spread + 1e-4)

where an attempt that was over by turn t has nothing more to earn: its G is 0. A baseline for each time step is that of
policy gradients with a time-variant baseline (Peters and Schaal, Reinforcement learning of motor skills with policy
gradients, 2008, section 3.2), taken over a group as GRPO does (https://arxiv.org/abs/2402.03300); turns with advantages
of their own are those of https://arxiv.org/abs/2505.11821. The spread is the standard deviation of the group's returns,
all turns together; of the batch's with `scale_rewards: batch`; left out with `none`. With one turn an attempt and no
discount it is GRPO. An unscored attempt has no say in the others' mean, and no advantage.

With a `weight` w below 1 a token is told of the whole episode as well: `w * A[i, t] + (1 - w) * A[i]`, where `A[i]` is
GRPO's advantage of the attempt.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer

from workers.trainers.attempts.step_attempts import Turns

EPSILON = 1e-4
"""As TRL adds it to a spread."""


class TurnTrainer(GRPOTrainer):
    """GRPOTrainer whose advantages are by turn. Its `rollout_func` is an `Attempts` that counts turns."""

    def __init__(self, *args: Any, discount: float, weight: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.discount, self.weight = discount, weight

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """A step's attempts as TRL takes them, with advantages by token (B, T); 0 where others wrote."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        attempts: Any = self.rollout_func
        group: Any = self.num_generations
        found = advantages(attempts.turns, group, self.discount, self.scale_rewards)
        mask = output["completion_mask"] * output["tool_mask"]
        by_turn = spread_over_tokens(attempts.turns, found, mask)
        whole = output["advantages"][:, None] * mask
        return output | {"advantages": self.weight * by_turn + (1 - self.weight) * whole}


def returns(rewards: Sequence[float], discount: float) -> list[float]:
    """Return what was earned from each turn on."""
    found, coming = [], 0.0
    for reward in reversed(rewards):
        coming = reward + discount * coming
        found.append(coming)
    return found[::-1]


def advantages(turns: Sequence[Turns], group: int, discount: float, scale: str) -> Tensor:
    """Advantages (B, N) of each attempt's turns, N being the most that one has, of groups of so many attempts in a row;
    0 beyond an attempt's last turn and of attempts without a score. `scale`: `group`, `batch` or `none`."""
    most = max((len(each.sizes) for each in turns), default=0)
    earned = torch.full((len(turns), most), float("nan"), dtype=torch.float64)
    is_there = torch.zeros_like(earned, dtype=torch.bool)
    for at, each in enumerate(turns):
        if each.rewards is not None:
            own = returns(each.rewards, discount)
            earned[at] = torch.tensor([*own, *[0.0] * (most - len(own))], dtype=torch.float64)
            is_there[at, : len(own)] = True
    grouped = earned.view(-1, group, most)
    found = (grouped - grouped.nanmean(1, keepdim=True)).view_as(earned)
    if scale != "none":
        size = group if scale == "group" else len(turns)
        for start in range(0, len(turns), size):
            rows = slice(start, start + size)
            played = earned[rows][is_there[rows]]
            found[rows] /= (played.std() if played.numel() > 1 else torch.zeros(())) + EPSILON
    return torch.where(is_there, found, 0.0).float()


def at_ends(turns: Sequence[Turns], mask: Tensor) -> Tensor:
    """Return what each turn earned, at its last token (B, T); 0 at all others and in attempts without a score. The mask
    (B, T) is of the policy's own tokens."""
    found = torch.zeros(mask.shape, device=mask.device)
    for at, each in enumerate(turns):
        (places,) = mask[at].nonzero(as_tuple=True)
        ends = (max(0, sum(each.sizes[: turn + 1]) - 1) for turn in range(len(each.sizes)))
        for end, reward in zip(ends, each.rewards or (), strict=False):
            if end < len(places):
                found[at, places[end]] += reward
    return found


def spread_over_tokens(turns: Sequence[Turns], found: Tensor, mask: Tensor) -> Tensor:
    """The advantages (B, N) of turns as those (B, T) of tokens. A mask (B, T) is of the policy's own tokens, which are
    in the order of the turns."""
    spread = torch.zeros(mask.shape, device=mask.device)
    for at, each in enumerate(turns):
        (places,) = mask[at].nonzero(as_tuple=True)
        by_token = found[at, : len(each.sizes)].repeat_interleave(torch.tensor(each.sizes, dtype=torch.long))
        count = min(len(places), len(by_token))  # masked where TRL leaves a cut answer out
        spread[at, places[:count]] = by_token[:count].to(mask.device)
    return spread
