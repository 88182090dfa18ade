"""The environment's verifier in training: each part of a verdict as a reward, and the held-out evaluation.

The rewards that TRL adds up always equal the verifier's own score, less what harm and an unreadable form cost: a
verdict that overrules its parts (unsafe: 0) overrules the rewards too. An attempt that was not scored has no reward
(None), never 0.

With a reward recipe (`core.verifiers.rubric`) a run learns from what its parts make of an attempt on which the verifier
has spoken. Evaluations and what is kept of attempts stay the verifier's; validation tells the reward beside its score.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from flywheel.core import digests
from flywheel.core.envs import Environment, Task, episode
from flywheel.core.envs.policy_rollouts import Engine, Rollout, Sampling, play
from flywheel.core.envs.wrappers.mixed_environment import grouped
from flywheel.core.envs.wrappers.rubric_environment import case_of
from flywheel.core.traces import Message, Trace
from flywheel.core.verifiers import Runners, Verdict, one_by_one
from flywheel.core.verifiers.rubric import Rubric
from workers.judging import attempt_verdicts, broker_line
from workers.trainers.run.run_directory import Run
from workers.trainers.run.run_failures import TrainingError
from workers.trainers.weights.best_weights import OVERALL

FORMS = frozenset(("valid_json", "form"))
"""Parts that say whether an answer is in a form that is read."""
ASKED = {"eval": "held-out", "validation": "validation"}
"""Tasks that are asked on the way, by the event that tells of them."""
DEAD_STEPS = 3
"""So many steps in a row in which nothing could be scored, and the run fails: it would learn nothing."""
_REMEMBERED = 65_536


class Judge:
    """Verdicts over attempts, each given once however often the policy makes it. One without a score holds for its step
    alone: what was too slow or crashed need not be so again. While one thread waits for others' verdicts another may
    ask for some (`attempt_verdicts.aside`)."""

    def __init__(self, env: Environment, recipe: Rubric | None = None, runners: Runners | None = None) -> None:
        """`runners` are those whom the recipe's parts ask; without them it asks nobody."""
        self.env, self.recipe, self.runners = env, recipe, runners or Runners()
        self._verdicts: dict[tuple[str, str], Verdict] = {}
        self._earned: dict[tuple[str, str, int], Verdict] = {}
        self._dead_steps = 0

    def verdicts(self, rollouts: Sequence[Rollout]) -> list[Verdict]:
        """Return each attempt's verdict, in order; those that are new are judged together."""
        keys = [_key(rollout) for rollout in rollouts]
        if len(self._verdicts) + len(keys) > _REMEMBERED:
            self._verdicts.clear()
        found = {key: self._verdicts[key] for key in keys if key in self._verdicts}
        new = {key: rollout for key, rollout in zip(keys, rollouts, strict=True) if key not in found}
        for _, env, own in grouped(self.env, list(new.items()), lambda item: item[1].task):
            judged = attempt_verdicts.of_rollouts(env, [rollout for _, rollout in own])
            found |= zip([key for key, _ in own], judged, strict=True)
        _refuse_lost()
        self._verdicts |= {key: verdict for key, verdict in found.items() if verdict.score is not None}
        return [found[key] for key in keys]

    def earned(self, rollouts: Sequence[Rollout], verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Return what is learnt from attempts with these verdicts, in order: what the recipe makes of them; without one
        the verdicts themselves. One without a score has none here."""
        if self.recipe is None:
            return list(verdicts)
        keys = [(*_key(rollout), rollout.tokens_out) for rollout in rollouts]
        if len(self._earned) + len(keys) > _REMEMBERED:
            self._earned.clear()
        each = zip(keys, zip(rollouts, verdicts, strict=True), strict=True)
        found = {key: self._earned[key] for key in keys if key in self._earned}
        new = {key: pair for key, pair in each if key not in found}
        told = grouped(self.env, [rollout for rollout, _ in new.values()], lambda rollout: rollout.task)
        written = [(rollout.messages, env.tools) for _, env, own in told for rollout in own]
        attempt_verdicts.score_at_once(self.recipe, self.runners, written)
        do = attempt_verdicts.at_once if self.recipe.needs else one_by_one
        found |= zip(new, do(lambda pair: self._by_recipe(*pair), list(new.values())), strict=True)
        _refuse_lost()
        self._earned |= {key: verdict for key, verdict in found.items() if verdict.score is not None}
        return [found[key] for key in keys]

    def _by_recipe(self, rollout: Rollout, verdict: Verdict) -> Verdict:
        assert self.recipe is not None
        if verdict.score is None:
            return verdict
        ((_, env, _),) = grouped(self.env, [rollout], lambda item: item.task)
        trace = Trace.from_messages("", rollout.messages)
        return self.recipe.verdict(case_of(env, rollout.task, trace, verdict, self.runners, rollout.tokens_out))

    def unscored(self, verdicts: Sequence[Verdict]) -> float:
        """The share of a step's verdicts without a score. Raises TrainingError when steps on end have only such."""
        missing = [verdict for verdict in verdicts if verdict.score is None]
        self._dead_steps = self._dead_steps + 1 if len(missing) == len(verdicts) else 0
        if self._dead_steps >= DEAD_STEPS:
            raise TrainingError("verifier", f"nothing was scored in {DEAD_STEPS} steps on end: {missing[0].reason}")
        return len(missing) / len(verdicts)


def _refuse_lost() -> None:
    """Raise TrainingError where the worker's broker is gone: what it was asked has no score, and nothing will have."""
    if lost := broker_line.lost():
        raise TrainingError("broker", lost)


def _key(rollout: Rollout) -> tuple[str, str]:
    """Return what tells an attempt from another: two of one key are judged alike."""
    said = [message.to_json() for message in rollout.messages]
    return rollout.task.id, digests.canonical([said, rollout.error, rollout.ended]).decode()


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


def is_unreadable(verdict: Verdict) -> bool:
    """Whether the answer is in a form that is not read. What did harm was read: its other parts are overruled."""
    return not verdict.parts.get("unsafe") and any(verdict.parts.get(form) == 0 for form in FORMS)


class Rewards:
    """The worth of verdicts in training, part by part: of those that `Judge.earned` gives.

    Parts that do not count weigh 0, and what is penalised less: scores lie in [0, 1], rewards reach below it, and what
    a recipe adds reaches beyond.
    """

    def __init__(self, judge: Judge, tasks: Sequence[Task], seed: int, penalties: Penalties = NO_PENALTIES) -> None:
        self._judge, recipe = judge, judge.recipe
        own: Mapping[str, float] = getattr(judge.env, "weights", {})
        weights = (recipe.weights if recipe else own) or {"score": 1.0}
        total = sum(weights.values())
        parts = {part: weight / total for part, weight in weights.items()}
        parts |= {part: 0.0 for part in _parts(judge, tasks, seed) if part not in parts}
        self._shares = {part: weight for part, weight in parts.items() if weight}
        parts |= recipe.shaping if recipe else {}
        if "unsafe" in parts:
            parts["unsafe"] -= penalties.unsafe
        if penalties.invalid and parts.keys() & FORMS:
            parts[INVALID] = -penalties.invalid
        self.weights = parts
        """By part. Their weighted sum is the score, less penalties."""

    def earned(self, rollouts: Sequence[Rollout], verdicts: Sequence[Verdict]) -> list[float | None]:
        """The whole reward of attempts with these verdicts of the environment's, in order; None where one has none."""
        return [self.total(verdict) for verdict in self._judge.earned(rollouts, verdicts)]

    def total(self, verdict: Verdict) -> float | None:
        """The reward in all; None of what was not scored."""
        values = {part: self.value(verdict, part) for part in self.weights}
        return None if verdict.score is None else sum(self.weights[part] * (values[part] or 0.0) for part in values)

    def value(self, verdict: Verdict, part: str) -> float | None:
        """The value of a part; None where it has none. Raises TrainingError for a score that its parts cannot make."""
        if verdict.score is None:
            return None
        if part == INVALID:
            return float(is_unreadable(verdict))
        if part not in self._shares:
            return verdict.parts.get(part)
        if "score" in self._shares:
            return verdict.score
        total = sum(share * (verdict.parts.get(name) or 0.0) for name, share in self._shares.items())
        if abs(total - verdict.score) < 1e-6:
            return verdict.parts.get(part) or 0.0
        if not total:
            raise TrainingError("verifier", f"the score is {verdict.score} though every weighted part is 0")
        return (verdict.parts.get(part) or 0.0) * verdict.score / total


def _parts(judge: Judge, tasks: Sequence[Task], seed: int) -> Sequence[str]:
    """The parts that verdicts have, learnt from a right attempt in each environment of the tasks. Raises TrainingError
    where not one can be scored, or there are no tasks."""
    groups = grouped(judge.env, tasks, lambda task: task) if tasks else []
    if not groups:
        raise TrainingError("verifier", "not even right attempts can be scored: there are no tasks")
    found = [part for name, _, own in groups for part in _parts_of(judge, own, seed, f" of {name}" if name else "")]
    return list(dict.fromkeys(found))


def _parts_of(judge: Judge, tasks: Sequence[Task], seed: int, where: str) -> Sequence[str]:
    reason = ""
    for task in tasks:
        try:
            right = [_right(judge.env, task, seed)]
            (verdict,) = judge.earned(right, judge.verdicts(right))
        except TrainingError:
            raise
        except Exception as error:
            reason = f"task {task.id}: its right attempt cannot be made: {type(error).__name__}: {error}"
            continue
        if verdict.score is not None:
            return list(verdict.parts)
        reason = f"task {task.id}: {verdict.reason}"
    raise TrainingError("verifier", f"not even right attempts{where} can be scored: {reason}")


def _right(env: Environment, task: Task, seed: int) -> Rollout:
    return Rollout(task, 0, seed, episode(env, task, lambda messages: env.solve(task, messages), seed))


class ProgressEval:
    """Tasks that the live policy is asked on the way, the same ones each time, and how it did.

    Where the run has several environments each has tasks of its own, and what is told apart is told apart: the figures
    of the event are those of the first, by which the run will be compared, the others' stand beside them.

    A trainer holds no key and reaches no server but over its worker's broker. Without one, where a server or a model
    carries calls out, nothing is asked here: the eval of what was trained measures it. Those few attempts that call
    nothing would say another thing than all of them.
    """

    def __init__(
        self,
        run: Run,
        env: Environment,
        tasks: Sequence[Task],
        engine: Engine,
        *,
        event: str,
        limit: int,
        rewards: Rewards | None = None,
    ) -> None:
        """`rewards`: those that the run learns from, to be told beside the scores."""
        self.run, self.engine, self.event, self.rewards = run, engine, event, rewards
        # By digest and not by place in the file, so that a limit does not favour what was collected first.
        ordered = sorted(tasks, key=lambda task: digests.digest(task.id))
        groups = grouped(env, ordered, lambda task: task)
        self.groups = [(name, part, own[:limit]) for name, part, own in groups]

    def __call__(self, step: int) -> float | None:
        """Ask them, and record the event. The mean, over all of them, of the figure by which weights are compared
        (`best_metric`); None where none has one."""
        if not self.groups:
            return None
        began = time.monotonic()
        self.attempts = {name: self._attempts(env, tasks) for name, env, tasks in self.groups}
        figures = {name: _figures(asked) for name, asked in self.attempts.items()}
        for name, env, _ in self.groups if step == 0 else ():
            verdicts = self.attempts[name].verdicts
            # What is away now, or has no broker here, may be there in the eval of what was trained.
            if verdicts and not figures[name]["n"] and not attempt_verdicts.asks_elsewhere(env):
                where = f" of {name}" if name else ""
                reason = f"not one {ASKED[self.event]} task{where} could be scored: {verdicts[0].reason}"
                raise TrainingError("verifier", reason)
        first, *others = figures
        told = [pair for asked in self.attempts.values() for pair in asked.scored]
        row = figures[first]
        if others:
            row |= {"environments": {name: figures[name] for name in others}}
            row |= {OVERALL[name]: value for name, value in _compared(told).items() if name in row}
        self.run.event(self.event, step=step, **row | {"seconds": _since(began)})
        return _compared(told)[self.run.spec.settings.get("best_metric", "score")]

    def _attempts(self, env: Environment, tasks: Sequence[Task]) -> "_Asked":
        if attempt_verdicts.is_out_of_reach(env):
            return _Asked([], [], [] if self.rewards else None, 0.0)
        spec, began = self.run.spec, time.monotonic()
        sampling = Sampling(temperature=0.0, max_tokens=spec.settings["max_completion_length"])
        rollouts = play(self.engine, env, [(task, 0, spec.seed) for task in tasks], sampling)
        verdicts = attempt_verdicts.of_rollouts(env, rollouts)
        _refuse_lost()
        rewards = self.rewards.earned(rollouts, verdicts) if self.rewards else None
        return _Asked(rollouts, verdicts, rewards, _since(began))


class HeldOut(ProgressEval):
    """The held-out tasks: they measure, and choose nothing. Their answers are shown beside each other."""

    def __init__(self, run: Run, env: Environment, tasks: Sequence[Task], engine: Engine) -> None:
        super().__init__(run, env, tasks, engine, event="eval", limit=run.spec.eval_limit)

    def __call__(self, step: int) -> float | None:
        score = super().__call__(step)
        if self.groups:
            asked = self.attempts.values()
            pairs = [pair for each in asked for pair in zip(each.rollouts, each.verdicts, strict=True)]
            self.run.event("samples", step=step, samples=[_sample(*pair) for pair in pairs])
        return score


@dataclass(frozen=True, slots=True)
class _Asked:
    """Attempts at an environment's tasks."""

    rollouts: Sequence[Rollout]
    verdicts: Sequence[Verdict]
    rewards: Sequence[float | None] | None
    """None where nothing is learnt from rewards."""
    seconds: float
    """That they took to be played and judged."""

    @property
    def scored(self) -> "list[_Scored]":
        rewards = self.rewards or [None] * len(self.rollouts)
        each = zip(self.rollouts, self.verdicts, rewards, strict=True)
        return [attempt for attempt in each if attempt[1].score is not None]


_Scored = tuple[Rollout, Verdict, float | None]


def _figures(asked: _Asked) -> dict[str, Any]:
    """Figures of the attempts that were scored, in all and in each slice. Attempts share batches, so that a slice's
    seconds are the share of its answer tokens, its attempts without a score included."""
    scored, has_rewards = asked.scored, asked.rewards is not None
    slices: dict[str, list[_Scored]] = {}
    for attempt in scored:
        slices.setdefault(attempt[0].task.slice, []).append(attempt)
    written: dict[str, int] = {}
    for rollout in asked.rollouts:
        written[rollout.task.slice] = written.get(rollout.task.slice, 0) + (rollout.tokens_out or 0)
    second = asked.seconds / max(1, sum(written.values()))
    return {
        **_means(scored, has_rewards),
        "unscored": len(asked.verdicts) - len(scored),
        "slices": {
            name: {**_means(own, has_rewards), "seconds": round(written[name] * second, 3)}
            for name, own in sorted(slices.items())
        }
        if len(slices) > 1
        else {},
        "seconds": asked.seconds,
    }


def _compared(scored: Sequence[_Scored]) -> dict[str, float | None]:
    """The figures by which weights can be compared (`best_metric`)."""
    return {
        "score": _mean([verdict.score or 0.0 for _, verdict, _ in scored]),
        "reward": _mean([reward for *_, reward in scored if reward is not None]),
    }


def _means(scored: Sequence[_Scored], has_rewards: bool) -> dict[str, Any]:
    """Means over scored attempts: success, score, the reward that is learnt from, each part, whether the form was read
    (where the verifier looks at it), answer tokens, and the milliseconds that the policy took for its answers; None
    where nothing is known. `rewarded` of them have a reward."""
    found = [verdict for _, verdict, _ in scored]
    values: dict[str, list[float]] = {}
    for verdict in found:
        for part, value in verdict.parts.items():
            if value is not None:
                values.setdefault(part, []).append(value)
    said = [rollout.responses for rollout, *_ in scored]
    timed = [[each.latency_ms for each in responses if each.latency_ms is not None] for responses in said]
    compared = _compared(scored)
    rewarded = sum(reward is not None for *_, reward in scored)
    return {
        "success": _mean([bool(verdict.success) for verdict in found]),
        "n": len(found),
        "score": compared["score"],
        **({"reward": compared["reward"], "rewarded": rewarded} if has_rewards else {}),
        "parts": {part: fmean(each) for part, each in values.items()},
        "invalid": _mean([is_unreadable(verdict) for verdict in found]) if values.keys() & FORMS else None,
        "tokens": _mean([rollout.tokens_out for rollout, *_ in scored]),
        "latency_ms": _mean([sum(each) for each in timed if each]),
    }


def _since(began: float) -> float:
    """Seconds since then by the monotonic clock."""
    return round(time.monotonic() - began, 3)


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


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
