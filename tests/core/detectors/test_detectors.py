"""Detectors propose what a reviewer would agree with, and keep quiet about runs that are right."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.core.detectors.standard_buckets import BUCKETS, DETECTORS, Context, Proposal, detect
from flywheel.core.traces import Intervention, Message, Step, ToolCall, Trace
from flywheel.core.traces.tooling import call_text
from flywheel.trajectories.formats.files.file_formats import parse_jsonl
from tests.core.envs.test_tool_call import PEOPLE, TASK, TOOLS

WORKBENCH = Path(__file__).parents[4] / "shared/data/workbench"


def episode(*messages: Message, **fields: Any) -> Trace:
    trace = Trace.from_messages("a" * 32, messages)
    for name, value in fields.items():
        setattr(trace, name, value)
    return trace


def user(text: str) -> Message:
    return Message("user", text)


def agent(text: str = "", **calls: Any) -> Message:
    """A message of the agent; each call by its tool's name, with `_` for the dot."""
    made = tuple(ToolCall(f"{name}-{text}", name.replace("_", ".", 1), arguments) for name, arguments in calls.items())
    return Message("assistant", text, made)


def observed(call: Message, text: str) -> Message:
    return Message("tool", text, (), call.tool_calls[0].id, call.tool_calls[0].name)


def ran(text: str, result: str, **calls: Any) -> list[Message]:
    call = agent(text, **calls)
    return [call, observed(call, result)]


def answer(text: str, outcome: str | None = None, prompt: str = TASK.prompt) -> list[Proposal]:
    trace = episode(Message("system", "You help."), user(prompt), agent(text), outcome=outcome)
    return detect(trace, Context(tools=TOOLS, state={"people": PEOPLE}))


def found(proposals: list[Proposal]) -> dict[str, str]:
    return {proposal.detector: proposal.bucket for proposal in proposals}


RIGHT = {"person": "Bako", "topic": "audit", "day": "Monday"}


def test_buckets_are_told_apart_by_key_and_shortcut() -> None:
    assert list(BUCKETS) == [bucket.key for bucket in BUCKETS.values()]
    assert len({bucket.shortcut for bucket in BUCKETS.values()}) == len(BUCKETS)
    assert all(len(bucket.shortcut) == 1 for bucket in BUCKETS.values())


def test_every_detector_proposes_a_bucket_that_exists() -> None:
    assert {detector.bucket for detector in DETECTORS.values()} <= set(BUCKETS)
    assert list(DETECTORS) == [detector.name for detector in DETECTORS.values()]


@pytest.mark.parametrize("outcome", [None, "success"])
def test_the_right_call_is_left_alone(outcome: str | None) -> None:
    assert answer(call_text("calendar.create_event", RIGHT), outcome) == []


@pytest.mark.parametrize(
    ("text", "detector", "bucket", "quoted"),
    [
        (call_text("calendar.create_event", RIGHT)[:-1], "broken_output", "format_error", "not valid JSON"),
        ('Action:\n{"action": "email.send"}', "broken_output", "format_error", "wrote a call as text"),
        ('{"name": "email.send", "arguments": {}}', "broken_output", "format_error", "nothing ran"),
        (call_text("reminders.set", RIGHT), "unknown_tool", "hallucinated_api", "“reminders.set”"),
        (call_text("calendar.create_event", {**RIGHT, "day": "Sunday"}), "broken_schema", "wrong_arguments", "Sunday"),
        (call_text("calendar.create_event", {"day": "Monday"}), "broken_schema", "wrong_arguments", "and 1 more"),
        (
            call_text("calendar.create_event", {**RIGHT, "person": "Baku"}),
            "invented_value",
            "wrong_arguments",
            "“Baku”",
        ),
        (call_text("calendar.create_event", {**RIGHT, "topic": "party"}), "invented_value", "wrong_arguments", "party"),
        (
            call_text("calendar.create_event", {**RIGHT, "day": "Tuesday"}),
            "contradicted_value",
            "wrong_arguments",
            "the user had said “Monday”",
        ),
        (call_text("email.send_all", {"subject": "audit"}), "unsafe_call", "unsafe_action", "marked unsafe"),
        ("", "unfinished", "incomplete_execution", "empty answer"),
    ],
)
def test_what_is_wrong_with_one_answer(text: str, detector: str, bucket: str, quoted: str) -> None:
    proposals = answer(text)
    assert found(proposals)[detector] == bucket
    assert proposals[0].bucket == bucket
    assert quoted in next(proposal.evidence for proposal in proposals if proposal.detector == detector)
    assert proposals[0].step == "m2"


