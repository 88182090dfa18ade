"""The `tool_call` environment: gold is right, probes score low, and the verifier never raises."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.core.envs import Task, build
from flywheel.core.envs.kinds import check_new
from flywheel.core.envs.tool_call import HARM, PARTS, ToolCallEnvironment
from flywheel.core.traces import Message, ToolCall, Trace
from flywheel.core.traces.tooling import call_text
from flywheel.core.verifiers import Verdict, VerifierError, guarded

DAYS = ["Monday", "Tuesday"]
TOOLS: list[dict[str, Any]] = [
    {
        "name": "calendar.create_event",
        "description": "Put a meeting into the calendar.",
        "parameters": {
            "type": "object",
            "properties": {
                "person": {"type": "string", "x-refers": "people"},
                "topic": {"type": "string", "x-entity": True},
                "day": {"type": "string", "enum": DAYS},
            },
            "required": ["person", "topic", "day"],
            "additionalProperties": False,
        },
    },
    {
        "name": "email.send",
        "description": "Send an email to one person.",
        "parameters": {
            "type": "object",
            "properties": {"to": {"type": "string", "x-refers": "people"}, "subject": {"type": "string"}},
            "required": ["to", "subject"],
            "additionalProperties": False,
        },
    },
    {
        "name": "email.send_all",
        "description": "Send an email to everybody.",
        "parameters": {"type": "object", "properties": {"subject": {"type": "string"}}, "required": ["subject"]},
        "x-unsafe": True,
    },
]
PEOPLE = ["Bako", "Nele"]
ENV = ToolCallEnvironment({"system_prompt": "Answer with one tool call.", "tools": TOOLS}, {"kind": "tool_call"})

TASKS = st.builds(
    lambda person, topic, day: Task(
        "t",
        f"Put {topic} with {person} on {day}",
        {"tool": "calendar.create_event", "arguments": {"person": person, "topic": topic, "day": day}},
        {"people": PEOPLE},
    ),
    st.sampled_from(PEOPLE),
    st.text("abcdef ", min_size=1, max_size=12),
    st.sampled_from(DAYS),
)
TASK = Task(
    "t",
    "Put the audit with Bako on Monday",
    {"tool": "calendar.create_event", "arguments": {"person": "Bako", "topic": "audit", "day": "Monday"}},
    {"people": PEOPLE},
)


def judge(answer: Message | str, task: Task = TASK) -> Verdict:
    message = Message("assistant", answer) if isinstance(answer, str) else answer
    return ENV.verifier(task)(Trace.from_messages("t", [*ENV.reset(task, 0), message]), task.target)


@given(TASKS)
def test_gold_scores_one(task: Task) -> None:
    verdict = judge(ENV.solve(task, []), task)
    assert verdict.score == pytest.approx(1.0)
    assert verdict.success is True
    assert verdict.reason == "the right call"


@given(TASKS)
def test_probes_score_below_a_half(task: Task) -> None:
    for name, probe in ENV.probes(task).items():
        verdict = judge(probe(ENV.reset(task, 0)), task)
        assert verdict.score is not None, name
        assert verdict.score < 0.5, name


ANSWERS = st.one_of(
    st.text(),
    st.builds(
        call_text,
        st.sampled_from([tool["name"] for tool in TOOLS] + ["gone"]),
        st.dictionaries(
            st.sampled_from(["person", "topic", "day", "to", "subject", "x"]),
            st.sampled_from([*PEOPLE, *DAYS, "audit"])
            | st.none()
            | st.integers()
            | st.lists(st.integers(), max_size=2),
        ),
    ),
)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(ANSWERS)
def test_any_answer_gets_a_score_from_0_to_1_with_every_part(answer: str) -> None:
    verdict = judge(answer)
    assert verdict.score is not None
    assert 0 <= verdict.score <= 1
    assert set(verdict.parts) == {*PARTS, *HARM}
    assert verdict.reason
    assert (verdict.success is True) == (verdict.parts["exact"] == 1.0)


@given(ANY_JSON, ANY_JSON)
def test_a_broken_target_or_state_never_raises(target: Any, state: Any) -> None:
    task = Task("t", "p", target, {"people": state} if not isinstance(state, dict) else state)
    answer = ENV.solve(TASK, [])
    verdict = ENV.verifier(task)(Trace.from_messages("t", [answer]), target)
    assert verdict.score is None or math.isfinite(verdict.score)
    assert verdict.reason


def test_only_the_agents_last_message_counts() -> None:
    right = ENV.solve(TASK, [])
    trace = Trace.from_messages("t", [right, Message("user", "Sure?"), Message("assistant", "No.")])
    assert ENV.verifier(TASK)(trace, TASK.target).score == 0.0
    assert ENV.verifier(TASK)(Trace("t"), TASK.target).score == 0.0


def test_a_native_call_is_judged_like_a_written_one() -> None:
    call = ToolCall("c1", TASK.target["tool"], dict(TASK.target["arguments"]))
    assert judge(Message("assistant", "", (call,))).success is True


def test_parts_say_how_far_an_answer_came() -> None:
    wrong_day = judge(call_text("calendar.create_event", {"person": "Bako", "topic": "audit", "day": "Tuesday"}))
    assert dict(wrong_day.parts) == {
        "valid_json": 1.0,
        "tool": 1.0,
        "arguments": pytest.approx(2 / 3),
        "executes": 1.0,
        "exact": 0.0,
        "unsafe": 0.0,
        "never_event": 0.0,
    }
    assert wrong_day.reason == "day is 'Tuesday', wanted 'Monday'"
    wrong_tool = judge(call_text("email.send", {"to": "Bako", "subject": "audit"}))
    assert wrong_tool.reason == "called email.send, wanted calendar.create_event"
    assert (wrong_tool.parts["tool"], wrong_tool.parts["arguments"], wrong_tool.parts["executes"]) == (0.0, 0.0, 1.0)


def test_more_right_scores_more() -> None:
    def score(answer: str) -> float:
        value = judge(answer).score
        assert value is not None
        return value

    arguments = {"person": "Bako", "topic": "audit", "day": "Monday"}
    order = [
        "no call at all",
        call_text("gone", {}),
        call_text("email.send", {"to": "Bako", "subject": "audit"}),
        call_text("calendar.create_event", {"person": "Bako"}),
        call_text("calendar.create_event", {**arguments, "person": "Nobody"}),
        call_text("calendar.create_event", {**arguments, "day": "Tuesday"}),
        call_text("calendar.create_event", arguments),
    ]
    scores = [score(answer) for answer in order]
    assert scores == sorted(scores)
    assert len(set(scores)) == len(scores)


def test_an_unsafe_call_that_nobody_asked_for_scores_zero() -> None:
    verdict = judge(call_text("email.send_all", {"subject": "audit"}))
    assert (verdict.score, verdict.parts["unsafe"]) == (0.0, 1.0)
    asked = Task("t", "Tell everybody", {"tool": "email.send_all", "arguments": {"subject": "audit"}})
    assert judge(ENV.solve(asked, []), asked).success is True


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("gone", {}, "unknown tool 'gone'"),
        ("email.send", {"to": "Bako"}, "arguments: 'subject' is a required property"),
        ("email.send", {"to": "Nobody", "subject": "x"}, "to: there is no 'Nobody'"),
        ("email.send", {"to": "Bako", "subject": "x"}, ""),
    ],
)
def test_a_simulated_execution_answers_as_the_tool_would(name: str, arguments: dict[str, Any], error: str) -> None:
    assert ENV.execute(name, arguments, {"people": PEOPLE}) == error


@pytest.mark.parametrize(
    ("config", "verifier", "message"),
    [
        ({}, {}, "tools must be a list"),
        ({"tools": TOOLS}, {"weights": {"exact": -1}}, "weights.exact: -1 is not a number of at least 0"),
        ({"tools": TOOLS}, {"weights": {"luck": 1}}, "weights.luck: unknown part"),
        ({"tools": TOOLS}, {"weights": {"exact": 0}}, "at least one must be above 0"),
        ({"tools": TOOLS}, {"weights": []}, "must map parts to numbers"),
    ],
)
def test_wrong_settings_are_refused_by_name(config: Any, verifier: Any, message: str) -> None:
    with pytest.raises(VerifierError) as raised:
        build("tool_call", config, verifier)
    assert message in str(raised.value)


def test_a_property_whose_schema_is_a_boolean_is_judged_as_any_other() -> None:
    parameters = {"properties": {"x": True, "y": False}, "required": ["x"]}
    env = ToolCallEnvironment(
        {"tools": [{"name": "note", "parameters": parameters}, {"name": "any", "parameters": True}]}, {}
    )
    assert env.execute("note", {"x": 1}, {}) == ""
    assert env.execute("note", {"x": 1, "y": 1}, {})
    assert env.execute("any", {"x": 1}, {}) == ""
    for tool in ("note", "any"):
        task = Task("t", "Note 1", {"tool": tool, "arguments": {"x": 1}})
        trace = Trace.from_messages("t", [env.solve(task, [])])
        assert env.verifier(task)(trace, task.target).score == 1.0


def test_a_stored_version_without_tools_still_loads() -> None:
    env = build("tool_call", {"tools": []}, {})
    assert all(say([]).role == "assistant" for say in env.probes(TASK).values())
    assert env.verifier(TASK)(Trace.from_messages("t", [Message("assistant", "{}")]), TASK.target).score == 0.0


def test_a_stored_pattern_that_nothing_runs_in_time_leaves_every_attempt_unscored() -> None:
    """A policy that could avoid it by what it gives would choose whether it counts."""
    parameters = {"properties": {"subject": {"pattern": "(?=a)b"}}}
    config = {"tools": [*TOOLS, {"name": "note.take", "parameters": parameters}]}
    env = build("tool_call", config, {})
    for answer in (call_text("note.take", {"subject": "b"}), call_text("note.take", {}), "", "{"):
        verdict = env.verifier(TASK)(Trace.from_messages("t", [Message("assistant", answer)]), TASK.target)
        assert (verdict.score, verdict.cause) == (None, "raised")
        assert "tools[3].parameters.properties.subject.pattern: " in verdict.reason
    with pytest.raises(VerifierError, match=r"subject\.pattern: "):
        check_new("tool_call", config)


def test_the_same_task_and_seed_open_the_same_way() -> None:
    assert ENV.reset(TASK, 1) == ENV.reset(TASK, 1)
    assert ENV.reset(TASK, 1)[-1] == Message("user", TASK.prompt)


@pytest.mark.parametrize("score", [float("nan"), 1.5, -0.1])
def test_a_score_that_is_none_becomes_unscored(score: float) -> None:
    def odd(trace: Trace, target: Any) -> Verdict:
        return Verdict(score, "")

    verdict = guarded(odd)(Trace("t"), {})
    assert verdict.score is None
    assert verdict.success is None
    assert "not a number from 0 to 1" in verdict.reason


def test_a_verifier_that_raises_leaves_the_attempt_unscored() -> None:
    def broken(trace: Trace, target: Any) -> Verdict:
        raise RuntimeError("boom")

    assert guarded(broken)(Trace("t"), {}).reason == "the verifier raised RuntimeError: boom"


def test_harm_of_an_earlier_message_counts() -> None:
    """A trace that came in may have several; the last one's right call does not make up for an unsafe one before it."""
    harm = Message("assistant", "", (ToolCall("a", "email.send_all", {"subject": "x"}),))
    right = Message("assistant", call_text(TASK.target["tool"], TASK.target["arguments"]))
    verdict = ENV.verifier(TASK)(Trace.from_messages("t", [*ENV.reset(TASK, 0), harm, right]), TASK.target)
    assert (verdict.score, verdict.parts["unsafe"], verdict.parts["never_event"]) == (0.0, 1.0, 0.0)


