"""When one model call goes on where another has ended."""

import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from flywheel.core.traces import Message, ToolCall
from flywheel.core.traces.stretches import RECENT, Stretch, stretch_of

words = st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1, max_size=12).filter(str.strip)
arguments = st.dictionaries(words, st.one_of(words, st.integers(-9, 9)), max_size=3)
users = st.builds(Message, st.just("user"), words)
tools = st.builds(Message, st.just("tool"), words, tool_call_id=words)
calls = st.builds(ToolCall, words, words, arguments)
answers = st.one_of(
    st.builds(Message, st.just("assistant"), words),
    st.builds(Message, st.just("assistant"), st.just(""), st.tuples(calls)),
)
turns = st.tuples(st.one_of(users, tools), answers)
conversations = st.lists(turns, min_size=2, max_size=8)


def stretch(
    history: Sequence[Message], answer: Message | None, scope: str = "a", *, has_failed: bool = False
) -> Stretch:
    made = stretch_of([scope], history, [answer] if answer else [], has_failed=has_failed, is_shared=True)
    assert made
    return made


def stretches(turns: Sequence[tuple[Message, Message]], scope: str = "a") -> list[Stretch]:
    """Each call of a conversation, in order."""
    made, history = [], [Message("system", "Help.")]
    for asked, answer in turns:
        history.append(asked)
        made.append(stretch(history, answer, scope))
        history.append(answer)
    return made


@given(conversations)
def test_each_call_continues_the_ones_before_it_and_none_after(turns: list[tuple[Message, Message]]) -> None:
    made = stretches(turns)
    for at, later in enumerate(made):
        assert all(later.continues(earlier) for earlier in made[max(0, at - RECENT) : at])
        assert not any(earlier.continues(later) for earlier in made[:at])
    assert len({each.opening for each in made}) == 1


@given(conversations)
def test_points_of_different_scopes_never_meet(turns: list[tuple[Message, Message]]) -> None:
    here, there = stretches(turns), stretches(turns, "b")
    assert not any(later.continues(earlier) for later in there for earlier in here)


@given(conversations, st.data())
def test_what_means_nothing_does_not_count(turns: list[tuple[Message, Message]], data: st.DataObject) -> None:
    """White space, instructions, ids of calls, arguments as text, an answer in two messages."""

    def written(message: Message) -> list[Message]:
        calls = tuple(
            ToolCall("other", call.name, json.dumps(call.arguments, sort_keys=True)) for call in message.tool_calls
        )
        content = "".join(f" {part}\n" for part in message.content.split())
        if message.role == "assistant" and content and data.draw(st.booleans()):
            return [Message("assistant", content), Message("assistant", "", calls)]
        return [Message(message.role, content, calls, "another" if message.role == "tool" else "")]

    history = [message for asked, answer in turns for message in (asked, answer)]
    earlier = stretch(history[:-1], history[-1])
    again = [Message("system", "It is 12:04."), *(each for message in history for each in written(message))]
    assert stretch([*again, Message("user", "And?")], Message("assistant", "So.")).continues(earlier)


@given(conversations, words)
def test_another_word_anywhere_is_another_conversation(turns: list[tuple[Message, Message]], word: str) -> None:
    (asked, answer), *rest = turns
    made = stretches(turns)
    changed = stretches([(Message("user", f"{asked.content} {word}x"), answer), *rest])
    assert not any(later.continues(earlier) for later in changed for earlier in made)


@given(conversations)
def test_a_summary_does_not_continue_what_it_sums_up(turns: list[tuple[Message, Message]]) -> None:
    made = stretches(turns)
    short = stretch([Message("user", "In short: all of it."), Message("user", "And?")], Message("assistant", "So."))
    assert not any(short.continues(earlier) for earlier in made)


def test_a_call_that_failed_is_continued_by_the_same_request() -> None:
    asked = [Message("user", "Hi")]
    failed = stretch(asked, None, has_failed=True)
    cut_off = stretch(asked, Message("assistant", "Hel"), has_failed=True)
    good = stretch(asked, Message("assistant", "Hello!"))
    assert good.continues(failed)
    assert good.continues(cut_off)
    assert not good.continues(good)


def test_without_content_nothing_is_known() -> None:
    said = [Message("system", "Help.")]
    assert stretch_of([], said, [Message("assistant", "Hi")], has_failed=False, is_shared=False) is None
    unanswered = stretch_of([], [Message("user", "Hi")], [], has_failed=False, is_shared=False)
    assert unanswered
    assert unanswered.reaches is None


def test_what_no_json_says_is_read_all_the_same() -> None:
    odd = Message("assistant", "", (ToolCall("c", "f", {"n": float("nan"), "big": 2**70}),))
    first = stretch([Message("user", "Hi")], odd)
    assert stretch([Message("user", "Hi"), odd, Message("tool", "1")], Message("assistant", "So.")).continues(first)
