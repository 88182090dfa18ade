"""The one shape of a trajectory that every room understands, whatever wire format it came in.

A `Trace` is an ordered list of `Step`s. A step is a message, a model call, a tool execution or another span.
Formats (`flywheel.trajectories.formats.files.file_formats`) make traces; detectors, verifiers, viewers and trainers
read them. Unknown is `None` (or an empty string for text), never a made-up value.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import orjson

Role = Literal["system", "user", "assistant", "tool"]
Kind = Literal["system", "user", "assistant", "tool", "agent", "retrieval", "other"]
Status = Literal["ok", "error", "unset"]
Outcome = Literal["success", "failed"]

MAX_COUNT = 2**31 - 1
"""Token counts beyond a 32-bit integer are not counts."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: dict[str, Any] | str
    """A `str` is what the model wrote when it is not a JSON object."""

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "name": self.name, "arguments": self.arguments}


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    reasoning: str = ""

    def to_json(self) -> dict[str, Any]:
        """Our own storage shape: only what is set, so that equal messages are equal JSON."""
        row: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            row["tool_calls"] = [call.to_json() for call in self.tool_calls]
        for key in ("tool_call_id", "name", "reasoning"):
            if value := getattr(self, key):
                row[key] = value
        return row

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> "Message":
        calls = tuple(ToolCall(call["id"], call["name"], call["arguments"]) for call in row.get("tool_calls", ()))
        texts = {key: row[key] for key in ("content", "tool_call_id", "name", "reasoning") if key in row}
        return cls(row["role"], tool_calls=calls, **texts)

    def to_openai(self) -> dict[str, Any]:
        """The OpenAI chat shape, as engines and trainers take it."""
        row: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            row["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": _written(call.arguments)},
                }
                for call in self.tool_calls
            ]
        return row | {key: value for key in ("tool_call_id", "name") if (value := getattr(self, key))}


@dataclass(slots=True)
class Step:
    """One span or message. `input` is what a model call was given, `output` what came back.

    A message that is not a model call has its text in `output`. A tool execution has `tool_name`, `arguments`
    and `result` instead.
    """

    span_id: str
    kind: Kind
    name: str = ""
    parent_id: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    status: Status = "unset"
    error: str = ""
    model: str = ""
    input: list[Message] = field(default_factory=list)
    output: list[Message] = field(default_factory=list)
    tool_name: str = ""
    tool_call_id: str = ""
    arguments: dict[str, Any] | str | None = None
    result: Any = None
    finish_reason: str = ""
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_cached: int | None = None
    cost_usd: float | None = None
    priced_by: str = ""
    """Whose price the cost was derived by (`call_prices.Price.origin`); empty where the sender stated it."""
    answered_by: str = ""
    """The version that answered, as `agent@3:digest`, where the gateway sent the call there. No sender can state it."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """What training needs to score exactly what was sampled, only the keys that the source gave: `prompt_token_ids` and
    `token_ids` (lists of int), `logprobs` (floats, one a token), `mask` (0 or 1, one a token), `params` (the settings:
    temperature, …).
    """
    raw: dict[str, Any] = field(default_factory=dict)
    """The step as it arrived, for the raw view: attributes, events, links, or the source's own JSON object."""

    @property
    def duration_ms(self) -> float | None:
        if self.started_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.started_at).total_seconds() * 1000

    def tool_calls(self) -> list[ToolCall]:
        """The calls that the model asked for in this step."""
        return [call for message in self.output for call in message.tool_calls]


@dataclass(frozen=True, slots=True)
class Intervention:
    """A person stepped in."""

    step: str
    """The span id at which it happened, or empty for the whole trajectory."""
    kind: str
    """What they did, in the source's word: `edited`, `undone`, `took_over`, `stopped`, …"""
    by: str = ""
    note: str = ""
    at: str = ""
    """ISO 8601, or empty when the source does not say."""

    def to_json(self) -> dict[str, str]:
        return {"step": self.step, "kind": self.kind, "by": self.by, "note": self.note, "at": self.at}


@dataclass(slots=True)
class Trace:
    """A complete agent episode, or the part of one that a batch brought."""

    trace_id: str
    steps: list[Step] = field(default_factory=list)
    agent: str = ""
    version: str = ""
    """The agent's own version label, as it reported it."""
    session_id: str = ""
    user_id: str = ""
    environment: str = ""
    """Deployment environment: `production`, `staging`, `dev`, …"""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """Tool definitions: `{"name", "description", "parameters"}` with a JSON schema as parameters."""
    outcome: Outcome | None = None
    interventions: list[Intervention] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    thread: str = ""
    """Where a single model call came from whose sender said nothing of the episode that it belongs to: within one
    thread, calls that continue each other are one trajectory (`stretches.py`). Empty for everything else."""
    answer_id: str = ""
    """What the server of a single model call names its answer, by which a later call may say that it goes on there."""
    follows: str = ""
    """Such a name, of the answer from which a single model call goes on, whose sender said no more of the episode."""

    def conversation(self) -> list[Message]:
        """Every message once, in order, however often model calls repeated their history."""
        return conversation(self.steps)

    def final(self) -> Message | None:
        """The last message that the agent wrote, or None when it wrote nothing."""
        return next((message for message in reversed(self.conversation()) if message.role == "assistant"), None)

    @classmethod
    def from_messages(cls, trace_id: str, messages: Sequence[Message]) -> "Trace":
        """A trace of plain messages, one step each: how rollouts and corrected trajectories are built."""
        steps = [
            Step(
                span_id=f"m{index}",
                kind=message.role,
                output=[message],
                tool_call_id=message.tool_call_id,
                tool_name=message.name if message.role == "tool" else "",
                result=message.content if message.role == "tool" else None,
            )
            for index, message in enumerate(messages)
        ]
        return cls(trace_id=trace_id, steps=steps)


