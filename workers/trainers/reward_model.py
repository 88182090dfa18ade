"""Reward model: TRL's RewardTrainer on `{"task_id", "prompt", "chosen", "rejected"}` rows, the pairwise logistic loss
of a score for each answer; what it makes judges, and never acts."""

import dataclasses
from functools import partial
from pathlib import Path
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
        from workers.trainers.attempts import trl_seams
        from workers.trainers.objectives import reward_canaries
        from workers.trainers.weights import reward_weights, trained_policy

    settings = run.spec.settings
    learnt, aside = reward_canaries.split(data.train, settings["validation_share"], run.spec.seed)
    data = dataclasses.replace(data, train=learnt, set_aside=len(aside))
    loaded = trained_policy.load(run)
    trainer = build(run, loaded, env, data)
    _check_lengths(run, trainer.train_dataset, len(learnt), trained_policy.longest(trainer.model, settings)[1])
    tools = trained_policy.tools_shown(aside, env)
    validation = reward_canaries.Validation(run, trainer.model, loaded.tokenizer, aside, tools)

    def save(kept: Path) -> dict[str, dict[str, Any]]:
        trl_seams.load_weights(trainer, kept)
        measure = partial(reward_canaries.measure, rows=aside, tools=tools)
        return reward_weights.save(run, trainer.model, loaded.tokenizer, measure)

    training_loop.carry_out(run, trainer, data, lambda _: None, validation, save)  # it answers no tasks


def build(run: Run, loaded: Any, env: Environment, data: run_spec.Data) -> Any:
    """TRL's trainer of a head on the policy `loaded`, with its pairs in tokens. Raises TrainingError."""
    with model_process.loading():
        from trl.trainer.reward_config import RewardConfig
        from trl.trainer.reward_trainer import RewardTrainer

        from workers.trainers import training_loop
        from workers.trainers.weights import reward_weights, trained_policy

    settings = run.spec.settings
    scoring = reward_weights.scoring(run, loaded)
    limit, _ = trained_policy.longest(scoring.model, settings)
    arguments = training_loop.config(
        RewardConfig,
        run.spec,
        output_dir=str(run.work),
        max_length=limit,
        center_rewards_coefficient=settings["center_rewards"] or None,
    )
    return RewardTrainer(
        model=scoring.model,
        args=arguments,
        train_dataset=trained_policy.training_rows(data.train, ("prompt", "chosen", "rejected"), env),
        processing_class=scoring.tokenizer,
        peft_config=scoring.lora,
    )


def _check_lengths(run: Run, prepared: Any, pairs: int, words: str) -> None:
    """TRL drops pairs of which an answer is too long without a word."""
    if not len(prepared):
        raise TrainingError("data", f"every pair goes beyond {words}: nothing is left to learn")
    if len(prepared) < pairs:
        run.warn(f"{pairs - len(prepared)} of {pairs} pairs are left out: they go beyond {words}")


if __name__ == "__main__":
    raise SystemExit(main("reward_model", train))
