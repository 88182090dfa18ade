"""Several environments as one: each task is played and judged in the environment that it names.

This is no kind that a person makes: it is what a run is given that practises tasks of several environments at once.
How often each of them comes is decided before, by the rows of the run's data.

Config: `{"environments": {name: {"kind", "config", "verifier"}}, "first": name}`; by the first one a run is compared. A
task names its own in `environment`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from flywheel.core.envs.environment import Environment, Say, Table, Task
from flywheel.core.traces import Message
from flywheel.core.verifiers import Verify

T = TypeVar("T")


class Mixed:
    """Plays and judges a task as its own environment does; tools and turn limits are those of that one, too.

    Tokens are counted by whoever plays the environments one by one (`grouped`).
    """

    token_limit: int | None = None

    def __init__(self, parts: Mapping[str, Environment]) -> None:
        self.parts = dict(parts)
        self.max_turns = max(part.max_turns for part in parts.values())
        self.tools = list({str(tool): tool for part in parts.values() for tool in part.tools}.values())

    def of(self, task: Task) -> Environment:
        """The environment of the task. Raises KeyError for a task of none of them."""
        return self.parts[task.environment]

    def reset(self, task: Task, seed: int) -> list[Message]:
        return self.of(task).reset(task, seed)

    def respond(self, task: Task, messages: Sequence[Message], seed: int) -> list[Message]:
        own = self.of(task)
        before = sum(message.role == "assistant" for message in own.reset(task, seed))  # recorded, where it begins so
        spoken = sum(message.role == "assistant" for message in messages) - before
        return own.respond(task, messages, seed) if spoken < own.max_turns else []

    def verifier(self, task: Task) -> Verify:
        return self.of(task).verifier(task)

    def solve(self, task: Task, messages: Sequence[Message]) -> Message:
        return self.of(task).solve(task, messages)

    def state(self, task: Task, messages: Sequence[Message]) -> list[Table]:
        return self.of(task).state(task, messages)

    def probes(self, task: Task) -> dict[str, Say]:
        return self.of(task).probes(task)


def grouped(env: Environment, items: Sequence[T], task: Callable[[T], Task]) -> list[tuple[str, Environment, list[T]]]:
    """Items by the environment of their task, with its name; all without a name where `env` is a single one."""
    groups: list[tuple[str, Environment, list[T]]] = [("", env, list(items))]
    if isinstance(env, Mixed):
        groups = [(name, part, [i for i in items if task(i).environment == name]) for name, part in env.parts.items()]
    return [group for group in groups if group[2]]
