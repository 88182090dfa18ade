"""Python functions that stand in for tools in a replay: they answer what was never recorded (`replay.episode_replay`).

They are written as those of a world (`tool_functions`), and played as one. Its state begins as `reset(0)`, each part of
the task's `state.world` in place of the part of that name, and every call that has a function moves it; what a recorded
result answers is told as it was recorded.
"""

import sys
from collections.abc import Collection
from typing import Any

from flywheel.core.envs.environment import Task
from flywheel.core.envs.replay.episode_replay import MARK, Waiting
from flywheel.core.envs.worlds.own_world import KIND, OwnWorld
from flywheel.core.traces import Message
from flywheel.core.verifiers import NO_RUNNERS, Runners


class PythonStandIn:
    mark = MARK

    def __init__(self, source: Any, runners: Runners = NO_RUNNERS) -> None:
        """Raises VerifierError, which names the setting `source`."""
        self.world = OwnWorld({"source": source}, {"kind": KIND}, runners)
        self.world.max_turns = sys.maxsize  # the replay counts them, and its beginning has calls, too
        self.runners = runners
        self.names: Collection[str] = self.world.functions.functions.keys()

    def answers(self, task: Task, waiting: Waiting) -> list[str | None]:
        sent = [tuple(call for call in turn if call.name in self.names) for turn in waiting.turns]
        made = [Message("assistant", "", calls) for calls in sent if calls]
        told = iter(self.world.respond(_own(task), made, 0))
        return [next(told).content if call.name in self.names else None for call in waiting.turns[-1]]

    def begin(self, task: Task) -> None:
        """Make the state at the task's beginning. Raises WorldError, also where the functions are at fault."""
        self.world.play(_own(task), [])


def _own(task: Task) -> Task:
    """The task as the functions' world begins it."""
    world = task.state.get("world")
    return Task(task.id, task.prompt, {}, {"state": world} if world else {})