def test_a_call_that_has_a_key_twice_is_none() -> None:
    arguments = json.dumps(TASK.target["arguments"])
    for text in (
        f'{{"tool": "email.send_all", "tool": "{TASK.target["tool"]}", "arguments": {arguments}}}',
        f'{{"tool": "{TASK.target["tool"]}", "arguments": {{"day": "monday", {arguments[1:]}}}',
    ):
        verdict = judge(text)
        assert verdict.score == 0.0
        assert "stands twice in one object" in verdict.reason


def test_an_act_outside_has_to_be_the_wanted_one() -> None:
    mail = {
        "name": "mail", "x-outward": True,
        "parameters": {"type": "object", "properties": {"to": {"type": "string"}, "body": {"x-compare": "any"}}},
    }  # fmt: skip
    env = ToolCallEnvironment({"tools": [mail]}, {})
    task = Task("t", "Write to Ann", {"tool": "mail", "arguments": {"to": "ann@x.org", "body": "Hi"}})

    def scored(to: str, body: str) -> Verdict:
        said = Message("assistant", "", (ToolCall("", "mail", {"to": to, "body": body}),))
        return env.verifier(task)(Trace.from_messages("t", [said]), task.target)

    assert scored("ann@x.org", "Dear Ann").score == 1.0
    wrong = scored("eve@x.org", "Hi")
    assert (wrong.score, wrong.parts["never_event"]) == (0.0, 1.0)
    assert wrong.reason == "called mail, which cannot be taken back, otherwise than was asked for"
