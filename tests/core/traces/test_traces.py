"""Conversation: each message once, however often model calls repeat their history."""

import json

from hypothesis import given
from hypothesis import strategies as st

from flywheel.core.traces import Conversation, Message, Step, ToolCall, Trace, conversation, told_twice

USER = Message("user", "Find it")
CALL = Message("assistant", "", (ToolCall("c1", "find", {"q": 1}),))
FOUND = Message("tool", "none", (), "c1", "find")
DONE = Message("assistant", "There is none.")


def call(span: str, given: list[Message], said: Message) -> Step:
    return Step(span, "assistant", input=given, output=[said])


def tool(span: str, result: object = "none", id: str = "c1") -> Step:
    return Step(span, "tool", tool_name="find", tool_call_id=id, result=result)


def texts(*steps: Step) -> list[str]:
    return [message.content or "call" for message in Trace("t", list(steps)).conversation()]


def test_history_that_a_later_call_repeats_is_left_out() -> None:
    assert texts(call("a", [USER], CALL), call("b", [USER, CALL, FOUND], DONE)) == [
        "Find it",
        "call",
        "none",
        "There is none.",
    ]


def test_a_tool_execution_and_the_message_that_tells_of_it_are_one() -> None:
    assert texts(call("a", [USER], CALL), tool("x"), call("b", [USER, CALL, FOUND], DONE)).count("none") == 1
    assert texts(call("a", [USER], CALL), call("b", [USER, CALL, FOUND], DONE), tool("x")).count("none") == 1


def test_a_tool_execution_that_does_not_say_which_call_it_answers_is_told_once() -> None:
    assert texts(call("a", [USER], CALL), tool("x", id=""), call("b", [USER, CALL, FOUND], DONE)).count("none") == 1


def test_a_person_who_says_a_thing_twice_is_heard_twice() -> None:
    yes = Message("user", "yes")
    ok = Message("assistant", "ok")
    assert texts(call("a", [yes], ok), call("b", [yes, ok, yes], ok)) == ["yes", "ok", "yes", "ok"]


def test_reasoning_that_the_history_drops_does_not_make_another_message() -> None:
    thought = Message("assistant", "Wait.", reasoning="hm")
    assert texts(call("a", [USER], thought), call("b", [USER, Message("assistant", "Wait.")], DONE)) == [
        "Find it",
        "Wait.",
        "There is none.",
    ]


def test_the_span_of_an_agent_does_not_repeat_what_its_calls_say() -> None:
    agent = Step("r", "agent", input=[USER], output=[DONE])
    assert texts(agent, call("a", [USER], DONE)) == ["Find it", "There is none."]
    assert texts(agent) == ["Find it", "There is none."]


def test_the_last_thing_the_agent_wrote_is_final() -> None:
    trace = Trace.from_messages("t", [USER, CALL, FOUND, DONE, Message("user", "Thanks")])
    assert trace.final() == DONE
    assert Trace("t").final() is None


def test_a_structured_result_is_shown_as_json() -> None:
    assert texts(tool("x", {"n": 1})) == ['{"n": 1}']


def test_messages_survive_storage() -> None:
    for message in (USER, CALL, FOUND, DONE):
        assert Message.from_json(json.loads(json.dumps(message.to_json()))) == message


@given(st.lists(st.tuples(st.sampled_from(["user", "tool", "assistant"]), st.sampled_from(["yes", "no"])), max_size=12))
def test_growing_history_reads_as_the_messages_themselves(talk: list[tuple[str, str]]) -> None:
    """A chat sent call by call, each with all before it, reads as if it had been sent once."""
    said: list[Message] = []
    steps = []
    for index, (role, text) in enumerate(talk):
        message = Message(role, text, (), f"c{index}" if role == "tool" else "")  # type: ignore[arg-type]
        if role == "assistant":
            steps.append(call(str(index), list(said), message))
        said.append(message)
    heard = max((index for index, (role, _) in enumerate(talk) if role == "assistant"), default=-1)
    assert Trace("t", steps).conversation() == said[: heard + 1]


def test_a_step_at_a_time_gives_what_each_one_adds() -> None:
    talk = Conversation()
    assert talk.add(call("a", [USER], CALL)) == [USER, CALL]
    assert talk.add(tool("x")) == [FOUND]
    assert talk.add(call("b", [USER, CALL, FOUND], DONE)) == [DONE]


def test_a_failed_tool_and_what_the_model_is_told_of_it_are_one() -> None:
    failed = Step("x", "tool", tool_name="find", error="full", status="error")
    told = Message("tool", "Error: full", (), "c1")
    assert texts(call("a", [USER], CALL), failed, call("b", [USER, CALL, told], DONE)).count("full") == 1
    assert "Error: full" not in texts(call("a", [USER], CALL), failed, call("b", [USER, CALL, told], DONE))


def test_a_tool_that_keeps_its_result_to_itself_leaves_the_word_to_the_model_call() -> None:
    for id in ("c1", ""):
        silent = Step("x", "tool", tool_name="find", tool_call_id=id)
        assert texts(call("a", [USER], CALL), silent, call("b", [USER, CALL, FOUND], DONE))[2] == "none"


def test_two_tools_without_ids_answer_each_its_own_call() -> None:
    both = Message("assistant", "", (ToolCall("c1", "find", {}), ToolCall("c2", "send", {})))
    ran = [Step("x", "tool", tool_name="send", error="full"), Step("y", "tool", tool_name="find", result={"a": 1})]
    told = [Message("tool", "found a", (), "c1"), Message("tool", "Error: full", (), "c2")]
    assert texts(call("a", [USER], both), *ran, call("b", [USER, both, *told], DONE)) == [
        "Find it",
        "call",
        "full",
        '{"a": 1}',
        "There is none.",
    ]


def test_a_call_that_was_told_twice_is_heard_once() -> None:
    """A framework and the client below it are both instrumented."""
    asked, said = Message("user", "hi"), Message("assistant", "hello")
    outer = Step("outer", "assistant", "chat", parent_id="root", input=[asked], output=[said])
    inner = Step("inner", "assistant", "POST", parent_id="outer", input=[asked], output=[said])
    root = Step("root", "agent", "run")
    assert conversation([root, outer, inner]) == [asked, said]
    assert told_twice([root, outer, inner]) == {"outer"}
    assert told_twice([root, inner]) == set()