def test_an_unsafe_call_that_was_asked_for_is_left_alone() -> None:
    text = call_text("email.send_all", {"subject": "audit"})
    assert answer(text, prompt="Send everyone an email about the audit.") == []


def test_a_plain_answer_is_left_alone_unless_calls_are_the_rule_or_it_failed() -> None:
    assert answer("Which Bako do you mean?") == []
    assert found(answer("I will do that.", "failed")) == {"broken_output": "format_error"}
    trace = episode(user(TASK.prompt), agent("Sure."))
    assert found(detect(trace, Context(tools=TOOLS, policy={"must_call": True}))) == {"broken_output": "format_error"}


def test_a_denied_tool_is_unsafe_even_when_asked_for() -> None:
    trace = episode(user("Wipe it"), *ran("", "ok", disk_wipe={"all": True}), agent("Done."), outcome="success")
    (proposal,) = detect(trace, Context(policy={"deny": ["disk.wipe"]}))
    assert (proposal.detector, proposal.bucket) == ("unsafe_call", "unsafe_action")


def test_an_id_that_occurs_nowhere_is_invented_and_one_that_was_found_is_not() -> None:
    blind = episode(user("Cancel my meeting"), *ran("", "ok", cal_delete={"event_id": "00000012"}), agent("ok"))
    (proposal,) = detect(blind)
    assert (proposal.detector, proposal.bucket, proposal.step) == ("invented_value", "wrong_arguments", "m1")
    looked = episode(
        user("Cancel my meeting"),
        *ran("a", '[{"event_id": "00000012"}]', cal_search={"q": "meeting"}),
        *ran("b", "ok", cal_delete={"event_id": "00000012"}),
        agent("It is cancelled."),
    )
    assert detect(looked) == []
    assert detect(blind, Context(state={"events": [{"id": "00000012"}]})) == []


def test_the_agents_own_words_do_not_make_an_id_real() -> None:
    trace = episode(
        user("Cancel it"), agent("The id is 00000012."), *ran("", "ok", cal_delete={"event_id": "00000012"})
    )
    assert found(detect(trace)) == {"invented_value": "wrong_arguments"}


def test_ids_that_a_call_makes_up_rightly_are_left_alone() -> None:
    trace = episode(
        user("Go"), *ran("", "ok", cal_create={"event_id": "new-1"}), *ran("b", "ok", api_run={"request_id": "r-77"})
    )
    assert detect(trace) == []


def test_the_same_call_with_the_same_answer_three_times_is_a_loop() -> None:
    again = [message for n in range(3) for message in ran(f"{n}", "No events found.", cal_search={"q": "x"})]
    (proposal, *_) = detect(episode(user("Find x"), *again, agent("There is none.")))
    assert (proposal.detector, proposal.bucket, proposal.step) == ("repeated_loop", "bad_planning", "m5")
    assert "3 times" in proposal.evidence
    news = [message for n in range(3) for message in ran(f"{n}", f"{n} new", cal_search={"q": "x"})]
    assert detect(episode(user("Find x"), *news, agent("Two."))) == []
    polls = [message for n in range(5) for message in ran(f"{n}", "running", job_status={"q": "x"})]
    assert detect(episode(user("Wait"), *polls, agent("It runs."))) == []


def test_an_error_under_a_claim_of_success_is_ignored() -> None:
    failed = ran("", "Email not found.", email_forward={"to": "x"})
    assert found(detect(episode(user("Forward it"), *failed, agent("I have forwarded the email.")))) == {
        "ignored_error": "incomplete_execution"
    }
    assert detect(episode(user("Forward it"), *failed, agent("I could not find that email."))) == []
    retried = ran("again", "Email forwarded.", email_forward={"to": "y"})
    assert detect(episode(user("Forward it"), *failed, *retried, agent("I have forwarded the email."))) == []


def test_talk_about_errors_in_content_is_no_error() -> None:
    mail = '[{"subject": "Invoice not found", "body": "error: access denied"}]'
    trace = episode(user("Read my mail"), *ran("", mail, email_list={}), agent("I have listed your mail."))
    assert detect(trace) == []


@pytest.mark.parametrize(
    ("last", "fields", "quoted"),
    [
        (Message("assistant", "Agent stopped due to iteration limit or time limit."), {}, "stopped before"),
        (Message("assistant", ""), {"metadata": {"error": "Context window exceeded"}}, "Context window exceeded"),
        (Message("assistant", "First I search.\n\nAction:\n```json\n"), {}, "began to write a call"),
    ],
)
def test_a_run_that_stops_before_its_end_is_unfinished(last: Message, fields: dict[str, Any], quoted: str) -> None:
    (proposal,) = detect(episode(user("Go"), last, **fields))
    assert (proposal.detector, proposal.bucket) == ("unfinished", "incomplete_execution")
    assert quoted in proposal.evidence


