"""OTLP over HTTP, as its specification wants it: what the answer says decides what a sender keeps."""

import gzip
import io
import json
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import pytest
from django.core.handlers.wsgi import WSGIRequest
from django.db import DataError, OperationalError
from django.http import HttpResponse
from django.test import Client
from google.protobuf.json_format import MessageToDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, MetricsData, ResourceMetrics, ScopeMetrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ApiKey
from flywheel.trajectories.formats.otlp.spans import Span
from flywheel.trajectories.ingest.admission import Door, Room
from flywheel.trajectories.ingest.otlp_http import Refused, decompress, read_body
from flywheel.trajectories.models import Batch, Quarantined, Trajectory
from flywheel.trajectories.operations.quarantine import replay
from flywheel.trajectories.store.arrivals.incoming_steps import Arrival, Reader, Said
from tests.conftest import Cast
from tests.trajectories import telling
from tests.trajectories.formats.sending import as_json
from tests.trajectories.talking import TRACE, body_of, episode, request_of, span

PROTOBUF = "application/x-protobuf"
Post = Callable[..., HttpResponse]


@pytest.fixture
def post(client: Client, key: Callable[..., dict[str, str]]) -> Post:
    ingest = key("ingest")

    def send(
        body: bytes, content_type: str = PROTOBUF, path: str = "/v1/traces", encoding: str = "", **headers: str
    ) -> Any:
        extra = {"Content-Encoding": encoding} if encoding else {}
        if not body:  # Django's client leaves the type out then
            extra["Content-Type"] = content_type
        return client.post(path, body, content_type=content_type, headers={**ingest, **extra, **headers})

    return send


def told(response: HttpResponse) -> str:
    """The message of a Status in either encoding."""
    if response["Content-Type"] == PROTOBUF:
        return response.content.decode(errors="replace")
    return str(json.loads(response.content)["message"])


def test_protobuf_is_stored_and_answered_in_protobuf(cast: Cast, post: Post) -> None:
    response = post(body_of(episode()))
    assert (response.status_code, response["Content-Type"], response.content) == (200, PROTOBUF, b"")
    row = Trajectory.objects.get()
    assert (row.project, row.trace_id, row.source, row.step_count) == (cast.project, TRACE, "production", 6)
    batch = Batch.objects.get()
    assert (batch.format, batch.received, batch.inserted, batch.trajectories) == ("otlp", 6, 6, 1)
    assert batch.key is not None


def test_json_is_stored_and_answered_in_json(post: Post) -> None:
    body = json.dumps(as_json(request_of(episode()))).encode()
    response = post(body, "application/json; charset=utf-8")
    assert (response.status_code, response["Content-Type"], response.content) == (200, "application/json", b"{}")
    assert Trajectory.objects.get().step_count == 6


def test_both_encodings_are_the_same_spans(post: Post) -> None:
    post(body_of(episode()))
    post(json.dumps(as_json(request_of(episode()))).encode(), "application/json")
    assert [batch.duplicate for batch in Batch.objects.order_by("id")] == [0, 6]


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [
        ("gzip", gzip.compress),
        ("GZIP", gzip.compress),
        ("identity", bytes),
        ("deflate", zlib.compress),
        ("deflate", lambda body: zlib.compress(body)[2:-4]),
        ("gzip", lambda body: gzip.compress(body[:50]) + gzip.compress(body[50:])),
    ],
)
def test_compressed_bodies_are_read(post: Post, encoding: str, compress: Callable[[bytes], bytes]) -> None:
    assert post(compress(body_of(episode())), encoding=encoding).status_code == 200
    assert Trajectory.objects.get().step_count == 6


def test_a_body_of_very_many_parts_is_refused_before_it_takes_long(post: Post) -> None:
    response = post(gzip.compress(b"") * 100_000, encoding="gzip")
    assert (response.status_code, "more than 1000 parts" in told(response)) == (400, True)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 1_000_000])
