"""What a file may be made of, and files that want to do harm."""

import gzip
import io
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.trajectories.formats.files import file_limits
from flywheel.trajectories.formats.files.file_formats import parse_file
from flywheel.trajectories.formats.files.file_limits import Bounds, TooMuch
from flywheel.trajectories.formats.values.hostile_json import FormatError
from tests.trajectories.formats.exports import chat, first_messages, of_bytes

ROWS = [chat("one"), chat("two {[\"'"), chat("three\n}]")]


@pytest.mark.parametrize(
    "content",
    [
        "\n".join(json.dumps(row) for row in ROWS),
        "\r\n\r\n".join(json.dumps(row) for row in ROWS) + "\n",
        "\ufeff" + "\n".join(json.dumps(row) for row in ROWS),
        json.dumps(ROWS),
        json.dumps(ROWS, indent=2),
        "\n".join(json.dumps(row, indent=4) for row in ROWS),
        "[\n" + ",\n".join(json.dumps(row) for row in ROWS) + "\n]\n",
    ],
)
@pytest.mark.parametrize("is_compressed", [False, True])
def test_json_is_read_however_it_is_laid_out(content: str, is_compressed: bool) -> None:
    body = gzip.compress(content.encode()) if is_compressed else content.encode()
    found = of_bytes(body)
    assert [item.error for item in found if item.error] == []
    assert first_messages(found) == ["one", "two {[\"'", "three\n}]"]


def test_a_gzip_stream_that_is_cut_off_is_refused() -> None:
    with pytest.raises(FormatError, match="gzip"):
        of_bytes(gzip.compress(json.dumps(ROWS).encode())[:-20])


def test_one_value_may_not_be_larger_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_limits, "VALUE_MAX", 1000)
    monkeypatch.setattr(file_limits, "CHUNK", 100)
    long = json.dumps(chat("x" * 2000))
    found = of_bytes(f"{json.dumps(chat('one'))}\n{long}\n{json.dumps(chat('two'))}\n".encode())
    assert first_messages(found) == ["one", "two"]
    assert [item.error for item in found if item.error] == ["longer than 0 MiB"]
    assert "one JSON value of more than" in of_bytes(json.dumps([chat("x" * 5000)]).encode())[0].error


def test_a_gzip_bomb_stops_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_limits, "UNPACKED_MAX", 10_000_000)
    with pytest.raises(FormatError, match="unpacks to more than"):
        of_bytes(gzip.compress(b"\n" * 50_000_000))


@pytest.mark.parametrize("content", [b"\n".join(json.dumps(row).encode() for row in ROWS), json.dumps(ROWS).encode()])
def test_no_more_values_are_read_than_the_bounds_say(content: bytes) -> None:
    found = parse_file(io.BytesIO(content), bounds=Bounds(values=2))
    assert first_messages([next(found), next(found)]) == ["one", "two {[\"'"]
    with pytest.raises(TooMuch, match="more than that; at most 2 lines, rows or samples"):
        next(found)


@pytest.mark.parametrize("content", [json.dumps(ROWS).encode(), b"\n" * 100, b"question\tanswer\n" + b"\n" * 100])
def test_reading_ends_with_its_time_even_where_nothing_stands(content: bytes) -> None:
    with pytest.raises(TooMuch, match=r"longer than 0\.5 s"):
        list(parse_file(io.BytesIO(content), bounds=Bounds(seconds=0.5, begun=time.monotonic() - 1)))


@settings(max_examples=100)
@given(st.binary(max_size=200), st.sampled_from([b"", b"PK\x03\x04", b"PAR1", b"\x1f\x8b\x08", b"[", b"{", b"a,b\n"]))
def test_any_bytes_are_read_or_refused(content: bytes, magic: bytes) -> None:
    try:
        found = of_bytes(magic + content)
    except FormatError:
        return
    for item in found:
        assert (item.trace is None) == bool(item.error)
