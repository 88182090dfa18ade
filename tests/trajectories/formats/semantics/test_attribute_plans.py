"""The short ways to what a span says, against the long ones: whatever the attributes hold, they say the same."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.trajectories.formats.dialects import mlflow
from flywheel.trajectories.formats.otlp.spans import Span
from flywheel.trajectories.formats.semantics import attribute_plans, span_meaning
from flywheel.trajectories.store.arrivals.incoming_steps import Reader, called, title
from tests.trajectories.formats.dialects.test_dialects_golden import junk, mangled

SPEAKING = {"gen_ai.operation.name": "chat"}


@st.composite
def mixed(draw: st.DrawFn) -> Span:
    """The attributes of two spans in one, as when two instrumentations write the same span."""
    one, other = draw(mangled()), draw(mangled())
    one.attributes = other.attributes | one.attributes
    return one


texts = st.sampled_from(
    ["Find it.", "", " ", '{"tool": "find", "arguments": {}}', '\n {"tool": "find"}', '{"tool', "a\x00b", "\ud800"]
)
parts = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_call", "reasoning", "server_tool_call", "tool_call_response", "blob"])},
    optional={
        "content": texts | junk,
        "name": texts | st.just("n" * 300) | junk,
        "text": texts | junk,
        "function": st.just("find") | junk,
    },
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", "odd"])},
    optional={"parts": st.lists(parts | junk, max_size=3) | junk, "content": texts | junk, "tool_calls": junk},
)


@st.composite
def spoken(draw: st.DrawFn) -> Span:
    """A model call by the current conventions, with messages of which some are odd."""
    listed = st.lists(messages | junk, max_size=3) | junk
    written = listed.flatmap(lambda value: st.sampled_from([value, json.dumps(value), json.dumps(value)[:-1]]))
    given = {"gen_ai.input.messages": draw(written), "gen_ai.output.messages": draw(written)}
    extra = draw(st.sampled_from([{}, {}, {"gen_ai.prompt.0.content": "Old"}, {"mlflow.chat.tools": "[]"}]))
    scope = draw(st.sampled_from([{}, {}, {"name": mlflow.SCOPE}]))
    return Span("1" * 32, "2" * 16, attributes=SPEAKING | given | extra, scope=scope)


@settings(max_examples=500)
@given(mangled() | mixed() | spoken() | spoken())
def test_calls_and_questions_are_those_of_the_messages(span: Span) -> None:
    for kind in ("assistant", "agent"):
        said = span_meaning.output(span, kind)
        names = span_meaning.calls(span, attribute_plans.of(span.attributes))
        assert names is None or {name[:200] for name in names} == called(said)
        question = title(span_meaning.input(span, kind)) or title(said)
        assert (title(span_meaning.user_messages(span, kind)) or title(said)) == question


def test_a_plain_answer_takes_the_short_way() -> None:
    asked = {"type": "tool_call", "name": "find", "arguments": {"q": 1}}
    answer = [{"role": "assistant", "parts": [{"type": "text", "content": "One moment."}, asked]}]
    span = Span("1" * 32, "2" * 16, attributes=SPEAKING | {"gen_ai.output.messages": json.dumps(answer)})
    assert span_meaning.calls(span, attribute_plans.of(span.attributes)) == {"find"}


@settings(max_examples=200)
@given(mangled() | mixed(), st.randoms())
def test_facts_do_not_depend_on_the_order_of_attributes(span: Span, random: Any) -> None:
    facts, tools = span_meaning.facts(span), span_meaning.tools(span)
    items = list(span.attributes.items())
    random.shuffle(items)
    span.attributes = dict(items)
    assert (span_meaning.facts(span), span_meaning.tools(span)) == (facts, tools)
    span.attributes |= {"an.unknown.attribute": "x"}
    again = span_meaning.facts(span)
    again.speaks = facts.speaks
    assert again == facts


def test_plans_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribute_plans, "_PLANS", {})
    long = {"x" * (attribute_plans.LONGEST + 1): 1}
    assert attribute_plans.of(long) == attribute_plans.of(long)
    assert not attribute_plans._PLANS
    for number in range(attribute_plans.MOST + 10):
        attribute_plans.of({f"gen_ai.prompt.{number}.content": "x"})
    assert 0 < len(attribute_plans._PLANS) <= attribute_plans.MOST


def test_spans_read_together_say_what_each_says_alone() -> None:
    spans = [Span("1" * 32, f"{number:016x}", name=f"s{number}", attributes=SPEAKING) for number in range(100)]
    together = [arrival for arrival, _ in Reader().spans(spans)]
    assert together == [Reader().span(span)[0] for span in spans]