def test_whatever_the_size_of_a_body_it_is_decompressed_whole(encoding: str, size: int) -> None:
    body = random.Random(size).randbytes(size)  # hardly compresses, so that it comes in many pieces
    squeezed = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
    assert decompress(squeezed, encoding, size) == body
    zeros = gzip.compress(bytes(size)) if encoding == "gzip" else zlib.compress(bytes(size))
    assert decompress(zeros, encoding, size) == bytes(size), "of which few bytes make many"
    with pytest.raises(Refused, match="cut off"):
        decompress(squeezed[:-1], encoding, size)
    if size:
        with pytest.raises(Refused, match="MiB"):
            decompress(squeezed, encoding, size - 1)


def test_an_empty_request_is_a_success(post: Post) -> None:
    assert post(b"").status_code == 200
    assert post(b"{}", "application/json").status_code == 200
    assert not Trajectory.objects.exists()


def test_good_siblings_of_a_bad_span_are_kept(post: Post) -> None:
    bad = span(7)
    bad.trace_id = b"short"
    response = post(body_of([*episode(), bad]))
    assert response.status_code == 200
    answer = ExportTraceServiceResponse.FromString(response.content)
    assert answer.partial_success.rejected_spans == 1
    assert "span 6" in answer.partial_success.error_message
    assert Trajectory.objects.get().step_count == 6
    batch = Batch.objects.get()
    assert (batch.received, batch.inserted, batch.rejected) == (7, 6, 1)
    assert batch.problems[0]["at"] == "span 6"


def test_partial_success_in_json(post: Post) -> None:
    bad = span(7)
    bad.span_id = b""
    body = as_json(request_of([*episode(), bad]))
    answer = json.loads(post(json.dumps(body).encode(), "application/json").content)
    assert int(answer["partialSuccess"]["rejectedSpans"]) == 1
    assert answer["partialSuccess"]["errorMessage"]


def test_a_warning_rejects_nothing(post: Post) -> None:
    response = post(body_of([span(1, flywheel__outcome="perhaps")]))
    answer = ExportTraceServiceResponse.FromString(response.content)
    assert answer.partial_success.rejected_spans == 0
    assert "perhaps" in answer.partial_success.error_message


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"\xff\xff\xff", PROTOBUF, 400),
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b"<xml/>", "text/xml", 415),
        (b"", "", 415),
    ],
)
def test_what_cannot_be_read_is_refused_for_good(post: Post, body: bytes, content_type: str, status: int) -> None:
    response = post(body, content_type)
    assert response.status_code == status
    assert told(response)
    assert response["Content-Type"] == (PROTOBUF if content_type == PROTOBUF else "application/json")


def test_an_error_in_protobuf_is_a_status(post: Post) -> None:
    content = post(b"\xff\xff\xff").content
    assert content[:3] == b"\x08\x03\x12"


@pytest.mark.parametrize(
    ("body", "encoding"), [(b"not gzip", "gzip"), (gzip.compress(b"x" * 99, mtime=0)[:-9], "gzip")]
)
def test_a_broken_compression_is_refused(post: Post, body: bytes, encoding: str) -> None:
    assert post(body, encoding=encoding).status_code == 400


def test_an_unknown_compression_is_refused(post: Post) -> None:
    assert post(b"", encoding="zstd").status_code == 415


def test_too_large_bodies_are_refused(post: Post, settings: Any) -> None:
    settings.INGEST_MAX_BYTES = 10_000
    assert post(b"x" * 10_001).status_code == 413
    assert post(gzip.compress(b"\0" * 5_000_000), encoding="gzip").status_code == 413
    assert post(b"x", **{"Content-Length": "99999999999"}).status_code == 413


def wire(body: bytes, **environ: Any) -> WSGIRequest:
    """A request as a WSGI server hands it over."""
    return WSGIRequest({"REQUEST_METHOD": "POST", "CONTENT_TYPE": PROTOBUF, "wsgi.input": io.BytesIO(body), **environ})


def test_a_body_that_ends_early_is_refused() -> None:
    with pytest.raises(Refused, match="ended after 3 of 12 bytes"):
        read_body(wire(b"abc", CONTENT_LENGTH="12"), Room(Door()))


