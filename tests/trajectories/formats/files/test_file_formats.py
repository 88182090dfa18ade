"""Files of trajectories: ATIF, OpenAI chat, exported spans; good lines kept, bad lines named."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.core.traces import Trace
from flywheel.trajectories.formats.files.file_formats import FORMATS, parse_jsonl
from flywheel.trajectories.formats.values.hostile_json import FormatError
from tests.trajectories.formats.samples import WORKBENCH
from tests.trajectories.formats.sending import envelope, span


def lines(*rows: Any) -> list[bytes]:
    return [json.dumps(row).encode() for row in rows]


def read(row: dict[str, Any], format: str = "auto") -> Trace:
    (parsed,) = parse_jsonl(lines(row), format)
    assert parsed.trace is not None, parsed.error
    return parsed.trace


def refused(row: Any, format: str = "auto") -> str:
    (parsed,) = parse_jsonl(lines(row), format)
    assert parsed.trace is None
    return parsed.error


def atif(**fields: Any) -> dict[str, Any]:
    step = {
        "step_id": 2,
        "source": "agent",
        "timestamp": "2026-01-31T12:00:00Z",
        "message": "Looking.",
        "reasoning_content": "Where?",
        "tool_calls": [
            {"tool_call_id": "a", "function_name": "find", "arguments": {"q": 1}},
            {"tool_call_id": "b", "function_name": "open", "arguments": {}},
        ],
        "observation": {
            "results": [
                {"source_call_id": "b", "content": "opened"},
                {"source_call_id": "a", "content": [{"type": "text", "text": "none"}]},
            ]
        },
        "metrics": {"prompt_tokens": 10, "completion_tokens": 4, "cached_tokens": 2, "cost_usd": 0.01},
    }
    return {
        "schema_version": "ATIF-v1.7",
        "session_id": "s",
        "trajectory_id": "D694511639F9FE8E690BD77626DFA59A",
        "agent": {"name": "finder", "version": "3", "model_name": "m", "tool_definitions": [{"name": "find"}]},
        "steps": [{"step_id": 1, "source": "user", "message": "Find it"}, step],
        "notes": "n",
        "extra": {"error": "stopped", "domain": "files"},
        **fields,
    }


def openai(**fields: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}
    return {
        "messages": [
            {"role": "developer", "content": "Be brief"},
            {"role": "user", "content": [{"type": "text", "text": "Find it"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "none"},
            {"role": "assistant", "content": "There is none."},
        ],
        "tools": [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}],
        **fields,
    }


def test_atif_steps_calls_and_observations() -> None:
    trace = read(atif())
    assert [(step.span_id, step.kind) for step in trace.steps] == [
        ("step-1", "user"),
        ("step-2", "assistant"),
        ("step-2-obs-1", "tool"),
        ("step-2-obs-2", "tool"),
    ]
    call, opened, found = trace.steps[1:]
    assert [item.name for item in call.tool_calls()] == ["find", "open"]
    assert (call.tokens_in, call.tokens_out, call.tokens_cached, call.cost_usd, call.model) == (10, 4, 2, 0.01, "m")
    assert call.output[0].reasoning == "Where?"
    assert call.started_at is not None
    assert (opened.tool_name, opened.result, opened.parent_id) == ("open", "opened", "step-2")
    assert (found.tool_name, found.result, found.arguments) == ("find", "none", {"q": 1})
    assert [message.role for message in trace.conversation()] == ["user", "assistant", "tool", "tool"]


def test_atif_says_who_and_keeps_the_rest() -> None:
    trace = read(atif())
    assert (trace.trace_id, trace.agent, trace.version) == ("d694511639f9fe8e690bd77626dfa59a", "finder", "3")
    assert trace.tools[0]["name"] == "find"
    assert trace.metadata == {"error": "stopped", "domain": "files", "notes": "n", "schema_version": "ATIF-v1.7"}


@pytest.mark.parametrize("minor", range(9))
def test_atif_versions_1_0_to_1_8_are_read(minor: int) -> None:
    assert read(atif(schema_version=f"ATIF-v1.{minor}"))


def test_ids_that_are_not_hexadecimal_give_way_to_the_identity_of_the_content() -> None:
    first = read(atif(trajectory_id="run one"))
    again = read(atif(trajectory_id="run one"))
    other = read(atif(trajectory_id="run two"))
    assert first.trace_id == again.trace_id != other.trace_id
    assert len(first.trace_id) == 32
    assert read(openai(id="chatcmpl-1")).trace_id == read(openai(id="chatcmpl-1")).trace_id
    assert read(openai(id="0AF76519-16CD-43DD-8448-EB211C80319C")).trace_id == "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (atif(schema_version="ATIF-v2.0"), 'schema_version: "ATIF-v2.0" is not one of ATIF-v1.0 to ATIF-v1.8'),
        (atif(steps=[]), "steps: empty, expected at least one step"),
        (atif(steps="x"), 'steps: "x" is not a list'),
        (atif(steps=[1]), "steps[0]: 1 is not an object"),
        (atif(steps=[{"source": "user"}]), "steps[0].step_id: null is not a whole number"),
        (
            atif(steps=[{"step_id": 1, "source": "robot"}]),
            'steps[0].source: "robot" is not one of system, user, agent',
        ),
        (
            atif(steps=[{"step_id": 1, "source": "user"}, {"step_id": 1, "source": "user"}]),
            "steps[1].step_id: 1 stands there twice",
        ),
        (atif(steps=[{"step_id": 1, "source": "user", "message": 5}]), "steps[0].message: 5 is neither"),
        (
            atif(steps=[{"step_id": 1, "source": "agent", "tool_calls": [{}]}]),
            "steps[0].tool_calls[0].function_name: missing, a string",
        ),
        (atif(steps=[{"step_id": 1, "source": "user", "timestamp": "noon"}]), "steps[0].timestamp"),
        (
            atif(steps=[{"step_id": 1, "source": "agent", "metrics": {"prompt_tokens": -1}}]),
            "steps[0].metrics.prompt_tokens: -1 is not a whole number",
        ),
        (atif(agent=[]), "agent: [] is not an object"),
        (openai(messages=[]), "messages: empty"),
        (openai(messages=[{"role": "robot"}]), 'messages[0].role: "robot" is not one of system'),
        (openai(messages=[{"role": "user", "content": 3}]), "messages[0].content: 3 is neither"),
        (
            openai(messages=[{"role": "assistant", "tool_calls": [{"id": "x"}]}]),
            "messages[0].tool_calls[0].function.name: missing",
        ),
        (openai(metadata={"outcome": "good"}), 'metadata.outcome: "good" is not one of success, failed'),
        ({"hello": 1}, "no known format"),
        ([1], "the line is not a JSON object"),
    ],
)
def test_a_bad_line_names_the_field_and_what_would_be_right(row: Any, message: str) -> None:
    assert message in refused(row)


def test_openai_chat_becomes_a_step_a_message() -> None:
    trace = read(openai(metadata={"session_id": "s", "outcome": "failed", "tags": ["vip"], "plan": "pro"}))
    assert [step.kind for step in trace.steps] == ["system", "user", "assistant", "tool", "assistant"]
    tool = trace.steps[3]
    assert (tool.tool_name, tool.arguments, tool.result) == ("find", {"q": 1}, "none")
    assert [message.content for message in trace.conversation()] == [
        "Be brief",
        "Find it",
        "",
        "none",
        "There is none.",
    ]
    assert (trace.session_id, trace.outcome, trace.tags, trace.metadata) == ("s", "failed", ["vip"], {"plan": "pro"})
    assert trace.tools == [{"name": "find", "description": "", "parameters": {"type": "object"}}]


def test_arguments_that_are_not_json_stay_what_the_model_wrote() -> None:
    call = {"id": "c", "function": {"name": "find", "arguments": '{"q": '}}
    trace = read({"messages": [{"role": "assistant", "tool_calls": [call]}]})
    assert trace.steps[0].tool_calls()[0].arguments == '{"q": '


def test_exported_spans_are_read_line_by_line() -> None:
    body = envelope(span(), span(traceId="f" * 32), span(traceId="bad"))
    parsed = list(parse_jsonl([body]))
    assert [item.trace.trace_id for item in parsed if item.trace] == ["0af7651916cd43dd8448eb211c80319c", "f" * 32]
    assert parsed[2].error == 'span 2: span.traceId: "bad" is not 32 hex digits'


def test_good_lines_are_kept_beside_bad_ones_and_blank_ones_do_not_count() -> None:
    parsed = list(parse_jsonl([b"\xef\xbb\xbf" + lines(openai())[0], b"", b"{oops", b"\xff", *lines(atif())]))
    assert [(item.at, item.trace is not None) for item in parsed] == [
        ("line 1", True),
        ("line 3", False),
        ("line 4", False),
        ("line 5", True),
    ]
    assert "not valid JSON" in parsed[1].error
    assert "not UTF-8" in parsed[2].error


def test_pretty_printed_json_is_told_apart_from_a_broken_line() -> None:
    (first, *_) = parse_jsonl(json.dumps(openai(), indent=1).encode().splitlines())
    assert "expected one object a line" in first.error


def test_an_unknown_format_is_refused_at_once() -> None:
    with pytest.raises(FormatError, match="format: 'csv' is not one of auto, atif, otlp"):
        parse_jsonl([], "csv")


def test_a_named_format_is_not_guessed() -> None:
    assert "schema_version: missing" in refused(openai(), "atif")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_says_what_it_is(name: str) -> None:
    entry = FORMATS[name]
    assert entry.name == name
    assert entry.label
    assert entry.description


KEYS = st.sampled_from(
    [
        "schema_version",
        "steps",
        "step_id",
        "source",
        "message",
        "tool_calls",
        "observation",
        "results",
        "function_name",
        "arguments",
        "metrics",
        "agent",
        "messages",
        "role",
        "content",
        "function",
        "id",
        "extra",
        "tools",
        "name",
        "metadata",
        "tags",
    ]
)
WORDS = st.sampled_from(["ATIF-v1.8", "user", "agent", "assistant", "tool", "\ud800", "\x00", "[{"])
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=15,
)


@given(JSONS, st.sampled_from(["auto", *FORMATS]), st.sampled_from(["", "steps", "messages", "agent", "extra"]))
def test_any_json_is_a_trace_or_an_error(value: Any, format: str, place: str) -> None:
    if place:
        base = openai() if place == "messages" else atif()
        value = {**base, place: value}
    for parsed in parse_jsonl(lines(value), format):
        assert (parsed.trace is None) == bool(parsed.error)


@given(st.binary(max_size=100))
def test_any_line_is_a_trace_or_an_error(line: bytes) -> None:
    for parsed in parse_jsonl([line]):
        assert (parsed.trace is None) == bool(parsed.error)


@pytest.mark.skipif(not WORKBENCH.is_dir(), reason="the recorded runs are not here")
def test_recorded_runs_of_real_agents_are_all_read() -> None:
    counted = {}
    for path in sorted(WORKBENCH.glob("*.atif.jsonl")):
        with path.open("rb") as file:
            parsed = list(parse_jsonl(file))
        assert [item.error for item in parsed if item.error] == []
        counted[path.name.partition("-")[0]] = len(parsed)
        assert len({item.trace.trace_id for item in parsed if item.trace}) == len(parsed)
    assert counted == {"calendar": 110, "email": 90, "project_management": 80}
