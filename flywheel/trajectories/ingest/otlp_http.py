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
from django.db import DataError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.http.request import UnreadablePostError
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from gunicorn.http.errors import ParseException
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from flywheel.accounts.access import Declared, KeyRefused, KeyRequest, bearer, key_required
from flywheel.accounts.models import ApiKey, Project, Scope
from flywheel.agents.models import AttemptKey
from flywheel.edge.numbers import BIGINT, number
from flywheel.system.sql import give_back
from flywheel.trajectories.formats.otlp import otlp_logs, otlp_metrics, otlp_protobuf
from flywheel.trajectories.formats.otlp.spans import Decoded
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.formats.values.hostile_json import FormatError
from flywheel.trajectories.ingest import attempt_spans
from flywheel.trajectories.ingest.admission import Busy, Room, door, let_go, retry_after, watch
from flywheel.trajectories.ingest.onboarding import refused_requests
from flywheel.trajectories.models import Batch, Source
from flywheel.trajectories.store.batch_ledger import Origin, Problem, Sent
from flywheel.trajectories.store.log_events import store_logs
from flywheel.trajectories.store.merge import store, turns

log = logging.getLogger(__name__)

CHUNK = 64 * 1024
GROWTH = 256 * 1024
"""Bytes that a body is decompressed by at a time, before there has to be room for them."""
MEMBERS = 1000
"""Parts of one gzip body; some senders compress each piece on its own."""
GRPC_CODES = {400: 3, 401: 16, 403: 7, 404: 5, 405: 12, 411: 3, 413: 8, 415: 3, 503: 14}
MEDIA_TYPES = (otlp_traces.PROTOBUF, "application/protobuf", otlp_traces.JSON)
REASONS_TOLD = 5

Receive = Callable[[Project, ApiKey, Sent, bytes], Message]
"""Stores what was sent, whichever way it came; the bytes are the decompressed body. Raises Refused, Busy."""


class Refused(Exception):
    """The request cannot be taken; `status` says what the client is to make of it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def refuse(request: HttpRequest, status: int, message: str) -> HttpResponse:
    """A `google.rpc.Status` in the request's encoding."""
    if status not in (405, 503):
        refused_requests.note(status, message, request.headers)
    code = GRPC_CODES[status]
    if _media_type(request) in MEDIA_TYPES[:2]:
        body = bytes([0x08, code]) + otlp_protobuf.message(2, message.encode())
        response = HttpResponse(body, status=status, content_type=otlp_traces.PROTOBUF)
    else:
        response = HttpResponse(
            json.dumps({"code": code, "message": message}), status=status, content_type=otlp_traces.JSON
        )
    if status == 401:
        response["WWW-Authenticate"] = "Bearer"
    if status == 503:
        response["Retry-After"] = str(retry_after())
    return response


def _receiver(receive: Receive, *, of_attempts: bool = False) -> Declared:
    """Guard an OTLP path: POST with an ingest key, or with that of an attempt too; refusals in OTLP's words; never a
    500."""

    @key_required(Scope.INGEST, refuse)
    def of_project(request: KeyRequest) -> HttpResponse:
        with door.room() as room:
            return _received(request, receive, room)

    def admitted(request: HttpRequest) -> HttpResponseBase:
        try:
            token = bearer(request.headers.get("Authorization", ""))
            key = attempt_spans.key_of(token) if of_attempts else None
        except KeyRefused as refused:
            return refuse(request, refused.status, str(refused))
        if key is None:
            return of_project(request)
        with door.room() as room:
            return _of_attempt(request, key, room)

    @csrf_exempt
    @functools.wraps(of_project)
    def answer(request: HttpRequest) -> HttpResponse:
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
            response = refuse(request, 400, f"the database cannot hold this: {error}")
        except Busy:
            return refuse(request, 503, "too many requests at once; send it again")
        except Exception as error:
            # Also an error of ours: the client then sends again, and may meet a repaired server.
            log.exception("%s could not be stored", request.path)
            if not isinstance(error, OperationalError):
                refused_requests.note(503, f"it could not be stored: {type(error).__name__}", request.headers)
            response = refuse(request, 503, "not stored; send it again")
        let_go()  # an error of the database and its frames hold each other, and all that was sent
        return response

    return answer  # type: ignore[return-value]


