"""Direct preference optimisation: TRL's DPOTrainer on `{"task_id", "prompt", "chosen", "rejected"}` rows."""

import copy
import json
from typing import Any

from workers.trainers import spec as specs
from workers.trainers.errors import TrainingError
from workers.trainers.run import Run, main


def train(run: Run) -> None:
    # The libraries take seconds to load; the run directory is owned and its data checked by then.
    env, data = specs.opened(run.spec)
    from datasets import Dataset
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.dpo_trainer import DPOTrainer

    from workers.trainers import loop, policy

    loaded = policy.load(run)
    settings = run.spec.settings
    rows = [{name: row[name] for name in ("prompt", "chosen", "rejected")} for row in data.train]
    if settings["tools_in_prompt"]:
        # As text, or Arrow gives each tool all properties.
        tools = [json.dumps(specs.tools_of(env, row.get("environment", ""))) for row in data.train]
        rows = [row | {"tools": told} for row, told in zip(rows, tools, strict=True)]
    arguments = loop.config(
        DPOConfig,
        run.spec,
        output_dir=str(run.work),
        max_length=settings["max_length"],
        beta=settings["beta"],
        loss_type=[settings["preference_loss"]],
        label_smoothing=settings["label_smoothing"],
    )
    # Left to itself TRL loads the reference from the base's path, which is not the start when an adapter was merged.
    is_merged = run.spec.mode == "full" and run.spec.adapter is not None
    trainer: Any = DPOTrainer(
        model=loaded.model,
        ref_model=copy.deepcopy(loaded.model) if is_merged else None,
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=loaded.tokenizer,
        peft_config=loaded.lora,
    )
    kept = trainer.train_dataset.num_rows
    if not kept:
        raise TrainingError("data", f"every prompt has max_length ({settings['max_length']}) tokens or more")
    if kept < len(rows):
        run.warn(f"{len(rows) - kept} of {len(rows)} pairs are left out: their prompt alone reaches max_length")
    loop.drive(run, trainer, loaded, env, data)


if __name__ == "__main__":
    raise SystemExit(main("dpo", train))
