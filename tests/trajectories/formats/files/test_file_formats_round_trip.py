"""What goes out comes back: every trajectory survives each export, and what training needs survives to the last bit."""

import json
import math
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.core.traces import Intervention, Message, Step, ToolCall, Trace
from flywheel.trajectories.formats.files.file_formats import parse_jsonl
from flywheel.trajectories.formats.harnesses import atif
from flywheel.trajectories.formats.observability import otlp_documents
from flywheel.trajectories.formats.openai import openai_chat
from flywheel.trajectories.formats.values.hostile_json import plain
from flywheel.trajectories.formats.values.residual import step_row, trace_row
from tests.trajectories.formats.samples import FILES, WORKBENCH
from tests.trajectories.formats.sending import envelope, span

DUMPS = {"atif": atif.dump, "otlp": otlp_documents.dump, "openai": openai_chat.dump}

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)
ids = st.text("0123456789abcdef", min_size=1, max_size=6)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
jsons = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(texts, jsons, max_size=3)
samplings = st.fixed_dictionaries(
    {},
    optional={
        "prompt_token_ids": st.lists(st.integers(0, 2**60), min_size=1, max_size=4),
        "token_ids": st.lists(st.integers(0, 2**60), min_size=1, max_size=4),
        "logprobs": st.lists(numbers, min_size=1, max_size=4),
        "mask": st.lists(st.sampled_from([0, 1, True, False]), min_size=1, max_size=4),
        "params": st.dictionaries(st.sampled_from(["temperature", "seed", "stop"]), jsons, min_size=1),
    },
)
calls = st.builds(ToolCall, id=ids, name=texts, arguments=objects | texts)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=texts,
    tool_calls=st.lists(calls, max_size=2).map(tuple),
    tool_call_id=st.just("") | ids,
    name=texts,
    reasoning=texts,
)
times = st.none() | st.integers(0, 10**15).map(lambda us: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=us))
steps = st.builds(
    Step,
    span_id=ids,
    kind=st.sampled_from(["system", "user", "assistant", "tool", "agent", "retrieval", "other"]),
    name=texts,
    parent_id=st.just("") | ids,
    started_at=times,
    ended_at=times,
    status=st.sampled_from(["ok", "error", "unset"]),
    error=texts,
    model=texts,
    input=st.lists(messages, max_size=2),
    output=st.lists(messages, max_size=2),
    tool_name=texts,
    tool_call_id=st.just("") | ids,
    arguments=st.none() | objects | texts,
    result=jsons,
    finish_reason=texts,
    tokens_in=st.none() | st.integers(0, 2**31 - 1),
    tokens_out=st.none() | st.integers(0, 2**31 - 1),
    cost_usd=st.none() | st.floats(0, 100),
    sampling=samplings,
)
traces = st.builds(
    Trace,
    trace_id=st.text("0123456789abcdef", min_size=32, max_size=32).filter(lambda x: x.strip("0")),
    steps=st.lists(steps, min_size=1, max_size=4, unique_by=lambda step: step.span_id),
    agent=texts,
    version=texts,
    session_id=texts,
    user_id=texts,
    environment=texts,
    outcome=st.sampled_from([None, "success", "failed"]),
    interventions=st.lists(st.builds(Intervention, step=ids, kind=texts, by=texts, note=texts, at=texts), max_size=1),
    tags=st.lists(texts, max_size=2),
    tools=st.lists(st.fixed_dictionaries({"name": texts, "description": texts, "parameters": objects}), max_size=2),
    metadata=objects,
)


def picture(trace: Trace) -> str:
    """All of a trajectory but how it arrived, as JSON text: -0.0, true and 1 are told apart."""
    return json.dumps(plain([trace_row(trace), [step_row(step) for step in trace.steps]]), sort_keys=True)


def there_and_back(trace: Trace, format: str) -> Trace:
    line = json.dumps(DUMPS[format](trace), ensure_ascii=False).encode()
    found = [item for item in parse_jsonl([line]) if item.trace is None or item.trace.trace_id == trace.trace_id]
    assert [item.error for item in found if item.error] == []
    assert [item.format for item in found] == [format]
    assert found[0].trace is not None
    return found[0].trace


@settings(max_examples=60)
@given(traces, st.sampled_from(sorted(DUMPS)))
def test_any_trajectory_survives_every_export(trace: Trace, format: str) -> None:
    assert picture(there_and_back(trace, format)) == picture(trace)


@settings(max_examples=20)
@given(traces, st.permutations(sorted(DUMPS)))
def test_and_one_export_after_another(trace: Trace, order: list[str]) -> None:
    back = trace
    for format in order:
        back = there_and_back(back, format)
    assert picture(back) == picture(trace)


EXACT: dict[str, Any] = {
    "prompt_token_ids": [0, 2**53 + 1, 2**62],
    "token_ids": [1, 2, 3],
    "logprobs": [-0.0, -1e-05, -0.1 + 2**-55, 5e-324, -1.7976931348623157e308],
    "mask": [0, 1, 1],
    "params": {"temperature": 0.7, "top_p": 1.0, "seed": 2**60, "stop": ["\n"]},
}


