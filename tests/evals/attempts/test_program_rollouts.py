"""A program's turn as messages: proposals and what was carried out, thoughts and words, and what each took."""

from datetime import UTC, datetime, timedelta
from typing import Any

from flywheel.core import envs
from flywheel.core.envs.policy_rollouts import ChatResponse
from flywheel.core.traces import Message, ToolCall, Trace
from flywheel.evals.attempts.program_rollouts import Action, ModelCall, ToolUse, actions, follow

BEGAN = datetime(2026, 11, 23, 12, tzinfo=UTC)
TOOLS = [{"name": "mail.send", "parameters": {"type": "object"}}]


def at(second: float) -> datetime:
    return BEGAN + timedelta(seconds=second)


def called(
    second: float, text: str = "", *calls: ToolCall, told: tuple[Message, ...] = (), error: str = ""
) -> ModelCall:
    taken = ChatResponse(tokens_in=10, tokens_out=2, cost_usd=0.5, latency_ms=1.0, model="m", error=error)
    return ModelCall(at(second), told, None if error else Message("assistant", text, calls), taken)


def send(to: str, call_id: str = "c1", name: str = "mail_send") -> ToolCall:
    return ToolCall(call_id, name, {"to": to})


def used(second: float, to: str, result: str | None = "sent") -> ToolUse:
    return ToolUse(at(second), "mail.send", {"to": to}, result)


def shown(found: list[Action]) -> list[tuple[str, list[Any], list[str], int | None]]:
    return [
        (
            act.message.content,
            [(call.name, call.arguments["to"]) for call in act.message.tool_calls],  # type: ignore[index]
            [result.content for result in act.results.values()],
            act.response.tokens_in,
        )
        for act in found
    ]


def test_a_proposal_that_was_carried_out_is_one_action() -> None:
    found = actions([called(1, "I send.", send("Ann")), called(3, "Done.")], [used(2, "Ann")], "Done.", tools=TOOLS)
    assert shown(found) == [("I send.", [("mail.send", "Ann")], ["sent"], 10), ("Done.", [], [], 10)]


def test_what_a_guard_stopped_did_not_happen() -> None:
    proposed = called(1, "", send("Ann"), send("Eve", "c2"))
    found = actions([proposed], [used(2, "Ann")], "Done.", tools=TOOLS)
    assert shown(found) == [("", [("mail.send", "Ann")], ["sent"], 10), ("Done.", [], [], 0)]
    nothing = actions([proposed], [], "Done.", tools=TOOLS, owns_tools=True)
    assert shown(nothing) == [("Done.", [], [], 10)]


def test_without_the_attempts_tools_the_models_word_counts() -> None:
    told = Message("tool", "ok", tool_call_id="c1")
    found = actions([called(1, "", send("Ann")), called(2, "Done.", told=(told,))], [], None, tools=TOOLS)
    assert shown(found) == [("", [("mail.send", "Ann")], ["ok"], 10), ("Done.", [], [], 10)]


def test_a_call_in_words_that_was_carried_out_is_one_action() -> None:
    text = '{"tool": "mail.send", "arguments": {"to": "Ann"}}'
    found = actions([called(1, text)], [used(2, "Ann")], "Done.", tools=TOOLS)
    assert shown(found) == [("", [("mail.send", "Ann")], ["sent"], 10), ("Done.", [], [], 0)]


def test_a_tool_that_no_model_asked_for_is_an_action_that_took_nothing() -> None:
    assert shown(actions([], [used(1, "Ann", None)], None)) == [("", [("mail.send", "Ann")], [], 0)]


def test_thoughts_are_kept_beside_what_was_said() -> None:
    [said] = actions([called(1, "Plan: look."), called(2, "Draft."), called(3, error="503")], [], "Answer.")
    assert (said.message.content, said.message.reasoning) == ("Answer.", "Plan: look.\n\nDraft.")
    assert (said.response.tokens_in, said.response.cost_usd) == (20, 1.0)


def test_neither_trace_nor_output_is_nothing() -> None:
    assert actions([], [], None) == actions([], [], "") == []
    [empty] = actions([called(1, "")], [], None)
    assert (empty.message.content, empty.response.tokens_out) == ("", 2)


def test_calls_of_one_message_are_judged_in_the_order_in_which_they_were_carried_out() -> None:
    proposed = called(1, "", send("Ann"), send("Eve", "c2"), send("Bob", "c3"))
    [found] = actions([proposed], [used(2, "Bob", "first"), used(3, "Ann", "second")], None, tools=TOOLS)
    assert [call.arguments["to"] for call in found.message.tool_calls] == ["Bob", "Ann"]  # type: ignore[index]
    assert [result.content for result in found.results.values()] == ["first", "second"]


def test_where_a_user_answers_the_program_has_another_turn() -> None:
    config = {"tools": TOOLS, "judged": "end", "user": "script", "script": [{"say": "To Ann.", "after": "To whom?"}]}
    env = envs.build("episode", config, {"kind": "episode"})
    wanted = {"wanted": [{"type": "calls", "calls": [{"tool": "mail.send", "arguments": {"to": "Ann"}}]}]}
    task = envs.Task("t-1", "Send it", wanted)
    asked = [Action(Message("assistant", "To whom shall I send it?"), ChatResponse())]
    messages, taken, users = follow(env, task, 0, env.reset(task, 0), asked)
    assert (len(taken), users) == (1, [Message("user", "To Ann.")])
    acts = actions([called(1, "", send("Ann")), called(3, "Sent.")], [used(2, "Ann")], "Sent.", tools=TOOLS)
    messages, taken, users = follow(env, task, 0, [*messages, *users], acts)
    assert [message.role for message in messages] == ["user", "assistant", "user", "assistant", "tool", "assistant"]
    assert (len(taken), users) == (2, [])
    assert env.verifier(task)(Trace.from_messages("", messages), task.target).score == 1.0
