"""Functions in a replay: they answer what was never recorded, in the sandbox, and see every call that was made."""

from typing import Any

import pytest

from flywheel.core import envs
from flywheel.core.envs import Task
from flywheel.core.envs.agent_config import AgentConfig
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, Sampling, play
from flywheel.core.envs.replay.episode_replay import ERROR, MARK
from flywheel.core.traces import Message, ToolCall, Trace
from flywheel.core.verifiers import Runners, WorldError
from flywheel.evals.attempts.program_rollouts import NOTHING, Action, follow
from workers.judging import attempt_verdicts
from workers.worlds import world_sessions
from workers.worlds.gym_sessions import meet
from workers.worlds.world_sessions import Worlds

TOOLS = [{"name": name, "parameters": {"type": "object"}} for name in ("order", "orders", "mail")]
SOURCE = '''
def reset(seed: int) -> dict:
    return {"orders": ["first"], "limit": 50}

def order(state: dict, item: str) -> str:
    """Order it."""
    if len(state["orders"]) >= state["limit"]:
        raise ValueError("that is too many")
    state["orders"].append(item)
    return "ordered"

def orders(state: dict, page: int = 1) -> list:
    """List what was ordered."""
    return state["orders"]
'''
BEGUN = [
    Message("user", "Order a lamp"),
    Message("assistant", "", (ToolCall("a", "order", {"item": "lamp"}),)),
    Message("tool", "order 17", (), "a", "order"),
    Message("user", "And a rug. What have I now?"),
]
RUG = {"tool": "order", "arguments": {"item": "rug"}, "result": "order 18"}


def task(**state: Any) -> Task:
    begun = {"messages": [message.to_json() for message in BEGUN], "replies": [RUG]}
    wanted = [{"type": "calls", "calls": [{"tool": "order", "arguments": {"item": "rug"}}]}]
    return Task("t", BEGUN[-1].content, {"wanted": wanted}, begun | state)


def env(runners: Runners | None = None, agent: AgentConfig | None = None, **config: Any) -> envs.Environment:
    own = {"tools": TOOLS, "judged": "end", "unknown": "python", "source": SOURCE} | config
    return envs.build("episode", own, {"kind": "episode"}, runners or Runners(world=Worlds()), agent)


def said(*calls: tuple[str, Any]) -> Message:
    return Message("assistant", "", tuple(ToolCall(f"c{n}", *call) for n, call in enumerate(calls)))


def answers(played: envs.Environment, of: Task, *turns: Message) -> list[str]:
    """What is answered after the beginning."""
    waiting = list(turns)
    seen = envs.episode(played, of, lambda _: waiting.pop(0) if waiting else Message("assistant", "Done."))
    return [message.content for message in seen[len(BEGUN) :] if message.role == "tool"]


def test_every_call_moves_the_state_and_a_recorded_result_is_what_is_told() -> None:
    found = answers(env(), task(), said(("order", {"item": "rug"})), said(("orders", {}), ("mail", {})))
    assert found == ["order 18", f'{MARK}["first", "lamp", "rug"]', MARK + ERROR]


def test_calls_of_one_message_are_answered_as_those_of_several() -> None:
    made = [("order", {"item": "vase"}), ("mail", {}), ("orders", {"page": 2})]
    assert answers(env(), task(), said(*made)) == answers(env(), task(), *map(said, made))


def test_the_state_begins_with_what_the_task_says_exists() -> None:
    of = task(world={"orders": ["chair"]})
    assert answers(env(), of, said(("orders", {}))) == [f'{MARK}["chair", "lamp"]']
    full = task(world={"limit": 1})
    assert answers(env(), full, said(("order", {"item": "vase"}))) == [f"{MARK}Error: that is too many"]


