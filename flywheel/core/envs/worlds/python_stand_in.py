"""Python functions that stand in for tools in a replay: they answer what was never recorded (`replay.episode_replay`).

They are written as those of a world (`tool_functions`), and played as one. Its state begins as `reset(0)`, each part of
the task's `state.world` in place of the part of that name, and every call that has a function moves it; what a recorded
result answers is told as it was recorded.
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flywheel.core.envs.environment import Task
from flywheel.core.envs.replay.episode_replay import EpisodeReplay
from flywheel.core.envs.worlds.own_world import KIND, OwnWorld, innermost
from flywheel.core.traces import Message, ToolCall
from flywheel.core.verifiers import NO_RUNNERS, Runners, VerifierError


class PythonStandIn:
    def __init__(self, source: Any, runners: Runners = NO_RUNNERS) -> None:
        """Raises VerifierError, which names the setting `source`."""
        self.world = OwnWorld({"source": source}, {"kind": KIND}, runners)
        self.world.max_turns = sys.maxsize  # the replay counts them, and its beginning has calls, too
        self.runners = runners
        self.names: Collection[str] = self.world.functions.functions.keys()

    def answers(self, task: Task, turns: Sequence[Sequence[ToolCall]]) -> list[str | None]:
        sent = [tuple(call for call in turn if call.name in self.names) for turn in turns]
        made = [Message("assistant", "", calls) for calls in sent if calls]
        told = iter(self.world.respond(_own(task), made, 0))
        return [next(told).content if call.name in self.names else None for call in turns[-1]]

    def begin(self, task: Task) -> None:
        """Make the state at the task's beginning. Raises WorldError, also where the functions are at fault."""
        self.world.play(_own(task), [])


def stand_in_of(env: Any) -> PythonStandIn | None:
    """The functions that answer in an environment, whatever stands around it; None where none is asked."""
    found = getattr(innermost(env), "stand_in", None)
    return found if isinstance(found, PythonStandIn) else None


def build(config: Mapping[str, Any], verifier: Mapping[str, Any], runners: Runners = NO_RUNNERS) -> EpisodeReplay:
    """A replay with the functions that its config brings. Raises VerifierError, which names the setting."""
    if not has_functions(config):
        env = EpisodeReplay(config, verifier)
        if "source" in config:
            raise VerifierError('source: functions answer with "unknown": "python" alone; choose that, or leave it out')
        return env
    stand_in = PythonStandIn(config.get("source"), runners)
    env = EpisodeReplay(config, verifier, stand_in)
    if not env.is_played:
        raise VerifierError('judged: at the next action nothing is answered, by functions neither; choose "end"')
    names = {tool["name"] for tool in env.tools}
    if strange := next((name for name in stand_in.names if name not in names), ""):
        raise VerifierError(
            f"source: this environment has no tool {strange[:100]}; a function that is no tool has a name that begins "
            "with _, and NAMES says which tool a function of another name is"
        )
    return env


def has_functions(config: Mapping[str, Any]) -> bool:
    return bool(config.get("unknown") == "python")


def _own(task: Task) -> Task:
    """The task as the functions' world begins it."""
    world = task.state.get("world")
    return Task(task.id, task.prompt, {}, {"state": world} if world else {})
