"""Environment kind `nemo_gym`: somebody else's NeMo Gym resources server, whose tools and whose verdict are only asked.

The policy speaks and calls tools over several turns, natively or as the text `{"tool": name, "arguments": {…}}`. A
call is carried out by the server, in a session that began with the task's row; the body of its answer is the
observation. The episode ends with an answer that calls nothing, and what it is worth the server says.

Here too everything is read out of the messages. A session is what the server has made of the calls so far, so whoever
has the network (`verifiers.Gym`) finds it by those, and makes it again by repeating them where there is none any more.
What is answered otherwise the second time is no ground for a verdict.

Config: `{"base_url": str, "tools": [definition, …], "max_turns": int, "token_limit": int}`. Verifier:
`{"kind": "nemo_gym"}`; nothing of it can be set. Target: `{"row": …}`, the row of the server's data without its tools,
and `"calls": [{"tool", "arguments"}]` where the row says which are right. State: `{"row": digest}`, since rows may ask
the same and want different things.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.core.digests import canonical, read_json
from flywheel.core.envs.agent_config import AgentConfig
from flywheel.core.envs.environment import Say, Table, Task, always, token_limit_of
from flywheel.core.traces import Message, Role, ToolCall, Trace, openai_messages, tooling
from flywheel.core.verifiers import Gym, GymError, Verdict, VerifierError, Verify, guarded, unscored

KIND = "nemo_gym"
SETTINGS = ("base_url", "tools", "max_turns", "token_limit")
MAX_TURNS = 10
CALLS_AT_ONCE = 20
"""Calls of one message that are carried out; further ones are answered with a refusal."""
PARTS_KEPT = 20
RESERVED = ("seed_session", "verify", "reset", "step", "aggregate_metrics", "mcp", "health")
"""Addresses of the protocol's own, which no tool can have."""
_TOOL = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_PART = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of the policy, and what is answered to it."""

    call: ToolCall
    refusal: str
    """What is answered here, to a call that cannot be sent; empty for one that can."""
    observation: str | None


class NemoGym:
    def __init__(
        self,
        config: Mapping[str, Any],
        verifier: Mapping[str, Any],
        gym: Gym | None = None,
        agent: AgentConfig | None = None,
    ) -> None:
        """Without a `gym` nobody can play and no attempt is scored."""
        if settings := [field for field in verifier if field != "kind"]:
            raise VerifierError(f"{settings[0]}: the verdict is the server's; its verifier has no settings")
        if not isinstance(base_url := config.get("base_url"), str) or not base_url.startswith(("http://", "https://")):
            raise VerifierError("base_url: expected the address of a resources server, such as http://gym-1:8000")
        turns = config.get("max_turns", MAX_TURNS)
        if isinstance(turns, bool) or not isinstance(turns, int) or not 1 <= turns <= 100:
            raise VerifierError(f"max_turns: {turns!r} is no whole number from 1 to 100")
        self.base_url, self.max_turns, self.gym = base_url, turns, gym
        self.agent = agent or AgentConfig()
        self.token_limit = token_limit_of(config)
        self.tools = tools_of(config.get("tools", []))

    def reset(self, task: Task, seed: int) -> list[Message]:
        return self.agent.open(opening(task.target["row"]))

    def respond(self, task: Task, messages: Sequence[Message], seed: int) -> list[Message]:
        return self.respond_all([(task, messages)])[0]

    def respond_all(self, waiting: Sequence[tuple[Task, Sequence[Message]]]) -> list[list[Message]]:
        """The replies to many episodes, asked at once. A server that does not answer ends an episode, which then is not
        scored. Raises GymError where nobody can ask it."""
        if self.gym is None:
            raise GymError("its tools are another server's, which only a worker asks")
        made = [self._calls(messages) for _, messages in waiting]
        asked = [
            (number, self._episode(task, calls))
            for number, ((task, _), calls) in enumerate(zip(waiting, made, strict=True))
            if calls and any(call.observation is None and not call.refusal for call in calls)
        ]
        answers = self.gym.carry_out([episode for _, episode in asked])
        told: dict[int, list[str] | None] = dict(zip([number for number, _ in asked], answers, strict=True))
        return [_replies(calls, told.get(number, [])) for number, calls in enumerate(made)]

    def why_unanswered(self, task: Task, messages: Sequence[Message]) -> str:
        """Why the server did not answer the last message's calls, where that is known."""
        return (self.gym.why(self._episode(task, self._calls(messages))) if self.gym else "") or "it did not answer"

    def verifier(self, task: Task) -> Verify:
        def verify(trace: Trace, target: Mapping[str, Any]) -> Verdict:
            return self._judge(task, trace.conversation())

        return guarded(verify)

    def knows(self, task: Task) -> bool:
        """Whether the row says which calls are right; what a server judges otherwise nobody here can do right."""
        return "calls" in task.target

    def solve(self, task: Task, messages: Sequence[Message]) -> Message:
        if any(message.role == "assistant" for message in messages[len(self.reset(task, 0)) :]):
            return Message("assistant", "Done.")
        calls = [ToolCall(f"call-{at}", c["tool"], c["arguments"]) for at, c in enumerate(task.target["calls"])]
        return Message("assistant", "", tuple(calls))

    def state(self, task: Task, messages: Sequence[Message]) -> list[Table]:
        """Its server keeps what there is."""
        return []

    def probes(self, task: Task) -> dict[str, Say]:
        found = {"empty": always(""), "echo": always(task.prompt)}
        if self.tools:
            every = tuple(ToolCall(f"call-{number}", tool["name"], {}) for number, tool in enumerate(self.tools))
            found["constant"] = always(tooling.call_text(self.tools[0]["name"], {}))
            found["every tool at once"] = lambda seen: (
                Message("assistant", "", every) if seen[-1].role == "user" else Message("assistant", "Done.")
            )
        return found

    def _calls(self, messages: Sequence[Message]) -> list[_Call]:
        """Every call up to now, with what was answered; empty where the last message calls nothing."""
        found: list[_Call] = []
        for at, message in enumerate(messages):
            if message.role != "assistant":
                continue
            calls = tooling.calls_of(message)
            if not calls and at == len(messages) - 1:
                return []
            said = [each.content for each in messages[at + 1 : at + 1 + len(calls)] if each.role == "tool"]
            for number, call in enumerate(calls):
                observation = said[number] if number < len(said) else None
                found.append(_Call(call, self._refusal(call, number), observation))
        return found

    def _refusal(self, call: ToolCall, number: int) -> str:
        if tooling.find(self.tools, call.name) is None:
            there = ", ".join(tool["name"] for tool in self.tools) or "none"
            return f"There is no tool {call.name[:100]!r}, only {there}."
        if not isinstance(call.arguments, dict):
            return "The arguments are not a JSON object."
        try:
            canonical(call.arguments)
        except (ValueError, TypeError, RecursionError):  # NaN or half of a surrogate pair, which Python lets through
            return "The arguments are not JSON."
        return "Too many calls at once." if number >= CALLS_AT_ONCE else ""

    def _episode(self, task: Task, calls: Sequence[_Call]) -> "GymEpisode":
        sent = [
            (each.call.name, each.call.arguments, each.observation)
            for each in calls
            if not each.refusal and isinstance(each.call.arguments, dict)
        ]
        return GymEpisode(self.base_url, self.row_of(task), tuple(sent))

    def row_of(self, task: Task) -> dict[str, Any]:
        """The row as its server knows it."""
        row: dict[str, Any] = dict(task.target["row"])
        params = {**row["responses_create_params"], "tools": openai_messages.definitions(self.tools)}
        return {**row, "responses_create_params": params}

    def _judge(self, task: Task, messages: Sequence[Message]) -> Verdict:
        if self.gym is None:
            return unscored("its verdict is another server's, which only a worker asks", "refused")
        said = messages[len(self.reset(task, 0)) :]
        calls = self._calls([*said, Message("user", "")])
        try:
            if any(call.observation is None for call in calls):
                raise GymError(self.gym.why(self._episode(task, calls)) or "the attempt was broken off")
            answer = self.gym.verify(self._episode(task, calls), {**_RESPONSE, "output": _output(said)})
        except GymError as error:
            return unscored(f"its server: {error}", "environment")
        return _verdict(answer, task)


