"""The corrected action as a form: fields from the schema, JSON, and from one to the other."""

from types import SimpleNamespace
from typing import Any

import pytest
from django.template.loader import render_to_string

from flywheel.core.traces import Message, ToolCall
from flywheel.failures.pages.desk.correction_form import FORMS, Correction, of_action, read
from flywheel.trajectories.detail.expected_action import aligned
from tests.edge.posting import posted

TOOLS: list[dict[str, Any]] = [
    {
        "name": "book",
        "parameters": {
            "type": "object",
            "properties": {
                "who": {"type": "string", "description": "Whom to meet"},
                "day": {"type": "string", "enum": ["monday", "friday"]},
                "minutes": {"type": "integer"},
                "online": {"type": "boolean"},
                "guests": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["who", "day"],
            "additionalProperties": False,
        },
    },
    {"name": "wait", "parameters": {"type": "object", "properties": {"minutes": {"type": "integer"}}}},
]
FILLED = {
    "tool": "book",
    "was_tool": "book",
    "editor": "form",
    "was": "form",
    "kind": "tool",
    "was_kind": "tool",
    "arg.who": "Bako",
    "arg.day": "friday",
    "arg.minutes": "30",
    "arg.online": "true",
    "arg.guests": '["Ines"]',
}


def test_fields_are_made_from_the_schema_and_filled_with_the_agents_call() -> None:
    made = of_action(TOOLS, {"tool": "book", "arguments": {"who": "Bako", "day": "someday", "minutes": 30}})
    kinds = {field.name: (field.widget_type, field.value(), field.field.required) for field in made.calls[0].fields}
    assert kinds == {
        "who": ("text", "Bako", True),
        "day": ("select", "someday", True),
        "minutes": ("number", "30", False),
        "online": ("select", None, False),
        "guests": ("textarea", None, False),
    }
    day = made.calls[0].fields["day"]
    assert [value for value, _ in vars(day.field)["_choices"]] == ["", "someday", "monday", "friday"]
    assert day.errors == ["'someday' is not one of ['monday', 'friday']"]


def test_a_value_of_another_type_than_the_choices_stays_to_be_seen() -> None:
    made = of_action(TOOLS, {"tool": "book", "arguments": {"who": "Bako", "day": 3}})
    shown = page(made)
    assert '<option value="3" selected>3</option>' in shown
    assert read(TOOLS, posted(shown)).problems, "nor is it left out without a word"


def test_choices_of_a_hostile_schema_are_made_visible() -> None:
    tools = [{"name": "t", "parameters": {"properties": {"a": {"enum": ["x\u202ey", "<b>"]}}}}]
    shown = page(of_action(tools, {"tool": "t", "arguments": {}}))
    assert ">x\u202ey<" not in shown
    assert ">&lt;b&gt;<" in shown


def test_spaces_alone_are_no_json() -> None:
    made = read(TOOLS, {**FILLED, "arg.guests": "  "})
    assert made.action is not None
    assert "guests" not in made.action["arguments"]


def test_what_the_fields_say_becomes_the_action_with_the_schemas_types() -> None:
    made = read(TOOLS, FILLED)
    assert made.problems == []
    arguments = {"who": "Bako", "day": "friday", "minutes": 30, "online": True, "guests": ["Ines"]}
    assert made.action == {"tool": "book", "arguments": arguments}


def test_an_empty_field_is_an_argument_left_out() -> None:
    made = read(TOOLS, {**FILLED, "arg.minutes": "", "arg.online": "", "arg.guests": ""})
    assert made.action == {"tool": "book", "arguments": {"who": "Bako", "day": "friday"}}
    assert made.problems == []


def test_a_required_text_that_is_left_empty_is_missing() -> None:
    made = read(TOOLS, {**FILLED, "arg.who": ""})
    assert list(map(str, made.problems)) == ["arguments: 'who' is a required property"]
    assert "who" not in made.calls[0].arguments


def test_a_text_is_empty_where_somebody_says_so() -> None:
    made = read(TOOLS, {**FILLED, "arg.who": "", "empty.who": "1"})
    assert (made.problems, made.calls[0].arguments["who"]) == ([], "")
    again = of_action(TOOLS, made.action)
    assert 'name="empty.who" value="1" checked' in page(again)
    assert read(TOOLS, {**FILLED, "empty.who": "1"}).calls[0].arguments["who"] == "Bako"
    assert "minutes" not in read(TOOLS, {**FILLED, "arg.minutes": "", "empty.minutes": "1"}).calls[0].arguments


def test_a_switch_to_json_and_back_keeps_everything() -> None:
    as_json = read(TOOLS, {**FILLED, "editor": "json"})
    assert as_json.calls[0].as_json
    back = read(
        TOOLS, {"tool": "book", "was_tool": "book", "was": "json", "editor": "form", "arguments": as_json.calls[0].json}
    )
    assert not back.calls[0].as_json
    assert back.action == read(TOOLS, FILLED).action


@pytest.mark.parametrize("text", ["{", "[1]", '{"who": NaN}', "9" * 5000])
def test_json_that_cannot_be_read_is_kept_as_it_was_written(text: str) -> None:
    made = read(TOOLS, {"tool": "book", "was": "json", "editor": "form", "arguments": text})
    assert made.problems
    if text != '{"who": NaN}':
        assert (made.calls[0].raw, made.calls[0].as_json) == (text, True)


def test_another_tool_keeps_the_arguments_that_it_has_too() -> None:
    made = read(TOOLS, {**FILLED, "tool": "wait"})
    assert made.action == {"tool": "wait", "arguments": {"minutes": 30}}


def test_an_argument_that_the_schema_does_not_know_stays_until_it_is_cleared() -> None:
    made = of_action(TOOLS, {"tool": "book", "arguments": {"who": "Bako", "day": "friday", "room": 4}})
    assert [field.name for field in made.calls[0].fields][-1] == "room"
    assert list(map(str, made.calls[0].general)) == [
        "arguments: Additional properties are not allowed ('room' was unexpected)"
    ]
    cleared = read(TOOLS, {**FILLED, "arg.room": ""})
    assert cleared.problems == []


def test_an_answer_in_words_is_a_correction_too() -> None:
    assert read(TOOLS, {"kind": "text", "text": "I cannot do that"}).action == {"text": "I cannot do that"}
    assert read(TOOLS, {"kind": "text", "text": " "}).problems
    assert list(map(str, read(TOOLS, {"tool": ""}).problems)) == ["tool: choose the call that was right"]


def test_a_call_of_an_unknown_tool_leaves_the_choice_open() -> None:
    made = of_action(TOOLS, {"tool": "invented", "arguments": {"a": 1}})
    assert (made.calls[0].tool, made.action) == ("", None)


def test_the_difference_shows_what_differs_and_not_the_order() -> None:
    actual = {"tool": "book", "arguments": {"who": "Bako", "day": "someday"}}
    wanted = {"tool": "book", "arguments": {"day": "friday", "who": "Bako", "minutes": 5}}
    shown = aligned(actual, wanted)
    assert shown is not None
    assert list(shown["arguments"]) == ["who", "day", "minutes"]


def page(made: Correction) -> str:
    names = {"project": SimpleNamespace(slug="acme"), "trajectory": SimpleNamespace(trace_id="1" * 32)}
    return render_to_string("failures/_correction.html", {"correction": made, "forms": FORMS, **names})


def test_the_page_sends_back_what_it_shows() -> None:
    shown = page(of_action(TOOLS, read(TOOLS, FILLED).action))
    assert posted(shown) == {**FILLED}
    assert read(TOOLS, posted(shown)).action == read(TOOLS, FILLED).action
    assert shown.count("Whom to meet") == 1
    assert 'type="number"' in shown
    assert 'step="any"' in shown
    assert shown.count("left out") == 2


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("minutes", "9" * 4400, "' is not of type 'integer'"),
        ("minutes", "many", "'many' is not of type 'integer'"),
        ("minutes", "2.5", "2.5 is not of type 'integer'"),
        ("minutes", '"30"', "'30' is not of type 'integer'"),
        ("online", "yes", "'yes' is not of type 'boolean'"),
        ("day", "someday", "'someday' is not one of ['monday', 'friday']"),
        ("guests", "[1", "'[1' is not of type 'array'"),
        ("guests", "[" * 5000, "is not of type 'array'"),
        ("guests", "null", "None is not of type 'array'"),
    ],
)
def test_what_does_not_fit_is_told_at_its_field_and_stays(name: str, text: str, problem: str) -> None:
    made = read(TOOLS, {**FILLED, f"arg.{name}": text})
    assert len(made.problems) == 1
    assert made.problems[0].field == name
    assert made.problems[0].problem.endswith(problem)
    assert made.calls[0].general == []
    shown = page(made)
    assert shown.count('<span class="errors">') == 1
    assert shown.count('aria-invalid="true"') == 1
    again = read(TOOLS, posted(shown))
    assert (again.action, str(again.problems[0])) == (made.action, str(made.problems[0]))


