"""Parts of a file: whatever is asked, what is sent is that part of it, or all of it, and says so."""

import io
from typing import Any

import pytest
from django.http import FileResponse
from django.test import RequestFactory
from hypothesis import given
from hypothesis import strategies as st

from flywheel.agents.weights.partial_downloads import partial

STRONG = '"one"'
NUMBERS = st.integers(0, 60)


def sent(content: bytes, etag: str = STRONG, **asked: str) -> tuple[int, bytes, str]:
    """Status, content and `Content-Range` of the answer; its length is what it says."""
    whole = FileResponse(io.BytesIO(content), as_attachment=True, filename="a.bin", headers={"ETag": etag})
    answer: Any = partial(RequestFactory().get("/", headers=asked), whole)
    body = b"".join(answer)
    if answer.status_code != 416:
        assert answer["Content-Length"] == str(len(body))
        assert (answer["ETag"], answer["Accept-Ranges"]) == (etag, "bytes")
        assert answer["Content-Disposition"] == 'attachment; filename="a.bin"'
    return answer.status_code, body, answer.get("Content-Range", "")


@given(st.binary(max_size=50), NUMBERS, st.one_of(st.none(), NUMBERS))
def test_a_range_is_that_part_of_the_file(content: bytes, first: int, last: int | None) -> None:
    status, body, told = sent(content, Range=f"bytes={first}-{'' if last is None else last}")
    if last is not None and last < first:
        assert (status, body, told) == (200, content, "")
    elif first >= len(content):
        assert (status, body, told) == (416, b"", f"bytes */{len(content)}")
    else:
        part = content[first:] if last is None else content[first : last + 1]
        assert (status, body) == (206, part)
        assert told == f"bytes {first}-{first + len(part) - 1}/{len(content)}"


@given(st.binary(max_size=50), NUMBERS)
def test_a_suffix_is_the_end_of_the_file(content: bytes, length: int) -> None:
    status, body, _ = sent(content, Range=f"bytes=-{length}")
    is_there = length > 0 and content != b""
    assert (status, body) == ((206, content[-length:]) if is_there else (416, b""))


@given(st.binary(min_size=1, max_size=50), NUMBERS)
def test_a_download_that_broke_off_goes_on(content: bytes, at: int) -> None:
    at %= len(content)
    status, rest, _ = sent(content, Range=f"bytes={at}-", **{"If-Range": STRONG})
    assert (status, content[:at] + rest) == (206, content)


@pytest.mark.parametrize(
    "asked", ["", "bytes=-", "bytes=0-1,3-4", "lines=0-1", "bytes=+0-1", "bytes=٠-", "bytes=" + "9" * 5000 + "-"]
)
def test_what_is_no_range_is_ignored(asked: str) -> None:
    assert sent(b"content", Range=asked) == (200, b"content", "")


@pytest.mark.parametrize(
    ("condition", "etag"), [('"two"', STRONG), ("W/x", "W/x"), ("Fri, 27 Nov 2026 20:00:00 GMT", STRONG)]
)
def test_a_part_of_another_state_of_the_file_is_not_sent(condition: str, etag: str) -> None:
    assert sent(b"content", etag, Range="bytes=3-", **{"If-Range": condition}) == (200, b"content", "")
