"""Several values of JSON in one file: where each ends, whatever stands in it."""

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.trajectories.formats.files.json_values import json_values
from tests.trajectories.formats.exports import chat, first_messages, of_bytes


@settings(max_examples=60)
@given(
    st.lists(
        st.recursive(st.text() | st.floats(allow_nan=False), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
    ),
    st.integers(1, 9),
)
def test_a_list_is_cut_into_its_values_wherever_the_pieces_end(values: list[Any], size: int) -> None:
    rows = [{"value": value} for value in values]

    class Slow(io.BytesIO):
        def read(self, wanted: int | None = -1) -> bytes:
            return super().read(size)

    text = json.dumps(rows, indent=1).encode()
    assert [item.value for item in json_values(Slow(text))] == rows


@pytest.mark.parametrize(
    ("content", "kept", "told"),
    [
        (b"[" + json.dumps(chat("one")).encode() + b",", 1, "the file ends before the list does"),
        (b"[" + json.dumps(chat("one")).encode() + b', {"messages": [', 1, "the file ends in the middle of it"),
        (b"[" + json.dumps(chat("one")).encode() + b", {broken}]", 1, "not valid JSON"),
        (b'[{"a": "', 0, "the file ends in the middle of it"),
        (b"[]]", 0, ""),
    ],
)
def test_what_is_cut_off_is_told_and_the_rest_is_kept(content: bytes, kept: int, told: str) -> None:
    found = of_bytes(content)
    assert len(first_messages(found)) == kept
    assert told in " ".join(item.error for item in found)
