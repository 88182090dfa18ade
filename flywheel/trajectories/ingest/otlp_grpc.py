"""OTLP over gRPC: the same receiver as `/v1/traces`, for exporters that speak nothing else.

A process of its own (`manage.py otlp_grpc`), because gunicorn speaks no HTTP/2. Its library is the extra `grpc`.

What the statuses mean to a client (OTLP specification): UNAVAILABLE, always with RetryInfo here, is sent again; every
other status is final, also RESOURCE_EXHAUSTED, which gRPC itself answers to a message that is too large.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
from django.conf import settings
from django.db import DataError, OperationalError, close_old_connections
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from flywheel.accounts.access import KeyRefused, bearer, check
from flywheel.accounts.models import ApiKey, Scope
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.ingest import otlp_http
from flywheel.trajectories.ingest.admission import Busy, Room, door, retry_after
from flywheel.trajectories.ingest.onboarding import refused_requests
from flywheel.trajectories.ingest.otlp_http import Receive
from flywheel.trajectories.store.batch_ledger import Sent

log = logging.getLogger(__name__)

THREADS = 8
"""Each has a database connection of its own; how many work at once is for `admission.door` to say. A message is read
only when a thread takes its call, so that those which wait cost little. gRPC's own limit of calls would answer them
with RESOURCE_EXHAUSTED, upon which clients drop what they have."""
STREAMS = 32
"""Calls of one connection at a time; a client keeps the others back."""
CODES = {401: grpc.StatusCode.UNAUTHENTICATED, 403: grpc.StatusCode.PERMISSION_DENIED, 503: grpc.StatusCode.UNAVAILABLE}
"""Every other refusal is of what was sent."""
COLLECTOR = "opentelemetry.proto.collector"


class PortInUse(Exception):
    """The address cannot be listened on."""


def serve(host: str, port: int) -> tuple[grpc.Server, int]:
    """Start a server; returns it and its port, which is a free one for 0. Raises PortInUse."""
    limit = settings.INGEST_MAX_BYTES
    server = grpc.server(
        ThreadPoolExecutor(THREADS, thread_name_prefix="otlp"),
        options=[
            ("grpc.max_receive_message_length", limit),
            ("grpc.max_concurrent_streams", STREAMS),
            ("grpc.so_reuseport", 0),
            # We decompress, as over HTTP: never to more than the limit, and what is kept is what came.
            ("grpc.per_message_decompression", 0),
        ],
    )
    server.add_generic_rpc_handlers(
        tuple(
            grpc.method_handlers_generic_handler(
                f"{COLLECTOR}.{service}", {"Export": grpc.unary_unary_rpc_method_handler(_export(receive))}
            )
            for service, receive in {
                "trace.v1.TraceService": otlp_http.receive,
                "logs.v1.LogsService": otlp_http.receive_logs,
                "metrics.v1.MetricsService": otlp_http.receive_metrics,
            }.items()
        )
    )
    try:
        bound = server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except RuntimeError as error:
        raise PortInUse(f"{host}:{port} cannot be listened on: {error}") from None
    server.start()
    return server, bound


def _export(receive: Receive) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    def export(message: bytes, context: grpc.ServicerContext) -> bytes:
        if not context.is_active():  # whoever waited for this has gone, and sends again
            return b""
        headers = {name: value for name, value in context.invocation_metadata() if isinstance(value, str)}
        close_old_connections()
        try:
            key, _ = check(bearer(headers.get("authorization", "")), Scope.INGEST)
            with door.room() as room:
                return _received(message, key, receive, room)
        except (KeyRefused, otlp_http.Refused) as refused:
            status, said = refused.status, str(refused)
        except DataError as error:
            log.exception("the database cannot hold what was sent by gRPC")
            status, said = 400, f"the database cannot hold this: {error}"
        except Busy:
            status, said = 503, "too many requests at once; send it again"
        except Exception as error:
            log.exception("what was sent by gRPC could not be stored")
            if not isinstance(error, OperationalError):
                refused_requests.note(503, f"it could not be stored: {type(error).__name__}", headers)
            status, said = 503, "not stored; send it again"
        finally:
            close_old_connections()
        if status != 503:
            refused_requests.note(status, said, headers)
        _refuse(context, CODES.get(status, grpc.StatusCode.INVALID_ARGUMENT), said)
        return b""

    return export


def _received(message: bytes, key: ApiKey, receive: Receive, room: Room) -> bytes:
    encoding = _encoding(message)
    room.take(len(message))
    body = otlp_http.decompress(message, encoding, settings.INGEST_MAX_BYTES, room) if encoding else message
    answer: bytes = receive(key.project, key, Sent(otlp_traces.PROTOBUF, encoding, message), body).SerializeToString()
    return answer


def _refuse(context: grpc.ServicerContext, code: grpc.StatusCode, said: str) -> None:
    """End the call with a status and its details; it raises, as gRPC's abort does."""
    status = Status(code=code.value[0], message=said)
    if code == grpc.StatusCode.UNAVAILABLE:
        status.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=retry_after())))
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, said)


def _encoding(message: bytes) -> str:
    """Name the compression of a message. No request begins as these do: 0x1f is no tag, and 0x78 would be field 15."""
    if message[:2] == b"\x1f\x8b":
        return "gzip"
    return "deflate" if message[:1] == b"\x78" else ""
