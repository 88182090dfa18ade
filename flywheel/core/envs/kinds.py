"""The kinds of environment there are: how one is built, and how tasks are generated that need no recorded failure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flywheel.core.envs import nemo_gym, tictactoe, tool_call
from flywheel.core.envs.agent_config import AgentConfig, Configured
from flywheel.core.envs.environment import Environment, Task
from flywheel.core.envs.nemo_gym import NemoGym
from flywheel.core.envs.replay import episode_replay
from flywheel.core.envs.tictactoe import TicTacToe
from flywheel.core.envs.tool_call import ToolCallEnvironment
from flywheel.core.envs.workplace import Workplace, request_templates
from flywheel.core.envs.worlds import own_world, server_world, stand_ins
from flywheel.core.envs.worlds.own_world import OwnWorld
from flywheel.core.envs.worlds.server_world import ServerWorld
from flywheel.core.envs.wrappers.mixed_environment import Mixed
from flywheel.core.envs.wrappers.rubric_environment import Judged
from flywheel.core.verifiers import NO_RUNNERS, Runners, VerifierError, rubric


@dataclass(frozen=True, slots=True)
class Kind:
    label: str
    description: str
    """What a policy has to do in it, in a sentence."""
    use_when: str
    """For which agent and which question to choose it, in a sentence."""
    build: Callable[..., Environment]
    """Of config and verifier; and of `runners`, where it has a `runner` or `players`."""
    generate: Callable[..., Iterator[Task]] | None = None
    """`(count, *, seed, **options)`: so many tasks, always the same for a seed, where tasks need no recorded failure.
    Raises ValueError for options that make no sense."""
    options: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    """What `generate` can be told: default and explanation by name."""
    from_failures: bool = False
    """Tasks are made of labelled trajectories, and an agent attempts them with its own tools."""
    is_external: bool = False
    """Its tools and its verdict are somebody else's server's. It is measured on and never trained on: every task is
    held-out."""
    is_example: bool = False
    """A game or a benchmark to try Flywheel on, rather than a place for a team's own agent."""
    is_world: bool = False
    """Tools of a team's own: people write its tasks (`worlds.own_world`)."""
    runner: str = ""
    """The field of `Runners` without which nobody plays or judges in it; empty where it is pure code."""
    players: Callable[[Mapping[str, Any]], frozenset[str]] | None = None
    """The runners that it needs with this config, where that is not always the same one."""
    tells_unsafe: bool = True
    """Its verdicts may have a part `unsafe`; False where there is nothing unsafe to do."""
    settings: tuple[str, ...] | None = None
    """What the config of a new version may name; None for a kind that looks itself."""
    check_new: Callable[[Mapping[str, Any]], None] | None = None
    """Raises VerifierError for a config that no new version may have, though stored ones that have it still load."""
    reserved: tuple[str, ...] = ()
    """Slices that a new environment only ever measures, unless its maker chooses others."""

    @property
    def takes_failures(self) -> bool:
        """Whether labelled trajectories can become tasks, in a world beside those that people write."""
        return self.from_failures or self.is_world


