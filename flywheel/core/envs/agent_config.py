"""A version's part in every attempt: its system prompt, its tools, and the form of its calls.

An environment owns a world and its rules; the prompt that opens an attempt, and the tools on offer, are the agent's. So
what is evaluated and trained on is what goes live. A world with rules of its own says them after the agent's prompt, in
the same system message (most chat templates take one), and a world with tools of its own offers those instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flywheel.core.digests import digest
from flywheel.core.envs.environment import Environment, Say, Table, Task
from flywheel.core.traces import Message, Trace, call_forms, tooling
from flywheel.core.verifiers import Verdict, Verify, guarded

BETWEEN = "\n\n"
"""Stands between the agent's prompt and the world's rules."""
FORM = "form"
"""The part of a verdict that says whether calls were made in the agent's form."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """A version as environments know it."""

    system_prompt: str = ""
    tools: tuple[dict[str, Any], ...] = ()
    form: str = ""
    """How it writes its calls (`call_forms.LABELS`); empty where nobody said: calls are read in our text form too."""

    def to_json(self) -> dict[str, Any]:
        return {"system_prompt": self.system_prompt, "tools": list(self.tools), "form": self.form}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "AgentConfig":
        """Read it back. Raises KeyError, TypeError and FieldError for what is none."""
        form = call_forms.check(value.get("form", ""))
        return cls(str(value["system_prompt"]), tuple(dict(tool) for tool in value["tools"]), form)

    def open(self, messages: Sequence[Message]) -> list[Message]:
        """Put the prompt before messages that open an episode, joined with what the world says as system."""
        if not self.system_prompt:
            return list(messages)
        rules, rest = "", list(messages)
        if rest and rest[0].role == "system":
            rules, rest = rest[0].content, rest[1:]
        return [Message("system", BETWEEN.join(filter(None, (self.system_prompt, rules)))), *rest]


def first_request(
    opening: Sequence[Message], tools: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]
) -> dict[str, str]:
    """Digests of what a policy is sent first, without the task: the system message, the tools as servers take them, and
    the sampling. Equal for two policies that are asked alike."""
    system = [message.content for message in opening if message.role == "system"][:1]
    parts = {"system prompt": system, "tools": [tooling.plain(tool) for tool in tools], "sampling": dict(sampling)}
    return {name: digest(part) for name, part in parts.items()}


class Configured:
    """An environment in which the agent with this configuration makes its attempts: it plays and judges as `own`."""

    def __init__(self, own: Environment, agent: AgentConfig, *, owns_tools: bool) -> None:
        self.own, self.agent = own, agent
        self.max_turns, self.token_limit = own.max_turns, own.token_limit
        self.tools = own.tools if owns_tools else list(agent.tools)
        if weights := getattr(own, "weights", None):
            self.weights = weights
        if difference := getattr(own, "difference", None):
            self.difference = lambda task, messages, target: difference(task, self.readable(messages), target)

    def reset(self, task: Task, seed: int) -> list[Message]:
        """Open with the agent's prompt. Calls of a recorded beginning are in the agent's text form, as all its own; an
        agent of native calls gets them as they were recorded, for results must name the calls that they answer."""
        return self.agent.open([self._begun(message) for message in self.own.reset(task, seed)])

    def _begun(self, message: Message) -> Message:
        is_text = self.agent.form in call_forms.TEXT_FORMS
        return call_forms.write(message, self.agent.form) if is_text and message.role == "assistant" else message

    def respond(self, task: Task, messages: Sequence[Message], seed: int) -> list[Message]:
        return self.own.respond(task, self.readable(messages), seed)

    def solve(self, task: Task, messages: Sequence[Message]) -> Message:
        return call_forms.write(self.own.solve(task, self.readable(messages)), self.agent.form)

    def state(self, task: Task, messages: Sequence[Message]) -> list[Table]:
        return self.own.state(task, self.readable(messages))

    def probes(self, task: Task) -> dict[str, Say]:
        return self.own.probes(task)

    def verifier(self, task: Task) -> Verify:
        """The own verifier, told what the agent's program would read: calls in another form than its own are none
        there, so that such an attempt has failed, by the part `form`, however right it is."""
        own, form = self.own.verifier(task), self.agent.form
        if not form:
            return own
        begun = sum(message.role == "assistant" for message in self.own.reset(task, 0))

        def verify(trace: Trace, target: Mapping[str, Any]) -> Verdict:
            verdict = own(self.readable_trace(trace), target)
            if verdict.score is None:
                return verdict
            said = [message for message in trace.conversation() if message.role == "assistant"][begun:]
            other = next(filter(None, (call_forms.strange(message, form) for message in said)), "")
            if not other:
                return replace(verdict, parts={**verdict.parts, FORM: 1.0})
            reason = f"called as {other}; this agent's program reads {call_forms.LABELS[form]}"
            return Verdict(0.0, reason, {**verdict.parts, FORM: 0.0})

        return guarded(verify)

    def readable_trace(self, trace: Trace) -> Trace:
        """The trace with `readable` messages; itself where nothing differs."""
        talk = trace.conversation()
        readable = self.readable(talk)
        return trace if readable == talk else Trace.from_messages(trace.trace_id, readable)

    def readable(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages as the agent's program reads them: the calls in its text form as native ones."""
        return [
            message if message.role != "assistant" else call_forms.read(message, self.agent.form)
            for message in messages
        ]
