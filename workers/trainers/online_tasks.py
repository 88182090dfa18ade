"""GRPOTrainer and those made of it: tasks in the run's own order, our episodes, the verifier's rewards."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from datasets import Dataset
from trl.trainer.grpo_config import GRPOConfig

from flywheel.core.envs import Environment, Task
from workers.engines import context_length
from workers.engines.tool_calls import prompt_tokens
from workers.trainers import training_loop
from workers.trainers.attempts import remote_policy, trl_seams
from workers.trainers.attempts.curriculum import Curriculum
from workers.trainers.attempts.live_engine import EpisodeEngine
from workers.trainers.attempts.paced_attempts import PacedAttempts
from workers.trainers.attempts.remote_policy import RemoteEngine, RemotePolicy
from workers.trainers.attempts.rewards import Judge, Penalties, Rewards
from workers.trainers.attempts.step_attempts import Attempts
from workers.trainers.objectives.replayed_rows import Replay
from workers.trainers.objectives.served_teacher import ServedTeacher
from workers.trainers.run import checkpoints, ranks, run_spec
from workers.trainers.run.kept_attempts import Keeper
from workers.trainers.run.run_directory import Run
from workers.trainers.run.run_failures import TrainingError
from workers.trainers.run.run_spec import Data, Spec, tools_of
from workers.trainers.weights import sharded_weights, trained_policy
from workers.trainers.weights.trained_policy import Policy

FIELDS = {
    "scale_rewards": "scale_rewards",
    "reward_aggregation": "multi_objective_aggregation",
    "entropy_coef": "entropy_coef",
}
"""Settings of which an algorithm may have none, and TRL's names of them."""


def settings(spec: Spec) -> dict[str, Any]:
    """Fields of TRL's config."""
    names = (
        "num_generations", "temperature", "top_p", "top_k", "max_completion_length", "beta", "num_iterations",
        "epsilon", "epsilon_high", "mask_truncated_completions",
    )  # fmt: skip
    some = {theirs: spec.settings[ours] for ours, theirs in FIELDS.items() if ours in spec.settings}
    return {name: spec.settings[name] for name in names} | some | {"shuffle_dataset": False}


def train(run: Run, trainer_class: Any, env: Environment, data: Data, reader: ServedTeacher | None = None) -> None:
    """`reader`: a teacher on a server, which has to have room for the attempts. Raises TrainingError."""
    loaded = trained_policy.load(run)
    trainer, attempts = build(run, loaded, trainer_class, env, data, reader)
    try:
        turn = attempts.turn if isinstance(attempts, PacedAttempts) else None
        training_loop.drive(run, trainer, loaded, env, data, turn, attempts.rewards)
    finally:
        attempts.close()