def _received(request: KeyRequest, receive: Receive, room: Room) -> HttpResponse:
    """In a frame of its own: the body is gone with it, before its room is given back."""
    sent, body = read_body(request, room)
    return _answer(request, receive(request.project, request.key, sent, body))


def receive(project: Project, key: ApiKey, sent: Sent, body: bytes) -> ExportTraceServiceResponse:
    """Store spans. Also those of a partly bad request: good siblings are kept, and the answer counts the others."""
    with door.admit():
        batch = take(project, key, sent, body)
    answer = ExportTraceServiceResponse()
    if batch.rejected or batch.warnings:
        answer.partial_success.rejected_spans = batch.rejected
        answer.partial_success.error_message = rejection_text(batch)
    return answer


def take(project: Project, key: ApiKey, sent: Sent, body: bytes) -> Batch:
    """Store the spans of a request; `body` is decompressed. Raises Refused."""
    with turns.coming():
        try:
            decoded = otlp_traces.decode(body, sent.media_type)
        except FormatError as error:
            raise Refused(400, str(error)) from None
        sent.rest = body if decoded.says_more else b""
        spans, problems = attempt_spans.set_aside(project, decoded.spans)
        is_whole = len(spans) == len(decoded.spans)
        return store(
            project,
            spans,
            source=Source.PRODUCTION,
            format="otlp",
            # A body that holds more than production is not kept, or it would be read again as production.
            origin=Origin(key=key, sha256=hashlib.sha256(body).hexdigest(), sent=sent if is_whole else None),
            problems=[*_rejections(decoded), *problems],
            shared=True,
        )


def _of_attempt(request: HttpRequest, key: AttemptKey, room: Room) -> HttpResponse:
    """Keep spans that an attempt's own key brings."""
    sent, body = read_body(request, room)
    with door.admit():
        try:
            decoded = otlp_traces.decode(body, sent.media_type)
        except FormatError as error:
            raise Refused(400, str(error)) from None
        problems = [*_rejections(decoded), *attempt_spans.keep(key, decoded.spans)]
    answer = ExportTraceServiceResponse()
    if problems:
        answer.partial_success.rejected_spans = len(problems)
        told = [f"{problem.at}: {problem.reason}" for problem in problems[:REASONS_TOLD]]
        answer.partial_success.error_message = "; ".join(told)[:2000]
    return _answer(request, answer)


def _rejections(decoded: Decoded) -> list[Problem]:
    return [Problem(f"span {item.index}", item.reason, item.content) for item in decoded.rejected]


def receive_logs(project: Project, key: ApiKey, sent: Sent, body: bytes) -> ExportLogsServiceResponse:
    """Keep the log records that carry the content of spans, and take the others without keeping them."""
    with door.admit():
        try:
            decoded = otlp_logs.decode(body, sent.media_type)
        except FormatError as error:
            raise Refused(400, str(error)) from None
        batch = store_logs(project, decoded, sha256=hashlib.sha256(body).hexdigest(), key=key)
    answer = ExportLogsServiceResponse()
    if batch is not None and (batch.rejected or batch.warnings):
        answer.partial_success.rejected_log_records = batch.rejected
        answer.partial_success.error_message = rejection_text(batch)
    return answer


def receive_metrics(project: Project, key: ApiKey, sent: Sent, body: bytes) -> ExportMetricsServiceResponse:
    """Take metrics, so that an exporter of all three signals does not complain, and keep none."""
    with door.admit():
        try:
            otlp_metrics.check(body, sent.media_type)
        except FormatError as error:
            raise Refused(400, str(error)) from None
    return ExportMetricsServiceResponse()


traces, logs, metrics = _receiver(receive, of_attempts=True), _receiver(receive_logs), _receiver(receive_metrics)


