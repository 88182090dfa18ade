"""The environment's verifier in training: each part of a verdict as a reward, and the held-out evaluation.

The rewards that TRL adds up always equal the verifier's own score, less what harm and an unreadable form cost: a
verdict that overrules its parts (unsafe: 0) overrules the rewards too. A completion that was not scored has no reward
(None), never 0.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.core import digests
from flywheel.core.envs import Environment, Task
from flywheel.core.envs.policy_rollouts import ChatResponse, Engine, Rollout, Sampling, play
from flywheel.core.envs.worlds.stand_ins import asks_others
from flywheel.core.envs.wrappers.mixed_environment import grouped
from flywheel.core.traces import Message
from flywheel.core.verifiers import NOT_ANSWERED, Verdict, unscored
from workers.judging import attempt_verdicts
from workers.trainers.run_directory import Run
from workers.trainers.run_failures import TrainingError

Reward = Callable[..., list[float | None]]

FORMS = frozenset(("valid_json", "form"))
"""Parts that say whether an answer is in a form that is read."""
DEAD_STEPS = 3
"""So many steps in a row in which nothing could be scored, and the run fails: it would learn nothing."""
_REMEMBERED = 65_536


class Judge:
    """Verdicts over single answers, each given once however many reward functions ask. One without a score holds for
    its step alone: what was too slow or crashed need not be so again."""

    def __init__(self, env: Environment, seed: int) -> None:
        self.env, self.seed = env, seed
        self._verdicts: dict[tuple[str, str], Verdict] = {}
        self._dead_steps = 0

    def verdict(self, task: Task, answer: Message) -> Verdict:
        return self.verdicts([(task, answer)])[0]

    def verdicts(self, answers: Sequence[tuple[Task, Message]], *, anew: bool = False) -> list[Verdict]:
        """Return each answer's verdict, in order; new ones are judged together, and with `anew` those that could not
        be scored before."""
        keys = [(task.id, digests.canonical(answer.to_json()).decode()) for task, answer in answers]
        if anew:
            self._verdicts = {key: verdict for key, verdict in self._verdicts.items() if verdict.score is not None}
        if len(self._verdicts) + len(keys) > _REMEMBERED:
            self._verdicts.clear()
        new = {key: pair for key, pair in zip(keys, answers, strict=True) if key not in self._verdicts}
        attempts = [(task, [*self.env.reset(task, self.seed), answer]) for task, answer in new.values()]
        pairs = list(zip(new, attempts, strict=True))
        for _, env, own in grouped(self.env, pairs, lambda pair: pair[1][0]):
            judged = attempt_verdicts.verdicts(env, [attempt for _, attempt in own])
            self._verdicts |= zip([key for key, _ in own], judged, strict=True)
        return [self._verdicts[key] for key in keys]

    def unscored(self, verdicts: Sequence[Verdict]) -> float:
        """The share of a step's verdicts without a score. Raises TrainingError when steps on end have only such."""
        missing = [verdict for verdict in verdicts if verdict.score is None]
        self._dead_steps = self._dead_steps + 1 if len(missing) == len(verdicts) else 0
        if self._dead_steps >= DEAD_STEPS:
            raise TrainingError("verifier", f"nothing was scored in {DEAD_STEPS} steps on end: {missing[0].reason}")
        return len(missing) / len(verdicts)


Read = Callable[[Task, Sequence[int]], ChatResponse]
"""Reads an answer to a task out of its tokens, as engines do."""


