"""Recorded runs made again in a world: a task out of one, what its agent did there, and whether the world agrees.

A world's state comes of `reset` and of calls, so that nobody begins in the middle of a run: such a task begins with the
user's request. The calls that were recorded before the marked step are the beginning of its solution, each with the
`answer` that was recorded; those that the correction names follow. An attempt goes its own way there, and the proof
says where the world answers otherwise than was recorded.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flywheel.core.digests import is_deep
from flywheel.core.envs.environment import Say, Task
from flywheel.core.envs.nemo_gym import same
from flywheel.core.envs.replay import wanted_items
from flywheel.core.envs.replay.episode_replay import answered, explain_cut
from flywheel.core.envs.worlds.own_world import ANSWER_BYTES, CALLS_AT_ONCE, OwnWorld, solution_of
from flywheel.core.traces import Message, ToolCall, tooling
from flywheel.core.verifiers import VerifierError

REFUSAL = "Error:"
"""The beginning of the answer of a tool that raised."""
LONGEST_SHOWN = 200
"""Characters of an answer."""


def target_of(world: OwnWorld, before: Sequence[Message], items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The target of a task of this world in which the agent should have done what the items want, after what was
    recorded `before`. Raises VerifierError, saying what is missing."""
    if problem := explain_cut(before):
        raise VerifierError(problem)
    wanted = [dict(call) for call in wanted_items.wanted_calls(items)]
    for call in wanted:
        if problem := _misfit(world, call["tool"], call["arguments"]):
            raise VerifierError(f"the wanted call does not fit this world: {problem}")
    made = [call for call in _recorded_calls(world, before) if not any(_is_same(call, one) for one in wanted)]
    most = CALLS_AT_ONCE * (world.max_turns - 1)
    if len(made) > most:
        raise VerifierError(
            f"the agent had made {len(made)} calls by then; this world has turns ({world.max_turns}) for {most} before"
        )
    _refuse_veto(world, made, items)
    return {"wanted": _joined(made, items), "solution": [*made, *wanted]}


def say_again(world: OwnWorld, task: Task, answer: Message) -> Say:
    """The policy that does what was recorded: the calls before the marked step, the answer there, and nothing more."""
    made = [call for call in solution_of(task.target) if "answer" in call]
    at_once = -(-len(made) // max(1, world.max_turns - 1)) or 1
    turns = -(-len(made) // at_once)

    def say(seen: Sequence[Message]) -> Message:
        turn = sum(message.role == "assistant" for message in seen)
        if turn >= turns:
            return answer if turn == turns else Message("assistant", "")
        some = enumerate(made[turn * at_once : (turn + 1) * at_once], turn * at_once)
        calls = [ToolCall(f"call-{place}", call["tool"], dict(call["arguments"])) for place, call in some]
        return Message("assistant", "", tuple(calls))

    return say


def compare(task: Task, solved: Sequence[Message]) -> dict[str, Any]:
    """Compare a world's answers to the solution with those that were recorded: `{"calls", "same", "first", "refused"}`,
    of which `first` shows the first that differs and `refused` the first wanted call that was answered with an error.
    Empty where nothing was recorded before the marked step and nothing was refused."""
    calls = solution_of(task.target)
    answers = [message.content for message in solved if message.role == "tool"]
    pairs = [(call, now) for call, now in zip(calls, answers, strict=False) if "answer" in call]
    wanted = [(call, now) for call, now in zip(calls, answers, strict=False) if "answer" not in call]
    parted = [(call, now) for call, now in pairs if not same(now[:ANSWER_BYTES], call["answer"])]
    refused = next((f"{call['tool']}: {_short(now)}" for call, now in wanted if now.startswith(REFUSAL)), "")
    first = next((f"{call['tool']}: “{_short(now)}”, recorded “{_short(call['answer'])}”" for call, now in parted), "")
    if not pairs and not refused:
        return {}
    return {"calls": len(pairs), "same": len(pairs) - len(parted), "first": first, "refused": refused}


def _recorded_calls(world: OwnWorld, before: Sequence[Message]) -> list[dict[str, Any]]:
    """The calls before the marked step, each with its answer. Raises VerifierError for one that cannot be made here."""
    found = []
    for name, arguments, answer in answered(before):
        if tooling.find(world.tools, name) is None:
            raise VerifierError(f"the agent had called {name[:100]} by then, and this world has no such tool")
        if problem := _misfit(world, name, arguments):
            raise VerifierError(f"the agent had made a call by then that does not fit this world: {problem}")
        found.append({"tool": name, "arguments": dict(arguments), "answer": str(answer)[:ANSWER_BYTES]})
    return found


def _misfit(world: OwnWorld, name: str, arguments: Mapping[str, Any]) -> str:
    if is_deep(arguments):
        return f"{name[:100]}: lists and objects stand too deep in its arguments"
    problem = tooling.call_error(world.tools, name, arguments, {})
    return problem and f"{name[:100]}: {problem[:300]}"


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return wanted_items.is_exact_call(ToolCall("", one["tool"], dict(one["arguments"])), other)


def _refuse_veto(world: OwnWorld, made: Sequence[Mapping[str, Any]], items: Sequence[Mapping[str, Any]]) -> None:
    """Raise VerifierError for something to be left alone that a world, judged from its beginning, cannot tell."""
    for item in wanted_items.of_type(items, "avoid"):
        if len(items) == 1:
            raise VerifierError(
                "who claims to have done everything would pass in a world: write what the agent should have said, too"
            )
        if missing := next((name for name in item["tools"] if tooling.find(world.tools, name) is None), ""):
            raise VerifierError(f"this world has no tool {missing[:100]}, which must not be called")
        calls = [ToolCall("", call["tool"], dict(call["arguments"])) for call in made]
        if name := wanted_items.avoided(item, calls):
            raise VerifierError(
                f"the agent had called {name[:100]} by then, and from the beginning that is what must not be called"
            )


def _joined(made: Sequence[Mapping[str, Any]], items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The items, with what was done before and belongs to them: calls of the same tools, which would count as too many,
    and before words all calls, or who only says that it is done would pass."""
    bare = [{"tool": call["tool"], "arguments": call["arguments"]} for call in made]
    found = []
    for item in items:
        if item["type"] == "calls":
            names = {call["tool"] for call in item["calls"]}
            found.append({**item, "calls": [*(call for call in bare if call["tool"] in names), *item["calls"]]})
        else:
            found.append(dict(item))
    if bare and any(item["type"] == "words" for item in items) and not wanted_items.of_type(items, "calls"):
        found.insert(0, {"type": "calls", "calls": bare, "order": "any"})
    return found


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"
