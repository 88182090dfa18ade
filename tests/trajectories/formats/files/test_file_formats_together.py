"""Formats of other tools together: each is known, its ids are stable, and what is wrong has a place."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flywheel.trajectories.formats.files.file_formats import FORMATS
from tests.trajectories.formats.exports import OUTPUT, SPAN, TRACE, exchange, inference, observation, parsed
from tests.trajectories.formats.samples import FILES

EXAMPLES = {
    "openai-requests": exchange(),
    "responses": {"input": "Hi", "output": OUTPUT},
    "nemo-gym": {"responses_create_params": {"input": "Hi"}, "response": {"output": OUTPUT}, "reward": 1},
    "preferences": {"prompt": "Hi", "chosen": "a", "rejected": "b"},
    "verifiers": json.loads((FILES / "verifiers_episode.json").read_text()),
    "langfuse": TRACE,
    "phoenix": SPAN,
    "inspect": json.loads((FILES / "inspect.json").read_text()),
    "tensorzero": inference(),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_is_detected_and_no_other_claims_it_first(name: str) -> None:
    assert {item.format for item in parsed(EXAMPLES[name])} == {name}


@pytest.mark.parametrize("name", EXAMPLES)
def test_ids_are_the_same_every_time(name: str) -> None:
    one, two = ([item.trace.trace_id for item in parsed(EXAMPLES[name]) if item.trace] for _ in range(2))
    assert one == two
    assert len(set(one)) == len(one)
    assert all(len(trace_id) == 32 for trace_id in one)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (exchange(request={"messages": [{"role": "robot"}]}), 'request.messages[0].role: "robot" is not one of'),
        (exchange(request={"messages": [], "input": 1}, response={"choices": []}), "request.messages: empty"),
        ({"input": "x", "output": [{"type": "function_call"}]}, "output[0].name: missing, a string"),
        ({"responses_create_params": 1, "response": {}}, "responses_create_params: 1 is not an object"),
        ({"prompt": "x", "chosen": [{"role": "robot"}], "rejected": ""}, 'chosen[0].role: "robot" is not one of'),
        ({"nodes": [{"message": {"role": "robot"}}], "task": {}}, 'nodes[0].message.role: "robot" is not one of'),
        ({"prompt": [], "completion": [], "reward": 1}, "completion: empty"),
        (observation(traceId=5), "traceId: 5 is not a string"),
        ({**SPAN, "start_time": "noon"}, 'start_time: "noon" is not a time'),
        ({**SPAN, "context": {"trace_id": "x", "span_id": "y"}}, 'span.traceId: "x" is not 32 hex digits'),
        (inference(input="[]"), "input: expected an object with messages"),
        ({"eval": {}, "status": "success"}, "samples: missing, a list"),
        ({"eval": {}, "samples": [{"messages": 5}]}, "samples[0].messages: 5 is not a list"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(row: Any, message: str) -> None:
    (found,) = parsed(row)
    assert found.trace is None
    assert message in found.error


def holes(value: Any) -> list[tuple[Any, ...]]:
    """The paths of everything in a JSON value."""
    if isinstance(value, dict):
        return [(), *((key, *rest) for key, item in value.items() for rest in holes(item))]
    if isinstance(value, list):
        return [(), *((index, *rest) for index, item in enumerate(value) for rest in holes(item))]
    return [()]


def put(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    if not path:
        return odd
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], odd)
    return copy


PLACES = [(name, path) for name, row in EXAMPLES.items() for path in holes(row)]

ODD: list[Any] = [None, True, -1, 2**70, 1.5, "", "x", "\x00", "\ud800", [], [1], [[]], {}, {"a": None}, [{}], [None]]


@settings(max_examples=150)
@given(st.sampled_from(PLACES), st.sampled_from(ODD), st.booleans())
@example(("langfuse", ("scores", 0, "value")), [], False)
def test_anything_anywhere_is_a_trace_or_an_error(place: tuple[str, Any], odd: Any, is_named: bool) -> None:
    name, path = place
    row = put(EXAMPLES[name], path, odd)
    for found in parsed(row, name if is_named else "auto"):
        assert (found.trace is None and found.note is None) == bool(found.error)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "otlp"])
def test_an_empty_object_is_refused_by_every_format(name: str) -> None:
    (found,) = parsed({}, name)
    assert found.error
