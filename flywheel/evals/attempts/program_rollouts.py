"""A program's turn as the messages that are judged: what it did and what it said, out of its model calls, its calls of
the attempt's tools, and its output.

- What a program carried out at the attempt's tools is what it did. A call that its model proposed, and that it did not
  carry out, happened nowhere where a world owns the tools, or once the program has used them. A program that carries
  its calls out elsewhere is taken at its model's word: there is no other.
- What its model wrote beside calls is what the program thought; what it said is its output, or its model's last text
  where it returned none. Thoughts stay in the trajectory as reasoning.
- The episode ends where the environment ends it, as for a policy that is asked directly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from flywheel.core.digests import canonical
from flywheel.core.envs.environment import Environment, Task
from flywheel.core.envs.nemo_gym import CALLS_AT_ONCE, NemoGym
from flywheel.core.envs.policy_rollouts import ChatResponse
from flywheel.core.envs.worlds.own_world import OwnWorld, world_of
from flywheel.core.envs.worlds.server_stand_in import ServerStandIn
from flywheel.core.envs.worlds.stand_ins import alone, stand_in_of
from flywheel.core.traces import Message, Step, ToolCall, call_forms, openai_messages
from flywheel.core.verifiers import WorldError

COUNTS = ("tokens_in", "tokens_out", "cost_usd", "latency_ms")
NOTHING = ChatResponse(tokens_in=0, tokens_out=0, cost_usd=0.0, latency_ms=0.0)
"""Of a message that no model call made."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call through the gateway."""

    at: datetime
    """When it was answered."""
    input: tuple[Message, ...]
    output: Message | None
    response: ChatResponse

    @classmethod
    def from_json(cls, at: datetime, row: Mapping[str, Any]) -> "ModelCall":
        """Read it as `gateway.attempt_calls` wrote it."""
        counts = {
            name: row[name] for name in ("tokens_in", "tokens_out", "cost_usd", "finish_reason", "model", "error")
        }
        response = ChatResponse(**counts, latency_ms=row["ms"], is_away=bool(row["error"] and row["is_away"]))
        output = next(iter(row["output"]), None)
        return cls(
            at,
            tuple(Message.from_json(message) for message in row["input"]),
            Message.from_json(output) if output else None,
            response,
        )

    @classmethod
    def from_step(cls, step: Step) -> "ModelCall":
        """Read it as the program has told it."""
        error = (step.error or "it failed") if step.status == "error" else ""
        response = ChatResponse(
            tokens_in=step.tokens_in,
            tokens_out=step.tokens_out,
            cost_usd=step.cost_usd,
            latency_ms=step.duration_ms,
            finish_reason=step.finish_reason,
            model=step.model,
            error=error,
        )
        at = step.ended_at or step.started_at or datetime.now(UTC)
        return cls(at, tuple(step.input), next(iter(step.output), None), response)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One call of the attempt's tools."""

    at: datetime
    name: str
    arguments: Mapping[str, Any]
    result: str | None
    """None where the episode was over with it."""

    def to_json(self) -> dict[str, Any]:
        return {
            "at": self.at.isoformat(),
            "name": self.name,
            "arguments": dict(self.arguments),
            "result": self.result,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "ToolUse":
        return cls(datetime.fromisoformat(row["at"]), row["name"], row["arguments"], row["result"])


@dataclass(slots=True)
class Action:
    """A message of the program, the results that its calls got, and what its model took for it."""

    message: Message
    response: ChatResponse
    results: dict[str, Message] = field(default_factory=dict)
    """By the call's id."""
    carried_out: list[str] = field(default_factory=list)
    """The ids of the calls that the attempt's tools were asked for, in that order."""


def actions(
    calls: Sequence[ModelCall],
    uses: Sequence[ToolUse],
    output: str | None,
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    owns_tools: bool = False,
) -> list[Action]:
    """List what the program did and said in one turn, in order; nothing where there is neither trace nor output."""
    found: list[Action] = []
    ours = openai_messages.names(tools)
    events: list[ModelCall | ToolUse] = sorted([*calls, *uses], key=lambda event: event.at)
    for number, event in enumerate(events):
        if isinstance(event, ToolUse):
            _carry_out(found, event, number)
        elif not event.response.error:
            _take_results(found, event.input)
            if event.output is not None:
                found.append(Action(_named(event.output, ours, number), event.response))
    if owns_tools or uses:
        for action in found:
            _leave_undone(action)
    return _spoken(found, output)


def _named(message: Message, ours: Mapping[str, str], number: int) -> Message:
    """The model's message with native calls of our names, each with an id of its own."""
    native = call_forms.as_native(message)
    is_native = native is message
    calls = tuple(
        replace(
            call, name=ours.get(call.name, call.name), id=call.id if is_native and call.id else f"{number}-{call.id}"
        )
        for call in native.tool_calls
    )
    return replace(native, role="assistant", tool_calls=calls)


def _carry_out(found: list[Action], use: ToolUse, number: int) -> None:
    """Note a call of the attempt's tools at the proposal that it carries out, or as an action of its own."""
    for action in found:
        for call in action.message.tool_calls:
            if call.id not in action.carried_out and call.name == use.name and _alike(call.arguments, use.arguments):
                _note(action, call, use)
                return
    call = ToolCall(f"use-{number}", use.name, dict(use.arguments))
    action = Action(Message("assistant", tool_calls=(call,)), NOTHING)
    found.append(action)
    _note(action, call, use)


def _note(action: Action, call: ToolCall, use: ToolUse) -> None:
    action.carried_out.append(call.id)
    if use.result is not None:
        action.results[call.id] = Message("tool", use.result, tool_call_id=call.id, name=call.name)


def _alike(said: Any, done: Mapping[str, Any]) -> bool:
    return isinstance(said, Mapping) and canonical(dict(said)) == canonical(dict(done))


def _take_results(found: Sequence[Action], told: Sequence[Message]) -> None:
    """Take what the program told its model of calls that it carried out elsewhere."""
    waiting = {
        call.id: (action, call)
        for action in found
        for call in action.message.tool_calls
        if call.id not in action.results and call.id not in action.carried_out
    }
    for message in told:
        if message.role == "tool" and message.tool_call_id in waiting:
            action, call = waiting.pop(message.tool_call_id)
            action.results[call.id] = replace(message, name=call.name)


def _leave_undone(action: Action) -> None:
    """Keep of a message's calls those that were carried out, in the order in which they were."""
    order = {key: place for place, key in enumerate(action.carried_out)}
    done = tuple(
        sorted((call for call in action.message.tool_calls if call.id in order), key=lambda call: order[call.id])
    )
    action.message = replace(action.message, tool_calls=done)
    action.results = {call.id: action.results[call.id] for call in done if call.id in action.results}


def _spoken(found: Sequence[Action], output: str | None) -> list[Action]:
    """The same with what was only thought as reasoning, and the program's words at the end."""
    closing = found[-1] if found and not found[-1].message.tool_calls else None
    words = output if output is not None or closing is None else closing.message.content
    kept: list[Action] = []
    thoughts: list[str] = []
    taken = NOTHING
    for action in found:
        message, taken = action.message, _sum(taken, action.response)
        if message.tool_calls:
            reasoning = _joined([*thoughts, message.reasoning])
            kept.append(Action(replace(message, reasoning=reasoning), taken, action.results))
            thoughts, taken = [], NOTHING
        elif action is closing and message.content.strip() == (words or "").strip():
            thoughts.append(message.reasoning)
        else:
            thoughts += [message.reasoning, message.content]
    if words or (found and not kept):
        kept.append(Action(Message("assistant", words or "", reasoning=_joined(thoughts)), taken))
    elif kept:
        kept[-1].response = _sum(kept[-1].response, taken)
    return kept


def _joined(thoughts: Sequence[str]) -> str:
    return "\n\n".join(filter(None, thoughts))


def _sum(one: ChatResponse, other: ChatResponse) -> ChatResponse:
    """Sum what two model calls took; unknown where one of them does not say."""
    counts: dict[str, Any] = {}
    for name in COUNTS:
        values = getattr(one, name), getattr(other, name)
        counts[name] = None if None in values else sum(values)
    return ChatResponse(**counts, finish_reason=other.finish_reason, model=other.model or one.model)


def turn_limit(env: Environment, given: Sequence[Message]) -> tuple[OwnWorld | NemoGym, int] | None:
    """Who counts the turns of an attempt that was `given` so much, and how many there are; None where nobody does."""
    if (world := world_of(env)) is not None:
        return world, world.max_turns
    return (env, env.max_turns + turns_of(given)) if isinstance(env, NemoGym) else None


def follow(
    env: Environment, task: Task, seed: int, given: Sequence[Message], acts: Sequence[Action]
) -> tuple[list[Message], list[ChatResponse], list[Message]]:
    """Let the environment answer what the program did: all messages until its end, what each of the program's took, and
    what a user says next, where the episode goes on. May raise whatever the environment raises."""
    messages, taken = list(given), []
    reply: list[Message] = []
    world = world_of(env)
    stand_in = stand_in_of(env)
    owner, most = turn_limit(env, given) or (None, 0)
    is_asked = owner is not None or stand_in is not None
    if isinstance(stand_in, ServerStandIn):  # the program has ended: a server's answer would reach nobody
        env = alone(env)
    for action in acts:
        calls = [call.id for call in action.message.tool_calls]
        is_done = bool(calls) and all(call in action.results for call in calls)
        if owner is not None and calls and not is_done:  # the call that was told that the episode is over
            break
        messages.append(action.message)
        taken.append(action.response)
        reply = []
        if is_asked and is_done:  # what may do something, or costs something, was carried out already
            if owner is not None and turns_of(messages) > most:
                raise WorldError(f"calls were carried out beyond its {owner.max_turns} turns", "environment")
            if owner is not world and len(calls) > CALLS_AT_ONCE:  # each was sent, and judged would be another episode
                raise WorldError(f"more than {CALLS_AT_ONCE} calls of one message were carried out", "environment")
            messages += [action.results[call] for call in calls]
            continue
        reply = env.respond(task, messages, seed)
        if not reply:
            break
        if all(call in action.results for call in calls):
            messages += [action.results[call] for call in calls]
        else:
            messages += [action.results.get(said.tool_call_id, said) for said in reply if said.role == "tool"]
    return messages, taken, [said for said in reply if said.role == "user"]


def turns_of(messages: Sequence[Message]) -> int:
    """Count the turns of an episode that these messages take: whatever is said, or called, at once is one."""
    return sum(message.role == "assistant" for message in messages)
