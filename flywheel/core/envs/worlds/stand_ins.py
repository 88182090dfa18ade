"""Stand-ins for the tools of a replay, by its settings: functions, a model or a server, and who has to be there."""

import copy
from collections.abc import Mapping
from typing import Any

from flywheel.core.envs.replay.episode_replay import EpisodeReplay, StandIn
from flywheel.core.envs.replay.model_stand_in import ModelStandIn
from flywheel.core.envs.worlds.own_world import innermost, world_of
from flywheel.core.envs.worlds.python_stand_in import PythonStandIn
from flywheel.core.envs.worlds.server_stand_in import ServerStandIn
from flywheel.core.envs.worlds.server_world import Server, ServerWorld
from flywheel.core.verifiers import NO_RUNNERS, Runners, VerifierError

_BY = {
    "python": ("source", "functions answer", "functions"),
    "model": ("simulator", "a model answers", "a model"),
    "server": ("server", "a tool server answers", "a tool server"),
}
"""By `unknown`: the setting that a stand-in needs, and its words."""
_RUNNERS = {"python": "world", "model": "simulator", "server": "server"}


def build(config: Mapping[str, Any], verifier: Mapping[str, Any], runners: Runners = NO_RUNNERS) -> EpisodeReplay:
    """A replay with what stands in for its tools. Raises VerifierError, which names the setting."""
    unknown = config.get("unknown")
    for value, (setting, words, _) in _BY.items():
        if setting in config and unknown != value:
            EpisodeReplay(config, verifier)
            raise VerifierError(f'{setting}: {words} with "unknown": "{value}" alone; choose that, or leave it out')
    stand_in: StandIn | None = None
    if unknown == "python":
        stand_in = PythonStandIn(config.get("source"), runners)
    elif unknown == "model":
        stand_in = ModelStandIn(config.get("simulator"), config.get("tools", []), runners)
    elif unknown == "server":
        stand_in = ServerStandIn(config.get("server"), config.get("tools", []), runners)
    env = EpisodeReplay(config, verifier, stand_in)
    if stand_in is not None and not env.is_played:
        raise VerifierError(
            f'judged: at the next action nothing is answered, by {_BY[env.unknown][2]} neither; choose "end"'
        )
    names = {tool["name"] for tool in env.tools}
    if strange := next((name for name in (stand_in.names if stand_in else ()) if name not in names), ""):
        raise VerifierError(_strange(unknown, strange[:100]))
    return env


def _strange(unknown: Any, name: str) -> str:
    if unknown == "server":
        return f"server.tools: this environment has no tool {name}; leave its definition out"
    return (
        f"source: this environment has no tool {name}; a function that is no tool has a name that begins with _, and "
        "NAMES says which tool a function of another name is"
    )


def players(config: Mapping[str, Any]) -> frozenset[str]:
    """The runners without which nobody plays with this config."""
    found = _RUNNERS.get(str(config.get("unknown")))
    return frozenset({found} if found else ())


def stand_in_of(env: Any) -> StandIn | None:
    """Whatever answers in place of an environment's tools, whatever stands around it; None where nothing does."""
    found: StandIn | None = getattr(innermost(env), "stand_in", None)
    return found


def server_of(env: Any) -> Server | None:
    """The team's own server that carries calls out in an environment, all of them or what nobody recorded; None where
    there is none."""
    world, stand_in = world_of(env), stand_in_of(env)
    if isinstance(world, ServerWorld):
        return world.server
    return stand_in.server if isinstance(stand_in, ServerStandIn) else None


def asks_others(env: Any) -> bool:
    """Whether a team's server or a model carries calls out, which only who holds its keys can ask."""
    return server_of(env) is not None or isinstance(stand_in_of(env), ModelStandIn)


def alone(env: Any) -> Any:
    """The same environment with nothing standing in for its tools: what nobody recorded gets the error. Itself where
    nothing does."""
    if stand_in_of(env) is None:
        return env
    found = copy.copy(env)
    if (own := getattr(env, "own", None)) is not None:
        found.own = alone(own)
    else:
        found.stand_in = None
    return found


def simulator_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of the model that stands in with this config; empty for none."""
    found: Mapping[str, Any] = config.get("simulator") or {}
    return found


def server_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of the server that stands in with this config; empty for none."""
    found: Mapping[str, Any] = config.get("server") or {}
    return found