def test_a_body_without_a_length_is_read_where_the_server_marks_its_end() -> None:
    chunked = {"HTTP_TRANSFER_ENCODING": "chunked"}
    assert read_body(wire(b"abc", **chunked, **{"wsgi.input_terminated": True}), Room(Door()))[1] == b"abc"
    with pytest.raises(Refused, match="Content-Length"):
        read_body(wire(b"abc", **chunked), Room(Door()))


def test_only_post_is_answered(client: Client, key: Callable[..., dict[str, str]]) -> None:
    response = client.get("/v1/traces", headers=key("ingest"))
    assert (response.status_code, response["Allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/logs", "/v1/metrics"])
def test_a_key_is_needed(client: Client, key: Callable[..., dict[str, str]], path: str) -> None:
    def status(**headers: str) -> int:
        return client.post(path, b"\n\0", content_type=PROTOBUF, headers=headers).status_code

    assert status() == 401
    assert status(authorization="Bearer fw_nobody_x") == 401
    assert status(authorization="Basic abc") == 401
    assert status(**key("read")) == 403
    assert status(**key("ingest")) == 200


def test_a_revoked_key_is_refused(cast: Cast, client: Client) -> None:
    row, text = ApiKey.make(cast.project, "k", ["ingest"], cast.admin)
    row.revoked_at = row.created_at
    row.save()
    response = client.post("/v1/traces", b"", content_type=PROTOBUF, headers={"authorization": f"Bearer {text}"})
    assert (response.status_code, response["WWW-Authenticate"]) == (401, "Bearer")


def test_a_key_of_somebody_who_left_is_refused(cast: Cast, client: Client, key: Callable[..., dict[str, str]]) -> None:
    headers = key("ingest", by=cast.builder)
    cast.builder.memberships.all().delete()
    assert client.post("/v1/traces", b"", content_type=PROTOBUF, headers=headers).status_code == 403


@pytest.mark.parametrize("path", ["/v1/logs", "/v1/metrics"])
def test_other_signals_are_accepted_and_not_kept(post: Post, path: str) -> None:
    assert post(b"\x0a\x00", path=path).content == b""
    assert post(b"{}", "application/json", path=path).content == b"{}"
    assert not Batch.objects.exists()


METRICS = MetricsData(resource_metrics=[ResourceMetrics(scope_metrics=[ScopeMetrics(metrics=[Metric(name="m")])])])


def test_metrics_are_taken_when_they_are_metrics(post: Post) -> None:
    for body, content_type in (
        (METRICS.SerializeToString(), PROTOBUF),
        (METRICS.SerializeToString() + b"\x9a\x06\x01x", PROTOBUF),  # with a field that is not known yet
        (json.dumps(MessageToDict(METRICS)).encode(), "application/json"),
    ):
        assert post(body, content_type, path="/v1/metrics").status_code == 200


@pytest.mark.parametrize(
    ("body", "content_type", "hint"),
    [
        (b"garbage", PROTOBUF, "not an OTLP metric request"),
        (b"{", "application/json", "not valid JSON"),
        (b"[]", "application/json", "is not an object"),
        (b'{"resourceMetrics": 5}', "application/json", "is not a list"),
        (b'{"resourceSpans": []}', "application/json", "send them to /v1/traces"),
        (b'{"resourceLogs": []}', "application/json", "send them to /v1/logs"),
        (body_of(episode()), PROTOBUF, "send them to /v1/traces"),
        (telling.body_of(telling.said()), PROTOBUF, "send them to /v1/logs"),
    ],
)
def test_what_is_no_metrics_is_refused_and_told_its_place(
    post: Post, body: bytes, content_type: str, hint: str
) -> None:
    response = post(body, content_type, path="/v1/metrics")
    assert (response.status_code, hint in told(response)) == (400, True)


@pytest.mark.parametrize(
    ("error", "status"), [(OperationalError("away"), 503), (RuntimeError("ours"), 503), (DataError("no"), 400)]
)
def test_trouble_of_ours_is_never_a_500(post: Post, error: Exception, status: int) -> None:
    with mock.patch("flywheel.trajectories.ingest.otlp_http.store", side_effect=error):
        response = post(body_of(episode()))
    assert response.status_code == status
    assert (response.headers.get("Retry-After") is not None) == (status == 503)


