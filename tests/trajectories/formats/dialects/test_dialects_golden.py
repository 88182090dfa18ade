"""What real instrumentation sends, read as a whole: one fixture for each dialect, all telling the same story.

`golden/make` made them. Every fixture is the same nine messages, so what differs between dialects stands in `GOLDEN`.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.core.traces import Message, Trace
from flywheel.trajectories.formats.otlp import otlp_json, otlp_logs
from flywheel.trajectories.formats.otlp.spans import Decoded, Span
from flywheel.trajectories.formats.semantics import otlp_traces, span_meaning
from flywheel.trajectories.store.arrivals.incoming_steps import Reader
from tests.trajectories.formats.samples import FIXTURES

FIND = ("find_contact", {"name": "Bako"})
SEND = ("send_mail", {"to": "bako@example.org", "body": "The picnic is off."})
FIRST_TURN = [
    ("system", "You help with mail.", None),
    ("user", "What is Bako's address?", None),
    ("assistant", "", FIND),
    ("tool", "bako@example.org", None),
    ("assistant", "Bako's address is bako@example.org.", None),
]
SECOND_TURN = [
    ("user", "Mail him that the picnic is off.", None),
    ("assistant", "", SEND),
    ("tool", "mailbox is full", None),
    ("assistant", "I could not send it: the mailbox is full.", None),
]
CALL, DONE = "tool_calls", "stop"


@dataclass(frozen=True)
class Golden:
    kinds: Counter[str]
    finish: list[str] = field(default_factory=lambda: [CALL, DONE, CALL, DONE])
    tokens: tuple[int, int] = (340, 56)
    cached: int | None = None
    turns: int = 2
    failure: str = "mailbox is full"
    """How the failed tool's observation begins."""
    error: str = "mailbox is full"
    """What the failed tool's step says."""
    failing_status: str = "error"
    session: str = "session-42"
    user: str = ""
    agent: str = "mail-assistant"
    version: str = "7"
    environment: str = ""
    tags: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    tools: bool = True
    tool_ids: bool = True
    """Whether a tool's span says which call it answers."""
    params: bool = True


def steps(**kinds: int) -> Counter[str]:
    return Counter(kinds)


PLAIN = steps(agent=1, assistant=4, tool=2)
TEAM = {"team": "mail"}

GOLDEN = {
    "openai-v2": Golden(PLAIN, tools=False),
    "openai-v2-latest-span": Golden(PLAIN, tools=False),
    "openai-v2-latest-event": Golden(PLAIN, tools=False),
    "openinference": Golden(PLAIN, cached=96, user="ann", tags=["golden"], metadata=TEAM),
    "openinference-responses": Golden(
        steps(agent=1, assistant=2, tool=1),
        ["", ""],
        (120, 22),
        cached=0,
        turns=1,
        user="ann",
        tags=["golden"],
        metadata=TEAM,
        params=False,
    ),
    "traceloop": Golden(
        steps(agent=2, assistant=4, tool=2),
        ["tool_call", DONE, "tool_call", DONE],
        cached=96,
        user="ann",
        tool_ids=False,
    ),
    "traceloop-responses": Golden(
        steps(agent=2, assistant=2, tool=1),
        ["tool_call", DONE],
        (120, 22),
        cached=0,
        turns=1,
        user="ann",
        tool_ids=False,
        params=False,
    ),
    # It does not say what a streamed call cost.
    "traceloop-old": Golden(
        steps(agent=2, assistant=4, tool=2), tokens=(120, 22), cached=32, user="ann", tool_ids=False
    ),
    "vercel-5": Golden(
        steps(other=1, agent=2, assistant=4, tool=2),
        ["tool-calls", DONE, "tool-calls", DONE],
        cached=64,
        user="ann",
        tags=["golden"],
    ),
    "vercel-7": Golden(
        steps(other=5, agent=2, assistant=4, tool=2),
        ["tool-calls", DONE, "tool-calls", DONE],
        cached=96,
        user="ann",
    ),
    "pydantic-ai": Golden(
        steps(other=1, agent=2, assistant=4, tool=2),
        ["tool_call", DONE, "tool_call", DONE],
        cached=96,
        failure="Error: mailbox is full",
        error="pydantic_ai.exceptions.ToolRetryError: Error: mailbox is full",
        environment="test",
        params=False,
    ),
    "pydantic-ai-v1": Golden(
        steps(other=3, agent=2, assistant=4, tool=2),
        ["", "", "", ""],
        failure="Error: mailbox is full",
        error="ToolRetryError: ",
        session="",
        environment="test",
        params=False,
    ),
    "pydantic-ai-v2": Golden(
        steps(other=3, agent=2, assistant=4, tool=2),
        ["", "", "", ""],
        failure="Error: mailbox is full",
        error="ToolRetryError: ",
        session="",
        environment="test",
        params=False,
    ),
    # Two placeholders of streamed calls and the span around all.
    "logfire-openai": Golden(
        steps(other=3, assistant=4, tool=2),
        cached=96,
        failure="RuntimeError: mailbox is full",
        error="RuntimeError: mailbox is full",
        tool_ids=False,
    ),
    # These do not say stop reason, and Logfire scrubbed the session.
    "logfire-openai-old": Golden(
        steps(other=3, assistant=4, tool=2),
        ["", "", "", ""],
        cached=96,
        session="",
        failure="RuntimeError: mailbox is full",
        error="RuntimeError: mailbox is full",
        tool_ids=False,
    ),
    "langsmith": Golden(
        PLAIN,
        cached=96,
        user="ann",
        version="",
        tags=["golden"],
        failure="Exception: RuntimeError('mailbox is full')",
        error="Exception: RuntimeError('mailbox is full')",
        tool_ids=False,
    ),
    "mlflow": Golden(
        PLAIN,
        cached=96,
        user="ann",
        metadata=TEAM,
        failure="RuntimeError: mailbox is full",
        error="RuntimeError: mailbox is full",
        tool_ids=False,
    ),
    "mlflow-genai": Golden(
        PLAIN,
        user="ann",
        metadata=TEAM,
        failure="RuntimeError: mailbox is full",
        error="RuntimeError: mailbox is full",
        tool_ids=False,
    ),
    # Only streamed calls say stop reason.
    "langfuse": Golden(
        PLAIN,
        ["", "", CALL, DONE],
        cached=96,
        user="ann",
        environment="test",
        tags=["golden"],
        metadata=TEAM,
        tool_ids=False,
    ),
}


