"""Direct preference optimisation: TRL's DPOTrainer on `{"task_id", "prompt", "chosen", "rejected"}` rows."""

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


def build(run: Run, loaded: Any, env: Environment, data: run_spec.Data) -> Any:
    """TRL's trainer of the policy `loaded`, with its pairs in tokens. Raises TrainingError."""
    with model_process.loading():
        from trl.trainer.dpo_config import DPOConfig
        from trl.trainer.dpo_trainer import DPOTrainer

        from workers.trainers import training_loop
        from workers.trainers.weights import trained_policy

    settings = run.spec.settings
    limit, _ = trained_policy.longest(loaded.model, settings)
    arguments = training_loop.config(
        DPOConfig,
        run.spec,
        output_dir=str(run.work),
        max_length=limit,
        beta=settings["beta"],
        loss_type=[settings["preference_loss"]],
        label_smoothing=settings["label_smoothing"],
    )
    return DPOTrainer(
        model=loaded.model,
        ref_model=trained_policy.reference(run, loaded),
        args=arguments,
        train_dataset=trained_policy.training_rows(data.train, ("prompt", "chosen", "rejected"), env),
        processing_class=loaded.tokenizer,
        peft_config=loaded.lora,
    )


def _check_lengths(run: Run, prepared: Any, pairs: int, limit: int, words: str) -> None:
    """TRL drops pairs whose prompt alone is too long and cuts the others without a word."""
    columns = (prepared[name] for name in ("prompt_ids", "chosen_ids", "rejected_ids"))
    lengths = [len(prompt) + max(len(chosen), len(rejected)) for prompt, chosen, rejected in zip(*columns, strict=True)]
    if not lengths:
        raise TrainingError("data", f"every prompt alone reaches {words}: nothing is left to learn")
    if len(lengths) < pairs:
        run.warn(f"{pairs - len(lengths)} of {pairs} pairs are left out: their prompt alone reaches {words}")
    if cut := sum(length > limit for length in lengths):
        run.warn(f"{cut} of {pairs} pairs go beyond {words}; what was beyond it is cut off")


if __name__ == "__main__":
    raise SystemExit(main("dpo", train))
