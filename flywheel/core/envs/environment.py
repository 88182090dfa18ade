"""The protocol of every environment, the tasks that it plays, and one attempt by a policy that is a function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flywheel.core.traces import Message
from flywheel.core.verifiers import VerifierError, Verify

MOST_TOKENS = 10_000_000
"""Of an episode's limit."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task as environments and trainers see it: the data of `environments.Task`, nothing of the database."""

    id: str
    prompt: str
    target: Mapping[str, Any]
    """What counts as right, in the words of the environment's kind."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """The initial state of the world."""
    cluster: str = ""
    """The source (session, customer) that the task came from; the unit that is split and resampled."""
    slice: str = ""
    """A label by which results are also reported apart, such as the wording."""
    environment: str = ""
    """Which of several environments it belongs to, in a run that has several (`mixed`)."""
    synthetic: bool = False
    """It was made, and never happened. Said wherever the task goes."""

    def to_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "id": self.id,
            "prompt": self.prompt,
            "target": dict(self.target),
            "state": dict(self.state),
            "cluster": self.cluster,
            "slice": self.slice,
        }
        row |= {"environment": self.environment} if self.environment else {}
        return row | ({"synthetic": True} if self.synthetic else {})

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "Task":
        more = ("state", "cluster", "slice", "environment", "synthetic")
        return cls(row["id"], row["prompt"], row["target"], **{name: row[name] for name in more if name in row})


@dataclass(frozen=True, slots=True)
class Table:
    """Part of the state of an environment, for people to look at."""

    name: str
    columns: tuple[str, ...]
    """Empty for a board, whose columns need no names."""
    rows: Mapping[str, tuple[str, ...]]
    """Cells by the row's id, by which one state is told from the next."""


Say = Callable[[Sequence[Message]], Message]
"""A policy as a function: what it says next in a conversation."""


def always(text: str) -> Say:
    """The policy that says the same whatever it is asked."""
    return lambda _: Message("assistant", text)


class Environment(Protocol):
    max_turns: int
    """Maximum number of policy turns."""
    token_limit: int | None
    """How many tokens the policy may write in an episode, all its answers together; None where nothing limits them."""
    tools: list[dict[str, Any]]
    """Definitions of what the policy may call; empty where it only talks."""

    def reset(self, task: Task, seed: int) -> list[Message]:
        """The messages that open an episode."""

    def respond(self, task: Task, messages: Sequence[Message], seed: int) -> list[Message]:
        """The environment's answer to the last message; empty when the episode is over."""

    def verifier(self, task: Task) -> Verify:
        """The judge of an attempt at this task. It is guarded: it never raises and never returns a bad number."""

    def solve(self, task: Task, messages: Sequence[Message]) -> Message:
        """Return the next message of a faultless policy. May raise anything for a target that is none."""

    def state(self, task: Task, messages: Sequence[Message]) -> list[Table]:
        """Return the world's state now, for people; nothing where there is only the conversation. May raise anything
        for a task that names no world."""

    def probes(self, task: Task) -> dict[str, Say]:
        """Trivial policies by name that must score low: empty, constant, echo of the prompt, …"""


def token_limit_of(config: Mapping[str, Any]) -> int | None:
    """The setting `token_limit`, which every kind of several turns has. Raises VerifierError."""
    limit = config.get("token_limit")
    is_number = isinstance(limit, int) and not isinstance(limit, bool)
    if limit is None or (is_number and 1 <= limit <= MOST_TOKENS):
        return limit
    raise VerifierError(f"token_limit: {limit!r} is no whole number from 1 to {MOST_TOKENS}, nor null for no limit")


def beyond_limit(spoken: int, most: int) -> str:
    """Say why an attempt that somebody else played cannot be judged: it goes on where it would have ended here; empty
    where it does not. No attempt that is played here can."""
    return f"it spoke {spoken} times, and {most} times is the most in this environment" if spoken > most else ""


def episode(env: Environment, task: Task, say: Say, seed: int = 0) -> list[Message]:
    """All messages of one attempt by a policy that is a function."""
    messages = env.reset(task, seed)
    for _ in range(env.max_turns):
        messages.append(say(messages))
        reply = env.respond(task, messages, seed)
        if not reply:
            break
        messages.extend(reply)
    return messages
