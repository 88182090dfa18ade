"""Content and judgments that come as OTLP logs, apart from the spans that they belong to."""

import itertools
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext
from google.protobuf.json_format import MessageToDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ApiKey, Project, User
from flywheel.system.sql import planned
from flywheel.trajectories.annotations.feedback import give
from flywheel.trajectories.detail import transcript
from flywheel.trajectories.formats.otlp import otlp_logs
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.ingest import otlp_http
from flywheel.trajectories.models import Batch, Event, Feedback, Quarantined, Source, Step, Trajectory
from flywheel.trajectories.operations import quarantine
from flywheel.trajectories.store import attachments, log_events
from flywheel.trajectories.store.batch_ledger import Sent
from flywheel.trajectories.store.merge import store, write
from flywheel.trajectories.store.stored_traces import trace_of, traces_of
from tests.conftest import Cast
from tests.trajectories import talking, telling
from tests.trajectories.store.test_merge import everything, stored
from tests.trajectories.talking import TRACE, episode, span
from tests.trajectories.telling import evaluation, record, said

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
OTHER = "e" * 32

slugs = itertools.count()


def decoded(records: list[Any]) -> otlp_logs.Logs:
    return otlp_logs.decode(telling.body_of(records), PROTOBUF)


def tell(project: Project, records: list[Any]) -> Batch:
    batch = log_events.store_logs(project, decoded(records))
    assert batch is not None
    return batch


def send(project: Project, spans: list[Any]) -> Batch:
    parts = otlp_traces.decode(talking.body_of(spans), otlp_traces.PROTOBUF).spans
    return store(project, parts, source=Source.PRODUCTION, format="otlp")


def call(number: int = 10, **attributes: Any) -> Any:
    """A model call whose messages are not in it."""
    return span(number, parent=1, at_ms=1, name="chat", gen_ai__operation__name="chat", **attributes)


def kept(project: Project) -> list[Any]:
    """Everything that is stored of a project, without ids and moments of arrival."""

    def content(row: Any) -> str:
        left_out = {"id", "project_id", "received_at", "_state"}
        return repr(sorted((key, value) for key, value in vars(row).items() if key not in left_out))

    beside = [Event.objects.filter(project=project), Feedback.objects.filter(project=project)]
    return [stored(project), *(sorted(content(row) for row in rows) for rows in beside)]


@pytest.fixture
def post(client: Client, key: Callable[..., dict[str, str]]) -> Callable[..., HttpResponse]:
    headers = key("ingest")

    def send(body: bytes, content_type: str = PROTOBUF, path: str = "/v1/logs") -> Any:
        return client.post(path, body, content_type=content_type, headers=headers)

    return send


# On the wire


def test_logs_are_kept_and_answered_in_their_own_words(cast: Cast, post: Callable[..., HttpResponse]) -> None:
    answer = post(telling.body_of(said()))
    assert (answer.status_code, answer["Content-Type"], answer.content) == (200, PROTOBUF, b"")
    batch = Batch.objects.get()
    assert (batch.format, batch.received, batch.inserted, batch.trajectories) == ("otlp-logs", 3, 3, 1)
    again = post(json.dumps(as_json(said())).encode(), JSON)
    assert (again.status_code, again.content) == (200, b"{}")
    batch = Batch.objects.order_by("-id")[0]
    assert (batch.received, batch.inserted, batch.duplicate) == (3, 0, 3)
    assert Event.objects.filter(project=cast.project, trace_id=TRACE).count() == 3
    assert not Trajectory.objects.exists()


def as_json(records: list[Any]) -> Any:
    """As OTLP JSON writes it: ids in hex."""
    body = MessageToDict(telling.logs_of(records))
    for item, row in zip(records, body["resourceLogs"][0]["scopeLogs"][0]["logRecords"], strict=True):
        row |= {"traceId": item.trace_id.hex(), "spanId": item.span_id.hex()}
    return body


def test_good_siblings_of_a_bad_record_are_kept(post: Callable[..., HttpResponse]) -> None:
    bad = record("gen_ai.choice", body={"message": {"content": "x"}})
    bad.trace_id = b"short"
    answer = ExportLogsServiceResponse.FromString(post(telling.body_of([*said(), bad])).content)
    assert answer.partial_success.rejected_log_records == 1
    assert "log record 3: trace_id" in answer.partial_success.error_message
    batch = Batch.objects.get()
    assert (batch.received, batch.inserted, batch.rejected) == (4, 3, 1)


