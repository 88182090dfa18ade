"""PPO over TRL's GRPOTrainer: its attempts, clipped loss and KL, with advantages by token from a value head.

TRL has no PPO any more, but its loss takes advantages of shape (B, T). What is used of it beyond what it promises is
held by a test (`test_trl_seams`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer

from workers.trainers.attempts import trl_seams
from workers.trainers.objectives import critic, turn_credit
from workers.trainers.objectives.critic import ValueHead


@dataclass(frozen=True, slots=True)
class Values:
    """The settings of a recipe that are about values."""

    gamma: float
    gae_lambda: float
    value_coef: float
    value_clip: float
    value_learning_rate: float
    normalize_advantages: bool

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Values":
        return cls(**{name: settings[name] for name in cls.__slots__})


class PPOTrainer(GRPOTrainer):
    """GRPOTrainer whose baseline is a value head. Its `rollout_func` is an `Attempts`."""

    def __init__(self, *args: Any, values: Values, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.about = values
        policy: Any = self.model
        self.head = ValueHead(policy.config.get_text_config().hidden_size, self.accelerator.device)
        self.add_callback(self.head)

    def create_optimizer(self, model: Any = None) -> Any:
        optimizer = super().create_optimizer(model)
        head = {"params": [*self.head.layer.parameters()], "lr": self.about.value_learning_rate, "weight_decay": 0.0}
        optimizer.add_param_group(head)
        return optimizer

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        self.head.load(Path(resume_from_checkpoint))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """A step's attempts as TRL takes them, with advantages by token, and with what the value loss needs: `values`
        before the step, `returns` and `value_weights`, which add up to 1 over the batch; each (B, T)."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        attempts: Any = self.rollout_func
        totals = [float("nan") if total is None else total for total in attempts.totals()]
        rewards = torch.tensor(totals, device=self.accelerator.device)
        is_scored = ~rewards.isnan()
        mask = output["completion_mask"] * output["tool_mask"] * is_scored[:, None]
        if self.state.global_step == 0 and is_scored.any():
            self.head.begin(rewards[is_scored].mean().item())
        about, values = self.about, self._values(output)
        rewards = turn_credit.at_ends(attempts.turns, mask) if attempts.turns else rewards.nan_to_num()
        found = critic.advantages(rewards, values, mask, about.gamma, about.gae_lambda)
        # At 1 whatever gae_lambda is: else a head that knows nothing yet learns its own guesses
        # (https://arxiv.org/abs/2503.01491).
        earned = critic.advantages(rewards, values, mask, about.gamma, 1.0) + values
        own = mask.bool()
        trl_seams.measured(self, "explained_variance", critic.explained_variance(values[own], earned[own]))
        trl_seams.unmeasured(self, "frac_reward_zero_std")  # of groups, which nothing here is compared with
        return output | {
            "advantages": critic.normalized(found, mask) if about.normalize_advantages else found,
            "values": values,
            "returns": earned,
            "value_weights": mask / mask.sum().clamp(min=1),
        }

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        with trl_seams.hidden_states(model) as states:
            policy_loss: Tensor = super()._compute_loss(model, inputs)  # type: ignore[no-untyped-call]
        (hidden,) = states
        values = self.head(_before_each_token(hidden, inputs))
        losses = critic.value_losses(values, inputs["values"], inputs["returns"], self.about.value_clip)
        value_loss: Tensor = (losses * inputs["value_weights"]).sum()
        # The log shows the mean over a step's parts, and these add up to the batch's.
        trl_seams.measured(self, "value_loss", value_loss.item() * self.args.gradient_accumulation_steps)
        return policy_loss + self.about.value_coef * value_loss

    @torch.no_grad()
    def _values(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Values (B, T) of the states before each token of the completions, a part of the batch at a time."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        seen = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        size = self.args.per_device_train_batch_size
        found = []
        for start in range(0, len(ids), size):
            rows = slice(start, start + size)
            with self.accelerator.autocast():
                out = trl_seams.backbone(self.model)(input_ids=ids[rows], attention_mask=seen[rows], use_cache=False)
            found.append(self.head(_before_each_token(out.last_hidden_state, batch)))
        return torch.cat(found)


def _before_each_token(hidden: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """The states (B, T, H) in which the completions' tokens were chosen, of those of whole sequences (B, P + T, H)."""
    return hidden[:, batch["prompt_ids"].shape[1] - 1 : -1]