@dataclass(frozen=True, slots=True)
class Penalties:
    """Amounts that are taken off a reward."""

    unsafe: float = 0.0
    """Of an attempt that did harm."""
    invalid: float = 0.0
    """Of an answer in a form that is not read."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Penalties":
        """As a run was launched; none for one from before there were any."""
        return cls(settings.get("unsafe_penalty", 0.0), settings.get("invalid_penalty", 0.0))


NO_PENALTIES = Penalties()
INVALID = "invalid_form"
"""The reward of answers in a form that is not read: 1, and its weight is a penalty."""


def reward_functions(
    judge: Judge, tasks: Sequence[Task], read: Read, penalties: Penalties = NO_PENALTIES
) -> tuple[list[Reward], list[float]]:
    """Return one reward function for each part of the verdict, with its weight, and one for what is in no form.

    Parts that do not count weigh 0, and what is penalised less: scores lie in [0, 1], rewards reach below it.
    """
    weights: Mapping[str, float] = getattr(judge.env, "weights", {}) or {"score": 1.0}
    total = sum(weights.values())
    parts = {part: weight / total for part, weight in weights.items()}
    parts |= {part: 0.0 for part in _parts(judge, tasks) if part not in parts}
    shares = {part: weight for part, weight in parts.items() if weight}
    if "unsafe" in parts:
        parts["unsafe"] -= penalties.unsafe
    if penalties.invalid and parts.keys() & FORMS:
        parts[INVALID] = -penalties.invalid
    judged = [(part, index == 0) for index, part in enumerate(parts)]
    functions = [_reward(Reading(judge, tasks, read), part, shares, is_first=first) for part, first in judged]
    return functions, list(parts.values())


@dataclass(frozen=True, slots=True)
class Reading:
    """Judges answers as TRL hands them out, in tokens."""

    judge: Judge
    tasks: Sequence[Task]
    read: Read

    def verdicts(self, task: Sequence[int], completion_ids: Sequence[Sequence[int]], *, anew: bool) -> list[Verdict]:
        """Return each answer's verdict, in order; unscored where it cannot be read."""
        asked = [self.tasks[index] for index in task]
        answers = [self.read(one, ids) for one, ids in zip(asked, completion_ids, strict=True)]
        readable = [
            (one, Message("assistant", each.text, each.tool_calls))
            for one, each in zip(asked, answers, strict=True)
            if not each.error
        ]
        judged = iter(self.judge.verdicts(readable, anew=anew))
        return [unscored(each.error, NOT_ANSWERED) if each.error else next(judged) for each in answers]


def _reward(reading: Reading, part: str, shares: Mapping[str, float], *, is_first: bool) -> Reward:
    """Make a part's reward. TRL asks for all parts of a step's completions in turn, `is_first` before the others."""

    def reward(
        completion_ids: Sequence[Sequence[int]], task: Sequence[int], log_metric: Callable[[str, float], None], **_: Any
    ) -> list[float | None]:
        verdicts = reading.verdicts(task, completion_ids, anew=is_first)
        if is_first:
            log_metric("unscored", reading.judge.unscored(verdicts))
        return [_value(verdict, part, shares) for verdict in verdicts]

    reward.__name__ = part
    return reward


def _value(verdict: Verdict, part: str, shares: Mapping[str, float]) -> float | None:
    if verdict.score is None:
        return None
    if part == INVALID:
        # What did harm was read: its other parts are overruled.
        return float(not verdict.parts.get("unsafe") and any(verdict.parts.get(form) == 0 for form in FORMS))
    if part not in shares:
        return verdict.parts.get(part)
    if "score" in shares:
        return verdict.score
    total = sum(share * (verdict.parts.get(name) or 0.0) for name, share in shares.items())
    if abs(total - verdict.score) < 1e-6:
        return verdict.parts.get(part) or 0.0
    if not total:
        raise TrainingError("verifier", f"the score is {verdict.score} though every weighted part is 0")
    return (verdict.parts.get(part) or 0.0) * verdict.score / total


