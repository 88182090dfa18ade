"""Base of GRPOTrainer and RLOOTrainer: tasks in the run's own order, the verifier's rewards, one way to a prompt."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset

from flywheel.core.envs import Environment, Task
from flywheel.core.envs.policy_rollouts import ChatResponse
from workers.engines import context_length
from workers.engines.tool_calls import answer_of
from workers.trainers import trained_policy, training_loop
from workers.trainers.rewards import Judge, Penalties, Read, reward_functions
from workers.trainers.run_directory import Run
from workers.trainers.run_failures import TrainingError
from workers.trainers.run_spec import Data, Spec, tools_of
from workers.trainers.trained_policy import Policy


def settings(spec: Spec) -> dict[str, Any]:
    """Config fields that GRPO and RLOO have in common."""
    names = (
        "num_generations", "temperature", "top_p", "top_k", "max_completion_length", "beta", "num_iterations",
        "epsilon", "epsilon_high", "mask_truncated_completions",
    )  # fmt: skip
    return {name: spec.settings[name] for name in names} | {"shuffle_dataset": False}


def train(run: Run, trainer_class: Any, config_class: Any, env: Environment, data: Data, **fields: Any) -> None:
    loaded = trained_policy.load(run)
    tasks = _fitting(run, loaded, env, [Task.from_json(row) for row in data.train])
    judge, read = Judge(env, run.spec.seed), _reader(run.spec, loaded, env)
    functions, weights = reward_functions(judge, tasks, read, Penalties.of(run.spec.settings))
    trainer = trainer_class(
        model=loaded.model,
        reward_funcs=functions,
        args=training_loop.config(
            config_class,
            run.spec,
            output_dir=str(run.work),
            reward_weights=weights,
            remove_unused_columns=False,
            **settings(run.spec),
            **fields,
        ),
        train_dataset=_dataset(run.spec, env, tasks),
        processing_class=loaded.tokenizer,
        peft_config=loaded.lora,
    )
    _same_prompts(trainer, loaded, run.spec, env, tasks)
    if getattr(trainer, "ref_model", None) is not None and run.spec.adapter is not None:
        # TRL loads the reference from the base's path, which is not the start when an adapter was merged.
        trainer.ref_model.load_state_dict(loaded.model.state_dict())
    training_loop.drive(run, trainer, loaded, env, data)


def _fitting(run: Run, loaded: Policy, env: Environment, tasks: Sequence[Task]) -> list[Task]:
    """The tasks whose prompt and answer the model has room for: beyond it one fails, and another talks nonsense that
    would be learnt. Raises TrainingError where there are none."""
    problems = [_overflow(run.spec, loaded, env, task) for task in tasks]
    if over := [f"{task.id}: {problem}" for task, problem in zip(tasks, problems, strict=True) if problem]:
        if len(over) == len(tasks):
            raise TrainingError("data", f"no task fits into the model's context, such as {over[0]}")
        run.warn(f"{len(over)} of {len(tasks)} tasks are left out, such as {over[0]}")
    return [task for task, problem in zip(tasks, problems, strict=True) if not problem]


def _reader(spec: Spec, loaded: Policy, env: Environment) -> Read:
    """Read answers as an evaluation does, after the very prompt that they answer."""
    ends, prompts = trained_policy.ends_of(loaded.model, loaded.tokenizer), dict[str, list[int]]()

    def read(task: Task, ids: Sequence[int]) -> ChatResponse:
        tools = tools_of(env, task.environment)
        if task.id not in prompts:
            prompt = [message.to_openai() for message in env.reset(task, spec.seed)]
            (prompts[task.id],) = trained_policy.encode(loaded.tokenizer, [prompt], tools)
        return answer_of(loaded.tokenizer, prompts[task.id], ids, ends, 0.0, tools)

    return read


def _overflow(spec: Spec, loaded: Policy, env: Environment, task: Task) -> str:
    tools = tools_of(env, task.environment)
    prompt = [message.to_openai() for message in env.reset(task, spec.seed)]
    (ids,) = trained_policy.encode(loaded.tokenizer, [prompt], tools)
    return context_length.overflow(
        len(ids), spec.settings["max_completion_length"], context_length.room_of(loaded.model)
    )


def _dataset(spec: Spec, env: Environment, tasks: Sequence[Task]) -> Dataset:
    """All prompts of the run in one pass: shuffled anew each time round, the same after a resume.

    TRL's own sampler forgets its place at a resume and leaves a last incomplete batch out, which with fewer tasks
    than one step wants is all of them.
    """
    per_batch = spec.settings["batch_size"] // spec.settings["num_generations"]
    batches = -(-spec.settings["steps"] // spec.settings["num_iterations"])
    order: list[int] = []
    shuffled = random.Random(spec.seed)
    while len(order) < per_batch * batches:
        order += shuffled.sample(range(len(tasks)), len(tasks))
    prompts = [[message.to_openai() for message in env.reset(task, spec.seed)] for task in tasks]
    rows = Dataset.from_list([{"prompt": prompt, "task": index} for index, prompt in enumerate(prompts)])
    return rows.select(order[: per_batch * batches])


def _same_prompts(trainer: Any, loaded: Policy, spec: Spec, env: Environment, tasks: Sequence[Task]) -> None:
    """Let TRL turn prompts into tokens exactly as the evaluation does."""
    told: dict[tuple[Any, ...], list[Any]] = {}
    for task in tasks:
        tools = tools_of(env, task.environment)
        prompt = _key([message.to_openai() for message in env.reset(task, spec.seed)])
        if told.setdefault(prompt, tools) != tools:
            raise TrainingError("data", f"task {task.id}: another environment asks the very same with other tools")

    def tokenize(prompts: Sequence[Any]) -> tuple[list[list[int]], None, dict[str, Any]]:
        ids = [trained_policy.encode(loaded.tokenizer, [prompt], told.get(_key(prompt), []))[0] for prompt in prompts]
        return ids, None, {}

    trainer._tokenize_prompts = tokenize


def _key(prompt: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    return tuple((message["role"], message["content"]) for message in prompt)
