"""Replay: rows of a second dataset that a reinforced run imitates beside its attempts, so that it forgets less.

Each step adds `replay_weight` × the mean loss per token of `replay_rows` rows to TRL's loss. Which rows a step has
depends on seed and step alone, so that a resumed run has the same.
"""

import dataclasses
import random
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from flywheel.core import recipes
from flywheel.core.envs import Environment
from workers.trainers import sft
from workers.trainers.attempts import trl_seams
from workers.trainers.run import ranks
from workers.trainers.run.run_directory import Run
from workers.trainers.run.run_failures import TrainingError
from workers.trainers.run.run_spec import Data
from workers.trainers.weights import trained_policy

UNREAD = -100
"""Label of a token that is not learnt."""


class Replay:
    """The rows in tokens, as SFT would have them, and the term that they add to a trainer's loss."""

    def __init__(self, run: Run, env: Environment, data: Data) -> None:
        """Raises TrainingError where no row leaves anything to learn."""
        settings = run.spec.settings
        self.weight, self.count, self.seed = settings["replay_weight"], settings["replay_rows"], run.spec.seed
        self.rows = _in_tokens(run, env, data.replay)
        self._step, self._part, self._loss = -1, 0, 0.0

    def join(self, trainer: Any) -> None:
        """Have the trainer learn from these rows too."""
        plain = trainer.compute_loss

        def compute_loss(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            return plain(model, inputs, *args, **kwargs) + self.weight * self._term(trainer, model)

        trainer.compute_loss = compute_loss

    def _term(self, trainer: Any, model: Any) -> Tensor:
        """The part of the step's mean loss that this pass has. Passes and processes have their parts of the rows.
        Processes are averaged, and what they are divided by is multiplied in."""
        step, passes = trainer.state.global_step, trainer.current_gradient_accumulation_steps
        if step != self._step:
            self._step, self._part, self._loss = step, 0, 0.0
        rows = self.of_step(step)
        parts, at = passes * ranks.world(), self._part * ranks.world() + ranks.rank()
        tokens = sum(int((labels[1:] != UNREAD).sum()) for _, labels in rows)
        plain = trainer.accelerator.unwrap_model(model)
        # Who has no row passes one through that teaches nothing: the weights may be divided, and all are needed then.
        own = rows[at::parts] or [(ids, torch.full_like(ids, UNREAD)) for ids, _ in rows[:1]]
        loss = _loss(plain, own, trainer.accelerator.device) / tokens
        self._part, self._loss = self._part + 1, self._loss + loss.item()
        if self._part == passes:
            trl_seams.measured(trainer, "replay_loss", self._loss * ranks.world())
        return loss * ranks.world()

    def of_step(self, step: int) -> list[tuple[Tensor, Tensor]]:
        """Token ids and labels of the rows that a step has."""
        chosen = random.Random(f"{self.seed} replay {step}")
        return chosen.sample(self.rows, min(self.count, len(self.rows)))


def _loss(model: Any, rows: list[tuple[Tensor, Tensor]], device: Any) -> Tensor:
    """The summed loss of the rows' learnt tokens."""
    ids = pad_sequence([ids for ids, _ in rows], batch_first=True).to(device)
    labels = pad_sequence([labels for _, labels in rows], batch_first=True, padding_value=UNREAD).to(device)
    seen = pad_sequence([torch.ones_like(ids) for ids, _ in rows], batch_first=True).to(device)
    logits = model(input_ids=ids, attention_mask=seen, use_cache=False).logits[:, :-1].float()
    return cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=UNREAD, reduction="sum")


def _in_tokens(run: Run, env: Environment, rows: list[dict[str, Any]]) -> list[tuple[Tensor, Tensor]]:
    """Ids and labels of the rows by TRL's own SFT trainer, on a stand-in without weights."""
    own = run.spec.settings
    usual = {**recipes.defaults("sft"), "max_length": trained_policy.BOUNDLESS}
    settings = {name: own.get(name, value) for name, value in usual.items()}
    spec = dataclasses.replace(run.spec, algorithm="sft", settings=settings)
    loaded = trained_policy.weightless(spec)
    trainer = sft.build(run, loaded, env, Data(rows, []), spec)
    found = []
    for row in trainer.train_dataset:
        labels = trainer.data_collator([row])["labels"][0]
        found.append((torch.tensor(row["input_ids"]), labels))
    _, words = trained_policy.longest(loaded.model, settings)
    if not found:
        raise TrainingError("data", f"data.replay: every prompt alone reaches {words}: nothing is left to learn")
    if len(found) < len(rows):
        run.warn(f"{len(rows) - len(found)} of {len(rows)} replayed rows are left out: their prompt reaches {words}")
    return found
