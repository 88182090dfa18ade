"""Supervised fine-tuning: TRL's SFTTrainer on `{"task_id", "prompt", "completion"}` rows, loss on the completion; and
AWR, which is that trainer on scored attempts, each with its weight."""

from functools import partial
from typing import Any

from flywheel.core.envs import Environment
from workers.processes import model_process
from workers.trainers.run import run_spec
from workers.trainers.run.run_directory import Run, main
from workers.trainers.run.run_failures import TrainingError


def train(run: Run) -> None:
    # The libraries take seconds to load; the run directory is owned and its data checked by then.
    env, data = run_spec.opened(run.spec)
    with model_process.loading():
        from workers.trainers import training_loop
        from workers.trainers.weights import trained_policy

    loaded = trained_policy.load(run)
    trainer = build(run, loaded, env, data)
    limit, words = trained_policy.longest(loaded.model, run.spec.settings)
    _check_lengths(run, trainer.train_dataset, len(data.train), limit, words)
    training_loop.drive(run, trainer, loaded, env, data)


def build(run: Run, loaded: Any, env: Environment, data: run_spec.Data, own: run_spec.Spec | None = None) -> Any:
    """TRL's trainer of the policy `loaded`, with its rows in tokens, by another spec than the run's where there is one.
    Raises TrainingError."""
    spec = own or run.spec
    with model_process.loading():
        from trl.trainer.sft_config import SFTConfig
        from trl.trainer.sft_trainer import SFTTrainer

        from workers.trainers import training_loop
        from workers.trainers.attempts.weighted_imitation import Weighing, WeightedTrainer
        from workers.trainers.weights import trained_policy

    settings, fields = spec.settings, dict[str, Any]()
    trainer: Any = SFTTrainer
    if spec.algorithm == "awr":
        trainer = partial(WeightedTrainer, about=Weighing.of(settings), rows=data.train, warn=run.warn)
        fields["remove_unused_columns"] = False  # by the place of its row a sequence is weighed
    limit, _ = trained_policy.longest(loaded.model, settings)
    return trainer(
        model=loaded.model,
        args=training_loop.config(SFTConfig, spec, output_dir=str(run.work), max_length=limit, **fields),
        train_dataset=trained_policy.training_rows(data.train, ("prompt", "completion"), env),
        processing_class=loaded.tokenizer,
        peft_config=loaded.lora,
    )


def _check_lengths(run: Run, prepared: Any, rows: int, limit: int, words: str) -> None:
    """TRL drops rows whose prompt alone is too long and cuts the others without a word."""
    lengths = [len(ids) for ids in prepared["input_ids"]]
    if not lengths:
        raise TrainingError("data", f"every prompt alone reaches {words}: nothing is left to learn")
    if len(lengths) < rows:
        run.warn(f"{rows - len(lengths)} of {rows} rows are left out: their prompt alone reaches {words}")
    if cut := sum(length >= limit for length in lengths):
        run.warn(f"{cut} of {rows} rows reach {words}; what was beyond it is cut off")


if __name__ == "__main__":
    raise SystemExit(main("sft", train))
