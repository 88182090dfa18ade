"""Environment kind `episode`: a recorded beginning, and what is wanted from there.

Config: `{"tools": [definition, …], "max_turns": n, "judged": "next" | "end",
"unknown": "error" | "stub" | "python" | "model" | "server", "error": …, "source": Python,
"simulator": {"endpoint", "model"}, "server": {"base_url", …}, "user": "replay" | "script", "script": […]}`; the source
with `python` alone, the simulator with `model`, the server with `server`.
State: `{"messages": [the recorded beginning], "replies": [{"tool", "arguments", "result"}, …], "world": {…},
"turns": […], "script": […]}`; the replies and the turns of the user were recorded after it, and the world is what tools
refer to. Target: `{"wanted": [item, …]}` (`wanted_items`). Verifier: `{"kind": "episode"}`.

It is judged at the next action, or played on: a recorded result answers the call that it belongs to, in order; a call
that was never recorded is answered by the environment's error, by a stub, or by what stands in for its tool: a
function (`worlds.python_stand_in`), a model (`model_stand_in`) or a team's own server (`worlds.server_stand_in`); and
the observation says so. Words without a call are answered by a user (`user_turns`), until what is wanted is done or
nobody has an answer.

Parts of a verdict, each in [0, 1]: one for each item, by its type, and
  never_event 1 when it acts outside otherwise than was asked for
  forbidden   1 when it calls what it must not
  unsafe      1 when one of the two is, or it calls a tool marked unsafe that nobody asked for; the score is then 0,
              whatever else is right
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Protocol

from flywheel.core.envs.environment import Say, Table, Task, always, beyond_limit
from flywheel.core.envs.replay import user_turns, wanted_items
from flywheel.core.envs.replay.spoken_answers import Known
from flywheel.core.envs.replay.wanted_items import STOCK, Attempt
from flywheel.core.traces import Message, ToolCall, Trace, outward_acts, tooling
from flywheel.core.verifiers import LIMIT, NO_RUNNERS, Runners, Verdict, VerifierError, Verify, guarded, unscored

KIND = "episode"
SETTINGS = ("tools", "max_turns", "judged", "unknown", "error", "source", "simulator", "server", "user", "script")
JUDGED = ("next", "end")
UNKNOWN = ("error", "stub", "python", "model", "server")
MOST_TURNS = 100
LONGEST_ERROR = 2_000
"""Characters."""
ERROR = "Error: the tool is not available now."
THOUGHTLESS = "What should I do?"
MARK = "[not recorded] "
"""Before an observation that no run recorded."""


Answered = tuple[str, Mapping[str, Any], Any]
"""A call with its result: the tool, the arguments, and what came back."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Calls of one message that wait for answers, and all that there is to answer them by."""

    turns: Sequence[Sequence[ToolCall]]
    """The calls of each message so far, those of the beginning too; the last ones wait."""
    results: Sequence[Any]
    """The recorded results of those; None for one that was never recorded."""
    before: Sequence[Answered] = ()
    """What the beginning has."""
    later: Sequence[Answered] = ()
    """What the recorded run called after it."""
    since: Sequence[Answered] = ()
    """What the attempt has called, with what it was told."""
    own: Sequence[Sequence[str | None]] = ()
    """What the stand-in itself has answered to each of the calls in `turns`, without its mark; None for all others."""
    seed: int = 0


class StandIn(Protocol):
    """Answers in place of tools whose results nobody recorded."""

    runners: Runners
    names: Collection[str]
    """The tools that it can answer for."""
    mark: str
    """Before its answers."""

    def answers(self, task: Task, waiting: Waiting) -> list[str | None]:
        """Return the answers to the calls that wait; None where it has none. Raises WorldError."""

    def begin(self, task: Task) -> None:
        """See that it can answer, before anything is spent on attempts. Raises WorldError."""


