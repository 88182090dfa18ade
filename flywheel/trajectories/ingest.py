"""OTLP over HTTP: `POST /v1/traces`, protobuf and JSON, plain, gzip or deflate.

The contract (OTLP specification 1.x), which decides whether a sender keeps or drops what it has:

- 200 only after the transaction has committed. `partial_success` is set only when spans were rejected for good, or
  with 0 rejected to warn.
- 400, 401, 403, 411, 413, 415 are never sent again by a client; 503 with Retry-After is. Whatever goes wrong on our
  side is a 503, since a client answers a 500 by throwing its spans away.
- Error bodies are a `Status`, in the encoding of the request.
"""

import functools
import hashlib
import json
import logging
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from django.conf import settings
from django.db import DataError
from django.http import HttpRequest, HttpResponse
from django.http.request import UnreadablePostError
from django.views.decorators.csrf import csrf_exempt
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from flywheel.accounts.access import Declared, KeyRequest, key_required
from flywheel.accounts.models import Scope
from flywheel.trajectories.formats import FormatError, otlp
from flywheel.trajectories.models import Source
from flywheel.trajectories.store import store

log = logging.getLogger(__name__)

RETRY_AFTER_S = 5
CHUNK = 64 * 1024
GRPC_CODES = {400: 3, 401: 16, 403: 7, 405: 12, 411: 3, 413: 8, 415: 3, 503: 14}
MEDIA_TYPES = (otlp.PROTOBUF, "application/protobuf", otlp.JSON)
REASONS_TOLD = 5


class Refused(Exception):
    """The request cannot be taken; `status` says what the client is to make of it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def refuse(request: HttpRequest, status: int, message: str) -> HttpResponse:
    """A `google.rpc.Status` in the request's encoding."""
    code = GRPC_CODES[status]
    if _media_type(request) in MEDIA_TYPES[:2]:
        text = message.encode()
        body = b"\x08" + _varint(code) + b"\x12" + _varint(len(text)) + text
        response = HttpResponse(body, status=status, content_type=otlp.PROTOBUF)
    else:
        response = HttpResponse(json.dumps({"code": code, "message": message}), status=status, content_type=otlp.JSON)
    if status == 401:
        response["WWW-Authenticate"] = "Bearer"
    if status == 503:
        response["Retry-After"] = str(RETRY_AFTER_S)
    return response


def _receiver(view: Callable[[KeyRequest], HttpResponse]) -> Declared:
    """What every OTLP path does: POST with an ingest key; refusals in OTLP's words; never a 500."""
    admitted = key_required(Scope.INGEST, refuse)(view)

    @csrf_exempt
    @functools.wraps(admitted)
    def receive(request: HttpRequest) -> HttpResponse:
        if request.method != "POST":
            response = refuse(request, 405, "OTLP is sent by POST")
            response["Allow"] = "POST"
            return response
        try:
            return admitted(request)  # type: ignore[return-value]
        except Refused as refused:
            return refuse(request, refused.status, str(refused))
        except DataError as error:
            log.exception("the database cannot hold what %s was sent", request.path)
            return refuse(request, 400, f"the database cannot hold this: {error}")
        except Exception:
            # Also an error of ours: the client then sends again, and may meet a repaired server.
            log.exception("%s could not be stored", request.path)
            return refuse(request, 503, "not stored; send it again")

    return receive  # type: ignore[return-value]


@_receiver
def traces(request: KeyRequest) -> HttpResponse:
    """Store spans. Also those of a partly bad request: good siblings are kept, and the answer counts the others."""
    body = read_body(request)
    try:
        batch = otlp.parts(body, _media_type(request))
    except FormatError as error:
        raise Refused(400, str(error)) from None
    store(
        request.project,
        batch.traces,
        source=Source.PRODUCTION,
        format="otlp",
        sha256=hashlib.sha256(body).hexdigest(),
        key=request.key,
        problems=[{"at": f"span {item.index}", "reason": item.reason} for item in batch.rejected],
    )
    answer = ExportTraceServiceResponse()
    if batch.rejected or batch.warnings:
        answer.partial_success.rejected_spans = len(batch.rejected)
        answer.partial_success.error_message = _told(batch)
    return _answer(request, answer)


