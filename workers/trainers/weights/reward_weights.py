"""The weights of a reward model: a policy's body under one output that scores, and the artifact that leaves the run.

The artifact is a whole model, also of a LoRA run, in the 32 bits that it learnt in: whoever judges with it reads one
directory, and gets the very scores that its canaries were measured by.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForSequenceClassification

from flywheel.core.verifiers.reward_model_rules import FACTS
from workers.engines.reward_scorer import RewardScorer
from workers.trainers.run.run_directory import Run
from workers.trainers.run.run_failures import TrainingError
from workers.trainers.weights import trained_policy
from workers.trainers.weights.trained_policy import Policy

HEAD = "score"
"""The layer that scores, by transformers' name."""


def scoring(run: Run, loaded: Policy) -> Policy:
    """The policy's body under a new head of one output, with a fresh adapter in a LoRA run; an adapter that the policy
    has is merged, in 32 bits, or a light one would vanish in rounding. Raises TrainingError of kind model."""
    spec, policy = run.spec, loaded.model
    if isinstance(policy, PeftModel):
        policy = policy.float().merge_and_unload()
    policy.config.num_labels = 1
    policy.config.pad_token_id = loaded.tokenizer.pad_token_id
    try:
        with torch.device("meta"):  # all but the head is there already
            model = AutoModelForSequenceClassification.from_config(policy.config)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise TrainingError("model", f"{spec.base.path} can have no head that scores: {error}") from error
    if not isinstance(getattr(model, HEAD, None), nn.Linear):
        raise TrainingError("model", f"{spec.base.path}: {type(model).__name__} has no layer {HEAD!r} that scores")
    body = policy.base_model
    setattr(model, model.base_model_prefix, body)
    torch.manual_seed(spec.seed)
    head = nn.Linear(model.score.in_features, 1, bias=False, dtype=body.dtype)
    nn.init.normal_(head.weight, std=getattr(policy.config, "initializer_range", 0.02))
    model.score = head
    model.requires_grad_(True)
    lora = trained_policy.lora_of(spec, task_type="SEQ_CLS", modules_to_save=[HEAD]) if spec.mode == "lora" else None
    return Policy(model, loaded.tokenizer, lora)


def save(
    run: Run, model: Any, tokenizer: Any, measure: Callable[[RewardScorer], Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Publish `final/` with what `measure` finds of the saved model, and return its files."""

    def write(aside: Path) -> None:
        whole = model.float()
        if isinstance(whole, PeftModel):
            whole = whole.merge_and_unload()
        whole.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        facts = measure(RewardScorer.load(aside, run.spec.settings["eval_batch_size"]))
        (aside / FACTS).write_text(json.dumps(facts, indent=1, allow_nan=False))

    return trained_policy.publish(run, write)