@dataclass(frozen=True, slots=True)
class GymEpisode:
    """An attempt as its server sees it."""

    base_url: str
    row: Mapping[str, Any]
    calls: tuple[tuple[str, Mapping[str, Any], str | None], ...]
    """Tool, arguments, and what was answered; None for one that is still to be carried out."""


_RESPONSE = {
    "id": "resp_flywheel", "object": "response", "created_at": 0, "status": "completed", "model": "policy",
    "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
}  # fmt: skip


def tools_of(given: Any) -> list[dict[str, Any]]:
    """Tool definitions, ours or as a row of NeMo Gym's has them. Raises VerifierError."""
    flat = tooling.definitions(given)
    if isinstance(flat, list):
        kept = ("name", "description", "parameters")
        flat = [{key: tool[key] for key in kept if tool.get(key)} if isinstance(tool, dict) else tool for tool in flat]
    if problems := tooling.check_definitions(flat):
        raise VerifierError("; ".join(problems[:5]))
    names = [tool["name"] for tool in flat]
    for number, name in enumerate(names):
        if not _TOOL.fullmatch(name) or name in RESERVED:
            raise VerifierError(f"tools[{number}].name: {name[:100]!r} is no address of a tool on such a server")
        if name in names[:number]:
            raise VerifierError(f"tools[{number}].name: {name!r} is there twice")
    return list(flat)