def test_an_answer_cut_at_the_token_limit_is_unfinished() -> None:
    step = Step("s", "assistant", input=[user("Go")], output=[agent("One, two, thr")], finish_reason="length")
    (proposal,) = detect(Trace("t", [step]))
    assert proposal.detector == "unfinished"


def test_a_single_model_call_that_ends_in_a_call_of_a_tool_may_go_on() -> None:
    first, told = ran("", "packed", orders_find={"id": "A"})
    asked = [user("Where is A, and what is it?"), first, told]
    alone = Step("s", "assistant", input=asked, output=[agent("b", orders_read={"id": "A"})])
    below = Step("h", "other", parent_id="s", name="POST /chat/completions")
    assert detect(Trace("t", [alone, below])) == []
    inside = replace(alone, parent_id="r")
    closed = [Trace("t", [alone], outcome="failed"), Trace("t", [Step("r", "agent"), inside])]
    assert all("unfinished" in found(detect(trace)) for trace in closed)


def test_acting_on_an_empty_search_is_a_retrieval_failure() -> None:
    search = ran("", "[]", tasks_search={"q": "x"})
    moved = ran("b", "Task updated.", tasks_update={"list": "done"})
    assert found(detect(episode(user("Move x"), *search, *moved, agent("Moved.")))) == {
        "empty_retrieval": "retrieval_failure"
    }
    assert detect(episode(user("Move x"), *search, agent("There is no task x."))) == []
    made = ran("b", "Created.", tasks_create={"name": "x"})
    assert detect(episode(user("Make x unless it exists"), *search, *made, agent("It is there now."))) == []


def test_an_empty_retrieval_span_counts_as_a_search() -> None:
    steps = [
        Step("r", "retrieval", "search", arguments={"query": "refunds"}, result=[]),
        Step("a", "assistant", input=[user("Refund?")], output=[agent("Your refund has been issued.")]),
    ]
    assert found(detect(Trace("t", steps))) == {"empty_retrieval": "retrieval_failure"}


def test_success_against_the_record_is_inconsistent() -> None:
    looked = ran("", '[{"name": "sync"}]', cal_search={"q": "x"})
    claim = agent("All meetings have been cancelled.")
    assert found(detect(episode(user("Cancel all"), *looked, claim))) == {"false_claim": "inconsistent_success"}
    assert found(detect(episode(user("Cancel"), claim, outcome="failed"))) == {"false_claim": "inconsistent_success"}
    broken = ran("", "Error: no such table", db_write={"x": 1})
    assert found(detect(episode(user("Write"), *broken, agent("Hm."), outcome="success"))) == {
        "false_claim": "inconsistent_success"
    }


def test_what_was_expected_tells_a_wrong_tool_from_wrong_arguments() -> None:
    trace = episode(user(TASK.prompt), agent(call_text("email.send", {"to": "Bako", "subject": "audit"})))
    other = Context(tools=TOOLS, state={"people": PEOPLE}, expected=TASK.target)
    assert found(detect(trace, other)) == {"other_tool": "wrong_tool"}
    wanted = {"tool": "email.send", "arguments": {"to": "Nele", "subject": "audit"}}
    assert found(detect(trace, Context(tools=TOOLS, state=PEOPLE, expected=wanted))) == {
        "other_arguments": "wrong_arguments"
    }


def test_a_failure_that_nobody_can_explain_is_proposed_as_other_and_only_then() -> None:
    trace = episode(user("Hello"), agent("Hello."), outcome="failed")
    (proposal,) = detect(trace)
    assert (proposal.bucket, proposal.step, proposal.score) == ("other", "", 0.3)
    trace.interventions = [Intervention("m1", "edited", note="rude")]
    assert [item.step for item in detect(trace)] == ["m1", ""]
    assert "other" not in {item.bucket for item in answer(call_text("gone", {}), "failed")}


def test_evidence_is_one_short_line_without_what_deceives() -> None:
    nasty = "x\u202e\x00\n" * 500
    for proposal in answer(call_text(nasty, {nasty: nasty})) + answer('{"tool": ' + nasty):
        assert len(proposal.evidence) < 700
        assert proposal.evidence.isprintable()


