"""Which recorded turns a task keeps, and that a script says each line once."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.core.envs.replay import spoken_answers, user_turns
from flywheel.core.envs.replay.spoken_answers import Known
from flywheel.core.envs.replay.user_turns import check_turns, gives_away, next_turn, recorded_turns
from flywheel.core.text.normal_form import normalise
from flywheel.core.traces import Message, ToolCall
from flywheel.core.verifiers import VerifierError

LOOK = {"tool": "find", "arguments": {"who": "Bako"}}
BEGUN = [Message("user", "Meet Bako on friday")]
WANTED = [
    {"type": "calls", "calls": [{"tool": "meet", "arguments": {"who": "Bako", "day": "friday", "room": "blue 7"}}]}
]


def does(content: str = "", *made: dict[str, Any]) -> Message:
    return Message("assistant", content, tuple(ToolCall("", call["tool"], call["arguments"]) for call in made))


def says(content: str) -> Message:
    return Message("user", content)


def later(answer: str) -> list[Message]:
    return [does("", LOOK), Message("tool", "free at 10"), does("Shall I book 10 o'clock?"), says(answer)]


def test_turns_are_kept_with_the_words_that_they_answer_and_the_calls_before_them() -> None:
    talk = [*later("Yes, please"), says("and be quick"), does("Booked."), says("Thank you!"), does("", LOOK)]
    assert recorded_turns(BEGUN, talk, WANTED, is_failure=True) == [
        {"say": "Yes, please\n\nand be quick", "after": "Shall I book 10 o'clock?", "calls": [LOOK]},
        {"say": "Thank you!", "after": "Booked.", "calls": []},
    ]
    assert check_turns(recorded_turns(BEGUN, talk, WANTED, is_failure=True))


@pytest.mark.parametrize(
    ("answer", "is_failure", "kept"),
    [
        ("Yes", True, True),
        ("No, I meant Ines", True, False),
        ("No, thank you", False, True),
        ("That’s not what I said", True, False),
        ("That is wrong", True, False),
        ("That’s wrong.", True, False),
        ("That’s not right", True, False),
        ("You asked the wrong Bako", True, False),
        ("Don’t do that", True, False),
        ("You should have looked", True, False),
        ("Yes, on Friday with Bako at 10", True, True),  # which is known by then
        ("In the room Blue 7", True, False),
        ("In room 7", False, False),
        (" ", True, False),
    ],
)
def test_what_corrects_the_failure_or_tells_what_is_wanted_is_left_out(
    answer: str, is_failure: bool, kept: bool
) -> None:
    talk = [*later(answer), does("Booked."), says("Thank you!")]
    turns = recorded_turns(BEGUN, talk, WANTED, is_failure=is_failure)
    assert len(turns) == (2 if kept else 0)  # and with it what is said after it


def test_words_that_were_said_after_a_call_and_calls_that_are_none_end_the_turns() -> None:
    assert recorded_turns(BEGUN, [does("", LOOK), says("Hurry")], WANTED, is_failure=False) == []
    broken = [Message("assistant", "", (ToolCall("", "find", "{"),)), does("Done?"), says("Yes")]
    assert recorded_turns(BEGUN, broken, WANTED, is_failure=False) == []


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("Do you want 10 o'clock booked?", "Yes"),
        ("Shall I book 10 and 11 o'clock?", ""),
        ("Shall I book 10 o'clock with Ines?", ""),
        ("I book 10 o'clock.", ""),
        ("Shall I go?", ""),
        ("Shall I cancel 10 o'clock?", ""),
    ],
)
def test_an_answer_goes_with_words_that_ask_for_the_same(said: str, answer: str) -> None:
    turns = recorded_turns(BEGUN, later("Yes"), WANTED, is_failure=False)
    assert next_turn({"turns": turns}, None, [does("", LOOK), Message("tool", "free"), does(said)]) == answer


@pytest.mark.parametrize(
    ("said", "after", "fits"),
    [
        ("Shall I delete the mail from Anna about Friday?", "Shall I send the mail from Anna about Friday?", False),
        ("I found the mail from Anna. Shall I delete it?", "I found the mail from Anna. Shall I send it?", False),
        ("Soll ich die lange Mail heute löschen?", "Soll ich die lange Mail heute senden?", False),
        ("Shall I delete the mail?", "Shall I send the mail when it is ready?", False),
        ("Shall I delete the mail?", "I know which one you mean. Shall I send the mail?", False),
        ("Shall I send it and delete the folder?", "Shall I send it?", False),
        ("Which mail shall I delete?", "Shall I delete the mail?", False),
        ("Which room do you want? The mail from Anna names two.", "I read the mail from Anna. Which day suits?", False),
        ("Was the order not delivered?", "Was the order delivered?", False),
        ("I cannot cancel the order.", "I can cancel the order now.", False),
        ("Shall I delete it?", "When?", False),
        ("For when?", "When?", True),
        ("Could you tell me which day suits you?", "Which day suits you?", True),
        ("Do you want me to cancel the order?", "Should I go ahead and cancel the order?", True),
        ("Should I now send Anna the report?", "Shall I send the report to Anna?", True),
        ("Cancel it？", "Shall I cancel it?", True),
        ("Ines is free at noon, shall I book it?", "She is free at noon. Shall I book it?", True),
    ],
)
def test_a_yes_to_one_thing_is_no_yes_to_another(said: str, after: str, fits: bool) -> None:
    turns = [{"say": "Yes", "after": after, "calls": []}]
    assert (next_turn({"turns": turns}, None, [does(said)]) == "Yes") is fits


@pytest.mark.parametrize(
    ("turns", "problem"),
    [
        ("x", "turns: expected a list"),
        ([{"say": "x", "calls": []}], "turns.0.after: expected the agent's words"),
        ([{"say": "x", "after": "y"}], "turns.0.calls: expected a list"),
        ([{"say": "x", "after": "y", "calls": [{"tool": 1}]}], "turns.0.calls.0"),
        ([{"say": "", "after": "y", "calls": []}], "turns.0.say: expected a text"),
        ([None], "turns.0: expected an object"),
    ],
)
def test_turns_that_are_none_are_refused_by_field(turns: Any, problem: str) -> None:
    with pytest.raises(VerifierError) as caught:
        check_turns(turns)
    assert str(caught.value).startswith(problem)


TEXTS = st.sampled_from(["Which day?", "Which room?", "On friday.", "Yes", "10", "Shall I book it?"])
LINES = st.lists(st.fixed_dictionaries({"say": TEXTS}, optional={"after": TEXTS}), max_size=6)


@given(LINES, st.lists(TEXTS, min_size=1, max_size=10))
def test_no_line_of_a_script_is_said_twice(script: list[dict[str, str]], said: list[str]) -> None:
    user_turns.check_script(script)
    messages: list[Message] = []
    spoken: list[str] = []
    for text in said:
        messages.append(does(text))
        if answer := next_turn({}, script, messages):
            spoken.append(answer)
            messages.append(says(answer))
    left = [line["say"] for line in script]
    for text in spoken:
        left.remove(text)
    assert spoken or all("after" in line for line in script)


@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30))
def test_what_is_known_is_not_given_away(text: str, value: str, more: str) -> None:
    items = [{"type": "calls", "calls": [{"tool": "x", "arguments": {"a": [value, 3, True, None]}}]}]
    assert not gives_away(text, items, Known(f"{value} 3 {more}"))
    assert gives_away("it is 3", items, Known()) or "3" in value


def test_what_is_known_is_read_once_however_many_turns_and_values_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def counted(text: str) -> str:
        read.append(len(text))
        return normalise(text)

    result = "lorem ipsum 12 " * 1_000
    turn = [does("", LOOK), Message("tool", result), does("Go on?"), says("Yes, value 12 please")]
    values = {f"a{number}": f"value {number} of 12" for number in range(10)}
    wanted = [{"type": "calls", "calls": [{"tool": "x", "arguments": values}]}]
    monkeypatch.setattr(spoken_answers, "normalise", counted)
    turns = recorded_turns([says("value of 12")], turn * (user_turns.MOST_LINES + 2), wanted, is_failure=True)
    assert len(turns) == user_turns.MOST_LINES
    assert sum(read) < 2 * len(result) * len(turns)


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.text(max_size=20)), max_size=8))
def test_whatever_was_recorded_its_turns_are_such(rows: list[tuple[Any, str]]) -> None:
    talk = [Message(role, text) for role, text in rows]
    turns = recorded_turns(BEGUN, talk, WANTED, is_failure=True)
    check_turns(turns)
    for turn in turns:
        assert any(turn["say"].startswith(message.content.strip()) for message in talk if message.role == "user")