@_receiver
def accepted(request: KeyRequest) -> HttpResponse:
    """Logs and metrics: taken, so that an exporter of all three signals does not complain, and not kept."""
    read_body(request)
    return _answer(request, ExportTraceServiceResponse())


def read_body(request: HttpRequest) -> bytes:
    """The decompressed body, at most `INGEST_MAX_BYTES` before and after decompression. Raises Refused."""
    if _media_type(request) not in MEDIA_TYPES:
        raise Refused(415, f"Content-Type must be {otlp.PROTOBUF} or {otlp.JSON}")
    encoding = request.headers.get("Content-Encoding", "").strip().lower() or "identity"
    if encoding not in ("identity", "gzip", "deflate"):
        raise Refused(415, f"Content-Encoding {encoding[:40]!r} is not known: none, gzip and deflate are")
    limit = settings.INGEST_MAX_BYTES
    declared = request.headers.get("Content-Length", "")
    length = int(declared) if declared.isascii() and declared.isdigit() and len(declared) < 19 else 0
    if length > limit:
        raise _too_large()
    body = bytearray()
    for chunk in _chunks(request):
        body += chunk
        if len(body) > limit:
            raise _too_large()
    if len(body) < length:
        raise Refused(400, f"the body ended after {len(body)} of {length} bytes")
    return bytes(body) if encoding == "identity" else _decompress(bytes(body), encoding, limit)


def _chunks(request: HttpRequest) -> Iterator[bytes]:
    stream: Any = request
    if "chunked" in request.headers.get("Transfer-Encoding", "").lower():
        # Django reads nothing without a length; a server that says where the input ends may be read directly.
        if not request.META.get("wsgi.input_terminated"):
            raise Refused(411, "send a Content-Length")
        stream = request.META["wsgi.input"]
    try:
        while chunk := stream.read(CHUNK):
            yield chunk
    except UnreadablePostError:
        raise Refused(400, "the body ended before its length") from None


def _decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """Never makes more than `limit` bytes, however far a body would expand."""
    # Some senders of "deflate" leave the zlib header out.
    bits = 31 if encoding == "gzip" else 15 if body[:1] and body[0] & 0x0F == 8 else -15
    plain = bytearray()
    try:
        while body:
            member = zlib.decompressobj(bits)
            plain += member.decompress(body, limit + 1 - len(plain))
            if len(plain) > limit:
                raise _too_large()
            if not member.eof:
                raise Refused(400, f"the {encoding} body is cut off")
            body = member.unused_data
    except zlib.error as error:
        raise Refused(400, f"the body is not valid {encoding}: {error}") from None
    return bytes(plain)


def _too_large() -> Refused:
    return Refused(413, f"more than {settings.INGEST_MAX_BYTES // 1024 // 1024} MiB; send smaller batches")


def _told(batch: otlp.Batch) -> str:
    reasons = [f"span {item.index}: {item.reason}" for item in batch.rejected[:REASONS_TOLD]]
    if more := len(batch.rejected) - len(reasons):
        reasons.append(f"and {more} more")
    return "; ".join(reasons + batch.warnings[:REASONS_TOLD])[:2000]


def _answer(request: HttpRequest, message: ExportTraceServiceResponse) -> HttpResponse:
    if _media_type(request) == otlp.JSON:
        return HttpResponse(json.dumps(MessageToDict(message)), content_type=otlp.JSON)
    return HttpResponse(message.SerializeToString(), content_type=otlp.PROTOBUF)


def _media_type(request: HttpRequest) -> str:
    return (request.content_type or "").strip().lower()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
