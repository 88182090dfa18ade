"""Uses of TRL's trainers beyond what they promise, in one place; a test holds it to the installed TRL."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor

from workers.trainers.attempts.step_attempts import Attempts


def play(trainer: Any, attempts: Attempts) -> None:
    """Have a GRPO trainer learn from these attempts."""
    trainer.rollout_func = attempts
    learn_by_length(trainer)


def learn_by_length(trainer: Any) -> None:
    """Have a GRPO trainer put attempts of like length into one micro-batch, without the columns that are padding in all
    of it. TRL shuffles a step's attempts, and one long episode widens them all."""
    prepare = trainer._prepare_inputs

    def prepared(rows: Any) -> Any:
        known = trainer._buffered_inputs
        inputs = prepare(rows)
        if trainer._buffered_inputs is known:
            return inputs
        trainer._buffered_inputs = by_length(trainer._buffered_inputs)
        return trainer._buffered_inputs[trainer._step % len(trainer._buffered_inputs)]

    trainer._prepare_inputs = prepared


def by_length(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a step's equally large parts, as many parts of rows that are alike in length; each without the
    columns in which no row has a token, but one."""
    size = len(parts[0]["completion_ids"])
    whole: dict[str, Any] = {
        name: torch.cat([part[name] for part in parts]) if _has_rows(value) else value
        for name, value in parts[0].items()
    }
    lengths = whole["prompt_mask"].sum(1) + whole["completion_mask"].sum(1)
    order = lengths.argsort(stable=True)
    return [_narrowed(whole, rows) for rows in order.split(size)]


def _narrowed(whole: Mapping[str, Any], rows: Tensor) -> dict[str, Any]:
    start = whole["prompt_mask"].shape[1] - int(whole["prompt_mask"][rows].sum(1).max())
    # Answers that were cut off may be masked altogether.
    end, width = max(1, int(whole["completion_mask"][rows].sum(1).max())), whole["completion_mask"].shape[1]
    part: dict[str, Any] = {}
    for name, value in whole.items():
        own = value[rows] if _has_rows(value) else value
        if name in ("prompt_ids", "prompt_mask"):
            own = own[:, start:]
        elif _has_rows(value) and own.ndim == 2 and own.shape[1] == width:
            own = own[:, :end]
        part[name] = own
    return part


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def sample_elsewhere(trainer: Any, policy: Any) -> None:
    """Have TRL take a GRPO trainer's attempts for those of another sampler: before it asks for them in a new step it
    calls the policy's `sync_weights`, and it weighs each token by what the trainer gives it and the sampler gave it."""
    trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, policy, -1


def learn_in_32_bits(trainer: Any) -> None:
    """TRL keeps an adapter on a base in 4 bits in 16 bits itself, in whose rounding the small updates of reinforcement
    vanish."""
    for weight in trainer.model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()


def continue_counters(trainer: Any, checkpoint: Path, step: int) -> None:
    """TRL counts tokens and micro-steps from 0 after a resume: the first is shown, by the second it generates."""
    history = json.loads((checkpoint / "trainer_state.json").read_bytes())["log_history"]
    trainer._total_train_tokens = next((row["num_tokens"] for row in reversed(history) if "num_tokens" in row), 0)
    trainer._step = step * trainer.args.gradient_accumulation_steps


def load_weights(trainer: Any, checkpoint: Path) -> None:
    """Load a checkpoint's weights alone, where there is nothing more to train."""
    trainer._load_from_checkpoint(str(checkpoint))


def backbone(model: Any) -> Any:
    """The model without its language head, whose output has the hidden states that TRL's fused head reads."""
    inner = model.get_base_model() if isinstance(model, PeftModel) else model
    return inner.base_model


@torch.no_grad()
def log_probs(trainer: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """Log-probabilities (B, T) of a batch's completions by the policy of a GRPO trainer, as TRL has them of the
    reference."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    seen = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    count, size = batch["completion_ids"].shape[1], trainer.args.per_device_train_batch_size
    found: Tensor = trainer._get_per_token_logps_and_entropies(trainer.model, ids, seen, count, size)[0]
    return found


@contextmanager
def hidden_states(model: Any) -> Iterator[list[Tensor]]:
    """The last hidden states (B, T, H) of each forward pass within, gradients and all: TRL's loss makes one and keeps
    the log-probabilities alone."""
    states: list[Tensor] = []
    hook = backbone(model).register_forward_hook(lambda *of: states.append(of[2].last_hidden_state))
    try:
        yield states
    finally:
        hook.remove()


@contextmanager
def scored_tokens(model: Any) -> Iterator[list[Tensor]]:
    """The log-probabilities (B, T - 1) of the labels, 0 where there is none, of each forward pass within, gradients and
    all: TRL's SFT loss makes one and keeps their mean alone."""
    found: list[Tensor] = []
    hook = model.register_forward_hook(lambda *of: found.append(of[2].log_probs))
    try:
        yield found
    finally:
        hook.remove()


def measured(trainer: Any, name: str, value: float | None) -> None:
    """Log a metric with TRL's own of this step; None is not logged."""
    if value is not None:
        trainer._metrics["train"][name].append(value)


def unmeasured(trainer: Any, name: str) -> None:
    """Leave out a metric of TRL's that does not apply."""
    trainer._metrics["train"].pop(name, None)
