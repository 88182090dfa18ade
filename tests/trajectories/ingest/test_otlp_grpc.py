"""OTLP over gRPC, by the process that people start, with the exporter that people have."""

import gzip
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import OperationalError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from flywheel.accounts.models import ApiKey
from flywheel.trajectories.ingest import otlp_grpc, otlp_http
from flywheel.trajectories.ingest.admission import Door
from flywheel.trajectories.ingest.otlp_http import Receive
from flywheel.trajectories.models import Attempt, Batch, Body, Trajectory
from tests.conftest import Cast
from tests.trajectories.talking import TRACE, body_of, episode, span
from tests.waiting import PATIENCE_S
from tests.worker import database_url

ROOT = Path(__file__).resolve().parents[3]
TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
LOGS = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
METRICS = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"


@dataclass
class Receiver:
    """The process, and a client that sends it bytes."""

    process: "subprocess.Popen[str]"
    port: int

    def send(self, path: str, body: bytes, key: dict[str, str], **more: Any) -> bytes:
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            call = channel.unary_unary(path, _registered_method=False)
            answer: bytes = call(body, metadata=tuple(key.items()), timeout=PATIENCE_S, **more)
            return answer


@pytest.fixture
def receiver(transactional_db: None) -> Iterator[Receiver]:
    process = subprocess.Popen(
        [sys.executable, "manage.py", "otlp_grpc", "--port", "0"],
        cwd=ROOT,
        env={**os.environ, "FLYWHEEL_HOME": str(settings.HOME), "DATABASE_URL": database_url()},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    try:
        yield Receiver(process, int(said.rpartition(":")[2]))
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0, "it ends by SIGTERM"
        process.stdout.close()


def test_the_process_takes_what_exporters_send(receiver: Receiver, cast: Cast, key: Callable[..., Any]) -> None:
    """One process for all of it: a test of its own for each would start one each."""
    headers = key("ingest")

    exporter = OTLPSpanExporter(
        endpoint=f"http://127.0.0.1:{receiver.port}",
        headers=tuple(headers.items()),
        compression=grpc.Compression.Gzip,
        insecure=True,
    )
    provider = TracerProvider(resource=Resource.create({"service.name": "mail-agent"}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("invoke_agent"), tracer.start_as_current_span("chat") as chat:
        chat.set_attribute("gen_ai.operation.name", "chat")
    assert provider.force_flush()
    provider.shutdown()
    row = Trajectory.objects.get()
    assert (row.project, row.step_count, row.agent_name) == (cast.project, 2, "mail-agent")
    assert Body.objects.get().encoding == "gzip"

    bad = span(7)
    bad.trace_id = b"short"
    answer = ExportTraceServiceResponse.FromString(receiver.send(TRACES, body_of([*episode(), bad]), headers))
    assert answer.partial_success.rejected_spans == 1
    assert "span 6" in answer.partial_success.error_message
    assert Trajectory.objects.get(trace_id=TRACE).step_count == 6

    packed = receiver.send(TRACES, body_of(episode()), headers, compression=grpc.Compression.Deflate)
    assert packed == b""
    assert Batch.objects.latest("pk").duplicate == 6

    for path in (TRACES, LOGS, METRICS):
        assert receiver.send(path, b"", headers) == b""

    out, text = io.StringIO(), headers["authorization"].removeprefix("Bearer ")
    call_command("send_test_trace", stdout=out, key=text, endpoint=f"127.0.0.1:{receiver.port}", protocol="grpc")
    assert "answered: OK and nothing was rejected" in out.getvalue()
    assert ApiKey.objects.get().revoked_at is None, "a key that was given is left alone"

    with pytest.raises(grpc.RpcError) as refused:
        receiver.send(TRACES, body_of(episode()), {"authorization": "Bearer fw_000000000000_x"})
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert Attempt.objects.get().project is None

    with pytest.raises(grpc.RpcError) as refused:
        receiver.send(TRACES, b"\x0a" * (settings.INGEST_MAX_BYTES + 1), headers)
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


class Context:
    """What gRPC hands a call, and what the call made of it."""

    def __init__(self, headers: dict[str, str], is_active: bool = True) -> None:
        self.headers, self._is_active = headers, is_active
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self.trailing: dict[str, bytes] = {}

    def is_active(self) -> bool:
        return self._is_active

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return (*self.headers.items(), ("trace-bin", b"\x00"))

    def set_trailing_metadata(self, pairs: tuple[tuple[str, bytes], ...]) -> None:
        self.trailing = dict(pairs)

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.code, self.details = code, details

    @property
    def delay(self) -> int | None:
        """Seconds to wait before the next try; None where there is to be none."""
        status = Status.FromString(self.trailing["grpc-status-details-bin"])
        assert self.code is not None
        assert (status.code, status.message) == (self.code.value[0], self.details)
        for detail in status.details:
            info = RetryInfo()
            if detail.Unpack(info):
                return int(info.retry_delay.seconds)
        return None


def call(context: Context, body: bytes, receive: Receive = otlp_http.receive) -> Context:
    # The test's connection is in a transaction, which must not end here.
    with mock.patch("flywheel.trajectories.ingest.otlp_grpc.close_old_connections"):
        otlp_grpc._export(receive)(body, context)
    return context


def test_a_key_that_may_not_send(key: Callable[..., Any]) -> None:
    context = call(Context(key("read")), body_of(episode()))
    assert (context.code, context.delay) == (grpc.StatusCode.PERMISSION_DENIED, None)
    assert "no scope 'ingest'" in context.details
    assert Attempt.objects.get().status == 403


@pytest.mark.parametrize("headers", [{}, {"authorization": "Basic eDp5"}, {"authorization": "Bearer fw_a_b"}])
@pytest.mark.django_db
def test_no_key(headers: dict[str, str]) -> None:
    context = call(Context(headers), body_of(episode()))
    assert (context.code, context.delay) == (grpc.StatusCode.UNAUTHENTICATED, None)


@pytest.mark.parametrize("body", [b"\xff\xff\xff", b"\x1f\x8b\x08cut", gzip.compress(b"\x0a" * 100, mtime=0)[:-12]])
def test_what_cannot_be_read_is_final(key: Callable[..., Any], body: bytes) -> None:
    context = call(Context(key("ingest")), body)
    assert (context.code, context.delay) == (grpc.StatusCode.INVALID_ARGUMENT, None)


@pytest.mark.parametrize("body", [b"garbage", body_of(episode())])
def test_what_is_no_metrics_is_final(key: Callable[..., Any], body: bytes) -> None:
    context = call(Context(key("ingest")), body, otlp_http.receive_metrics)
    assert (context.code, context.delay) == (grpc.StatusCode.INVALID_ARGUMENT, None)


def test_who_finds_no_room_is_told_to_come_back(key: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    small = Door(budget=1000)
    monkeypatch.setattr(otlp_grpc, "door", small)
    with small.room() as room:
        room.take(1000)
        context = call(Context(key("ingest")), gzip.compress(body_of(episode())))
    assert context.code == grpc.StatusCode.UNAVAILABLE
    assert context.delay


def test_a_bomb_is_not_unpacked(key: Callable[..., Any]) -> None:
    context = call(Context(key("ingest")), gzip.compress(bytes(settings.INGEST_MAX_BYTES + 1)))
    assert (context.code, context.delay) == (grpc.StatusCode.INVALID_ARGUMENT, None)
    assert "20 MiB" in context.details


@pytest.mark.parametrize("trouble", [OperationalError("gone"), RuntimeError("ours")])
def test_trouble_on_our_side_is_sent_again(key: Callable[..., Any], trouble: Exception) -> None:
    with mock.patch("flywheel.trajectories.ingest.otlp_http.store", side_effect=trouble):
        context = call(Context(key("ingest")), body_of(episode()))
    assert context.code == grpc.StatusCode.UNAVAILABLE
    assert context.delay is not None
    assert 1 <= context.delay <= 30


def test_nothing_is_stored_for_a_client_that_has_gone(key: Callable[..., Any]) -> None:
    context = call(Context(key("ingest"), is_active=False), body_of(episode()))
    assert context.code is None
    assert not Batch.objects.exists()


def test_a_port_in_use_is_refused() -> None:
    server, port = otlp_grpc.serve("127.0.0.1", 0)
    try:
        with pytest.raises(otlp_grpc.PortInUse, match=str(port)):
            otlp_grpc.serve("127.0.0.1", port)
    finally:
        server.stop(0)


def test_without_its_library_the_command_says_which_extra() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, manage; sys.modules['grpc'] = None; sys.argv = ['manage.py', 'otlp_grpc']; manage.main()",
        ],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": "postgresql:///nothing"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "extra `grpc`" in done.stderr