def test_a_span_that_the_database_refuses_waits_and_does_not_cost_its_siblings(cast: Cast, post: Post) -> None:
    """None is known; so one is made by letting through what no text column holds."""
    read = Reader.spans

    def with_nul(reader: Reader, spans: Sequence[Span]) -> Iterator[tuple[Arrival, Said]]:
        for arrival, said in read(reader, spans):
            if arrival.name == "poison":
                arrival.error = "\0"
            yield arrival, said

    with mock.patch.object(Reader, "spans", with_nul):
        response = post(body_of([*episode(calls=0), span(7, name="poison"), span(8, name="other")]))
    assert response.status_code == 200
    answer = ExportTraceServiceResponse.FromString(response.content)
    assert answer.partial_success.rejected_spans == 1
    assert "cannot hold it" in answer.partial_success.error_message
    batch = Batch.objects.get()
    assert batch.received == batch.inserted + 1
    assert "other" in Trajectory.objects.get().steps.values_list("name", flat=True)
    item = Quarantined.objects.get()
    assert "cannot hold it" in item.reason
    replay(item=item, actor=Actor(cast.admin))
    assert "poison" in Trajectory.objects.get().steps.values_list("name", flat=True), "what is repaired takes it"


def test_a_database_that_is_away_when_the_key_is_read_is_a_503(post: Post) -> None:
    with mock.patch("flywheel.accounts.access.ApiKey.find", side_effect=OperationalError("away")):
        assert post(b"").status_code == 503


@pytest.mark.django_db(transaction=True)
def test_detectors_are_woken_after_the_commit(cast: Cast, post: Post, woken: list[int]) -> None:
    post(body_of(episode()))
    assert woken == [cast.project.pk]
    post(body_of(episode()))
    assert woken == [cast.project.pk]


@given(
    body=st.binary(max_size=200)
    | st.builds(lambda cut, b: body_of(episode())[:cut] + b, st.integers(0, 900), st.binary(max_size=4))
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@pytest.mark.parametrize("content_type", [PROTOBUF, "application/json"])
def test_no_body_breaks_the_server(post: Post, content_type: str, body: bytes) -> None:
    assert post(body, content_type).status_code in (200, 400)
    for batch in Batch.objects.order_by("-id")[:1]:
        assert batch.received == batch.inserted + batch.updated + batch.duplicate + batch.rejected


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip, Compression.Deflate])
def test_the_real_exporter_reaches_a_real_server(
    cast: Cast, live_server: LiveServer, key: Callable[..., dict[str, str]], compression: Compression
) -> None:
    exporter = OTLPSpanExporter(
        endpoint=f"{live_server.url}/v1/traces", headers=key("ingest"), compression=compression, timeout=10
    )
    provider = TracerProvider(resource=Resource.create({"service.name": "shop", "service.version": "7"}))
    provider.add_span_processor(BatchSpanProcessor(exporter, max_export_batch_size=4))
    tracer = provider.get_tracer("tests")
    for number in range(5):
        with (
            tracer.start_as_current_span("invoke_agent", attributes={"gen_ai.operation.name": "invoke_agent"}),
            tracer.start_as_current_span("execute_tool", attributes={"gen_ai.tool.name": "mail.send"}) as tool,
        ):
            if number == 0:
                tool.set_status(Status(StatusCode.ERROR, "no such person"))
    assert provider.force_flush()
    provider.shutdown()

    rows = list(Trajectory.objects.filter(project=cast.project).order_by("started_at"))
    assert [row.step_count for row in rows] == [2] * 5
    assert [row.error_count for row in rows] == [1, 0, 0, 0, 0]
    assert {(row.agent_name, row.version_label) for row in rows} == {("shop", "7")}
    batches = list(Batch.objects.all())
    assert sum(batch.received for batch in batches) == sum(batch.inserted for batch in batches) == 10
    assert len(batches) >= 3
