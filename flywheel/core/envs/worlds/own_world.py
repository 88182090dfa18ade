"""Environment kind `world`: tools that a team wrote in Python over a state, judged by what an attempt leaves behind.

Config: `{"source": Python, "start": "extend" | "replace", "system_prompt": str, "max_turns": n, "token_limit": n,
"compare": "spaces" | "exact" | "case"}`, all but the source optional. Which tools there are follows from the source
(`tool_functions`); `compare` says which texts of two states are the same (`normal_form.COMPARISONS`).
State: `{"seed": n, "state": …}`, both optional: what `reset` is given, and the task's own state, whose parts stand
beside those of `reset` or in their place. Target: `{"wanted": [item, …], "solution": [{"tool", "arguments"}, …]}`
(`wanted_items`); by the solution a task is proved, and its tools are those that were asked for.
Verifier: `{"kind": "world"}`; nothing of it can be set, for each item has its own weight.

Everything is read out of the messages. The state is a function of the source, the task and the calls so far, so that
whoever has the sandbox (`verifiers.World`) may keep it and may make it again. What is answered otherwise the second
time is no ground for a verdict. A call that raises is answered with its words and changes nothing; a world that is at
fault itself, with no end or no JSON, leaves the attempt unscored.

Parts of a verdict: as those of `episode`.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flywheel.core.digests import canonical, digest
from flywheel.core.envs.environment import Say, Table, Task, always, beyond_limit, token_limit_of
from flywheel.core.envs.nemo_gym import same
from flywheel.core.envs.replay import end_states, wanted_items
from flywheel.core.envs.replay.end_states import EndState
from flywheel.core.envs.replay.wanted_items import STOCK, Attempt
from flywheel.core.envs.worlds import tool_functions
from flywheel.core.text.normal_form import COMPARISONS, SPACES
from flywheel.core.traces import Message, ToolCall, Trace, outward_acts, tooling
from flywheel.core.verifiers import (
    LIMIT,
    NO_RUNNERS,
    Runners,
    Verdict,
    VerifierError,
    Verify,
    WorldError,
    guarded,
    unscored,
)

KIND = "world"
SETTINGS = ("source", "start", "system_prompt", "max_turns", "token_limit", "compare")
STARTS = ("extend", "replace")
MAX_TURNS = 12
MOST_TURNS = 100
CALLS_AT_ONCE = 20
"""Calls of one message that are carried out; further ones are answered with a refusal."""
STATE_BYTES = 256 * 1024
ANSWER_BYTES = 24 * 1024
"""Of one tool's answer, as JSON."""
LARGEST_SEED = 2**31 - 1
Difference = tuple[str, str]
"""A part of the state, and the change in it in words."""


@dataclass(frozen=True, slots=True)
class WorldEpisode:
    """An attempt as its world sees it."""

    source: str
    keeper: str
    seed: int
    start: Any
    mode: str
    calls: tuple[tuple[str, dict[str, Any]], ...]
    queries: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """The digest of what it begins with, of which the state is a function together with the calls."""
        return digest([self.source, self.seed, self.start, self.mode])


@dataclass(frozen=True, slots=True)
class Played:
    """A world after the calls of an episode."""

    answers: tuple[str, ...]
    state: Any
    """As JSON, whatever keeps it."""
    rows: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Call:
    call: ToolCall
    refusal: str
    """What is answered to a call that the world never sees; empty for one that it does."""
    turn: int