def test_nothing_is_lost_of_an_argument_that_only_the_call_has() -> None:
    call = {"tool": "book", "arguments": {"who": "Bako", "day": "friday", "room": {"floor": [4, None, "ä"]}}}
    shown = page(of_action(TOOLS, call))
    assert '{"floor": [4, null, "ä"]}' in shown.replace("&quot;", '"')
    assert read(TOOLS, posted(shown)).action == call


def test_an_argument_of_the_wrong_type_is_shown_as_json() -> None:
    call = {"tool": "book", "arguments": {"who": 5, "day": "friday", "minutes": "30", "online": 0}}
    made = of_action(TOOLS, call)
    assert [problem.field for problem in made.problems] == ["minutes", "online", "who"]
    sent = posted(page(made))
    assert (sent["arg.who"], sent["arg.minutes"], sent["arg.online"]) == ("5", '"30"', "0")


def test_a_required_text_that_is_empty_has_a_tick() -> None:
    shown = page(read(TOOLS, {**FILLED, "arg.who": ""}))
    assert "Empty text on purpose" in shown
    assert '<span class="muted">required</span>' in shown.replace("\n", " ").replace("                ", "")
    assert "empty.who" not in posted(shown)
    shown = page(read(TOOLS, {**FILLED, "arg.who": "", "empty.who": "1"}))
    assert posted(shown)["empty.who"] == "1"


