"""The attempts that GRPO and its kin learn from: whole episodes, played as evals play them, as TRL takes them.

TRL asks for the attempts of a step, each task as often as a group has members, and gets tokens; then it asks for their
rewards, which are worked out by then. With dynamic sampling (DAPO, https://arxiv.org/abs/2503.14476) a group whose
rewards are all alike, which teaches nothing, makes room for one of another task.
"""

import hashlib
import math
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress, islice
from statistics import fmean
from typing import Any

from flywheel.core.envs import Task
from flywheel.core.envs.policy_rollouts import Rollout, Sampling, play
from flywheel.core.envs.wrappers.mixed_environment import grouped
from flywheel.core.verifiers import Verdict
from workers.trainers.attempts.curriculum import Curriculum
from workers.trainers.attempts.live_engine import TURN_BITS, Episode, EpisodeEngine
from workers.trainers.attempts.rewards import FORMS, Judge, Rewards, is_unreadable
from workers.trainers.run import ranks
from workers.trainers.run.kept_attempts import Keeper, Kept
from workers.trainers.run.run_spec import Spec, tools_of
from workers.trainers.weights import sharded_weights

ALIKE = 1e-6
"""A group whose rewards lie no further apart teaches nothing."""

RUN = 8
"""Tokens that are no repetition by chance."""

Reward = Callable[..., list[float | None]]


