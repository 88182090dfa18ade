"""Requests to a policy, and attempts at a task.

`Engine` is the one protocol behind which a policy answers: weights through transformers, or an OpenAI-compatible server
(`workers.engines.engine_endpoints`). `play` runs many episodes of an environment through an engine, a batch a turn.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from flywheel.core.envs.environment import Environment, Task
from flywheel.core.envs.nemo_gym import NemoGym
from flywheel.core.envs.worlds.own_world import runners_of
from flywheel.core.traces import Message, Step, ToolCall


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
    tells_tokens: bool = False
    """The answer's tokens and their log-probabilities are wanted too, from an engine that has them."""
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
    is_too_long: bool = False
    """The error is that the conversation and the answer asked for do not fit into the model's context."""
    is_away: bool = False
    """The error is for certain not the request's: its server could not be reached, was lost, down or full."""
    model: str = ""
    """Who answered, by the server's own word; empty where it says nothing."""
    token_ids: tuple[int, ...] = ()
    """What was sampled, its end included; empty where nobody wanted it, or nobody knows."""
    logprobs: tuple[float, ...] = ()
    """Log-probability of each of these tokens in the distribution that it was drawn from, temperature and top-p
    included."""


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
    opened: int = 0
    """How many of the messages are its opening, whoever speaks in it."""
    ended: str = ""
    """Why it was broken off by the policy's own length, to be judged as it stands; empty where it was not."""
    broken: str = ""
    """What the environment raised in it: nobody's failure, so it is not judged; empty where it raised nothing."""
    inside: list[Step] = field(default_factory=list)
    """What the policy, where it is a program, told of its own work: it is shown, and not judged."""

    @property
    def tokens_out(self) -> int:
        return sum(response.tokens_out or 0 for response in self.responses)

    @property
    def error(self) -> str:
        """Why it is not judged."""
        return self.broken or next((response.error for response in self.responses if response.error), "")

    @property
    def is_out_of_turns(self) -> bool:
        """Whether the environment would have gone on, and the episode had no turns left."""
        went_on = bool(self.messages) and self.messages[-1].role != "assistant"
        return went_on and not self.ended and not self.error

    @property
    def is_away(self) -> bool:
        """Whether that is the infrastructure's for certain."""
        return not self.broken and any(response.is_away for response in self.responses)


def play(
    engine: Engine,
    env: Environment,
    attempts: Sequence[tuple[Task, int, int]],
    sampling: Sampling,
    *,
    tells_tokens: bool = False,
) -> list[Rollout]:
    """Play one episode for each `(task, sample, seed)`, all of them a turn at a time, in the order given, with the
    environment's tools. With `tells_tokens`, answers that were drawn have their tokens' log-probabilities.

    An answer with an error ends its episode; the others go on. A policy that has talked until its conversation does not
    fit into its context, or until the environment's tokens are spent, has had its episode: that is no error. What an
    environment raises in one episode, whatever a strange task or answer brings about, breaks that one alone.
    """
    tools = tuple(env.tools)
    rollouts = [Rollout(task, sample, seed, []) for task, sample, seed in attempts]
    for rollout in rollouts:
        rollout.messages += _guarded(rollout, lambda it: env.reset(it.task, it.seed))
        rollout.opened = len(rollout.messages)
    playing = [rollout for rollout in rollouts if not rollout.broken]
    for _ in range(env.max_turns):
        if not playing:
            break
        requests = [
            ChatRequest(
                tuple(rollout.messages),
                limited(sampling, env, rollout.tokens_out),
                rollout.seed + len(rollout.responses),
                tools,
                tells_tokens and sampling.temperature > 0,
            )
            for rollout in playing
        ]
        answers = zip(playing, engine.chat(requests), strict=True)
        said = [rollout for rollout, response in answers if _is_said(env, rollout, response)]
        playing = []
        for rollout, reply in zip(said, _replies(env, said), strict=True):
            rollout.messages.extend(reply)
            rollout.ended = broken_off(env, rollout.tokens_out, reply, rollout.responses[-1])
            if reply and not rollout.ended:
                playing.append(rollout)
    return rollouts


def limited(sampling: Sampling, env: Environment, spent: int) -> Sampling:
    """For the next answer: no more than the episode has left of its tokens."""
    if env.token_limit is None:
        return sampling
    return replace(sampling, max_tokens=min(sampling.max_tokens, env.token_limit - spent))


def counted(env: Environment, response: ChatResponse) -> ChatResponse:
    """An answer that does not say its tokens is an error where they are limited."""
    if env.token_limit is None or response.tokens_out is not None or response.error:
        return response
    return replace(response, error="the server does not say how many tokens it wrote; here they are limited")


def broken_off(env: Environment, spent: int, reply: Sequence[Message], last: ChatResponse) -> str:
    """Why an episode ends after this answer although the environment has not ended it; empty where it does not.
    `spent`: tokens, this answer's too."""
    is_over = not reply and last.finish_reason != "length"
    if env.token_limit is None or spent < env.token_limit or is_over:
        return ""
    return f"broken off: the episode's {env.token_limit} tokens are spent"


def _is_said(env: Environment, rollout: Rollout, response: ChatResponse) -> bool:
    """Take the answer down; whether it is one."""
    if response.is_too_long and rollout.responses:  # before it said anything, its task would be at fault
        rollout.ended = f"broken off: {response.error}"
        return False
    response = counted(env, response)
    rollout.responses.append(response)
    if response.error:
        return False
    rollout.messages.append(Message("assistant", response.text, response.tool_calls))
    return True


def _replies(env: Environment, rollouts: Sequence[Rollout]) -> list[list[Message]]:
    """Return the environment's answers to each; one that is played elsewhere answers several at once."""
    if isinstance(env, NemoGym):
        return env.respond_all([(rollout.task, rollout.messages) for rollout in rollouts])
    return runners_of(env).each(
        lambda rollout: _guarded(rollout, lambda it: env.respond(it.task, it.messages, it.seed)), rollouts
    )


def _guarded(rollout: Rollout, say: Callable[[Rollout], list[Message]]) -> list[Message]:
    """Return the environment's messages in this attempt; nothing where it raises."""
    try:
        return say(rollout)
    except Exception as error:
        rollout.broken = f"the environment raised {type(error).__name__}: {error}"
        return []