@pytest.mark.parametrize("parameters", [None, [], {"properties": []}, {"properties": {"a": 5}, "required": "a"}])
def test_a_schema_that_is_none_makes_no_fields(parameters: Any) -> None:
    made = read([{"name": "odd", "parameters": parameters}], {"tool": "odd", "arg.b": "1"})
    assert made.action == {"tool": "odd", "arguments": {"b": 1}}
    assert posted(page(made))["arg.b"] == "1"


RECORDED = Message("assistant", "", (ToolCall("1", "wait", {"minutes": 5}), ToolCall("2", "book", {"who": "Bako"})))
SAID = Message("assistant", "It is booked.")


@pytest.mark.parametrize(
    ("sent", "action"),
    [
        ({"kind": "text", "text": "No.\r\nSorry."}, {"text": "No.\nSorry."}),
        ({"kind": "refuse", "text": ""}, {"refuse": ""}),
        ({"kind": "ask", "text": "Which day?"}, {"ask": "Which day?"}),
        ({"kind": "avoid", "avoid.wait": "1", "text": "Done."}, {"avoid": ["wait"], "text": "Done."}),
        ({"kind": "avoid", "text": ""}, {"avoid": [], "text": ""}),
        (
            {**FILLED, "kind": "calls", "was_kind": "calls", "rows": "2", "1.tool": "wait", "1.arg.minutes": "7"}
            | {"order": "any"},
            {
                "calls": [
                    {
                        "tool": "book",
                        "arguments": {
                            "who": "Bako",
                            "day": "friday",
                            "minutes": 30,
                            "online": True,
                            "guests": ["Ines"],
                        },
                    },
                    {"tool": "wait", "arguments": {"minutes": 7}},
                ],
                "order": "any",
            },
        ),
    ],
)
def test_each_kind_is_read_and_shown_again(sent: dict[str, str], action: dict[str, Any]) -> None:
    made = read(TOOLS, sent, RECORDED)
    assert (made.problems, made.action) == ([], action)
    assert read(TOOLS, posted(page(made)), RECORDED).action == action
    assert read(TOOLS, posted(page(of_action(TOOLS, action, RECORDED))), RECORDED).action == action


def test_a_call_to_add_stands_after_what_was_written_or_recorded() -> None:
    one = Message("assistant", "", RECORDED.tool_calls[1:])
    made = read(TOOLS, {**FILLED, "kind": "calls", "was_kind": "tool"}, one)
    assert [(call.prefix, call.tool) for call in made.calls] == [("", "book"), ("1.", "")]
    assert made.calls[0].arguments["day"] == "friday"
    assert [str(each) for each in made.problems] == ["calls.1.tool: choose the call that was right"]
    made = read(TOOLS, {**FILLED, "kind": "calls", "was_kind": "tool"}, RECORDED)
    assert [(call.tool, call.arguments) for call in made.calls] == [("wait", {"minutes": 5}), ("book", {"who": "Bako"})]