@pytest.mark.parametrize("as_what", ["protobuf", "json"])
def test_a_rejected_record_waits_and_can_be_repaired(
    cast: Cast, post: Callable[..., HttpResponse], as_what: str
) -> None:
    bad = record("gen_ai.choice", body={"message": {"content": "x", "password": "hunter2!"}})
    bad.trace_id = b"short"
    if as_what == "json":
        post(json.dumps(as_json([*said(), bad])).encode(), JSON)
    else:
        post(telling.body_of([*said(), bad]))
    item = Quarantined.objects.get()
    assert (item.at, item.format, item.media_type) == ("log record 3", "otlp-logs", JSON)
    shown = quarantine.shown(item)
    assert shown.is_editable
    assert bad.trace_id.hex() in shown.text
    assert "hunter2" not in shown.text
    with pytest.raises(quarantine.StillWrong, match="traceId"):
        quarantine.replay(item=item, actor=Actor(cast.admin))
    text = shown.text.replace(bad.trace_id.hex(), TRACE)
    with pytest.raises(quarantine.StillWrong, match="nothing in it"):
        quarantine.replay(item=item, actor=Actor(cast.admin), text=text.replace("gen_ai.choice", "other"))
    replayed = quarantine.replay(item=item, actor=Actor(cast.admin), text=text)
    assert (replayed.state, replayed.trace_id) == ("replayed", TRACE)
    assert Event.objects.filter(trace_id=TRACE).count() == 4


def test_other_records_are_taken_and_let_go(post: Callable[..., HttpResponse]) -> None:
    plain = record("", body="GET /orders 200")
    assert post(telling.body_of([plain])).status_code == 200
    assert not Batch.objects.exists()
    assert not Event.objects.exists()
    post(telling.body_of([plain, *said()]))
    assert Batch.objects.get().received == 3


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"\xff\xff\xff", PROTOBUF, 400),
        (b"{", JSON, 400),
        (b"<xml/>", "text/xml", 415),
        (talking.body_of(episode()), PROTOBUF, 400),
    ],
)
def test_what_cannot_be_read_is_refused(
    post: Callable[..., HttpResponse], body: bytes, content_type: str, status: int
) -> None:
    assert post(body, content_type).status_code == status


def test_each_signal_is_answered_in_its_own_words(cast: Cast, post: Callable[..., HttpResponse]) -> None:
    key, _ = ApiKey.make(cast.project, "test", ["ingest"], cast.admin)
    sent = Sent(PROTOBUF, "", b"")
    assert type(otlp_http.receive_logs(cast.project, key, sent, b"")) is ExportLogsServiceResponse
    assert type(otlp_http.receive_metrics(cast.project, key, sent, b"")) is ExportMetricsServiceResponse
    assert post(b"{}", JSON, path="/v1/metrics").content == b"{}"
    assert not Batch.objects.exists()


# Joined to their spans


@pytest.mark.parametrize("first", ["spans", "events"])
def test_events_stand_in_their_span_whoever_came_first(cast: Cast, first: str) -> None:
    if first == "events":
        tell(cast.project, said())
    send(cast.project, [call(), span(1, took_ms=100)])
    if first == "spans":
        tell(cast.project, said())
    row = Trajectory.objects.get()
    assert (row.title, row.tool_names, row.event_count) == ("Where is my parcel?", ["parcels.find"], 3)
    for trace in (trace_of(row), traces_of([row])[row.pk]):
        step = trace.steps[1]
        assert [message.role for message in step.input] == ["system", "user"]
        assert [call.name for call in step.output[0].tool_calls] == ["parcels.find"]
        assert step.finish_reason == "tool_calls"
    turns = transcript.conversation_of(row)
    assert [turn.kind for turn in turns] == ["system", "user", "call"]


def test_the_api_answers_joined_content(cast: Cast, client: Client, key: Callable[..., dict[str, str]]) -> None:
    tell(cast.project, said())
    send(cast.project, [call()])
    answer = client.get(f"/api/v1/trajectories/{TRACE}", headers=key("read")).json()
    assert [message["content"] for message in answer["steps"][0]["input"]] == ["Help.", "Where is my parcel?"]


def test_the_page_of_a_step_shows_what_came_as_logs(cast: Cast, sign_in: Callable[[User], Client]) -> None:
    send(cast.project, [call()])
    address = f"/p/acme/trajectories/{TRACE}/step/?step={10:016x}&side=raw"
    assert "Sent as logs" not in sign_in(cast.viewer).get(address).content.decode()
    tell(cast.project, said(question="<b>Where</b> is it?"))
    page = sign_in(cast.viewer).get(address).content.decode()
    assert "Sent as logs" in page
    assert "&lt;b&gt;Where&lt;/b&gt; is it?" in page


