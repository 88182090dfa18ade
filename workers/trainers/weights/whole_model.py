"""`python -m workers.trainers.weights.whole_model DIRECTORY`: a base with its LoRA adapter added in, as one model.

The directory's `spec.json` is `{"base", "adapter", "dtype"}`: the two directories, and `base` or `float32` for the type
of what is saved. `final/` becomes a model that plain transformers loads, with the base's own tokenizer files.

The sum is made in 32 bits, whatever the base's type: in bfloat16 most changes of a lightly trained adapter are smaller
than the distance to the next number. Saved in 16 bits they may still be, so `result.json` says which share is `lost`.
Then the merged model must answer as the two do apart, or nothing is published.
"""

import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import AutoConfig, AutoModelForCausalLM

from workers.processes import model_process
from workers.trainers.run.run_directory import FINAL, Run, main
from workers.trainers.run.run_failures import TrainingError
from workers.trainers.run.run_spec import Source
from workers.trainers.weights import trained_policy

PROBE = 32
"""Tokens of the text, drawn by chance, on which the merged model is compared with the two apart."""
FURTHEST = 1e-3
"""How far a logit may be from what it was, as a share of the largest: what sums in another order differ by is 1e-6."""


def merge(run: Run) -> None:
    """Write `final/` and the result. Raises TrainingError of kind model or adapter."""
    spec = json.loads((run.path / "spec.json").read_bytes())
    base, adapter = Path(spec["base"]), Source(Path(spec["adapter"]), "")
    known = {"local_files_only": True, "trust_remote_code": False}
    with trained_policy.refused(base), model_process.mapping(base):
        declared = AutoConfig.from_pretrained(base, **known).dtype
        model = AutoModelForCausalLM.from_pretrained(base, **known, use_safetensors=True, dtype=torch.float32)
    dtype = torch.float32 if spec["dtype"] == "float32" else declared or torch.float32
    tuned = trained_policy.with_adapter(run, model, adapter, is_trainable=False).eval()
    before = _logits(tuned)
    lost = _add_in(tuned, dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All adapters are already merged")
        merged = tuned.merge_and_unload()
    apart = float((_logits(merged) - before).abs().max() / before.abs().max())
    if not apart <= FURTHEST:
        raise TrainingError(
            "adapter",
            f"merged, the model answers otherwise: a logit is {apart:.2g} of the largest one away. An adapter of the "
            "output layer cannot be merged where the base shares that layer with its embeddings",
        )

    def write(aside: Path) -> None:
        merged.to(dtype).save_pretrained(aside)
        for path in base.iterdir():
            if ".safetensors" not in path.name and path.name != "config.json" and path.is_file():
                shutil.copyfile(path, aside / path.name)

    files = trained_policy.publish(run, write)
    run.write_result(status="completed", final=FINAL, files=files, lost=lost, apart=apart, seconds=run.seconds)


def _logits(model: Any) -> torch.Tensor:
    tokens = torch.randint(model.config.vocab_size, (1, PROBE), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=tokens).logits
    return logits


def _add_in(tuned: Any, dtype: torch.dtype) -> float:
    """Add the adapter into the base's weights, layer by layer, and return which share of the weights that it changes
    this type does not tell from what they were."""
    changed = lost = 0
    for layer in tuned.modules():
        if isinstance(layer, BaseTunerLayer):
            weight: torch.Tensor = layer.get_base_layer().weight  # type: ignore[assignment]
            before = weight.detach().clone()
            layer.merge(safe_merge=True)
            after = layer.get_base_layer().weight.detach()  # type: ignore[operator]
            changed += int((moved := before != after).sum())
            lost += int((moved & (before.to(dtype) == after.to(dtype))).sum())
    return lost / changed if changed else 0.0


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # weights are only rewritten: no reason to disturb who trains there
    raise SystemExit(main(None, merge))
