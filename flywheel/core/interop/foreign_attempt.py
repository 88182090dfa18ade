"""One attempt at a task that somebody else's agent makes: what it does, what the environment answers, what it is worth.

Nothing that comes from outside is believed but the policy's own words: the environment's replies are made again from
them, and what is said after the end of an episode is not looked at, as in our own evals.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.core.detectors.call_detectors import is_dump
from flywheel.core.envs import Environment, Task
from flywheel.core.traces import Message, ToolCall, Trace
from flywheel.core.verifiers import UNREAD, Verdict, unscored

CALLS_MAX = 200
"""Of a session."""
OVER = "This episode is over."


class TooMany(ValueError):
    """More calls than a session may have."""


class Over(ValueError):
    """A turn after the verdict."""


def attempt(env: Environment, task: Task, said: Sequence[Message], seed: int = 0) -> tuple[list[Message], bool]:
    """The whole episode that these words make, and whether it is over."""
    messages = env.reset(task, seed)
    for turn, message in enumerate(said, 1):
        messages.append(message)
        reply = env.respond(task, messages, seed)
        if not reply or turn >= env.max_turns:
            return messages, True
        messages.extend(reply)
    return messages, False


def judge(env: Environment, task: Task, said: Sequence[Message], seed: int = 0) -> Verdict:
    messages, _ = attempt(env, task, said, seed)
    return env.verifier(task)(Trace.from_messages("", messages), task.target)


def judge_recorded(env: Environment, task: Task, trace: Trace) -> Verdict:
    """Judge a run that somebody else's program played to its end: one that ended with an error has failed, whatever it
    left behind, and one whose last words are a dump of what its framework did is unscored, for what it called there is
    not read here. A call that is broken has not run anywhere: who ends with one has failed."""
    verdict = env.verifier(task)(trace, task.target)
    final = trace.final()
    if final and is_dump(final.content):
        return unscored(
            "its last words are a dump of the agent framework's own data, and calls in it are not read", UNREAD
        )
    error = trace.metadata.get("error") or ("it was reported as failed" if trace.outcome == "failed" else "")
    if error and verdict.success:
        return Verdict(0.0, f"the run ended with an error: {str(error)[:300]}", verdict.parts)
    return verdict


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome of a turn."""

    reply: list[Message]
    """The environment's words; empty when the episode is over."""
    verdict: Verdict | None
    """Once it is over."""


class Session:
    """An attempt under way: turn by turn, or call by call where nobody says which calls were one turn."""

    def __init__(self, env: Environment, task: Task, seed: int = 0) -> None:
        self.env, self.task, self.seed = env, task, seed
        self.messages = env.reset(task, seed)
        self.said: list[Message] = []
        self.is_over = False
        self.is_judged = False
        self._patient = _patient(env)

    def call(self, name: str, arguments: dict[str, Any] | str) -> str:
        """Carry out one call. Turns are not counted here; the verdict counts them. Raises TooMany."""
        if len(self.said) >= CALLS_MAX:
            raise TooMany(f"an attempt may have {CALLS_MAX} calls")
        reply = self._hear(self._patient, Message("assistant", "", (ToolCall(f"c{len(self.said)}", name, arguments),)))
        return reply[-1].content if reply else OVER

    def turn(self, message: Message) -> Step:
        """One whole turn of the policy. Raises Over once its verdict is given, for an episode is rewarded once; where
        that was no score, the last turn may be said again to have it judged again."""
        if self.is_judged:
            raise Over(OVER)
        reply = self._hear(self.env, message)
        if reply and len(self.said) < self.env.max_turns:
            return Step(reply, None)
        self.is_over = True
        verdict = judge(self.env, self.task, self.said, self.seed)
        self.is_judged = verdict.score is not None
        return Step([], verdict)

    def _hear(self, env: Environment, message: Message) -> list[Message]:
        if self.is_over:
            return []
        self.said.append(message)
        self.messages.append(message)
        reply = env.respond(self.task, self.messages, self.seed)
        self.messages.extend(reply)
        self.is_over = not reply
        return reply


def _patient(env: Environment) -> Environment:
    """The same environment, for which calls that come one by one are not turns."""
    found = copy.copy(env)
    found.max_turns = CALLS_MAX + 1
    if own := getattr(found, "own", None):  # one that another's verifier judges
        found.own = _patient(own)  # type: ignore[attr-defined]
    return found
