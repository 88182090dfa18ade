"""The environment's verifier in training: each part of a verdict as a reward, and the held-out evaluation.

The rewards that TRL adds up always equal the verifier's own score: a verdict that overrules its parts (unsafe: 0)
overrules the rewards too. A completion that was not scored has no reward (None), never 0.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flywheel.core import digests
from flywheel.core.envs import Environment, Task
from flywheel.core.rollouts import Engine, Rollout, Sampling, play
from flywheel.core.traces import Message, ToolCall, Trace
from flywheel.core.verifiers import Verdict
from workers.trainers.errors import TrainingError
from workers.trainers.run import Run

Reward = Callable[..., list[float | None]]

SAMPLES = 8
DEAD_STEPS = 3
"""So many steps in a row in which nothing could be scored, and the run fails: it would learn nothing."""
_REMEMBERED = 65_536


class Judge:
    """Verdicts over single answers, each given once however many reward functions ask."""

    def __init__(self, env: Environment, seed: int) -> None:
        self.env, self.seed = env, seed
        self._verdicts: dict[tuple[str, str], Verdict] = {}
        self._dead_steps = 0

    def verdict(self, task: Task, answer: Message) -> Verdict:
        key = task.id, digests.canonical(answer.to_json()).decode()
        if key not in self._verdicts:
            if len(self._verdicts) >= _REMEMBERED:
                self._verdicts.clear()
            self._verdicts[key] = judge(self.env, task, [*self.env.reset(task, self.seed), answer])
        return self._verdicts[key]

    def unscored(self, verdicts: Sequence[Verdict]) -> float:
        """The share of a step's verdicts without a score. Raises TrainingError when steps on end have only such."""
        missing = [verdict for verdict in verdicts if verdict.score is None]
        self._dead_steps = self._dead_steps + 1 if len(missing) == len(verdicts) else 0
        if self._dead_steps >= DEAD_STEPS:
            raise TrainingError("verifier", f"nothing was scored in {DEAD_STEPS} steps on end: {missing[0].reason}")
        return len(missing) / len(verdicts)


def judge(env: Environment, task: Task, messages: Sequence[Message]) -> Verdict:
    return env.verifier(task)(Trace.from_messages(task.id, messages), task.target)


def reward_functions(judge: Judge, tasks: Sequence[Task]) -> tuple[list[Reward], list[float]]:
    """One reward function for each part of the verdict, with its weight; parts that do not count weigh 0."""
    weights: Mapping[str, float] = getattr(judge.env, "weights", {}) or {"score": 1.0}
    total = sum(weights.values())
    parts = {part: weight / total for part, weight in weights.items()}
    parts |= {part: 0.0 for part in _parts(judge, tasks) if part not in parts}
    shares = {part: weight for part, weight in parts.items() if weight}
    functions = [_reward(judge, tasks, part, shares, logs=index == 0) for index, part in enumerate(parts)]
    return functions, list(parts.values())


def _reward(judge: Judge, tasks: Sequence[Task], part: str, shares: Mapping[str, float], *, logs: bool) -> Reward:
    def reward(
        completions: Sequence[Any], task: Sequence[int], log_metric: Callable[[str, float], None], **_: Any
    ) -> list[float | None]:
        verdicts = [
            judge.verdict(tasks[index], _message(completion))
            for index, completion in zip(task, completions, strict=True)
        ]
        if logs:
            log_metric("unscored", judge.unscored(verdicts))
        return [_value(verdict, part, shares) for verdict in verdicts]

    reward.__name__ = part
    return reward


def _value(verdict: Verdict, part: str, shares: Mapping[str, float]) -> float | None:
    if verdict.score is None:
        return None
    if part not in shares:
        return verdict.parts.get(part)
    if "score" in shares:
        return verdict.score
    total = sum(share * (verdict.parts.get(name) or 0.0) for name, share in shares.items())
    if abs(total - verdict.score) < 1e-6:
        return verdict.parts.get(part)
    if not total:
        raise TrainingError("verifier", f"the score is {verdict.score} though every weighted part is 0")
    return (verdict.parts.get(part) or 0.0) * verdict.score / total


def _parts(judge: Judge, tasks: Sequence[Task]) -> Sequence[str]:
    """The parts that verdicts have, learnt from a right answer. Raises TrainingError when not one can be scored."""
    reason = "there are no tasks"
    for task in tasks:
        try:
            verdict = judge.verdict(task, judge.env.gold(task))
        except Exception as error:
            reason = f"task {task.id}: its right answer cannot be made: {type(error).__name__}: {error}"
            continue
        if verdict.score is not None:
            return list(verdict.parts)
        reason = f"task {task.id}: {verdict.reason}"
    raise TrainingError("verifier", f"not even the right answers can be scored: {reason}")


def _message(completion: Any) -> Message:
    """TRL's completion, a list with one assistant message in the OpenAI shape."""
    row = completion[-1]
    calls = tuple(
        ToolCall(call.get("id", ""), call["function"]["name"], call["function"]["arguments"])
        for call in row.get("tool_calls") or ()
    )
    return Message("assistant", row.get("content") or "", calls)


class HeldOut:
    """Asks the live policy the held-out tasks, the same ones each time, and records how it did."""

    def __init__(self, run: Run, env: Environment, tasks: Sequence[Task], engine: Engine) -> None:
        self.run, self.env, self.engine = run, env, engine
        # By digest and not by place in the file, so that a limit does not favour what was collected first.
        self.tasks = sorted(tasks, key=lambda task: digests.digest(task.id))[: run.spec.eval_limit]

    def __call__(self, step: int) -> None:
        if not self.tasks:
            return
        began = time.monotonic()
        spec = self.run.spec
        tools = spec.environment["config"].get("tools", []) if spec.settings["tools_in_prompt"] else []
        sampling = Sampling(temperature=0.0, max_tokens=spec.settings["max_completion_length"])
        rollouts = play(self.engine, self.env, [(task, 0, spec.seed) for task in self.tasks], sampling, tools)
        verdicts = [self._verdict(rollout) for rollout in rollouts]
        scored = [verdict for verdict in verdicts if verdict.score is not None]
        if not scored and step == 0:
            raise TrainingError("verifier", f"not one held-out task could be scored: {verdicts[0].reason}")
        self.run.event(
            "eval",
            step=step,
            success=sum(bool(verdict.success) for verdict in scored) / len(scored) if scored else None,
            score=sum(verdict.score or 0.0 for verdict in scored) / len(scored) if scored else None,
            n=len(scored),
            unscored=len(verdicts) - len(scored),
            seconds=round(time.monotonic() - began, 3),
        )
        samples = [_sample(*pair) for pair in zip(rollouts, verdicts, strict=True)]
        self.run.event("samples", step=step, samples=samples[:SAMPLES])

    def _verdict(self, rollout: Rollout) -> Verdict:
        if rollout.error:
            return Verdict(None, rollout.error)
        return judge(self.env, rollout.task, rollout.messages)


def _sample(rollout: Rollout, verdict: Verdict) -> dict[str, Any]:
    answers = [message for message in rollout.messages if message.role == "assistant"]
    return {
        "task_id": rollout.task.id,
        "prompt": rollout.task.prompt,
        "completion": answers[-1].content if answers else "",
        "score": verdict.score,
        "parts": dict(verdict.parts),
        "reason": verdict.reason,
    }
