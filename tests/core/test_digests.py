"""JSON that is read strictly, and a content's identity."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.core.digests import canonical, digest, read_json, read_json_start, repeats_a_key

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)
TWICE = ['{"to": "a", "to": "b"}', '[{"x": {"n": 1, "n": 1}}]', '{"a": 1, "\\u0061": 2}']


@given(JSON)
def test_what_is_written_is_read_back(value: Any) -> None:
    text = canonical(value).decode()
    assert read_json(text) == value
    assert read_json_start(text + " and more") == (value, len(text))
    assert digest(value) == digest(json.loads(text))
    assert not repeats_a_key(f"Sure: {json.dumps(value)}")


@pytest.mark.parametrize("text", TWICE)
def test_an_object_that_has_a_key_twice_is_no_json(text: str) -> None:
    """A judge that reads the one value, and a tool that reads the other, do not see the same call."""
    with pytest.raises(ValueError, match=r"the key '(to|n|a)' stands twice in one object"):
        read_json(text)
    with pytest.raises(ValueError, match="twice"):
        read_json_start(text)
    assert repeats_a_key(text)
    assert repeats_a_key(f"I call <tool_call>{text}</tool_call> now {{")


@pytest.mark.parametrize("text", ["NaN", '{"a": Infinity}', "{", "", "nothing"])
def test_what_no_json_is_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no JSON|Expecting|property name"):
        read_json(text)


@pytest.mark.parametrize(
    "text", ["", "no braces", "{ {} { [", '{"a": 1} {"a": 2}', '{"a": {"b": 1}, "b": 2}', "x {a} {{b}} y"]
)
def test_equal_keys_of_two_objects_are_no_repetition(text: str) -> None:
    assert not repeats_a_key(text)


@pytest.mark.parametrize("text", ["{" * 200_000, '{"a": [' * 100_000, '{"a":"' * 50_000, '{"a":{},' * 50_000])
def test_hostile_text_is_searched_in_a_moment(text: str) -> None:
    repeats_a_key(text)
