"""How a policy is asked, and how an attempt at a task comes about.

`Engine` is the one protocol behind which a policy answers: in-process transformers, or any OpenAI-compatible server
(`workers.engines`). `play` runs many episodes of an environment through an engine, a batch a turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flywheel.core.envs import Environment, Task
from flywheel.core.envs.nemo_gym import NemoGym
from flywheel.core.traces import Message, ToolCall


@dataclass(frozen=True, slots=True)
class Sampling:
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    max_tokens: int = 128

    def to_json(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_tokens}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    messages: tuple[Message, ...]
    sampling: Sampling
    seed: int
    """The same request with the same seed gets the same answer, whatever else is in the batch."""
    tools: tuple[dict[str, Any], ...] = ()
    schema: Mapping[str, Any] | None = None
    """The answer must be JSON of this schema. Servers are asked to see to it; whoever reads the answer checks it."""


@dataclass(frozen=True, slots=True)
class ChatResponse:
    """An answer, or the reason why there is none. `error` non-empty means unscored, never wrong."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = ""
    tokens_in: int | None = None
    tokens_out: int | None = None
    latency_ms: float | None = None
    cost_usd: float | None = None
    error: str = ""
    model: str = ""
    """Who answered, by the server's own word; empty where it says nothing."""


UNASKED = "not asked: the engine was closed"
"""The error of a request that an engine was given and never sent, since nobody wants its answers any more."""


class EngineError(RuntimeError):
    """The policy cannot be asked at all: it does not load, its server does not answer. Says why and what to do."""

    kind = "engine"


class Engine(Protocol):
    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
        """Answers in the order of the requests. Raises EngineError when the policy cannot be asked at all."""

    def close(self) -> None:
        """Give memory and connections back. Requests that another thread still has waiting are answered `UNASKED`."""


@dataclass(slots=True)
class Rollout:
    """A sampled attempt at a task."""

    task: Task
    sample: int
    seed: int
    messages: list[Message]
    responses: list[ChatResponse] = field(default_factory=list)

    @property
    def error(self) -> str:
        return next((response.error for response in self.responses if response.error), "")


def play(
    engine: Engine,
    env: Environment,
    attempts: Sequence[tuple[Task, int, int]],
    sampling: Sampling,
    tools: Sequence[dict[str, Any]],
) -> list[Rollout]:
    """Play one episode for each `(task, sample, seed)`, all of them a turn at a time, in the order given.

    An answer with an error ends its episode; the others go on.
    """
    rollouts = [Rollout(task, sample, seed, env.reset(task, seed)) for task, sample, seed in attempts]
    playing = list(rollouts)
    for _ in range(env.max_turns):
        requests = [
            ChatRequest(tuple(rollout.messages), sampling, rollout.seed + len(rollout.responses), tuple(tools))
            for rollout in playing
        ]
        said = []
        for rollout, response in zip(playing, engine.chat(requests), strict=True):
            rollout.responses.append(response)
            if not response.error:
                rollout.messages.append(Message("assistant", response.text, response.tool_calls))
                said.append(rollout)
        playing = []
        for rollout, reply in zip(said, _replies(env, said), strict=True):
            rollout.messages.extend(reply)
            if reply:
                playing.append(rollout)
        if not playing:
            break
    return rollouts


def _replies(env: Environment, rollouts: Sequence[Rollout]) -> list[list[Message]]:
    """What the environment answers to each; one that is elsewhere answers all of them at once."""
    if isinstance(env, NemoGym):
        return env.respond_all([(rollout.task, rollout.messages) for rollout in rollouts])
    return [env.respond(rollout.task, rollout.messages, rollout.seed) for rollout in rollouts]
