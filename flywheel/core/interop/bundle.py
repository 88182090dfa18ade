"""An environment and its tasks as two files, `environment.json` and `tasks.jsonl`: what every export carries."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flywheel.core import envs
from flywheel.core.envs import Environment, Task
from flywheel.core.envs.agent_config import AgentConfig
from flywheel.core.verifiers import Verdict

ENVIRONMENT, TASKS = "environment.json", "tasks.jsonl"


class Unscored(RuntimeError):
    """Nothing could be scored. It is raised where others would else read a number."""


@dataclass(frozen=True)
class Bundle:
    about: Mapping[str, Any]
    """`{"name", "version", "kind", "config", "verifier", "digest", "verifier_digest", "agent", …}`."""
    tasks: Mapping[str, Task]
    splits: Mapping[str, str]
    """Of each task, by its id."""

    @cached_property
    def env(self) -> Environment:
        return build(self.about)

    def of(self, split: str) -> list[Task]:
        return [task for name, task in self.tasks.items() if self.splits[name] == split]

    def identity(self, task: Task) -> dict[str, Any]:
        return identity(task, f"{self.about['name']}@{self.about['version']}", self.splits[task.id])


def identity(task: Task, environment: str, split: str) -> dict[str, Any]:
    """Which task it is, for every rollout of it to carry along: whoever takes one in again is to know what must not be
    learnt from it, and that it never happened."""
    row = {"environment": environment, "task": task.id, "split": split, "slice": task.slice}
    return row | ({"synthetic": True} if task.synthetic else {})


def build(about: Mapping[str, Any]) -> Environment:
    """The environment that an export tells of, as its agent is asked in it."""
    agent = AgentConfig.from_json(about["agent"]) if "agent" in about else None
    return envs.build(about["kind"], about["config"], about["verifier"], agent=agent)


def load(folder: Path) -> Bundle:
    """The bundle in a folder."""
    about = json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8"))
    tasks, splits = {}, {}
    with (folder / TASKS).open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            task = Task.from_json(row)
            tasks[task.id], splits[task.id] = task, row["split"]
    return Bundle(about, tasks, splits)


def scored(verdict: Verdict) -> float:
    """The verdict's number. Raises Unscored where there is none: it is never 0."""
    if verdict.score is None:
        raise Unscored(f"unscored: {verdict.reason}")
    return verdict.score


def numbers(verdict: Verdict) -> dict[str, float]:
    """Its parts, as figures beside the reward."""
    return {f"part_{name}": value for name, value in verdict.parts.items() if value is not None}