@pytest.mark.parametrize("format", DUMPS)
def test_what_training_needs_is_equal_to_the_last_bit(format: str) -> None:
    step = Step("m0", "assistant", output=[Message("assistant", "ok")], sampling=EXACT, finish_reason="length")
    back = there_and_back(Trace("a" * 32, [step]), format).steps[0]
    assert json.dumps(back.sampling) == json.dumps(EXACT)
    assert math.copysign(1, back.sampling["logprobs"][0]) == -1
    assert back.finish_reason == "length"


@pytest.mark.parametrize("format", DUMPS)
def test_real_files_survive(format: str) -> None:
    lines = [(FILES / "verifiers_episode.json").read_bytes()]
    lines += [json.dumps(json.loads((FILES / "inspect.json").read_text())).encode()]
    for found in parse_jsonl(lines):
        assert found.trace is not None
        assert picture(there_and_back(found.trace, format)) == picture(found.trace)


@pytest.mark.skipif(not WORKBENCH.is_dir(), reason="the recorded runs are not here")
@pytest.mark.parametrize("format", DUMPS)
def test_recorded_runs_of_real_agents_survive(format: str) -> None:
    for path in sorted(WORKBENCH.glob("*.atif.jsonl")):
        with path.open("rb") as file:
            for found in parse_jsonl(file):
                assert found.trace is not None
                assert picture(there_and_back(found.trace, format)) == picture(found.trace)


@pytest.mark.skipif(not WORKBENCH.is_dir(), reason="the recorded runs are not here")
def test_atif_goes_out_as_it_came() -> None:
    for path in sorted(WORKBENCH.glob("*.atif.jsonl")):
        for line in path.read_bytes().splitlines():
            (found,) = parse_jsonl([line])
            assert found.trace is not None
            out, came = atif.dump(found.trace), json.loads(line)
            assert out["steps"] == came["steps"]
            assert "flywheel" not in out.get("extra", {})


def test_spans_go_out_as_they_came() -> None:
    body = json.loads(envelope(span(), span(spanId="1" * 16, startTimeUnixNano="5")))
    (found,) = parse_jsonl([json.dumps(body).encode()])
    assert found.trace is not None
    (back,) = parse_jsonl([json.dumps(otlp_documents.dump(found.trace)).encode()])
    by_id = {item.span_id: item for item in found.spans}
    assert {item.span_id: item for item in back.spans} == by_id
    assert back.trace is not None
    assert picture(back.trace) == picture(found.trace)


@pytest.mark.parametrize("format", ["atif", "openai"])
def test_spans_survive_the_other_exports(format: str) -> None:
    (found,) = parse_jsonl([envelope(span())])
    assert found.trace is not None
    assert picture(there_and_back(found.trace, format)) == picture(found.trace)


def test_what_was_said_later_goes_out_beside_the_spans() -> None:
    (found,) = parse_jsonl([envelope(span())])
    assert found.trace is not None
    found.trace.outcome, found.trace.tags = "failed", ["late"]
    (back,) = parse_jsonl([json.dumps(otlp_documents.dump(found.trace)).encode()])
    assert back.late is not None
    assert (back.late.outcome, back.late.tags, back.late.steps) == ("failed", ["late"], [])


def test_the_bare_chat_has_only_what_services_take() -> None:
    step = Step("m0", "assistant", output=[Message("assistant", "ok")], sampling=EXACT)
    trace = Trace("a" * 32, [step], session_id="s", tools=[{"name": "f", "description": "", "parameters": {}}])
    assert openai_chat.dump(trace, bare=True) == {
        "messages": [{"role": "assistant", "content": "ok"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }


def test_nothing_of_a_step_is_forgotten() -> None:
    assert {*step_row(Step("", "other"))} == {item.name for item in fields(Step)} - {"raw"}
    assert {*trace_row(Trace(""))} == {item.name for item in fields(Trace)} - {"steps"}


ODD = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.none()) | st.just({"a": 1})


@settings(max_examples=100)
@given(st.data())
def test_a_tampered_export_is_read_or_refused(data: st.DataObject) -> None:
    step = Step("x1", "assistant", output=[Message("assistant", "ok", (ToolCall("a", "f", {}),))], sampling=EXACT)
    row = openai_chat.dump(Trace("a" * 32, [step], tags=["t"], outcome="failed"))
    place = data.draw(st.sampled_from(["whole", "steps", "set", "of"]))
    odd = data.draw(ODD)
    rest = row["flywheel"]
    if place == "whole":
        row["flywheel"] = odd
    elif place == "steps":
        rest["steps"] = odd
    elif place == "of":
        rest["steps"][0]["of"] = odd
    else:
        name = data.draw(st.sampled_from([*step_row(Step("", "other"))]))
        rest["steps"][0].setdefault("set", {})[name] = odd
    for found in parse_jsonl([json.dumps(row).encode()]):
        assert (found.trace is None) == bool(found.error)