class Conversation:
    """Builds a conversation step by step, each message once.

    A model call repeats the history it was given; what is already there is left out (counted, so that a person who
    says "yes" twice is heard twice), and a conversation of n calls reads as n answers, not as n² messages. A tool
    execution adds its result unless a message carries it already.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._seen: dict[_Identity, int] = {}
        self._answered: set[str] = set()
        self._names: dict[str, str] = {}
        """The tools that calls were made to, by the calls' ids."""
        self._unnamed: list[Message] = []
        """Observations of tool executions that did not say which call they answer."""

    def add(self, step: Step) -> list[Message]:
        """Add what `step` brings and return just that."""
        if step.kind == "tool" and not step.output:
            # A span that holds neither result nor error leaves it to the next model call to tell.
            is_known = step.tool_call_id in self._answered if step.tool_call_id else False
            added = [] if is_known or (step.result is None and not step.error) else [_observation(step)]
            if not step.tool_call_id:
                self._unnamed += added
        else:
            history: dict[_Identity, int] = {}
            added = []
            for message in step.input:
                if message.tool_calls:
                    self._names |= {call.id: call.name for call in message.tool_calls}
                key = _identity(message)
                history[key] = history.get(key, 0) + 1
                if history[key] > self._seen.get(key, 0) and not self._is_known_observation(message):
                    added.append(message)
            added.extend(step.output)
        for message in added:
            if message.tool_calls:
                self._names |= {call.id: call.name for call in message.tool_calls}
            key = _identity(message)
            self._seen[key] = self._seen.get(key, 0) + 1
            if message.role == "tool" and message.tool_call_id:
                self._answered.add(message.tool_call_id)
        self.messages.extend(added)
        return added

    def _is_known_observation(self, message: Message) -> bool:
        if message.role != "tool" or not message.tool_call_id:
            return False
        if message.tool_call_id in self._answered:
            return True
        found = next((seen for seen in self._unnamed if seen.content == message.content), None)
        if found is None and (name := message.name or self._names.get(message.tool_call_id, "")):
            # What a failed tool wrote and what the model was told of it may differ.
            found = next((seen for seen in self._unnamed if seen.name == name), None)
        if found is not None:
            self._unnamed.remove(found)
            self._answered.add(message.tool_call_id)
        return found is not None


def speaking(steps: Iterable[Step]) -> list[Step]:
    """The steps that carry the conversation.

    An agent's own span repeats what its model calls say, so it speaks only in a trace without model calls; and of one
    call that was told twice, the inner one speaks.
    """
    every = list(steps)
    if not any(step.kind == "assistant" for step in every):
        return every
    twice = told_twice(every)
    return [step for step in every if step.kind != "agent" and step.span_id not in twice]


def told_twice(steps: Iterable[Step]) -> set[str]:
    """The ids of model calls above a model call: a framework and the client below it were both instrumented, and each
    tells of the same call. The inner one is nearer to the model."""
    calls = {step.span_id: step.parent_id for step in steps if step.kind == "assistant"}
    return calls.keys() & calls.values()


def conversation(steps: Iterable[Step]) -> list[Message]:
    """All messages of the steps in order, history repeated by later model calls left out."""
    talk = Conversation()
    for step in speaking(steps):
        talk.add(step)
    return talk.messages


_Identity = tuple[str, str, bytes, str]


def _identity(message: Message) -> _Identity:
    """Return the key of equal messages. Reasoning and names do not count: senders drop them from the history."""
    calls = [(call.id, call.name, call.arguments) for call in message.tool_calls]
    return message.role, message.content, fingerprint(calls) if calls else b"", message.tool_call_id


def count(value: Any) -> int | None:
    """A count of tokens, or None for what cannot be one."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 11:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        return None
    return value


def fingerprint(value: Any) -> bytes:
    """Equal for equal JSON, whatever the order of keys. Written for speed; only what that refuses is written slowly."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # such as integers beyond 64 bits
        return json.dumps(value, sort_keys=True).encode()


def _observation(step: Step) -> Message:
    value = step.result if step.result is not None else step.error
    return Message("tool", _written(value), (), step.tool_call_id, step.tool_name)


def _written(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