def opening(row: Mapping[str, Any]) -> list[Message]:
    """The messages that open an episode. Raises ValueError for an input that is more than words."""
    given = row["responses_create_params"].get("input")
    if isinstance(given, str):
        return [Message("user", given)]
    found = []
    for number, item in enumerate(given if isinstance(given, list) else []):
        if not isinstance(item, dict) or item.get("type", "message") != "message":
            raise ValueError(f"item {number} is no message")
        role = _ROLES.get(str(item.get("role")))
        if role is None:
            raise ValueError(f"item {number} has the role {str(item.get('role'))[:40]!r}")
        content = item.get("content")
        parts = content if isinstance(content, list) else []
        is_words = content is None or isinstance(content, str | list)
        if not is_words or any(set(part) - _WORDS for part in parts if isinstance(part, dict)):
            raise ValueError(f"item {number} holds more than words")
        found.append(Message(role, openai_messages.text(content)))
    if not found or found[-1].role != "user" or not found[-1].content.strip():
        raise ValueError("it does not end with a request of a user")
    return found


_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_WORDS = {"type", "text", "annotations", "logprobs"}


def _replies(calls: Sequence[_Call], answers: list[str] | None) -> list[Message]:
    """The observations of the last message's calls, in their order; none where the server did not answer."""
    if answers is None:
        return []
    waiting, left = [call for call in calls if call.observation is None], iter(answers)
    return [
        Message("tool", each.refusal or next(left), tool_call_id=each.call.id, name=each.call.name) for each in waiting
    ]


def _output(said: Sequence[Message]) -> list[dict[str, Any]]:
    """The attempt as the output of a response: calls native, each with an id of its own."""
    messages: list[Message] = []
    made = 0
    waiting: list[str] = []
    for message in said:
        if message.role == "assistant":
            calls = tuple(
                ToolCall(f"call_{made + n}", c.name, c.arguments) for n, c in enumerate(tooling.calls_of(message))
            )
            made += len(calls)
            waiting = [call.id for call in calls]
            is_text = bool(calls) and not message.tool_calls
            messages.append(Message("assistant", "" if is_text else message.content, calls))
        elif message.role == "tool" and waiting:
            messages.append(Message("tool", message.content, tool_call_id=waiting.pop(0)))
    return openai_messages.items(messages)


def _verdict(answer: Mapping[str, Any], task: Task) -> Verdict:
    reward = answer.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        return unscored(f"its server gave the reward {str(reward)[:60]!r}, which is no number", "nan")
    parts: dict[str, float | None] = {}
    for name, value in answer.items():
        name = name.removeprefix("part_")
        is_figure = isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= 1
        if is_figure and name != "reward" and name not in task.target["row"] and _PART.fullmatch(name):
            parts[name] = float(value)
    kept = dict(list(parts.items())[:PARTS_KEPT])
    reason = answer.get("reason")
    return Verdict(float(reward), reason[:2000] if isinstance(reason, str) else "as its server judged", kept)


def same(one: str, other: str) -> bool:
    """Whether two observations say the same, however their JSON is written."""
    if one == other:
        return True
    try:
        return canonical(read_json(one)) == canonical(read_json(other))
    except (ValueError, TypeError, RecursionError):
        return False