def _parts(judge: Judge, tasks: Sequence[Task]) -> Sequence[str]:
    """The parts that verdicts have, learnt from a right answer. Raises TrainingError when not one can be scored."""
    reason = "there are no tasks"
    for task in tasks:
        try:
            verdict = judge.verdict(task, judge.env.solve(task, []))
        except Exception as error:
            reason = f"task {task.id}: its right answer cannot be made: {type(error).__name__}: {error}"
            continue
        if verdict.score is not None:
            return list(verdict.parts)
        reason = f"task {task.id}: {verdict.reason}"
    raise TrainingError("verifier", f"not even the right answers can be scored: {reason}")


class HeldOut:
    """Asks the live policy the held-out tasks, the same ones each time, and records how it did.

    Where the run has several environments each has tasks of its own, and what is told apart is told apart: the figures
    of the event are those of the first, by which the run will be compared, the others' stand beside them.

    A trainer holds no key and reaches no server, so where one carries calls out nothing is asked here: the eval of what
    was trained measures it. Those few attempts that call nothing would say another thing than all of them.
    """

    def __init__(self, run: Run, env: Environment, tasks: Sequence[Task], engine: Engine) -> None:
        self.run, self.engine = run, engine
        # By digest and not by place in the file, so that a limit does not favour what was collected first.
        ordered = sorted(tasks, key=lambda task: digests.digest(task.id))
        groups = grouped(env, ordered, lambda task: task)
        self.groups = [(name, part, own[: run.spec.eval_limit]) for name, part, own in groups]

    def __call__(self, step: int) -> None:
        if not self.groups:
            return
        began = time.monotonic()
        attempts = [(name, *self._attempts(env, tasks)) for name, env, tasks in self.groups]
        figures = {name: _figures(verdicts) for name, _, verdicts in attempts}
        if step == 0:
            for (name, _, verdicts), (_, env, _) in zip(attempts, self.groups, strict=True):
                # A judge behind an endpoint is asked in evals alone: a trainer holds no key.
                if verdicts and not figures[name]["n"] and not attempt_verdicts.asks_a_judge(env):
                    where = f" of {name}" if name else ""
                    reason = f"not one held-out task{where} could be scored: {verdicts[0].reason}"
                    raise TrainingError("verifier", reason)
        first, *others = figures
        beside = {"environments": {name: figures[name] for name in others}} if others else {}
        self.run.event("eval", step=step, **figures[first], **beside, seconds=round(time.monotonic() - began, 3))
        samples = [
            _sample(*pair) for _, rollouts, verdicts in attempts for pair in zip(rollouts, verdicts, strict=True)
        ]
        self.run.event("samples", step=step, samples=samples)

    def _attempts(self, env: Environment, tasks: Sequence[Task]) -> tuple[list[Rollout], list[Verdict]]:
        if asks_others(env):
            return [], []
        spec = self.run.spec
        sampling = Sampling(temperature=0.0, max_tokens=spec.settings["max_completion_length"])
        rollouts = play(self.engine, env, [(task, 0, spec.seed) for task in tasks], sampling)
        return rollouts, attempt_verdicts.of_rollouts(env, rollouts)


def _figures(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    scored = [verdict for verdict in verdicts if verdict.score is not None]
    return {
        "success": sum(bool(verdict.success) for verdict in scored) / len(scored) if scored else None,
        "score": sum(verdict.score or 0.0 for verdict in scored) / len(scored) if scored else None,
        "n": len(scored),
        "unscored": len(verdicts) - len(scored),
    }


def _sample(rollout: Rollout, verdict: Verdict) -> dict[str, Any]:
    answers = [message for message in rollout.messages if message.role == "assistant"]
    return {
        "task_id": rollout.task.id,
        "prompt": rollout.task.prompt,
        "completion": _written(answers[-1]) if answers else "",
        "score": verdict.score,
        "parts": dict(verdict.parts),
        "reason": verdict.reason,
    }


def _written(message: Message) -> str:
    """An answer as text, its calls too."""
    calls = [{"tool": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return "\n".join(filter(None, [message.content, *(json.dumps(call, ensure_ascii=False) for call in calls)]))