def test_details_in_one_event_are_read(cast: Cast) -> None:
    details = record(
        "gen_ai.client.inference.operation.details",
        10,
        gen_ai__operation__name="chat",
        gen_ai__agent__name="support",
        gen_ai__conversation__id="conv-7",
        gen_ai__input__messages=[talking.text("user", "Cancel it, please\nnow")],
        gen_ai__output__messages=[talking.asked("orders.cancel", {"id": 1}, "c1")],
        gen_ai__tool__definitions=[{"type": "function", "name": "orders.cancel"}],
    )
    send(cast.project, [call()])
    tell(cast.project, [details])
    row = Trajectory.objects.select_related("agent").get()
    assert (row.title, row.session_id, row.tool_names) == ("Cancel it, please", "conv-7", ["orders.cancel"])
    assert row.agent is not None
    assert row.agent.name == "support"
    assert [tool["name"] for tool in row.tools] == ["orders.cancel"]
    assert trace_of(row).steps[0].input[0].content == "Cancel it, please\nnow"


def test_events_without_a_span_and_of_unknown_spans_are_kept(cast: Cast) -> None:
    send(cast.project, [call()])
    batch = tell(cast.project, [record("gen_ai.user.message", 77, body={"content": "lost"}), evaluation("tone", None)])
    assert (batch.inserted, Trajectory.objects.get().event_count) == (2, 2)


def test_messages_that_the_clock_does_not_tell_apart_stand_in_the_order_of_a_conversation(cast: Cast) -> None:
    records = said()
    for item in records:
        item.time_unix_nano = talking.START_NS
    tell(cast.project, records[::-1])
    send(cast.project, [call()])
    step = trace_of(Trajectory.objects.get()).steps[0]
    assert [message.role for message in [*step.input, *step.output]] == ["system", "user", "assistant"]


def test_new_content_is_news_for_the_detectors_and_old_is_not(cast: Cast, woken: list[int]) -> None:
    send(cast.project, [call()])
    before = Trajectory.objects.get().changed_at
    woken.clear()
    tell(cast.project, said())
    after = Trajectory.objects.get().changed_at
    assert after > before
    tell(cast.project, said())
    assert Trajectory.objects.get().changed_at == after


def test_secrets_in_events_are_not_kept(cast: Cast) -> None:
    key = "sk-proj-" + "a1B2c3D4" * 6
    batch = tell(cast.project, [record("gen_ai.user.message", 10, body={"content": f"My key is {key}"})])
    assert key not in json.dumps(Event.objects.get().body)
    assert sum(batch.redactions.values()) == 1
    send(cast.project, [call()])
    assert key not in Trajectory.objects.get().title


def test_hostile_text_in_events_is_kept(cast: Cast) -> None:
    hostile = {
        "traceId": TRACE,
        "spanId": "a" * 16,
        "eventName": "gen_ai.user.message",
        "timeUnixNano": str(2**64 - 1),
        "body": {"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": "nul \x00 \ud800"}}]}},
    }
    body = {"resourceLogs": [{"scopeLogs": [{"logRecords": [hostile]}]}]}
    assert log_events.store_logs(cast.project, otlp_logs.decode(json.dumps(body).encode(), JSON)) is not None
    send(cast.project, [call()])
    assert Trajectory.objects.get().title == "nul \u2400 \ufffd"


# What it costs


def test_a_trajectory_without_events_is_read_without_asking_for_them(cast: Cast) -> None:
    send(cast.project, episode())
    row = Trajectory.objects.get()
    with CaptureQueriesContext(connection) as queries:
        trace_of(row)
    assert not [query for query in queries if "trajectories_event" in query["sql"]]
    tell(cast.project, said())
    row.refresh_from_db()
    with CaptureQueriesContext(connection) as queries:
        trace_of(row)
    assert len([query for query in queries if "trajectories_event" in query["sql"]]) == 1