KINDS: dict[str, Kind] = {
    episode_replay.KIND: Kind(
        "Replay",
        "A recorded beginning and what is wanted from there: calls, words, a refusal, a question. Any labelled failure "
        "can become its task.",
        "Your agent has recorded runs, and you want its failures fixed. The usual choice.",
        stand_ins.build,
        from_failures=True,
        players=stand_ins.players,
        settings=episode_replay.SETTINGS,
        check_new=episode_replay.check_new,
    ),
    "world": Kind(
        "Own world",
        "Your own tools, as Python functions over a state, played in the sandbox. Judged by the state left behind, "
        "by calls and by words.",
        "What matters is the state that the agent leaves behind, and you can write its tools in Python.",
        OwnWorld,
        runner="world",
        settings=own_world.SETTINGS,
        is_world=True,
    ),
    server_world.KIND: Kind(
        "Your tool server",
        "Your own tools behind an address, over HTTP or MCP. Workers call them; judged by calls, by words, and by the "
        "state where the server shows it.",
        "You already have a test server for the agent's tools.",
        ServerWorld,
        runner="server",
        settings=server_world.SETTINGS,
        is_world=True,
    ),
    "tool_call": Kind(
        "Tool call",
        "One request, one tool call as the answer, judged by its effect. Tasks are made of labelled failures.",
        "Your agent answers each request with one call, and nothing follows from it.",
        ToolCallEnvironment,
        from_failures=True,
        settings=("tools",),
        check_new=tool_call.check_new,
    ),
    "nemo_gym": Kind(
        "NeMo Gym server",
        "Somebody else's resources server: its tools are called and its verdict is asked over the network.",
        "You want to measure on a benchmark that somebody serves for NeMo Gym.",
        NemoGym,
        is_external=True,
        runner="gym",
        settings=nemo_gym.SETTINGS,
    ),
    "workplace": Kind(
        "Workplace",
        "Requests about calendar, email, tasks and contacts, several tool calls each, judged by what is left behind.",
        "You want a benchmark of several steps before you have tasks of your own.",
        Workplace,
        request_templates.generate,
        settings=("system_prompt", "max_turns", "token_limit", "now", "database"),
        is_example=True,
        reserved=request_templates.HELD_OUT,
    ),
    "tictactoe": Kind(
        "Tic-tac-toe",
        "Whole games against an opponent of known skill, a move a turn.",
        "You want to watch reinforcement learning work on something small.",
        TicTacToe,
        tictactoe.generate,
        options={
            "low": (0.0, "least share of random moves of an opponent; 0 never errs"),
            "high": (1.0, "largest share of random moves; 1 only moves at random"),
            "begun": (0.0, "share of the games that begin after some moves, where the next one matters"),
        },
        tells_unsafe=False,
        is_example=True,
        settings=("system_prompt", "max_turns", "token_limit"),
    ),
}


def build(
    kind: str,
    config: Mapping[str, Any],
    verifier: Mapping[str, Any],
    runners: Runners = NO_RUNNERS,
    agent: AgentConfig | None = None,
) -> Environment:
    """The environment of a kind. Raises VerifierError for settings that are wrong, KeyError for an unknown kind.

    `runners` are what the verifier may use beyond pure code; parts that lack theirs refuse to score. `agent` is who
    makes the attempts; without one it opens with the world's own words alone. The kind `mixed` is several environments
    as one (`wrappers.mixed_environment.Mixed`).
    """
    if kind == "mixed":
        parts = sorted(config["environments"].items(), key=lambda pair: (pair[0] != config.get("first"), pair[0]))
        return Mixed(
            {name: build(part["kind"], part["config"], part["verifier"], runners, agent) for name, part in parts}
        )
    if KINDS[kind].is_external:
        if rubric.is_rubric(verifier):
            raise VerifierError("kind: the verdict is its server's; no rubric can judge here")
        return NemoGym(config, verifier, runners.gym, agent)
    impure = {"runners": runners} if KINDS[kind].runner or KINDS[kind].players else {}
    if not rubric.is_rubric(verifier):
        return _configured(kind, KINDS[kind].build(config, verifier, **impure), agent)
    own = _configured(kind, KINDS[kind].build(config, {"kind": kind}, **impure), agent)
    return Judged(own, rubric.read(verifier), runners)


OUTSIDE = frozenset(("judge", "server", "simulator", "gym"))
"""Runners that ask somebody beyond this machine. A trainer has them only over its worker's broker."""


def players(kind: str, config: Mapping[str, Any]) -> frozenset[str]:
    """The runners without which nobody plays in an environment of a kind with this config."""
    found = KINDS[kind]
    return found.players(config) if found.players else frozenset({found.runner} - {""})


def needs(kind: str, config: Mapping[str, Any], verifier: Mapping[str, Any]) -> frozenset[str]:
    """The runners without which nobody plays, or judges with this verifier, in an environment with this config."""
    return rubric.needs(verifier) | players(kind, config)


def _configured(kind: str, own: Environment, agent: AgentConfig | None) -> Environment:
    return own if agent is None else Configured(own, agent, owns_tools=not KINDS[kind].from_failures)


def check_new(kind: str, config: Mapping[str, Any]) -> None:
    """Raise VerifierError for settings that no new version may have, though stored ones that have them still load."""
    known = KINDS[kind].settings
    for name in config:
        if known is not None and name not in known:
            raise VerifierError(f"{name[:100]}: there is no such setting, only {', '.join(known)}")
    if not isinstance(config.get("system_prompt", ""), str):
        raise VerifierError("system_prompt: expected a text")
    if check := KINDS[kind].check_new:
        check(config)