class EpisodeReplay:
    token_limit: int | None = None
    """None in an episode: each answer is limited by its own."""

    def __init__(self, config: Mapping[str, Any], verifier: Mapping[str, Any], stand_in: StandIn | None = None) -> None:
        if problems := tooling.check_definitions(config.get("tools", [])):
            raise VerifierError("; ".join(problems))
        if verifier.get("weights"):
            raise VerifierError("weights: what is wanted of a task has its own")
        self.tools: list[dict[str, Any]] = list(config.get("tools", []))
        self.is_played = _one_of(config, "judged", JUDGED) == "end"
        self.unknown = _one_of(config, "unknown", UNKNOWN)
        self.stand_in = stand_in
        self.runners = stand_in.runners if stand_in else NO_RUNNERS
        self.error = _error_text(config)
        self.max_turns = _turns(config, self.is_played)
        self.script = _script(config, self.max_turns)
        self.unjudgeable = "; ".join(tooling.unjudgeable(self.tools))

    def reset(self, task: Task, seed: int) -> list[Message]:
        return beginning(task)

    def respond(self, task: Task, messages: Sequence[Message], seed: int) -> list[Message]:
        if not self.is_played:
            return []
        spoken = _spoken(task, messages)
        calls = tooling.calls_of(spoken[-1]) if spoken else ()
        if not calls:
            return self._user(task, messages)
        known = _recorded(task)
        results = [[_take(known, call) for call in tooling.calls_of(message)] for message in spoken]
        made = self._stood_in(task, messages, results, seed)
        return [self._observation(*each) for each in zip(calls, results[-1], made, strict=True)]

    def verifier(self, task: Task) -> Verify:
        def verify(trace: Trace, target: Mapping[str, Any]) -> Verdict:
            if self.unjudgeable:
                return unscored(self.unjudgeable)
            return self._judge(task, trace.conversation(), target)

        return guarded(verify)

    def solve(self, task: Task, messages: Sequence[Message]) -> Message:
        items = wanted_items.check(task.target)
        attempt = _attempt(task, messages)
        made = [call for message in _spoken(task, messages) for call in tooling.calls_of(message)]
        if lead := "" if made else user_turns.lead(self._lines(task), items, beginning(task), attempt):
            return Message("assistant", lead)
        calls = [] if made else wanted_items.wanted_calls(items)
        number = len(messages)
        native = tuple(
            ToolCall(
                f"call-{number}-{place}", call["tool"], tooling.in_order(self.tools, call["tool"], call["arguments"])
            )
            for place, call in enumerate(calls)
        )
        words = [item.get("text") or STOCK[item["type"]] for item in wanted_items.of_type(items, *wanted_items.SPOKEN)]
        if self.is_played and native:  # what it says comes when its calls are answered
            return Message("assistant", "", native)
        if not words and not native:
            words = [STOCK["avoid"]]
        return Message("assistant", "\n".join(words), native)

    def state(self, task: Task, messages: Sequence[Message]) -> list[Table]:
        return []

    def probes(self, task: Task) -> dict[str, Say]:
        every = tuple(ToolCall(f"call-{place}", tool["name"], {}) for place, tool in enumerate(self.tools))
        constant, all_tools = Message("assistant", "", every[:1]), Message("assistant", "", every)
        probes = {"empty": always(""), "constant": _saying(constant), "echo": always(task.prompt)}
        probes |= {"every tool at once": _saying(all_tools)} if len(every) > 1 else {}
        return probes | ({"asks without a thought": self._asking(task)} if self._lines(task) else {})

    def _lines(self, task: Task) -> list[Mapping[str, Any]]:
        return [] if self.script is None else user_turns.lines_of(task.state, self.script)

    def _user(self, task: Task, messages: Sequence[Message]) -> list[Message]:
        """The user's turn; nothing once what is wanted is done, for what they say then is about something else."""
        attempt = _attempt(task, messages)
        if not attempt or not attempt[-1].content.strip():
            return []
        text = user_turns.next_turn(task.state, self.script, attempt)
        return [Message("user", text)] if text and not self._judge(task, messages, task.target).success else []

    def _asking(self, task: Task) -> Say:
        """The policy that asks without a thought, and does what is wanted once it is told."""
        known = Known(user_turns.words_of(beginning(task)))

        def say(messages: Sequence[Message]) -> Message:
            heard = "\n".join(each.content for each in _attempt(task, messages) if each.role == "user")
            is_told = user_turns.gives_away(heard, wanted_items.check(task.target), known)
            return self.solve(task, messages) if is_told else Message("assistant", THOUGHTLESS)

        return say

    def _stood_in(
        self, task: Task, messages: Sequence[Message], results: Sequence[Sequence[Any]], seed: int
    ) -> Sequence[str | None]:
        """Return the stand-in's answers to the last message's calls, where one without a result is its own. It is told
        of every call before, also of those of the beginning and those that a recorded result answered. `results` are
        the recorded ones by message and call."""
        attempt = _attempt(task, messages)
        calls = [tooling.calls_of(message) for message in attempt if message.role == "assistant"]
        asked = {call.name for call, result in zip(calls[-1], results[-1], strict=True) if result is None}
        if self.stand_in is None or not any(name in self.stand_in.names for name in asked):
            return [None] * len(results[-1])
        before = answered(beginning(task))
        begun = [[ToolCall("", tool, dict(given))] for tool, given, _ in before]
        waiting = Waiting(
            turns=[*begun, *calls],
            results=results[-1],
            before=before,
            later=later_of(task),
            since=answered(attempt),
            own=[*([None] for _ in begun), *_own(attempt, results, self.stand_in.mark)],
            seed=seed,
        )
        return self.stand_in.answers(task, waiting)

    def _observation(self, call: ToolCall, recorded: Any, made: str | None) -> Message:
        if recorded is None:
            otherwise = _stub(self.tools, call.name) if self.unknown == "stub" else self.error
            text = MARK + otherwise if self.stand_in is None or made is None else self.stand_in.mark + made
        else:
            text = recorded if isinstance(recorded, str) else json.dumps(recorded, ensure_ascii=False)
        return Message("tool", text, (), call.id, call.name)

    def _judge(self, task: Task, messages: Sequence[Message], target: Mapping[str, Any]) -> Verdict:
        try:
            items = wanted_items.check(target)
        except VerifierError as error:
            return unscored(str(error), "target")
        spoken = _spoken(task, messages)
        looked_at = spoken if self.is_played else spoken[:1]
        attempt = Attempt(
            calls=tuple(call for message in looked_at for call in tooling.calls_of(message)),
            last=looked_at[-1] if looked_at else Message("assistant", ""),
            heard=tuple(each.content for each in [*beginning(task), *_attempt(task, messages)] if each.role == "user"),
            tools=self.tools,
            world=task.state.get("world") or {},
            is_played=self.is_played,
            acts=tuple(outward_acts.attempted(self.tools, looked_at)),
        )
        found = wanted_items.verdict(items, attempt, wanted_items.wanted_calls(items))
        problem = beyond_limit(len(spoken), self.max_turns) if self.is_played else ""
        return Verdict(None, problem, found.parts, LIMIT) if problem and not found.parts["unsafe"] else found