@dataclass(frozen=True, slots=True)
class Group:
    """All attempts of a step at one task, with their verdicts."""

    rollouts: Sequence[Rollout]
    verdicts: Sequence[Verdict]
    """Of the attempts, in their order."""
    earned: Sequence[Verdict]
    """What is learnt from: the same, or what the run's reward recipe makes of them."""


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of an attempt."""

    sizes: Sequence[int]
    """Tokens that the policy wrote in each."""
    rewards: Sequence[float] | None
    """What each earned; None of an attempt without a score."""


class Attempts:
    """Plays, judges and counts a step's attempts, when TRL calls it, and has them for its reward functions then."""

    def __init__(
        self,
        spec: Spec,
        tasks: Sequence[Task],
        engine: EpisodeEngine,
        judge: Judge,
        rewards: Rewards,
        curriculum: Curriculum | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        self.spec, self.tasks, self.engine, self.judge, self.rewards = spec, tasks, engine, judge, rewards
        self.curriculum = curriculum
        self._keeper = keeper
        self.groups: list[Group] = []
        """Of the newest step."""
        self.turns: list[Turns] = []
        """Of the newest step's attempts, in TRL's order, where turns have rewards of their own."""
        self.figures: dict[str, float] = {}
        """Of the newest step, in the names that its events have."""
        settings = spec.settings
        self._size: int = settings["num_generations"]
        self._rounds: int = settings.get("max_resamples", 0) if settings.get("dynamic_sampling") else 0
        self._sampling = Sampling(settings["temperature"], settings["top_p"], settings["max_completion_length"])

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        """TRL's `rollout_func`. A prompt is the place of a task among the run's, and comes once for each attempt."""
        step: int = trainer.state.global_step
        reserve = self._reserve(step)
        places = [self._in_turn(int(prompt), reserve) for prompt in prompts[:: self._size]]
        with sharded_weights.whole(self.engine.model):
            resampled = self._attempt(places, step, reserve)
        episodes = [self.engine.episode(rollout.seed) for group in self.groups for rollout in group.rollouts]
        self._count(resampled, episodes)
        self._keep(step)
        return self._tokens(episodes)

    def _attempt(self, places: Sequence[int], step: int, reserve: Iterator[int]) -> int:
        """Play the step's groups, and others for those that teach nothing; count these."""
        self.engine.begin()
        self.groups, resampled = self._play(places, f"{step}"), 0
        for number in range(self._rounds):
            dull = [place for place, group in enumerate(self.groups) if self.is_dull(group)]
            if not dull:
                break
            tried = [dull[index % len(dull)] for index in range(self._as_many_as_fill(len(dull)))]
            resampled += len(tried)
            self._replace(
                dull,
                self._play(
                    [self._due(reserve, places[place]) for place in tried], f"{step} again {number}{self._whose}"
                ),
            )
        return resampled

    def close(self) -> None:
        """Give back what the engine has."""
        self.engine.close()

    def _tokens(self, episodes: Sequence[Episode]) -> dict[str, Any]:
        """As TRL takes them."""
        return {
            "prompt_ids": [episode.prompt for episode in episodes],
            "completion_ids": [episode.completion for episode in episodes],
            "env_mask": [episode.mask for episode in episodes],
            "logprobs": [episode.logprobs for episode in episodes] if self.engine.tells_logprobs else None,
        }

    def totals(self) -> list[float | None]:
        """The whole reward of each attempt of the newest step, in TRL's order; None where it was not scored."""
        return [self.rewards.total(verdict) for group in self.groups for verdict in group.earned]

    def _turns(self, episodes: Sequence[Episode]) -> list[Turns]:
        """Return what each turn earned: by how much the reward of the attempt, as if it had ended there, changed
        through it. They add up to the whole reward. Where nothing can be said after a turn, what it earned is the next
        one's."""
        rollouts = [rollout for group in self.groups for rollout in group.rollouts]
        begun = [(at, part) for at, rollout in enumerate(rollouts) for part in beginnings(rollout)]
        parts = [part for _, part in begun]
        said: list[list[float | None]] = [[] for _ in rollouts]
        for (at, _), verdict in zip(begun, self.judge.earned(parts, self.judge.verdicts(parts)), strict=True):
            said[at].append(self.rewards.total(verdict))
        found = []
        for episode, total, before in zip(episodes, self.totals(), said, strict=True):
            if total is None:
                found.append(Turns(episode.turns, None))
                continue
            rewards, so_far = [], 0.0
            for value in [*before, total]:
                now = so_far if value is None else value
                rewards.append(now - so_far)
                so_far = now
            found.append(Turns(episode.turns, rewards))
        return found

    def functions(self) -> list[Reward]:
        """One for each part of a verdict, in the order of the rewards' weights."""
        return [self._function(part, is_first=index == 0) for index, part in enumerate(self.rewards.weights)]

    def is_dull(self, group: Group) -> bool:
        """Whether its rewards are all alike, or of fewer than two attempts."""
        totals = [total for verdict in group.earned if (total := self.rewards.total(verdict)) is not None]
        return len(totals) < 2 or max(totals) - min(totals) <= ALIKE

    def _as_many_as_fill(self, dull: int) -> int:
        """Return how many groups to try in the place of the dull ones: so many that, of groups like this step's, as
        many teach something as are wanted, and at most a step's. A few large batches are sampled sooner than many
        small ones."""
        size = len(self.groups)
        return min(size, math.ceil(dull / max(1 - dull / size, 1 / size)))

    def _replace(self, dull: Sequence[int], others: Sequence[Group]) -> None:
        """Put those of the others that teach something into the dull groups' places, each of the same environment where
        environments have weights."""
        useful = [group for group in others if not self.is_dull(group)]
        for place in dull:
            environment = self.groups[place].rollouts[0].task.environment
            for index, group in enumerate(useful):
                if not self.spec.environment_weights or group.rollouts[0].task.environment == environment:
                    self.groups[place] = useful.pop(index)
                    break

    def _function(self, part: str, *, is_first: bool) -> Reward:
        def reward(log_metric: Callable[[str, float], None], **_: Any) -> list[float | None]:
            for name, value in self.figures.items() if is_first else ():
                log_metric(name, value)
            return [self.rewards.value(verdict, part) for group in self.groups for verdict in group.earned]

        reward.__name__ = part
        return reward

    def _in_turn(self, place: int, reserve: Iterator[int]) -> int:
        """The task whose turn it is, or one that is worth more."""
        return place if self.curriculum is None or self.curriculum.turn(place) else self._due(reserve, place)

    def _due(self, reserve: Iterator[int], instead: int) -> int:
        """The next task of the reserve that is worth trying `instead`; where all of them rest, the next. Where
        environments have weights, it is one of the same."""
        if self.spec.environment_weights:
            wanted = self.tasks[instead].environment
            reserve = (place for place in reserve if self.tasks[place].environment == wanted)
        first = next(reserve)
        if self.curriculum is None:
            return first
        others = islice(reserve, len(self.tasks) - 1)
        return next((place for place in chain([first], others) if self.curriculum.is_due(place)), first)

    def _play(self, places: Sequence[int], salt: str, at: int = 0) -> list[Group]:
        """Groups of attempts at the tasks in these places; `at`: the first group's place among those of its step."""
        first = at + ranks.rank() * len(places)  # of those of all processes
        asked = [
            (self.tasks[place], number, self._seed(f"{salt} {index} {number}"))
            for index, place in enumerate(places, first)
            for number in range(self._size)
        ]
        played: dict[int, Rollout] = {}
        for _, env, own in grouped(self.judge.env, asked, lambda attempt: attempt[0]):
            played |= {rollout.seed: rollout for rollout in play(self.engine, env, own, self._sampling)}
        rollouts = [played[seed] for _, _, seed in asked]
        verdicts = self.judge.verdicts(rollouts)
        earned, size = self.judge.earned(rollouts, verdicts), self._size
        parts = [slice(start, start + size) for start in range(0, len(rollouts), size)]
        groups = [Group(rollouts[part], verdicts[part], earned[part]) for part in parts]
        if self.curriculum is not None:
            for place, group in zip(places, groups, strict=True):
                self.curriculum.learn(place, group.verdicts, is_dull=self.is_dull(group))
        return groups

    def _seed(self, salt: str) -> int:
        """Return the seed of an attempt, the same after a resume; its last bits are left to count turns in."""
        found = hashlib.sha256(f"{self.spec.seed} {salt}".encode()).digest()
        return int.from_bytes(found[:5]) << TURN_BITS

    @property
    def _whose(self) -> str:
        """A salt for what each of several processes does for itself; none for the first, which may be alone."""
        return f" {ranks.rank()}" if ranks.rank() else ""

    def _reserve(self, step: int | str) -> Iterator[int]:
        """Yield the places of the run's tasks in an order of the step's own, over and over."""
        order = list(range(len(self.tasks)))
        shuffled = random.Random(f"{self.spec.seed} reserve {step}{self._whose}")
        while True:
            shuffled.shuffle(order)
            yield from order

    def _keep(self, step: int) -> None:
        """Leave a sample of what this step learns from. `step`: how many steps the policy has made."""
        if self._keeper is None or not self._keeper.is_kept(step // self.spec.settings["num_iterations"]):
            return
        env = self.judge.env
        kept = [
            Kept(rollout, verdict, self.rewards.total(earned), tools_of(env, rollout.task.environment))
            for group in self.groups
            for rollout, verdict, earned in zip(group.rollouts, group.verdicts, group.earned, strict=True)
        ]
        self._keeper(step + 1, kept)

    def _count(self, resampled: int, episodes: Sequence[Episode]) -> None:
        rollouts = [rollout for group in self.groups for rollout in group.rollouts]
        verdicts = [verdict for group in self.groups for verdict in group.earned]
        self.figures = {
            "unscored": self.judge.unscored(verdicts),
            "repetition": fmean([repetition(episode) for episode in episodes]),
        }
        judged = [verdict for group in self.groups for verdict in group.verdicts if verdict.score is not None]
        if any(verdict.parts.keys() & FORMS for verdict in judged):
            self.figures["invalid"] = fmean([is_unreadable(verdict) for verdict in judged])
        if self._rounds:
            self.figures["resampled"] = float(resampled)
        if self.curriculum is not None:
            self.figures["resting"] = self.curriculum.resting / len(self.tasks)
        if self.spec.settings.get("step_rewards"):
            self.turns = self._turns(episodes)
        if self.judge.env.max_turns > 1:
            self.figures["turns"] = fmean([len(rollout.responses) for rollout in rollouts])
            self.figures["broken_off"] = fmean([bool(rollout.ended) for rollout in rollouts])
            self.figures["out_of_turns"] = fmean([rollout.is_out_of_turns for rollout in rollouts])


def beginnings(rollout: Rollout) -> list[Rollout]:
    """The attempt as it stood after each of its turns but the last, what the environment replied to that one too."""
    spoken = [at for at, message in enumerate(rollout.messages) if message.role == "assistant"]
    own = spoken[len(spoken) - len(rollout.responses) :] if not rollout.error else []
    return [
        replace(rollout, messages=rollout.messages[:end], responses=rollout.responses[:turn], ended="")
        for turn, end in enumerate(own[1:], 1)
    ]


def repetition(episode: Episode) -> float:
    """The share of what the policy wrote, in runs of eight tokens, that it had written before in the same episode."""
    written = array("q", compress(episode.completion, episode.mask))
    size, packed = written.itemsize, written.tobytes()  # bytes are cut and compared several times as fast as tuples
    runs = [packed[start : start + RUN * size] for start in range(0, len(packed) - (RUN - 1) * size, size)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0
