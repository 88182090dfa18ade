"""Reward models as parts of a verifier: opened when the first attempt is judged, many attempts scored in one pass.

No Django here, and no torch before a model is opened: trainers judge with it in their own process, workers with a
model in a process beside them.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from flywheel.core import digests
from flywheel.core.envs.policy_rollouts import EngineError
from flywheel.core.traces import Message
from flywheel.core.verifiers import Verdict, unscored
from flywheel.core.verifiers.reward_model_rules import FACTS, probability
from workers.engines.context_length import TooLong

Asked = tuple[Sequence[Message], Sequence[Mapping[str, Any]]]
"""The messages of an attempt and the tools that it had."""
_REMEMBERED = 65_536


class Scorer(Protocol):
    """Says of each conversation its raw score, or why it has none."""

    def score(self, conversations: Sequence[Any]) -> list[float | str]: ...

    def close(self) -> None: ...


def load_here(place: Path) -> Scorer:
    """A reward model in this process. Raises EngineError."""
    from workers.engines.reward_scorer import RewardScorer

    return RewardScorer.load(place)


class RewardModels:
    """The reward models of a verifier, by digest."""

    def __init__(self, places: Mapping[str, Path], opened: Callable[[Path], Scorer]) -> None:
        self._places, self._open = places, opened
        self._scorers: dict[str, Scorer] = {}
        self._references: dict[str, float] = {}
        self._known: dict[str, float | str] = {}
        self._problems: dict[str, str] = {}
        self._lock = threading.Lock()

    def __call__(
        self, settings: Mapping[str, Any], messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> Verdict:
        digest = settings.get("digest", "")
        if digest not in self._places:
            return unscored(f"{settings['model']} is not here; save the verifier, which looks it up", "refused")
        if problem := self._problems.get(digest):
            return unscored(problem, "crashed")
        try:
            (found,) = self._scores(digest, [(messages, tools)])
            reference = self._reference(digest)
        except EngineError as error:
            return unscored(str(error), "crashed")
        if isinstance(found, TooLong):  # what is left out of a mean would make it better
            return Verdict(0.0, found)
        if isinstance(found, str):
            return unscored(found, "crashed")
        score, least = probability(found, reference), settings["least"]
        reason = f"{settings['model']} scores {found:.2f}: preferred to an average answer with probability {score:.3f}"
        return Verdict(1.0, reason) if score >= least else Verdict(score, f"{reason}, below {least:g}")

    def recall(self, settings: Mapping[str, Any], asked: Sequence[Asked]) -> None:
        """Score all of these at once, for when they are asked one by one."""
        digest = settings.get("digest", "")
        self._problems.pop(digest, None)
        try:
            if digest in self._places:
                self._scores(digest, asked)
        except EngineError as error:  # not tried anew for each of them
            self._problems[digest] = str(error)

    def close(self) -> None:
        """Give the models' memory back."""
        with self._lock:
            for scorer in self._scorers.values():
                scorer.close()
            self._scorers.clear()

    def _scores(self, digest: str, asked: Sequence[Asked]) -> list[float | str]:
        """Return the raw score of each, or why it has none. Raises EngineError."""
        told = [([message.to_openai() for message in messages], list(tools)) for messages, tools in asked]
        keys = [digests.digest([digest, messages, tools]) for messages, tools in told]
        with self._lock:
            if len(self._known) + len(keys) > _REMEMBERED:
                self._known.clear()
            new = {key: each for key, each in zip(keys, told, strict=True) if key not in self._known}
            if new:
                self._known |= zip(new, self._scored(digest, list(new.values())), strict=True)
            return [self._known[key] for key in keys]

    def _scored(self, digest: str, told: Sequence[Any]) -> list[float | str]:
        scorer = self._scorers.get(digest)
        if scorer is None:
            scorer = self._scorers[digest] = self._open(self._places[digest])
        try:
            return scorer.score(told)
        except EngineError:
            del self._scorers[digest]  # the next attempt finds another
            scorer.close()
            raise

    def _reference(self, digest: str) -> float:
        """The mean raw score that its own are compared with. Raises EngineError."""
        if digest not in self._references:
            path = self._places[digest] / FACTS
            try:
                self._references[digest] = float(json.loads(path.read_bytes())["reference"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise EngineError(f"the reward model's {FACTS} cannot be read: {error}") from error
        return self._references[digest]
