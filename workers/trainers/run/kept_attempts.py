"""A sample of the attempts that a policy learns from, on its way into the database.

The trainer leaves a file a step in `attempts/`, whole or not at all; the worker that follows the run stores and deletes
it. Which attempts are kept depends on the spec, the step and its rewards alone, so that a resumed run keeps the same.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flywheel.core.envs import Task
from flywheel.core.envs.policy_rollouts import ChatResponse, Rollout
from flywheel.core.traces import Message, ToolCall
from flywheel.core.verifiers import Verdict

FOLDER = "attempts"
NAME = re.compile(r"step-(\d{1,9})\.jsonl")
MOST, LEAST = 16, 4
"""Attempts of a step. Where the budget has not `LEAST` for each step, some steps are passed over."""
LONGEST = 500_000
"""Characters of an attempt in JSON; a longer one is not kept."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An attempt that was judged, and what it was worth to the policy."""

    rollout: Rollout
    verdict: Verdict
    reward: float | None
    """The verdict's score less penalties, or what the run's recipe makes of it; None where there is none."""
    tools: Sequence[Mapping[str, Any]]


class Keeper:
    """Writes the sample of a run: at most `budget` attempts, spread over so many batches of them."""

    def __init__(self, directory: Path, budget: int, batches: int) -> None:
        self.directory = directory
        self.every = -(-batches // max(1, budget // LEAST))
        self.of_a_batch = min(MOST, budget // -(-batches // self.every))

    def is_kept(self, batch: int) -> bool:
        """Whether any attempts of the run's batch of this number, from 0 on, are kept."""
        return bool(self.of_a_batch) and batch % self.every == 0

    def __call__(self, step: int, attempts: Sequence[Kept]) -> None:
        """Keep a sample of the attempts that this step, from 1 on, learns from. Raises OSError, as of a full disk."""
        places = chosen([attempt.reward for attempt in attempts], self.of_a_batch)
        rows = [row for place in places if (row := json.dumps(_row(attempts[place]))) and len(row) <= LONGEST]
        aside, folder = self.directory / "work" / f"attempts-{step}", self.directory / FOLDER
        for parent in (aside.parent, folder):
            parent.mkdir(exist_ok=True)
        aside.write_text("".join(row + "\n" for row in rows))
        aside.rename(folder / f"step-{step}.jsonl")


def chosen(rewards: Sequence[float | None], count: int) -> list[int]:
    """Places of at most `count` attempts: a quarter without a reward, where there are any, the others at even distances
    between the worst and the best."""
    unscored = [place for place, reward in enumerate(rewards) if reward is None]
    scored = sorted((reward, place) for place, reward in enumerate(rewards) if reward is not None)
    aside = min(len(unscored), max(count // 4, count - len(scored)))
    return sorted([*_evenly(unscored, aside), *_evenly([place for _, place in scored], count - aside)])


def _evenly(places: Sequence[int], count: int) -> list[int]:
    if count >= len(places):
        return list(places)
    if count <= 1:
        return list(places[-count:]) if count else []
    return [places[number * (len(places) - 1) // (count - 1)] for number in range(count)]


def waiting(directory: Path) -> list[tuple[int, Path]]:
    """The files that nobody has stored yet, each with its step, in the order of the steps."""
    found = [(NAME.fullmatch(path.name), path) for path in (directory / FOLDER).glob("step-*")]
    return sorted((int(name[1]), path) for name, path in found if name)


def read(path: Path) -> list[Kept]:
    """The attempts of a file. Raises ValueError for one that this trainer did not write, or not to its end."""
    try:
        return [_kept(json.loads(line)) for line in path.read_bytes().splitlines()]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path.name} holds no attempts: {error!r}") from error


def rollout_row(rollout: Rollout) -> dict[str, Any]:
    """An attempt as JSON, of which `rollout_of` makes it again."""
    return {
        "task": rollout.task.to_json(),
        "sample": rollout.sample,
        "seed": rollout.seed,
        "messages": [message.to_json() for message in rollout.messages],
        "responses": [asdict(response) for response in rollout.responses],
        "opened": rollout.opened,
        "ended": rollout.ended,
        "broken": rollout.broken,
    }


def rollout_of(row: Mapping[str, Any]) -> Rollout:
    """Raises KeyError, TypeError or AttributeError for what is no attempt."""
    return Rollout(
        Task.from_json(row["task"]),
        row["sample"],
        row["seed"],
        [Message.from_json(message) for message in row["messages"]],
        [_response(each) for each in row["responses"]],
        opened=row.get("opened", 0),
        ended=row["ended"],
        broken=row["broken"],
    )


def _row(kept: Kept) -> dict[str, Any]:
    verdict = kept.verdict
    return rollout_row(kept.rollout) | {
        "reward": kept.reward,
        "score": verdict.score,
        "parts": dict(verdict.parts),
        "reason": verdict.reason,
        "tools": [dict(tool) for tool in kept.tools],
    }


def _response(row: Mapping[str, Any]) -> ChatResponse:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    return ChatResponse(**fields | {"tool_calls": tuple(ToolCall(**call) for call in row["tool_calls"])})


def _kept(row: Mapping[str, Any]) -> Kept:
    verdict = Verdict(score=row["score"], parts=row["parts"], reason=row["reason"])
    return Kept(rollout_of(row), verdict, row["reward"], row["tools"])