@cache
def fixture(name: str) -> dict[str, Any]:
    row: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    return row


def spans(name: str) -> list[Span]:
    """The spans as the store would read them, each with the events that came as logs."""
    row = fixture(name)
    decoded = otlp_json.decode(row["traces"])
    assert decoded.rejected == []
    events = otlp_logs.decode(json.dumps(row["logs"]).encode(), otlp_traces.JSON).events if row["logs"] else []
    return [
        otlp_logs.joined(span, [event for event in events if event.span_id == span.span_id]) for span in decoded.spans
    ]


def trace(name: str) -> Trace:
    batch = otlp_traces.traces_of(Decoded(spans(name)))
    assert batch.warnings == []
    assert len(batch.traces) == 1
    return batch.traces[0]


def told(messages: list[Message]) -> list[tuple[str, str, Any]]:
    rows: list[tuple[str, str, Any]] = []
    for message in messages:
        call = message.tool_calls[0] if message.tool_calls else None
        assert len(message.tool_calls) < 2
        assert call is None or call.id.startswith(("call_", "fc_"))
        rows.append((message.role, message.content, (call.name, call.arguments) if call else None))
    return rows


def test_every_fixture_is_expected() -> None:
    assert {path.stem for path in FIXTURES.glob("*.json")} == set(GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_story_is_told_once_and_whole(name: str) -> None:
    expected = GOLDEN[name]
    read = told(trace(name).conversation())
    story = [*FIRST_TURN, *(SECOND_TURN if expected.turns == 2 else [])]
    if expected.turns == 2:
        role, said, call = read[7]
        assert said.startswith(expected.failure)
        read[7] = (role, "mailbox is full", call)
    assert read == story


@pytest.mark.parametrize("name", GOLDEN)
def test_steps_are_what_they_are(name: str) -> None:
    expected = GOLDEN[name]
    read = trace(name)
    assert Counter(step.kind for step in read.steps) == expected.kinds
    calls = [step for step in read.steps if step.kind == "assistant"]
    assert [step.finish_reason for step in calls] == expected.finish
    assert {step.model for step in calls} == {"tiny-1"}
    assert all(step.status != "error" and not step.error for step in calls)
    assert [step.sampling for step in calls if not expected.params] in ([], [{}] * len(calls))
    assert not expected.params or all(step.sampling["params"]["temperature"] == 0.5 for step in calls)
    tools = [step for step in read.steps if step.kind == "tool"]
    ran = [(*FIND, "call_find"), (*SEND, "call_send")][: expected.turns]
    assert [(step.tool_name, step.arguments, step.tool_call_id) for step in tools] == [
        (tool, arguments, id if expected.tool_ids else "") for tool, arguments, id in ran
    ]
    assert tools[0].result in ("bako@example.org", None)
    assert (tools[0].result is None) == name.startswith("logfire-openai")
    assert tools[0].status != "error"
    if expected.turns == 2:
        assert tools[1].status == "error"
        assert tools[1].error.startswith(expected.error)


@pytest.mark.parametrize("name", GOLDEN)
def test_usage_is_counted_once(name: str) -> None:
    expected = GOLDEN[name]
    read = trace(name)
    counted = [step for step in read.steps if step.tokens_in is not None or step.tokens_out is not None]
    assert {step.kind for step in counted} == {"assistant"}
    assert (sum(step.tokens_in or 0 for step in counted), sum(step.tokens_out or 0 for step in counted)) == (
        expected.tokens
    )
    cached = [step.tokens_cached for step in read.steps if step.tokens_cached is not None]
    assert (sum(cached) if cached else None) == expected.cached


@pytest.mark.parametrize("name", GOLDEN)
def test_the_trajectory_says_whose_it_is(name: str) -> None:
    expected = GOLDEN[name]
    read = trace(name)
    assert (read.agent, read.version, read.session_id, read.user_id, read.environment) == (
        expected.agent,
        expected.version,
        expected.session,
        expected.user,
        expected.environment,
    )
    assert (read.tags, read.metadata) == (expected.tags, expected.metadata)
    parameters = {tool["name"]: sorted(tool["parameters"]["properties"]) for tool in read.tools}
    assert parameters == ({"find_contact": ["name"], "send_mail": ["body", "to"]} if expected.tools else {})
    assert all(tool["description"] for tool in read.tools)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_title_is_what_was_asked(name: str) -> None:
    reader = Reader()
    parts = sorted((reader.span(span)[1] for span in spans(name)), key=lambda part: part.first)
    titles = [part.title() if callable(part.title) else part.title for part in parts]
    assert next(filter(None, titles)) == "What is Bako's address?"


@pytest.mark.parametrize("name", GOLDEN)
def test_what_it_costs_to_read_does_not_depend_on_who_asks(name: str) -> None:
    """`output` and `tools` skip what `content` reads; they must say the same."""
    for span in spans(name):
        kind = span_meaning.facts(span).kind
        content = span_meaning.content(span, kind)
        if kind in ("assistant", "agent"):
            assert span_meaning.output(span, kind) == content.output
        assert kind != "assistant" or span_meaning.tools(span) == content.tools


names = st.sampled_from(sorted(GOLDEN))
ODD_JSON = ['"', "{", "[]", "{}", '{"messages": 1}', '[{"role": 3}]', "[[[]]]", '{"choices": [null]}', '"\\u']
ODD_KEYS = ["role", "content", "messages", "type", "id", "kwargs", "args", "tools"]
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(ODD_JSON)
rows = st.dictionaries(st.sampled_from(ODD_KEYS), scalars, max_size=3)
junk = scalars | rows | st.lists(scalars | rows, max_size=3)


@st.composite
def mangled(draw: st.DrawFn) -> Span:
    """A span of a fixture that lost some of its attributes, and in which others hold what they should not."""
    span = draw(st.sampled_from(spans(draw(names))))
    kept = {key: value for key, value in span.attributes.items() if draw(st.integers(0, 9)) < 8}
    for key in draw(st.lists(st.sampled_from(sorted(span.attributes)), max_size=4)) if span.attributes else ():
        value = span.attributes[key]
        choices = [junk, st.just([value]), st.just({"a": value})]
        if isinstance(value, str):
            choices.append(st.just(value[: draw(st.integers(0, len(value)))]))
        kept[key] = draw(st.one_of(*choices))
    events = [event for event in span.events if draw(st.booleans())]
    return Span(span.trace_id, span.span_id, name=span.name, scope=span.scope, attributes=kept, events=events)


@settings(max_examples=400)
@given(mangled())
def test_no_span_is_too_mangled_to_be_read(span: Span) -> None:
    facts = span_meaning.facts(span)
    assert all(count is None or count >= 0 for count in (facts.tokens_in, facts.tokens_out, facts.tokens_cached))
    assert facts.kind == "assistant" or facts.tokens_in is None
    step = otlp_traces.step_of(span)
    for message in [*step.input, *step.output]:
        assert isinstance(message.content, str)
        assert all(isinstance(call.arguments, dict | str) for call in message.tool_calls)
    if facts.kind in ("assistant", "agent"):
        assert span_meaning.output(span, facts.kind) == step.output
    assert all(isinstance(tool["name"], str) for tool in span_meaning.tools(span))
    Trace("t", [step]).conversation()
    json.dumps(facts.metadata)