def build(
    run: Run, loaded: Policy, trainer_class: Any, env: Environment, data: Data, reader: ServedTeacher | None = None
) -> tuple[Any, Attempts]:
    """TRL's trainer, ready to learn from the run's attempts, and these. Raises TrainingError."""
    spec = run.spec
    tasks = _fitting(run, loaded, env, [Task.from_json(row) for row in data.train], reader)
    judge = Judge(env, spec.reward, run_spec.runners(spec))
    rewards = Rewards(judge, tasks, spec.seed, Penalties.of(spec.settings))
    curriculum = Curriculum(run.path / checkpoints.PLACE) if spec.settings.get("curriculum") else None
    batches = -(-spec.settings["steps"] // spec.settings["num_iterations"])
    keeper = None if ranks.rank() else Keeper(run.path, spec.keep_attempts, batches)
    order = _order(spec, tasks)
    replay = Replay(run, env, data) if data.replay else None
    remote = None
    attempts: Attempts
    if spec.served_base:
        openings = [prompt_of(spec, loaded, env, task) for task in tasks[: remote_policy.PROBES]]
        remote = RemotePolicy(run, trained_policy.ends_of(loaded.model, loaded.tokenizer), openings)
        there = RemoteEngine(remote, loaded.model, loaded.tokenizer, spec.settings["batch_size"])
        attempts = PacedAttempts(run, tasks, order, there, judge, rewards, curriculum, keeper)
    else:
        size, top_k, room = spec.settings["eval_batch_size"], spec.settings["top_k"], reader.room if reader else None
        engine = EpisodeEngine(loaded.model, loaded.tokenizer, size, top_k, room=room)
        attempts = Attempts(spec, tasks, engine, judge, rewards, curriculum, keeper)
    trainer = trainer_class(
        model=loaded.model,
        reward_funcs=attempts.functions(),
        args=training_loop.config(
            GRPOConfig,
            spec,
            output_dir=str(run.work),
            reward_weights=list(rewards.weights.values()),
            remove_unused_columns=False,
            **settings(spec),
            **(remote_policy.FIELDS if remote is not None else {}),
        ),
        train_dataset=Dataset.from_list([{"prompt": str(place)} for place in order]),
        processing_class=loaded.tokenizer,
        peft_config=loaded.lora,
    )
    if curriculum is not None:
        trainer.add_callback(curriculum)
    if replay is not None:
        replay.join(trainer)
    attempts.engine.model = trainer.model  # with the adapter that TRL puts on
    trl_seams.play(trainer, attempts)
    if remote is not None:
        remote.join(trainer)
    if getattr(trainer, "ref_model", None) is not None and spec.adapter is not None:
        # TRL loads the reference from the base's path, which is not the start when an adapter was merged.
        sharded_weights.load(trainer.ref_model, loaded.model.state_dict())
    return trainer, attempts


def prompt_of(spec: Spec, loaded: Policy, env: Environment, task: Task) -> list[int]:
    """Token ids of a task's opening, up to where the policy answers. Raises ValueError."""
    prompt = [message.to_openai() for message in env.reset(task, spec.seed)]
    return prompt_tokens(loaded.tokenizer, prompt, tools_of(env, task.environment))


def overflow(spec: Spec, loaded: Policy, prompt: Sequence[int]) -> str:
    """Why a prompt and an answer to it do not fit into the model's context; empty where they do."""
    room = context_length.room_of(loaded.model)
    return context_length.overflow(len(prompt), spec.settings["max_completion_length"], room)


def _fitting(
    run: Run, loaded: Policy, env: Environment, tasks: Sequence[Task], reader: ServedTeacher | None
) -> list[Task]:
    """The tasks whose prompt and answer the model has room for: beyond it one fails, and another talks nonsense that
    would be learnt. Raises TrainingError where there are none, or where one of them is too long for the reader."""
    prompts = [prompt_of(run.spec, loaded, env, task) for task in tasks]
    problems = [overflow(run.spec, loaded, prompt) for prompt in prompts]
    if over := [f"{task.id}: {problem}" for task, problem in zip(tasks, problems, strict=True) if problem]:
        if len(over) == len(tasks):
            raise TrainingError("data", f"no task fits into the model's context, such as {over[0]}")
        run.warn(f"{len(over)} of {len(tasks)} tasks are left out, such as {over[0]}")
    if reader is not None:
        rows = zip(tasks, prompts, problems, strict=True)
        reader.check_room({task.id: len(prompt) for task, prompt, problem in rows if not problem})
    return [task for task, problem in zip(tasks, problems, strict=True) if not problem]


def _order(spec: Spec, tasks: Sequence[Task]) -> list[int]:
    """The tasks' places in the order of the run: shuffled anew each time round, the same after a resume.

    TRL's own sampler forgets its place at a resume and leaves a last incomplete batch out, which with fewer tasks
    than one step wants is all of them.
    """
    per_batch = spec.settings["batch_size"] // spec.settings["num_generations"]
    batches = -(-spec.settings["steps"] // spec.settings["num_iterations"])
    shuffled = random.Random(spec.seed)
    if spec.environment_weights:
        places = {name: _over_and_over(_of_environment(tasks, name), shuffled) for name in spec.environment_weights}
        turns = environment_turns(spec.environment_weights, per_batch, batches)
        return [next(places[name]) for name in turns]
    return list(islice(_over_and_over(range(len(tasks)), shuffled), per_batch * batches))


def _over_and_over(places: Sequence[int], shuffled: random.Random) -> Iterator[int]:
    while True:
        yield from shuffled.sample(places, len(places))


def _of_environment(tasks: Sequence[Task], name: str) -> list[int]:
    places = [place for place, task in enumerate(tasks) if task.environment == name]
    if not places:
        raise TrainingError("data", f"environment_weights.{name}: none of its tasks is left to practise")
    return places


def environment_turns(weights: Mapping[str, Sequence[float]], per_batch: int, batches: int) -> list[str]:
    """The environment of each group of a run. Weights go in a line from their first to their last; an environment is
    never more than a group behind its share."""
    owed = dict.fromkeys(weights, 0.0)
    turns = []
    for batch in range(batches):
        gone = batch / max(1, batches - 1)
        now = {name: first + (last - first) * gone for name, (first, last) in weights.items()}
        total = math.fsum(now.values())
        for _ in range(per_batch):
            for name, weight in now.items():
                owed[name] += weight / total
            turns.append(max((name for name in now if now[name] > 0), key=owed.__getitem__))
            owed[turns[-1]] -= 1
    return turns