def test_a_call_that_does_not_fit_its_function_is_refused_and_moves_nothing() -> None:
    found = answers(env(), task(), said(("order", {"what": "vase"}), ("order", []), ("orders", {})))
    assert found[0].startswith(f"{MARK}Error: ")
    assert found[1:] == [f"{MARK}Error: the arguments are not a JSON object.", f'{MARK}["first", "lamp"]']


def test_a_long_beginning_moves_the_state_to_its_end() -> None:
    begun = [Message("user", "Order")]
    for number in range(120):
        begun += [
            Message("assistant", "", (ToolCall(f"a{number}", "order", {"item": str(number)}),)),
            Message("tool", "ok", (), f"a{number}", "order"),
        ]
    of = Task("t", "Order", {"wanted": []}, {"messages": [each.to_json() for each in begun], "world": {"limit": 500}})
    played = env()
    reply = played.respond(of, [*played.reset(of, 0), said(("orders", {}))], 0)
    assert reply[0].content.endswith('"118", "119"]')


def test_the_own_solution_passes_and_an_agent_in_its_own_form_is_understood() -> None:
    played, of = env(agent=AgentConfig("Be kind.", tuple(TOOLS), "json")), task()
    seen = envs.episode(played, of, lambda messages: played.solve(of, messages))
    assert played.verifier(of)(Trace.from_messages("", seen), of.target).score == 1.0
    reply = played.respond(of, [*played.reset(of, 0), Message("assistant", '{"tool": "orders", "arguments": {}}')], 0)
    assert reply[0].content == f'{MARK}["first", "lamp"]'


def test_answering_a_programs_calls_again_moves_nothing_twice() -> None:
    """A program's calls were carried out while it ran; its attempt is put together of them afterwards."""
    played, of = env(), task()
    given, acts = played.reset(of, 0), []
    for number in range(2):
        call = ToolCall(f"use-{number}", "order", {"item": f"vase {number}"})
        acts.append(
            Action(Message("assistant", "", (call,)), NOTHING, {call.id: Message("tool", "ordered", (), call.id)})
        )
    acts.append(Action(said(("orders", {})), NOTHING))
    messages, _, _ = follow(played, of, 0, given, acts)
    assert messages[-1].content == f'{MARK}["first", "lamp", "vase 0", "vase 1"]'


class Scripted:
    """An engine that asks for the orders and is done."""

    def chat(self, requests: Any) -> list[ChatResponse]:
        return [self._next(request) for request in requests]

    def _next(self, request: ChatRequest) -> ChatResponse:
        if request.messages[-1].role == "tool":
            return ChatResponse(text="Done.")
        return ChatResponse(tool_calls=(ToolCall("c", "orders", {}),))

    def close(self) -> None: ...


def test_attempts_whose_functions_are_at_fault_are_broken_and_never_a_0(monkeypatch: pytest.MonkeyPatch) -> None:
    runners = attempt_verdicts.RUNNERS
    (good,) = play(Scripted(), env(runners), [(task(), 0, 0)], Sampling())
    assert (good.broken, good.messages[-1].content) == ("", "Done.")
    broken = SOURCE.replace("return {", "return 1 / 0, {")
    (bad,) = play(Scripted(), env(runners, source=broken), [(task(), 0, 0)], Sampling())
    assert bad.broken == (
        "the environment raised WorldError: reset raised ZeroDivisionError: division by zero (line 3)"
    )

    def away(*_: Any) -> Any:
        raise WorldError("the sandbox is away", "refused")

    monkeypatch.setattr(world_sessions, "run", away)
    (lost,) = play(Scripted(), env(Runners(world=Worlds())), [(task(), 0, 0)], Sampling())
    assert lost.broken == "the environment raised WorldError: the sandbox is away"


def test_broken_functions_are_found_before_anything_is_spent_on_attempts() -> None:
    broken = SOURCE.replace("return {", "return 1 / 0, {")
    meet(env(), task())
    with pytest.raises(WorldError, match="reset raised ZeroDivisionError"):
        meet(env(source=broken), task())
