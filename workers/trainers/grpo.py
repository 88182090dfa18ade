"""GRPO and its kin (Dr. GRPO, DAPO, GSPO, CISPO, importance sampling): TRL's GRPOTrainer, the kind chosen by the recipe
table; and those that are that trainer with other advantages: RLOO, PPO with a value head, distillation with a teacher.
"""

from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from workers.processes import model_process
from workers.trainers.run import run_spec
from workers.trainers.run.run_directory import Run, main


def train(run: Run) -> None:
    # The libraries take seconds to load; the run directory is owned and its data checked by then.
    env, data = run_spec.opened(run.spec)
    with model_process.loading():
        from trl.trainer.grpo_trainer import GRPOTrainer

        from workers.trainers import online_tasks
        from workers.trainers.objectives.distillation import DistillationTrainer
        from workers.trainers.objectives.leave_one_out import LeaveOneOutTrainer
        from workers.trainers.objectives.ppo import PPOTrainer, Values
        from workers.trainers.objectives.served_teacher import ServedTeacher
        from workers.trainers.objectives.turn_credit import TurnTrainer
        from workers.trainers.weights import trained_policy

    settings = run.spec.settings
    trainer: Any = GRPOTrainer
    if run.spec.algorithm == "ppo":
        trainer = partial(PPOTrainer, values=Values.of(settings))
    elif run.spec.algorithm == "rloo":
        trainer = partial(LeaveOneOutTrainer, normalize=settings["normalize_advantages"])
    elif settings.get("step_rewards"):
        trainer = partial(TurnTrainer, discount=settings["discount"], weight=settings.get("step_weight", 1.0))
    with ExitStack() as stack:
        served = None
        if (taught := run.spec.teacher) is not None:
            is_served = taught.served_base or taught.hosted
            served = stack.enter_context(closing(ServedTeacher(run))) if is_served else None
            trainer = partial(DistillationTrainer, teacher=served or trained_policy.teacher(run))
        online_tasks.train(run, trainer, env, data, served)


if __name__ == "__main__":
    raise SystemExit(main("grpo", train))