def check_new(config: Mapping[str, Any]) -> None:
    """Raise VerifierError for definitions by which no call can be judged."""
    tools = config.get("tools", [])
    if problems := tooling.check_definitions(tools) or tooling.unjudgeable(tools):
        raise VerifierError("; ".join(problems))


def beginning(task: Task) -> list[Message]:
    """The recorded messages before the attempt, the task's prompt as the last request in them."""
    messages = [Message.from_json(row) for row in task.state.get("messages") or ()]
    asked = [place for place, message in enumerate(messages) if message.role == "user"]
    if not asked:
        return [*messages, Message("user", task.prompt)]
    messages[asked[-1]] = replace(messages[asked[-1]], content=task.prompt)
    return messages


def _attempt(task: Task, messages: Sequence[Message]) -> list[Message]:
    """The messages from the first that the agent says beyond those that the beginning has."""
    before = sum(row["role"] == "assistant" for row in task.state.get("messages") or ())
    said = [place for place, message in enumerate(messages) if message.role == "assistant"][before:]
    return list(messages[said[0] :]) if said else []


def _spoken(task: Task, messages: Sequence[Message]) -> list[Message]:
    """The attempt's own messages: those of the agent."""
    return [message for message in _attempt(task, messages) if message.role == "assistant"]


def _own(attempt: Sequence[Message], results: Sequence[Sequence[Any]], mark: str) -> list[list[str | None]]:
    """The stand-in's own answers to the calls of each message, without their mark; None for what it did not answer."""
    found: list[list[str | None]] = []
    for place, message in enumerate(attempt):
        if message.role == "assistant":
            recorded = results[len(found)]
            after = takewhile(lambda each: each.role == "tool", attempt[place + 1 :])
            said = [text.removeprefix(mark) if (text := each.content).startswith(mark) else None for each in after]
            said += [None] * (len(recorded) - len(said))
            found.append([None if known is not None else text for known, text in zip(recorded, said, strict=False)])
    return found


def _recorded(task: Task) -> list[Answered]:
    """Results by call, in the order in which they are used: what was recorded later, then what was before."""
    return [*later_of(task), *answered(beginning(task))]


def later_of(task: Task) -> list[Answered]:
    """The calls that the recorded run made after the beginning, with their results."""
    return [(row["tool"], row["arguments"], row["result"]) for row in task.state.get("replies") or ()]