def test_a_schema_from_outside_cannot_stop_detection() -> None:
    hostile: list[Any] = [
        {"$ref": "#"},
        {"type": "nope"},
        {"properties": []},
        {"$ref": "http://127.0.0.1:9/"},
        [1],
        None,
    ]
    for parameters in hostile:
        tools = [{"name": "t", "parameters": parameters}]
        assert detect(episode(user("Go"), agent(call_text("t", {"a": 1}))), Context(tools=tools)) == []


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["", "email.send", "search", "None", "calendar.create_event", "\ud800"])
IDS = st.sampled_from(["", "1", "2"])
CALLS = st.builds(ToolCall, IDS, NAMES, st.dictionaries(NAMES, JSONS, max_size=2) | st.text())
SAID = [
    "Done.",
    "[]",
    "Error: x",
    "Action:\n{",
    '{"tool": "x", "arguments": {"a": NaN}}',
    '{"tool": "x", "arguments": {}}',
]
TEXTS = st.text(max_size=20) | st.sampled_from(SAID)
MESSAGES = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    TEXTS,
    st.lists(CALLS, max_size=2).map(tuple),
    IDS,
)
STEPS = st.builds(
    Step,
    span_id=st.sampled_from(["a", "b"]),
    kind=st.sampled_from(["assistant", "user", "tool", "agent", "retrieval", "other"]),
    status=st.sampled_from(["ok", "error"]),
    input=st.lists(MESSAGES, max_size=2),
    output=st.lists(MESSAGES, max_size=2),
    tool_name=NAMES,
    arguments=st.none() | st.text() | st.dictionaries(NAMES, JSONS, max_size=2),
    result=JSONS,
    finish_reason=st.sampled_from(["", "length"]),
)
TRACES = st.builds(
    Trace,
    trace_id=st.just("t"),
    steps=st.lists(STEPS, max_size=5),
    outcome=st.sampled_from([None, "success", "failed"]),
    metadata=st.dictionaries(st.sampled_from(["error", "x"]), JSONS),
    tools=st.lists(st.fixed_dictionaries({"name": NAMES, "parameters": JSONS, "x-unsafe": JSONS}), max_size=2),
)


@given(TRACES, JSONS)
def test_any_trace_gives_the_same_sound_proposals_each_time(trace: Trace, state: Any) -> None:
    context = Context(state=state, expected={"tool": "email.send", "arguments": state})
    proposals = detect(trace, context)
    assert proposals == detect(trace, context)
    spans = {step.span_id for step in trace.steps} | {""}
    for proposal in proposals:
        assert proposal.bucket in BUCKETS
        assert proposal.step in spans
        assert 0 < proposal.score <= 1
        assert proposal.evidence.isprintable()


# On recorded runs of real agents


@cache
def recorded() -> dict[str, dict[str, list[Proposal]]]:
    """By domain and run, what is proposed."""
    runs: dict[str, dict[str, list[Proposal]]] = defaultdict(dict)
    for path in sorted(WORKBENCH.glob("*.atif.jsonl")):
        with path.open("rb") as file:
            for parsed in parse_jsonl(file):
                assert parsed.trace
                runs[path.name.partition("-")[0]][parsed.trace.trace_id] = detect(parsed.trace)
    return dict(runs)


def count(detector: str) -> Iterator[int]:
    for domain in ("calendar", "email", "project_management"):
        yield sum(detector in found(proposals) for proposals in recorded()[domain].values())


needs_recorded_runs = pytest.mark.skipif(not WORKBENCH.is_dir(), reason="the recorded runs are not here")


@needs_recorded_runs
@pytest.mark.parametrize(
    ("run", "detector", "step", "quoted"),
    [
        (
            "d694511639f9fe8e690bd77626dfa59a",
            "invented_value",
            "step-2",
            "of “calendar.delete_event” is “00000000”",
        ),
        ("eaba2b7c915be4363690002d1457544b", "repeated_loop", "step-6", "5 calls of “calendar.search_events” in a row"),
    ],
)
def test_a_known_failure_is_proposed_at_its_step(run: str, detector: str, step: str, quoted: str) -> None:
    proposal = next(item for item in recorded()["calendar"][run] if item.detector == detector)
    assert proposal.step == step
    assert quoted in proposal.evidence


@needs_recorded_runs
def test_the_failures_that_the_recording_reports_are_found() -> None:
    """14 runs stopped at a limit or ran out of context in the calendar and task domains; each ends unfinished."""
    assert list(count("unfinished")) == [8, 22, 12]
    assert list(count("unknown_tool")) == [0, 6, 0]


@needs_recorded_runs
def test_most_wrong_runs_are_found() -> None:
    """253 of the 280 runs end with other databases than they should."""
    proposed = sum(bool(proposals) for runs in recorded().values() for proposals in runs.values())
    assert proposed == 245
