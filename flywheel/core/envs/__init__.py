"""Environments: what a policy is put into, and how its attempt is judged.

An environment kind is a class over plain data: `config` (tools, system prompt, safety policy), a task's prompt and
initial state, and a verifier spec. It is pure and seeded: the same task and seed always give the same first messages,
and the same messages the same reply. Kinds register in `KINDS`; the database stores only the kind's name and its data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flywheel.core.traces import Message
from flywheel.core.verifiers import Verify


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

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "prompt": self.prompt,
            "target": dict(self.target),
            "state": dict(self.state),
            "cluster": self.cluster,
            "slice": self.slice,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "Task":
        return cls(
            id=row["id"],
            prompt=row["prompt"],
            target=row["target"],
            state=row.get("state", {}),
            cluster=row.get("cluster", ""),
            slice=row.get("slice", ""),
        )


class Environment(Protocol):
    max_turns: int

    def reset(self, task: Task, seed: int) -> list[Message]:
        """The messages that open an episode."""

    def respond(self, task: Task, messages: Sequence[Message], seed: int) -> list[Message]:
        """The environment's answer to the last message; empty when the episode is over."""

    def verifier(self, task: Task) -> Verify:
        """The judge of an attempt at this task. It is guarded: it never raises and never returns a bad number."""

    def gold(self, task: Task) -> Message:
        """The agent message that the target asks for."""

    def probes(self, task: Task) -> dict[str, Message]:
        """Trivial attempts by name that must score low: empty, constant, echo of the prompt, …"""


def build(kind: str, config: Mapping[str, Any], verifier: Mapping[str, Any]) -> Environment:
    """The environment of a kind. Raises VerifierError for settings that are wrong, KeyError for an unknown kind."""
    from flywheel.core.envs.tool_call import ToolCallEnvironment

    kinds: dict[str, type[ToolCallEnvironment]] = {"tool_call": ToolCallEnvironment}
    return kinds[kind](config, verifier)