def read_body(request: HttpRequest, room: Room) -> tuple[Sent, bytes]:
    """Return the request as sent, and its body decompressed; each at most `INGEST_MAX_BYTES`. Raises Refused, Busy."""
    give_back()
    if _media_type(request) not in MEDIA_TYPES:
        given = repr(_media_type(request)[:60]) if request.content_type else "missing"
        raise Refused(415, f"Content-Type is {given} and must be {otlp_traces.PROTOBUF} or {otlp_traces.JSON}")
    encoding = request.headers.get("Content-Encoding", "").strip().lower() or "identity"
    if encoding not in ("identity", "gzip", "deflate"):
        raise Refused(415, f"Content-Encoding {encoding[:40]!r} is not known: none, gzip and deflate are")
    sent = Sent(_media_type(request), "" if encoding == "identity" else encoding, _as_it_came(request, room))
    if not sent.encoding:
        return sent, sent.body
    return sent, decompress(sent.body, encoding, settings.INGEST_MAX_BYTES, room)


def _as_it_came(request: HttpRequest, room: Room) -> bytes:
    limit = settings.INGEST_MAX_BYTES
    length = number(request.headers.get("Content-Length", ""), most=BIGINT) or 0
    if length > limit:
        raise _too_large()
    body = bytearray()
    for chunk in _chunks(request):
        room.take(len(chunk))
        body += chunk
        if len(body) > limit:
            raise _too_large()
    if watch.has_cut(request.META.get("gunicorn.socket")):
        raise Refused(503, "the body came too slowly; send it again")
    if len(body) < length:
        raise Refused(400, f"the body ended after {len(body)} of {length} bytes")
    return bytes(body)


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
    except (UnreadablePostError, OSError, ParseException):
        if watch.has_cut(request.META.get("gunicorn.socket")):
            raise Refused(503, "the body came too slowly; send it again") from None
        raise Refused(400, "the body ended before its end") from None


def decompress(body: bytes, encoding: str, limit: int, room: Room | None = None) -> bytes:
    """Never makes more than `limit` bytes, however far a body would expand. Raises Refused, and Busy without room."""
    # Some senders of "deflate" leave the zlib header out.
    bits = 31 if encoding == "gzip" else 15 if body[:1] and body[0] & 0x0F == 8 else -15
    plain, at, members = bytearray(), 0, 0
    try:
        while at < len(body):
            members += 1
            if members > MEMBERS:
                raise Refused(400, f"the {encoding} body has more than {MEMBERS} parts")
            member = zlib.decompressobj(bits)
            while not member.eof:
                # In pieces, since each part gives back a copy of all that follows it in its piece.
                piece = body[at : at + CHUNK]
                made = member.decompress(piece, min(GROWTH, limit + 1 - len(plain)))
                if not piece and not made:
                    raise Refused(400, f"the {encoding} body is cut off")
                if room is not None:
                    room.take(len(made))
                plain += made
                if len(plain) > limit:
                    raise _too_large()
                at += len(piece) - len(member.unused_data) - len(member.unconsumed_tail)
    except zlib.error as error:
        raise Refused(400, f"the body is not valid {encoding}: {error}") from None
    return bytes(plain)


def _too_large() -> Refused:
    return Refused(413, f"more than {settings.INGEST_MAX_BYTES // 1024 // 1024} MiB; send smaller batches")


def rejection_text(batch: Batch) -> str:
    reasons = [f"{item['at']}: {item['reason']}" for item in batch.problems[:REASONS_TOLD]]
    if more := batch.rejected - len(reasons):
        reasons.append(f"and {more} more")
    return "; ".join(reasons + batch.warnings[:REASONS_TOLD])[:2000]


def _answer(request: HttpRequest, message: Message) -> HttpResponse:
    if _media_type(request) == otlp_traces.JSON:
        return HttpResponse(json.dumps(MessageToDict(message)), content_type=otlp_traces.JSON)
    return HttpResponse(message.SerializeToString(), content_type=otlp_traces.PROTOBUF)


def _media_type(request: HttpRequest) -> str:
    return (request.content_type or "").strip().lower()
