"""GRPO and its kin (Dr. GRPO, DAPO's loss, GSPO, CISPO): TRL's GRPOTrainer, the kind chosen by the recipe table."""

from workers.processes import model_process
from workers.trainers.run import run_spec
from workers.trainers.run.run_directory import Run, main


def train(run: Run) -> None:
    # The libraries take seconds to load; the run directory is owned and its data checked by then.
    env, data = run_spec.opened(run.spec)
    with model_process.loading():
        from trl.trainer.grpo_config import GRPOConfig
        from trl.trainer.grpo_trainer import GRPOTrainer

        from workers.trainers import online_tasks

    settings = run.spec.settings
    online_tasks.train(
        run,
        GRPOTrainer,
        GRPOConfig,
        env,
        data,
        scale_rewards=settings["scale_rewards"],
        multi_objective_aggregation=settings["reward_aggregation"],
        entropy_coef=settings["entropy_coef"],
    )


if __name__ == "__main__":
    raise SystemExit(main("grpo", train))
