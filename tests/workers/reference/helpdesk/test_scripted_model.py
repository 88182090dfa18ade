import re
from collections.abc import Sequence

import pytest

from flywheel.core.traces import Message, ToolCall, worked_examples
from tests.workers.reference.helpdesk.desk_talks import talk
from workers.programs.agent_playback import CAREFUL, PROMPT, RULES
from workers.reference.helpdesk import scripted_model
from workers.reference.helpdesk.helpdesk_customers import Customer, customers
from workers.reference.helpdesk.helpdesk_oracle import judge
from workers.reference.helpdesk.scripted_model import HABITS, completion

MANY = customers(range(400))


def faults(prompt: str, of: Sequence[Customer] = MANY) -> int:
    return sum(judge(customer, talk(customer, prompt)) is not None for customer in of)


def test_without_its_habits_it_does_what_every_customer_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    """By rules about the domain: what the oracle knows of a customer it has not seen."""
    monkeypatch.setattr(scripted_model, "USUAL", 0.0)
    assert faults(PROMPT) == 0


def test_each_habit_breaks_through_and_its_rule_alone_makes_it_rarer() -> None:
    for name, habit in HABITS.items():
        line = " ".join(habit.rule)
        tempted = [customer for customer in MANY if re.search(habit.cause, customer.says)]
        before, after = faults(PROMPT, tempted), faults(f"{PROMPT}\n{line}", tempted)
        assert 0 < after < before < len(tempted), (name, len(tempted), before, after)


def test_rules_help_words_that_say_nothing_do_not() -> None:
    plain = faults(PROMPT)
    assert faults(f"{PROMPT}\n{CAREFUL}") == plain
    assert faults(f"{PROMPT}\n{RULES}") < plain / 2


def test_a_rule_in_the_description_of_a_tool_counts_too() -> None:
    asked = [{"role": "user", "content": "Hello"}]
    told = {"type": "function", "function": {"name": "track_parcel", "description": "Says the status of an order."}}
    assert not scripted_model.reader_of(asked, []).ruled_out
    assert scripted_model.reader_of(asked, [told]).ruled_out == {"reads the order for its status"}


def test_an_example_teaches_the_case_that_it_shows_and_no_other() -> None:
    shown = worked_examples.example(
        [Message("user", "Hello, Zoe here. What is the status of order 99999?"), _calls("track_parcel")]
    )
    reader = scripted_model.reader_of([{"role": "system", "content": worked_examples.block([shown])}], [])
    assert reader.shown == {"reads the order for its status"}
    assert not reader.ruled_out


def _calls(name: str) -> Message:
    return Message("assistant", "", (ToolCall("c", name, {"order_id": "99999"}),))


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": "Where is it?"}]])
def test_what_it_cannot_understand_it_answers_with_words(messages: list[dict[str, object]]) -> None:
    message = completion({"messages": messages})["choices"][0]["message"]
    assert message["content"]
    assert "tool_calls" not in message
