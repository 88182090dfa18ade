"""Files as downloads: not sent again to who has them, or in part to who goes on where one broke off (RFC 9110)."""

import re
from http import HTTPStatus
from typing import IO, Any

from django.http import FileResponse, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import get_conditional_response
from whitenoise.responders import SlicedFile

from flywheel.system.sql import give_back

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
"""One range. A list of several is answered by the whole file, as any server may."""


def settled_answer(request: HttpRequest, etag: str) -> HttpResponseBase | None:
    """304, or 412, for a client that has this state of a file, or wants only another; None where it is to be sent."""
    settled: HttpResponseBase | None = get_conditional_response(request, etag=etag)
    if settled is not None:
        settled.headers["ETag"] = etag
    return settled


def attachment(
    request: HttpRequest, content: IO[bytes] | Any, *, filename: str, etag: str, content_type: str
) -> HttpResponseBase:
    """The file as an attachment, streamed, whole or in the part that is asked for. It closes the content."""
    give_back()  # a download may be slow, and there are more threads than connections
    headers = {"ETag": etag}
    whole = FileResponse(content, as_attachment=True, filename=filename, content_type=content_type, headers=headers)
    return partial(request, whole)


def partial(request: HttpRequest, whole: FileResponse) -> HttpResponseBase:
    """The range that the request asks of this response, which has a length and an ETag: 206, or 416 for one beyond the
    file's end. The whole response where none is asked for, or where it is of another state of the file than `If-Range`
    names: only a strong ETag tells that two parts fit together."""
    whole.headers["Accept-Ranges"] = "bytes"
    size = int(whole.headers["Content-Length"])
    condition = request.headers.get("If-Range")
    if condition is not None and (condition != whole.headers["ETag"] or condition.startswith("W/")):
        return whole
    found = range_of(request.headers.get("Range", ""), size)
    if found is None:
        return whole
    file = whole.file_to_stream
    assert file is not None
    if not found:
        file.close()
        beyond = HttpResponse(status=HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
        beyond.headers["Content-Range"] = f"bytes */{size}"
        return beyond
    headers = {**whole.headers, "Content-Length": str(len(found))}
    headers["Content-Range"] = f"bytes {found.start}-{found.stop - 1}/{size}"
    return FileResponse(
        SlicedFile(file, found.start, found.stop - 1), status=HTTPStatus.PARTIAL_CONTENT, headers=headers
    )


def range_of(asked: str, size: int) -> range | None:
    """The bytes that a `Range` header means of a file of so many; empty if it has none of them, None if the header is
    to be ignored."""
    match = _RANGE.fullmatch(asked.strip())
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        return range(max(0, size - int(last)), size)
    if last and int(last) < int(first):
        return None
    return range(int(first), min(size, int(last) + 1) if last else size)