class OwnWorld:
    def __init__(self, config: Mapping[str, Any], verifier: Mapping[str, Any], runners: Runners = NO_RUNNERS) -> None:
        """Without a runner nobody can play and no attempt is scored."""
        if settings := [name for name in verifier if name != "kind"]:
            raise VerifierError(f"{settings[0]}: what is wanted of a task has its own weights")
        self.has_state = True
        self.tools: list[dict[str, Any]] = []
        self._read(config)
        self.system_prompt: str = config.get("system_prompt", "")
        turns = config.get("max_turns", MAX_TURNS)
        if isinstance(turns, bool) or not isinstance(turns, int) or not 1 <= turns <= MOST_TURNS:
            raise VerifierError(f"max_turns: {turns!r} is no whole number from 1 to {MOST_TURNS}")
        self.max_turns: int = turns
        self.token_limit = token_limit_of(config)
        self.compare: str = config.get("compare", SPACES)
        if self.compare not in COMPARISONS:
            raise VerifierError(f"compare: {str(self.compare)[:60]!r} is unknown; use one of {', '.join(COMPARISONS)}")
        self.runners = runners

    def _read(self, config: Mapping[str, Any]) -> None:
        """Read what carries the tools out, and which there are. Raises VerifierError."""
        self.source = config.get("source", "")
        self.functions = tool_functions.read(self.source)
        self.tools = [dict(tool) for tool in self.functions.tools]
        self.mode = config.get("start", STARTS[0])
        if self.mode not in STARTS:
            raise VerifierError(f"start: {str(self.mode)[:60]!r} is unknown; use one of {', '.join(STARTS)}")

    def reset(self, task: Task, seed: int) -> list[Message]:
        opening = [Message("system", self.system_prompt)] if self.system_prompt else []
        return [*opening, Message("user", task.prompt)]

    def respond(self, task: Task, messages: Sequence[Message], seed: int) -> list[Message]:
        if not tooling.calls_of(messages[-1]):
            return []
        played = self.play(task, messages)
        calls = self._calls(messages)
        last = calls[-1].turn
        answers = iter(played.answers)
        told = [(each, each.refusal or next(answers)) for each in calls]
        return [Message("tool", text, (), each.call.id, each.call.name) for each, text in told if each.turn == last]

    def verifier(self, task: Task) -> Verify:
        def verify(trace: Trace, target: Mapping[str, Any]) -> Verdict:
            try:
                return self._judge(task, trace.conversation(), target)
            except WorldError as error:
                return unscored(f"its world: {error}", error.cause)

        return guarded(verify)

    def solve(self, task: Task, messages: Sequence[Message]) -> Message:
        items = wanted_items.check(task.target, has_state=self.has_state)
        wanted = solution_of(task.target)
        made = sum(len(tooling.calls_of(message)) for message in messages if message.role == "assistant")
        if made < len(wanted):
            at_once = -(-len(wanted) // max(1, self.max_turns - 1))
            some = enumerate(wanted[made : made + at_once], made)
            order = [(place, call["tool"], call["arguments"]) for place, call in some]
            calls = tuple(ToolCall(f"call-{n}", tool, tooling.in_order(self.tools, tool, a)) for n, tool, a in order)
            return Message("assistant", "", calls)
        words = [item.get("text") or STOCK[item["type"]] for item in wanted_items.of_type(items, *wanted_items.SPOKEN)]
        return Message("assistant", "\n".join(words) or "It is done.")

    def state(self, task: Task, messages: Sequence[Message]) -> list[Table]:
        """Nothing without a runner: then nobody knows."""
        return [] if self.runners.world is None else end_states.tables(self.play(task, messages).state)

    def probes(self, task: Task) -> dict[str, Say]:
        every = tuple(ToolCall(f"call-{place}", tool["name"], {}) for place, tool in enumerate(self.tools))
        return {
            "empty": always(""),
            "constant": lambda _: Message("assistant", "", every[:1]),
            "echo": always(task.prompt),
            "every tool at once": lambda seen: (
                Message("assistant", "", every) if seen[-1].role == "user" else Message("assistant", "Done.")
            ),
            "claims to be done": always("Done. Everything was changed as you asked."),
        }

    def play(self, task: Task, messages: Sequence[Message], queries: Sequence[str] = ()) -> Played:
        """The world after the calls of these messages. Raises WorldError, also where it answers otherwise than it did
        in them."""
        if self.runners.world is None:
            raise WorldError("its tools run in the sandbox, which only a worker has", "refused")
        calls = self._calls(messages)
        sent = [each for each in calls if not each.refusal]
        known = sum(each.turn < calls[-1].turn for each in sent)  # the last message's are still to be carried out
        played: Played = self.runners.world.play(
            self.episode(task, [each.call for each in sent], queries), known=known, anew=self.runners.anew
        )
        self._compare(messages, calls, played.answers)
        return played

    def episode(self, task: Task, calls: Sequence[ToolCall], queries: Sequence[str] = ()) -> WorldEpisode:
        seed = task.state.get("seed", 0)
        known = self.functions.functions
        made = tuple((known[call.name], call.arguments) for call in calls if isinstance(call.arguments, dict))
        return WorldEpisode(
            self.source, self.functions.keeper, seed, task.state.get("state"), self.mode, made, tuple(queries)
        )

    def difference(
        self, task: Task, messages: Sequence[Message], target: Mapping[str, Any]
    ) -> tuple[Counter[Difference], Counter[Difference]]:
        """Return the changes that were wanted and those made, for the rubric's part `state`. Raises WorldError."""
        before = self.play(task, []).state
        solved = [ToolCall("", call["tool"], dict(call["arguments"])) for call in solution_of(target)]
        wanted = self.play(task, [Message("assistant", "", tuple(solved))] if solved else []).state
        made = self.play(task, messages).state
        return _counted(before, wanted, self.compare), _counted(before, made, self.compare)

    def _calls(self, messages: Sequence[Message]) -> list[_Call]:
        found = []
        said = [message for message in messages if message.role == "assistant"][: self.max_turns]
        for turn, message in enumerate(said):
            for number, call in enumerate(tooling.calls_of(message)):
                found.append(_Call(call, self.refusal(call, number), turn))
        return found

    def refusal(self, call: ToolCall, number: int) -> str:
        """The answer to a call that the world never sees, the `number`th of its message; empty for one that it does."""
        if number >= CALLS_AT_ONCE:
            return "Error: too many calls at once."
        if tooling.find(self.tools, call.name) is None:
            return f"Error: there is no tool {call.name[:100]!r}, only {', '.join(t['name'] for t in self.tools)}."
        if not isinstance(call.arguments, dict):
            return "Error: the arguments are not a JSON object."
        try:
            canonical(call.arguments)
            problem = tooling.call_error(self.tools, call.name, call.arguments, {})
        except (ValueError, TypeError, RecursionError):  # NaN or half of a surrogate pair, which Python lets through
            return "Error: the arguments are not JSON."
        return f"Error: {problem}"[:2000] if problem else ""

    def _compare(self, messages: Sequence[Message], calls: Sequence[_Call], answers: Sequence[str]) -> None:
        """Raise WorldError where a call is answered otherwise than it was in these messages."""
        made = iter(answers)
        fresh = [each.refusal or next(made) for each in calls]
        told = [message.content for message in messages if message.role == "tool"]
        for place, (each, now, before) in enumerate(zip(calls, fresh, told, strict=False), 1):
            if not same(now, before):  # a store may write JSON otherwise than the world did
                raise WorldError(
                    f"{each.call.name} answers otherwise now than it did in this attempt (call {place}): a world may "
                    "depend on nothing but its state, its arguments and random",
                    "environment",
                )

    def _judge(self, task: Task, messages: Sequence[Message], target: Mapping[str, Any]) -> Verdict:
        try:
            items = wanted_items.check(target, has_state=self.has_state)
            asked = solution_of(target) if "solution" in target else wanted_items.wanted_calls(items)
            asked = [*asked, *(call for call in wanted_items.wanted_calls(items) if call not in asked)]
        except VerifierError as error:
            return unscored(str(error), "target")
        every = [message for message in messages if message.role == "assistant"]
        spoken = every[: self.max_turns]
        attempt = Attempt(
            calls=tuple(call for message in spoken for call in tooling.calls_of(message)),
            last=spoken[-1] if spoken else Message("assistant", ""),
            heard=(task.prompt,),
            tools=self.tools,
            world={},
            is_played=True,
            state=self._end(task, messages, items),
            acts=tuple(outward_acts.carried_out(self.tools, messages)),
        )
        found = wanted_items.verdict(items, attempt, asked)
        problem = beyond_limit(len(every), self.max_turns)
        return Verdict(None, problem, found.parts, LIMIT) if problem and not found.parts["unsafe"] else found

    def _end(self, task: Task, messages: Sequence[Message], items: Sequence[Mapping[str, Any]]) -> EndState:
        end = self.play(task, messages, end_states.queries(items))
        return EndState(self.play(task, []).state, end.state, end.rows, self.compare)


def innermost(env: Any) -> Any:
    """The environment itself, without what stands around it."""
    while (own := getattr(env, "own", None)) is not None:
        env = own
    return env


def world_of(env: Any) -> OwnWorld | None:
    """The world that an environment plays in, whatever stands around it; None for one of another kind."""
    found = innermost(env)
    return found if isinstance(found, OwnWorld) else None


def runners_of(env: Any) -> Runners:
    """Return what an environment plays with beyond pure code, whatever stands around it."""
    return getattr(innermost(env), "runners", NO_RUNNERS)


def check_new(config: Mapping[str, Any]) -> None:
    """Raise VerifierError for definitions by which no call can be judged."""
    OwnWorld(config, {"kind": KIND})


def check_task(
    tools: Sequence[Mapping[str, Any]],
    state: Mapping[str, Any],
    target: Mapping[str, Any] | None,
    *,
    has_state: bool = True,
) -> None:
    """Raise VerifierError, which names the field, for a task that no world of these tools can have. Without a target
    only its beginning is looked at."""
    if unknown := next((name for name in state if name not in ("seed", "state")), ""):
        raise VerifierError(f"state.{unknown[:60]}: there is no such field, only seed and state")
    seed = state.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= LARGEST_SEED:
        raise VerifierError(f"state.seed: {str(seed)[:60]} is no whole number from 0 to {LARGEST_SEED}")
    if len(json.dumps(state)) > STATE_BYTES:
        raise VerifierError(f"state: it is larger than {STATE_BYTES:,} bytes")
    if target is None:
        return
    wanted_items.check(target, has_state=has_state)
    for place, call in enumerate(solution_of(target)):
        if problem := tooling.call_error(tools, call["tool"], call["arguments"], {}):
            raise VerifierError(f"solution.{place}: {call['tool'][:60]}: {problem[:300]}")


def solution_of(target: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The calls that bring about what is wanted: those that the target names, else those that are wanted themselves.
    Raises VerifierError."""
    calls = target.get("solution")
    if calls is None:
        return wanted_items.wanted_calls(wanted_items.check(target, has_state=True))
    for place, call in enumerate(calls if isinstance(calls, list) else [None]):
        is_call = isinstance(call, Mapping) and isinstance(call.get("tool"), str)
        if not is_call or not isinstance(call.get("arguments"), Mapping):
            raise VerifierError(f'solution.{place}: expected {{"tool": name, "arguments": {{…}}}}')
    return list(calls)


def _counted(before: Any, after: Any, compare: str) -> Counter[Difference]:
    """Count the changes, each with the part of the state that it is in, as the rubric's part `state` names tables."""
    found = end_states.changes(before, after, compare=compare)
    return Counter((each.path.split("/")[1], each.line) for each in found if each.path)