def test_calls_are_added_and_taken_out() -> None:
    sent = {**FILLED, "kind": "calls", "was_kind": "calls", "rows": "2", "1.tool": "wait", "1.arg.minutes": "7"}
    more = read(TOOLS, {**sent, "row": "add"})
    assert [call.prefix for call in more.calls] == ["", "1.", "2."]
    less = read(TOOLS, {**sent, "row": "remove.0"})
    assert [(call.prefix, call.action) for call in less.calls] == [("", {"tool": "wait", "arguments": {"minutes": 7}})]
    assert "add another call" in str(less.problems[0])
    for nonsense in ("remove.9", "remove.x", "other"):
        assert len(read(TOOLS, {**sent, "row": nonsense}).calls) == 2
    assert len(read(TOOLS, {**sent, "rows": "9" * 30}).calls) == 2
    assert len(read(TOOLS, {**sent, "rows": "50", "row": "add"}).calls) == 50


def test_another_calls_problems_name_its_place() -> None:
    sent = {**FILLED, "kind": "calls", "was_kind": "calls", "rows": "2", "1.tool": "wait", "1.arg.minutes": "many"}
    made = read(TOOLS, sent)
    assert [each.field for each in made.problems] == ["calls.1.minutes"]
    shown = page(made)
    assert shown.count('<span class="errors">') == 1


def test_a_needless_call_is_struck_as_it_was_made() -> None:
    made = read(TOOLS, {**FILLED, "kind": "avoid", "was_kind": "tool"}, RECORDED)
    assert (made.action, made.problems) == ({"avoid": ["wait", "book"], "text": ""}, [])
    nothing = read(TOOLS, {"kind": "avoid", "was_kind": "tool"}, SAID)
    assert "this is what the agent did" in str(nothing.problems[0])


def test_words_begin_with_the_agents_own_and_refusals_without() -> None:
    assert read(TOOLS, {"kind": "text", "was_kind": "tool"}, SAID).text == "It is booked."
    assert read(TOOLS, {"kind": "refuse", "was_kind": "text", "text": "It is booked."}, SAID).text == ""
    assert read(TOOLS, {"kind": "ask", "was_kind": "refuse", "text": "Which day?"}, SAID).text == "Which day?"


def test_a_call_begins_with_what_the_wrong_one_had_right() -> None:
    invented = Message("assistant", "", (ToolCall("1", "reserve", {"who": "Bako", "room": 4}),))
    start = read(TOOLS, {"kind": "tool", "was_kind": "text"}, invented)
    assert (start.calls[0].tool, start.action) == ("", None)
    made = read(TOOLS, {"kind": "tool", "was_kind": "tool", "tool": "book", "was_tool": ""}, invented)
    assert made.calls[0].arguments == {"who": "Bako"}


def test_a_correction_that_changes_nothing_says_so() -> None:
    one = Message("assistant", "", (ToolCall("1", "wait", {"minutes": 5}),))
    sent = {"kind": "tool", "was_kind": "tool", "tool": "wait", "was_tool": "wait", "arg.minutes": "5"}
    assert list(map(str, read(TOOLS, sent, one).problems)) == [
        "corrected: this is what the agent did; change something"
    ]
    assert read(TOOLS, {**sent, "arg.minutes": "6"}, one).problems == []


def test_fields_keep_the_order_in_which_the_schema_requires_them() -> None:
    properties = {"city": {"type": "string"}, "street": {"type": "string"}, "order_id": {"type": "string"}}
    wanted = ["order_id", "street", "city"]
    tools = [{"name": "ship", "description": "Send it", "parameters": {"properties": properties, "required": wanted}}]
    made = of_action(tools, {"tool": "ship", "arguments": {"city": "Lyon"}})
    assert [each.name for each in made.calls[0].fields] == wanted
    assert "Send it" in page(made)


def test_no_kind_chosen_is_said() -> None:
    assert [str(each) for each in read(TOOLS, {"kind": "odd"}).problems] == ["kind: choose the correct action"]
