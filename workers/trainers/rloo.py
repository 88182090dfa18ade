"""REINFORCE leave-one-out: TRL's RLOOTrainer."""

from workers.processes import model_process
from workers.trainers.run import run_spec
from workers.trainers.run.run_directory import Run, main


def train(run: Run) -> None:
    # The libraries take seconds to load; the run directory is owned and its data checked by then.
    env, data = run_spec.opened(run.spec)
    with model_process.loading():
        from trl.trainer.rloo_config import RLOOConfig
        from trl.trainer.rloo_trainer import RLOOTrainer

        from workers.trainers import online_tasks

    online_tasks.train(
        run, RLOOTrainer, RLOOConfig, env, data, normalize_advantages=run.spec.settings["normalize_advantages"]
    )


if __name__ == "__main__":
    raise SystemExit(main("rloo", train))
