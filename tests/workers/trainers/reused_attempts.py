"""Two steps on the same episodes, so that the second has importance ratios, and all that a slow reference needs."""

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from tests.workers.trainers.attempts.test_step_attempts import EPISODES, played
from tests.workers.trainers.cast import NAMES, Make, owned
from workers.trainers.attempts.step_attempts import Attempts
from workers.trainers.run import run_spec

TEMPERATURE = 0.7
SETTINGS = {
    "batch_size": 16,
    "num_generations": 8,
    "num_iterations": 2,
    "temperature": TEMPERATURE,
    "max_grad_norm": 99,
    "learning_rate": 3e-3,
    "max_completion_length": 24,
}


@dataclass(frozen=True)
class Said:
    """An episode as the policy played it."""

    ids: torch.Tensor
    """(1, L), its prompt too."""
    own: list[int]
    """Places in `ids` of the tokens that the policy wrote."""
    reward: float
    group: int


@dataclass
class Watched(TrainerCallback):
    """Models before each step, and gradients in the last one; with a value head, the head's as well."""

    plain: Any
    """The policy without what TRL does to it, of which models are copies."""
    head: Any = None
    models: list[Any] = field(default_factory=list)
    heads: list[Any] = field(default_factory=list)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = copy.deepcopy(self.plain)
        model.load_state_dict(kwargs["model"].state_dict())
        self.models.append(model)
        self.heads.append(copy.deepcopy(self.head))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        named = dict(kwargs["model"].named_parameters())
        named |= {f"head.{name}": weight for name, weight in self.head.named_parameters()} if self.head else {}
        self.gradients = {name: weight.grad.clone() for name, weight in named.items() if weight.grad is not None}


def built(algorithm: str, make: Make, on: Path, trainer_class: Any, **fields: Any) -> tuple[Any, Attempts, Watched]:
    """A trainer of two steps on the same attempts, at four tasks with tools where no others are given, these attempts,
    and what watches it."""
    from workers.trainers import online_tasks
    from workers.trainers.weights import trained_policy

    fields = {"environment": EPISODES, "train": [played(name) for name in NAMES[:4]], **fields}
    fields["settings"] = {**SETTINGS, **fields.get("settings", {})}
    run = owned(make(algorithm, on=on, steps=2, held_out=False, **fields))
    env, data = run_spec.opened(run.spec)
    loaded = trained_policy.load(run)
    plain = copy.deepcopy(loaded.model)
    trainer, of = online_tasks.build(run, loaded, trainer_class, env, data)
    head = getattr(trainer, "head", None)
    watched = Watched(plain, head and head.layer)
    trainer.add_callback(watched)
    return trainer, of, watched


def episodes(of: Attempts) -> list[Said]:
    """The newest attempts. All are scored."""
    found = []
    for number, group in enumerate(of.groups):
        for rollout, verdict in zip(group.rollouts, group.verdicts, strict=True):
            episode, total = of.engine.episode(rollout.seed), of.rewards.total(verdict)
            assert total is not None
            at = len(episode.prompt)
            own = [at + place for place, is_own in enumerate(episode.mask) if is_own]
            found.append(Said(torch.tensor([[*episode.prompt, *episode.completion]]), own, total, number))
    return found


def logps(model: Any, said: Said) -> torch.Tensor:
    """Log-probabilities of the tokens that the policy wrote."""
    before = [place - 1 for place in said.own]
    chosen = torch.log_softmax(model(said.ids).logits[0, before] / TEMPERATURE, -1)
    return chosen.gather(1, said.ids[0, said.own][:, None])[:, 0]