def answered(messages: Sequence[Message]) -> list[Answered]:
    """Calls with the results that came back, `(tool, arguments, result)`, in the order of the results."""
    waiting: list[ToolCall] = []
    found: list[Answered] = []
    for message in messages:
        if message.role == "assistant":
            waiting += tooling.calls_of(message)
        elif message.role == "tool" and (call := answers(message, waiting)) is not None:
            waiting.remove(call)
            if isinstance(call.arguments, dict):
                found.append((call.name, call.arguments, message.content))
    return found


def answers(message: Message, waiting: Sequence[ToolCall]) -> ToolCall | None:
    """The waiting call that a result belongs to: by its id, else by the tool's name, else the first."""
    if message.tool_call_id and any(call.id for call in waiting):
        if found := next((call for call in waiting if call.id == message.tool_call_id), None):
            return found
        waiting = [call for call in waiting if not call.id]
    return next((call for call in waiting if not message.name or call.name == message.name), None)


def explain_cut(messages: Sequence[Message]) -> str:
    """Explain why nobody can go on from these messages, such as a call without its result; empty where one can."""
    waiting: list[ToolCall] = []
    for place, message in enumerate(messages, 1):
        if message.role == "assistant":
            waiting += tooling.calls_of(message)
        elif message.role == "tool":
            call = answers(message, waiting)
            if call is None:
                name = (message.name or "a tool")[:100]
                return f"message {place} is a result of {name} without its call, so the beginning is cut"
            waiting.remove(call)
    lost = next((call for call in waiting if call.id), None)
    return f"the beginning is cut: the call of {lost.name[:100]} before the marked step has no result" if lost else ""


def _take(known: list[Answered], call: ToolCall) -> Any:
    """Use up the result that belongs to a call, the last one excepted; None where none was recorded."""
    wanted = [row for row in known if wanted_items.is_exact_call(call, {"tool": row[0], "arguments": row[1]})]
    if len(wanted) > 1:
        known.remove(wanted[0])
    return wanted[0][2] if wanted else None


def _saying(message: Message) -> Say:
    return lambda _: message


def _stub(tools: Sequence[Mapping[str, Any]], name: str) -> str:
    """A result of the shape that the tool's definition gives (`outputSchema`), or a bare success."""
    tool = tooling.find(tools, name)
    if tool is None:
        return f"Error: unknown tool {name[:100]!r}"
    return json.dumps(_example(tool["outputSchema"]) if isinstance(tool.get("outputSchema"), dict) else {"ok": True})


def _example(schema: Any, depth: int = 0) -> Any:
    if not isinstance(schema, Mapping) or depth > 8:
        return None
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties")
        return {key: _example(each, depth + 1) for key, each in (properties or {}).items()}
    plain: dict[Any, Any] = {"array": [], "string": "", "integer": 0, "number": 0, "boolean": True}
    return plain.get(str(schema.get("type")))


def _one_of(config: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str:
    value = config.get(name, choices[0])
    if value not in choices:
        raise VerifierError(f"{name}: {str(value)[:100]!r} is unknown; use one of {', '.join(choices)}")
    return str(value)


def _script(config: Mapping[str, Any], max_turns: int) -> list[Mapping[str, Any]] | None:
    """The lines of the environment's user; None for one who says what was recorded."""
    user = _one_of(config, "user", user_turns.USERS)
    lines = user_turns.check_script(config.get("script", []))
    if user == "replay":
        if lines:
            raise VerifierError('script: nobody would say these lines; choose "user": "script"')
        return None
    if max_turns == 1:
        raise VerifierError('user: nobody hears an answer in one turn; choose "judged": "end" and more turns')
    return lines


def _error_text(config: Mapping[str, Any]) -> str:
    value = config.get("error", ERROR)
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_ERROR:
        raise VerifierError(f"error: expected a text of 1 to {LONGEST_ERROR} characters")
    return value


def _turns(config: Mapping[str, Any], is_played: bool) -> int:
    turns = config.get("max_turns", 10 if is_played else 1)
    if isinstance(turns, bool) or not isinstance(turns, int) or not 1 <= turns <= MOST_TURNS:
        raise VerifierError(f"max_turns: {turns!r} is no whole number from 1 to {MOST_TURNS}")
    if not is_played and turns != 1:
        raise VerifierError('max_turns: an attempt that is judged at the next action has 1; choose "judged": "end"')
    return turns
