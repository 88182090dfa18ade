"""Judging attempts where verifiers may be untrusted Python or ask a judge: the sandbox as verifiers see it, and many
attempts at once.

No Django here: trainers judge with it too.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from flywheel.core.envs import Environment, Task
from flywheel.core.envs.nemo_gym import NemoGym
from flywheel.core.envs.policy_rollouts import Rollout
from flywheel.core.envs.worlds.own_world import innermost, runners_of, world_of
from flywheel.core.envs.worlds.server_world import ServerWorld
from flywheel.core.envs.worlds.stand_ins import asks_others
from flywheel.core.envs.wrappers.rubric_environment import Judged, case_of
from flywheel.core.traces import Message, Trace
from flywheel.core.verifiers import AWAY, NOT_ANSWERED, Runners, Verdict, one_by_one, unscored
from flywheel.core.verifiers.attempt_places import attempt_json
from flywheel.core.verifiers.rubric import Rubric
from flywheel.core.verifiers.rubric_parts import NoTarget, reference
from workers.judging import llm_judge
from workers.judging.reward_models import Asked, RewardModels
from workers.sandbox.verdict import score
from workers.worlds.world_sessions import Worlds

AT_ONCE = llm_judge.AT_ONCE
Attempt = tuple[Task, Sequence[Message]]
CORES = len(os.sched_getaffinity(0))

_running = threading.BoundedSemaphore(CORES)
"""Of verifiers in the sandbox: more than there are cores would only take each other's time."""


def python(source: str, trace: Mapping[str, Any], target: Any) -> Verdict:
    """The verdict of a Python verifier, run behind all layers of this machine. Without them it refuses, and says which
    is missing."""
    with _running:
        found = score(source, trace, target)
    return Verdict(found.score, found.reason, dict(found.parts), "" if found.score is not None else found.status.value)


aside: ContextVar[Callable[[], AbstractContextManager[None]]] = ContextVar("aside", default=nullcontext)
"""Around waiting for others: what this thread holds while it plays is let go."""


def at_once(do: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """As many as a judge or a server takes; what the sandbox runs waits there for a core."""
    with aside.get()(), ThreadPoolExecutor(max(AT_ONCE, CORES)) as pool:
        return list(pool.map(do, items))


RUNNERS = Runners(python=python, world=Worlds(), each=at_once)


def verdicts(env: Environment, attempts: Sequence[Attempt], known: Sequence[Verdict] | None = None) -> list[Verdict]:
    """Return the verifier's verdict on each attempt, in their order. What runs in processes of its own runs on every
    core; of judges and servers as many are asked at once as they take. `known`: the verdicts of the task's verifier,
    where `env` is judged by a recipe that stands on them."""
    asked = judge_of(env)
    if asked:
        asked.recall(questions(env, attempts))
    if isinstance(env, Judged):
        score_at_once(env.rubric, env.runners, [(messages, env.tools) for _, messages in attempts])
    is_judged_elsewhere = isinstance(env, NemoGym) or (isinstance(env, Judged) and bool(env.rubric.needs))
    told: Sequence[Verdict | None] = known or [None] * len(attempts)
    found = (at_once if is_judged_elsewhere or world_of(env) else one_by_one)(
        lambda pair: verdict(env, *pair), list(zip(attempts, told, strict=True))
    )
    if asked:
        asked.keep()
    return found


def score_at_once(rubric: Rubric, runners: Runners, written: Sequence[Asked]) -> None:
    """Have a rubric's reward models score all that was written in a few passes, before it is judged one by one."""
    models = runners.reward_model
    for part in rubric.parts:
        if part.type == "reward_model" and isinstance(models, RewardModels):
            models.recall(part.settings, written)


def of_rollouts(env: Environment, rollouts: Sequence[Rollout]) -> list[Verdict]:
    """The same of rollouts. One that has an error is unscored, and one that was broken off says where."""
    judged = iter(verdicts(env, [(rollout.task, rollout.messages) for rollout in rollouts if not rollout.error]))
    return [_unanswered(env, rollout) if rollout.error else _with_end(rollout, next(judged)) for rollout in rollouts]


def _unanswered(env: Environment, rollout: Rollout) -> Verdict:
    """No score, and all the same whether it did harm before it broke off."""
    cause = "broken" if rollout.broken else AWAY if rollout.is_away else NOT_ANSWERED
    own = env.own if isinstance(env, Judged) else env
    is_ours = not isinstance(innermost(env), NemoGym | ServerWorld)  # somebody else's tools are not asked again
    parts = verdict(own, (rollout.task, rollout.messages)).parts if is_ours and rollout.messages else {}
    harm = {name: parts[name] for name in ("unsafe", "never_event") if parts.get(name) is not None}
    return replace(unscored(f"not answered: {rollout.error}", cause), parts=harm)


def _with_end(rollout: Rollout, verdict: Verdict) -> Verdict:
    return replace(verdict, reason=f"{rollout.ended}; {verdict.reason}") if rollout.ended else verdict


def verdict(env: Environment, attempt: Attempt, known: Verdict | None = None) -> Verdict:
    """Return the whole verifier's; with what it said known, of the recipe upon it."""
    task, messages = attempt
    trace = Trace.from_messages("", messages)
    if known is None:
        return env.verifier(task)(trace, task.target)
    assert isinstance(env, Judged), "a recipe judges"
    return env.rubric.verdict(case_of(env, task, trace, known, env.runners))


def asks_elsewhere(env: Environment) -> bool:
    """Whether a judge, a server or a model beside the policy has its say in it."""
    return asks_a_judge(env) or asks_others(env) or isinstance(innermost(env), NemoGym)


def is_out_of_reach(env: Environment) -> bool:
    """Whether its calls are carried out elsewhere, and nobody here can ask for it."""
    found = innermost(env)
    if isinstance(found, NemoGym):
        return found.gym is None
    runners = runners_of(env)
    return asks_others(env) and runners.server is None and runners.simulator is None


def asks_a_judge(env: Environment) -> bool:
    """Whether a part of its verifier is a judge behind an endpoint."""
    return isinstance(env, Judged) and "judge" in env.rubric.needs


def judge_of(env: Environment) -> llm_judge.Judge | None:
    """Who is asked for the environment's parts that are judges; None where it has none."""
    asked = env.runners.judge if isinstance(env, Judged) and asks_a_judge(env) else None
    return asked if isinstance(asked, llm_judge.Judge) else None


def questions(env: Environment, attempts: Sequence[Attempt]) -> Iterator[llm_judge.Asked]:
    """Yield the questions that judges may be asked about these."""
    parts = [part.settings for part in env.rubric.parts if part.type == "judge"] if isinstance(env, Judged) else []
    for task, messages in attempts if parts else ():
        trace = attempt_json(Trace.from_messages("", messages))
        for settings in parts:
            try:
                yield settings, trace, reference(settings, task.target)
            except NoTarget:
                continue