def test_spans_ask_for_feedback_when_they_make_trajectories_and_only_then(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def counting(statement: str, *given: Any, **named: Any) -> Any:
        asked.append(statement)
        return planned(statement, *given, **named)

    monkeypatch.setattr(attachments, "planned", counting)

    def statements(spans: list[Any]) -> int:
        asked.clear()
        parts = otlp_traces.decode(talking.body_of(spans), otlp_traces.PROTOBUF).spans
        with CaptureQueriesContext(connection) as queries:
            write(cast.project, parts, source=Source.PRODUCTION)
        assert not [query for query in queries if "_feedback" in query["sql"]]
        return len(asked)

    assert statements([*episode(), *episode(OTHER)]) == 2, "through the gates, and what waits behind them"
    assert statements([span(99, at_ms=70), span(98, trace=OTHER)]) == 0


# In any order

JUDGED = [
    {"trace_id": TRACE, "key": "outcome", "value": "pass", "source": "human", "at": "2026-06-01T00:00:00Z"},
    {"trace_id": TRACE, "key": "outcome", "value": False, "source": "end_user", "at": "2026-06-02T00:00:00Z"},
    {"trace_id": TRACE, "key": "helpful", "value": 0.5, "source": "model", "at": "2026-06-02T00:00:00Z"},
    {"trace_id": TRACE, "key": "helpful", "value": 0.25, "source": "model", "at": "2026-06-01T00:00:00Z"},
    {"trace_id": "f" * 32, "key": "intervention", "value": "edited", "by": "ada", "at": "2026-06-02T00:00:00Z"},
    {
        "trace_id": "f" * 32,
        "span_id": f"{1:016x}",
        "key": "outcome",
        "value": 1,
        "id": "n-1",
        "at": "2026-06-02T00:00Z",
    },
]


def of_everything() -> list[tuple[str, Any]]:
    judging = span(60, at_ms=80, name="judge", openinference__span__kind="EVALUATOR")
    judging.links.add(trace_id=bytes.fromhex("f" * 32), span_id=(2).to_bytes(8, "big"))
    flat = span(61, at_ms=81, annotations__0__annotation__name="tone", annotations__0__annotation__label="ok")
    for key, value in {"name": "faithful", "label": "yes", "annotator_kind": "LLM"}.items():
        judging.attributes.add(key=f"evaluations.0.evaluation.{key}", value=talking.value(value))
    spans = [*everything(), judging, flat]
    about = [
        *said(),
        *said(30, 12, "Another question"),
        evaluation("outcome", label="fail"),
        evaluation("tone", value=1),
    ]
    return [*(("span", item) for item in spans), *(("event", item) for item in about), *(("given", x) for x in JUDGED)]


def bring(project: Project, items: list[tuple[str, Any]]) -> None:
    for kind, group in itertools.groupby(items, lambda item: item[0]):
        found = [item for _, item in group]
        if kind == "span":
            send(project, found)
        elif kind == "event":
            tell(project, found)
        else:
            assert not give(project, found).problems


@pytest.fixture(scope="module")
def items() -> list[tuple[str, Any]]:
    return of_everything()


@given(data=st.data())
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_order_grouping_and_repetition_change_nothing(
    db: None, items: list[tuple[str, Any]], data: st.DataObject
) -> None:
    whole = Project.objects.create(slug=f"one-{next(slugs)}", name="whole")
    mixed = Project.objects.create(slug=f"any-{next(slugs)}", name="mixed")
    bring(whole, items)

    repeats = data.draw(st.lists(st.sampled_from(range(len(items))), max_size=6))
    order = data.draw(st.permutations([*range(len(items)), *repeats]))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(order) - 1), max_size=8)))
    for start, end in itertools.pairwise([0, *cuts, len(order)]):
        bring(mixed, sorted((items[index] for index in order[start:end]), key=lambda item: item[0]))

    assert kept(mixed) == kept(whole)


@pytest.mark.django_db(transaction=True)
def test_spans_events_and_feedback_at_once_leave_nothing_untold() -> None:
    """Whoever commits second tells the trajectory, also when neither has seen the other."""
    project = Project.objects.create(slug="busy-beside", name="Busy")
    traces = [f"{index:032x}" for index in range(1, 25)]
    failures: list[BaseException] = []
    barrier = threading.Barrier(3)

    def run(work: Callable[[str], object]) -> None:
        try:
            barrier.wait()
            for trace in traces:
                work(trace)
        except BaseException as error:
            failures.append(error)
        finally:
            connection.close()

    def speak(trace: str) -> None:
        tell(project, [record("gen_ai.user.message", 1, trace=trace, body={"content": "Hello"})])

    def judge(trace: str) -> None:
        give(project, [{"trace_id": trace, "key": "outcome", "value": False, "source": "human"}])

    def act(trace: str) -> None:
        send(project, [span(1, trace=trace)])

    threads = [threading.Thread(target=run, args=(work,)) for work in (speak, judge, act)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failures
    rows = Trajectory.objects.filter(project=project)
    assert {(row.title, row.outcome, row.event_count, row.feedback_count) for row in rows} == {
        ("Hello", "failed", 1, 1)
    }
    assert (rows.count(), Step.objects.filter(trajectory__project=project).count()) == (24, 24)
