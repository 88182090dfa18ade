# ruff: noqa: E501 (a table of examples)
"""Secrets do not reach the database, whichever way they came."""

import itertools
import json
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import Q
from django.http import HttpResponse
from django.test import Client
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry
from flywheel.accounts.project_settings import redaction_policy
from flywheel.core.redaction import PLACEHOLDER
from flywheel.trajectories.formats.otlp import otlp_protobuf
from flywheel.trajectories.formats.otlp.spans import Decoded
from flywheel.trajectories.models import Batch, Body, Event, Quarantined, Step, Trajectory
from flywheel.trajectories.operations import redaction_scan
from flywheel.trajectories.pages import redaction_views
from flywheel.trajectories.search.full_text import says
from tests.conftest import Cast
from tests.core.redaction.test_redaction import KINDS, POSITIONS, made
from tests.pages import page_of
from tests.trajectories.formats.sending import as_json
from tests.trajectories.talking import body_of, request_of, span, text
from workers.jobs.detection import detect_waiting

pytestmark = pytest.mark.django_db
PROTOBUF = "application/x-protobuf"
Post = Callable[..., HttpResponse]


@pytest.fixture
def post(client: Client, key: Callable[..., dict[str, str]]) -> Post:
    ingest = key("ingest", "build")

    def send(body: bytes, content_type: str = PROTOBUF, path: str = "/v1/traces") -> Any:
        return client.post(path, body, content_type=content_type, headers=ingest)

    return send


def dump() -> str:
    """Everything that is stored, as text."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
            " AND table_name ~ '^(trajectories|agents|failures)_'"
        )
        tables = [name for (name,) in cursor.fetchall()]
        found = []
        for table in tables:
            cursor.execute(f"SELECT coalesce(string_agg(row_to_json(t)::text, chr(10)), '') FROM \"{table}\" AS t")
            found.append(cursor.fetchone()[0])
        cursor.execute("SELECT content FROM trajectories_body UNION ALL SELECT content FROM trajectories_quarantined")
        found += [bytes(content).decode("latin-1") for (content,) in cursor.fetchall()]
    return "\n".join(found)


def test_three_hundred_secrets_sent_as_telemetry_are_nowhere_in_the_database(post: Post) -> None:
    pairs = list(itertools.islice(itertools.product(POSITIONS, KINDS), 312))
    spans, secrets = [], []
    for number, (where, kind) in enumerate(pairs, 1):
        secret = made(kind, number)
        secrets.append((secret, kind, where))
        given = POSITIONS[where](secret)
        held: dict[str, Any] = given if isinstance(given, dict) else {"list": given}
        if number % 3 == 0:
            held = {"gen_ai.input.messages": [text("user", json.dumps(held))], "gen_ai.operation.name": "chat"}
        spans.append(span(number, name=f"work {number}", error=secret if number % 7 == 0 else ""))
        for name, item in held.items():
            attribute = spans[-1].attributes.add()
            attribute.key = name
            attribute.value.string_value = item if isinstance(item, str) else json.dumps(item)
    assert post(body_of(spans)).status_code == 200
    stored = dump()
    missed = [
        (kind, where) for secret, kind, where in secrets if secret in stored or json.dumps(secret)[1:-1] in stored
    ]
    assert missed == []
    batch = Batch.objects.get()
    assert batch.inserted == 312
    assert sum(batch.redactions.values()) >= 312
    assert batch.redactor == "1-secrets"
    assert not Body.objects.exists(), "what held secrets is not kept as it came"


def test_what_holds_none_is_kept_as_it_came(post: Post) -> None:
    post(body_of([span(1, gen_ai__usage__input_tokens=12, to="ana@example.com")]))
    batch = Batch.objects.get()
    assert batch.redactions == {}
    assert Body.objects.count() == 1
    assert Step.objects.get().body["attributes"] == {"gen_ai.usage.input_tokens": 12, "to": "ana@example.com"}


def test_files_pass_the_same_way(post: Post) -> None:
    line = {
        "id": "t1",
        "messages": [
            {"role": "user", "content": "log in with password=hunter2!"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "login", "arguments": '{"password": "hunter2!"}'}}]},
            {"role": "tool", "tool_call_id": "c", "content": "ok, token: ghp_1abcdefghijklmnopqrstuvwxyz0123456789"},
        ],
        "metadata": {"agent": "a", "api_key": "hunter2!"},
    }  # fmt: skip
    bad = {"messages": 3, "password": "hunter2!"}
    body = "\n".join(json.dumps(item) for item in (line, bad)).encode()
    assert post(body, "application/x-ndjson", "/api/v1/trajectories?format=auto").status_code < 300
    stored = dump()
    assert "hunter2" not in stored
    assert "ghp_1" not in stored
    step = Step.objects.order_by("position")[1]
    placeholder = step.body["output"][0]["tool_calls"][0]["arguments"]["password"]
    assert PLACEHOLDER.fullmatch(placeholder.encode())
    assert placeholder.split(":")[2] in json.dumps(Step.objects.order_by("position").first().body)  # type: ignore[union-attr]
    assert Batch.objects.get().redactions["password"] >= 2


def test_a_rejected_span_is_kept_without_its_secret(post: Post) -> None:
    bad = span(0, name="work", db__password="hunter2!")
    post(body_of([bad, span(1)]))
    assert "hunter2" not in dump()
    assert Batch.objects.get().rejected == 1
    quiet = span(0, name="work")
    post(body_of([quiet]))
    assert Quarantined.objects.filter(content__gt=b"").count() == 1


def test_a_secret_that_is_in_no_span_keeps_its_request_from_being_kept(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = as_json(request_of([span(1)]))
    named = document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    secret = {"key": "password", "value": {"stringValue": "hunter2!"}}
    for place in (document, document["resourceSpans"][0], document["resourceSpans"][0]["scopeSpans"][0], named):
        place["entities"] = [secret]
        assert post(json.dumps(document).encode(), "application/json").status_code == 200
        del place["entities"]
    twice = request_of([span(1)])
    for value in ("ghp_1abcdefghijklmnopqrstuvwxyz0123456789", "fine"):
        attribute = twice.resource_spans[0].scope_spans[0].spans[0].attributes.add()
        attribute.key, attribute.value.string_value = "note", value
    post(twice.SerializeToString())
    post(json.dumps(as_json(twice)).encode(), "application/json")
    assert not Body.objects.exists()
    post(json.dumps(document).encode(), "application/json")
    assert Body.objects.count() == 1

    Body.objects.all().delete()
    monkeypatch.setattr(otlp_protobuf, "Decoded", lambda **said: Decoded(**said, _room=0))
    post(body_of([span(2), span(0, name="work", db__password="hunter2!")]))
    assert not Body.objects.exists(), "what was rejected is nowhere, so that nobody has looked through it"
    post(body_of([span(2), span(0, name="work")]))
    assert Body.objects.count() == 1
    monkeypatch.setattr("flywheel.trajectories.store.arrivals.trace_redaction.LARGEST", 10)
    post(body_of([span(3), span(0, name="work")]))
    assert Body.objects.count() == 1, "which is not done for large ones"


_SECRET: dict[str, Any] = {"key": "password", "value": {"stringValue": "hunter2!"}}
_TOKEN = {"stringValue": "ghp_1abcdefghijklmnopqrstuvwxyz0123456789"}
_TWICE = [{"key": "note", "value": _TOKEN}, {"key": "note", "value": {"intValue": "1"}}]
_DEEP: dict[str, Any] = _TOKEN
for _ in range(70):
    _DEEP = {"arrayValue": {"values": [_DEEP]}}


@pytest.mark.parametrize(
    ("place", "added"),
    [
        ("resource", {"attributes": _TWICE}),
        ("scope", {"attributes": _TWICE}),
        ("event", {"attributes": _TWICE}),
        ("event", {"entities": [_SECRET]}),
        ("link", {"attributes": _TWICE}),
        ("link", {"entities": [_SECRET]}),
        ("link", {"traceState": "password=hunter2!"}),
        ("status", {"entities": [_SECRET]}),
        ("pair", {"password": "hunter2!"}),
        ("pair", {"value": {"intValue": "1", **_TOKEN}}),
        ("pair", {"value": {"otherValue": _TOKEN["stringValue"]}}),
        ("pair", {"value": {"kvlistValue": {"values": _TWICE}}}),
        ("pair", {"value": {"kvlistValue": {"values": [{**_TWICE[1], "password": "hunter2!"}]}}}),
        ("pair", {"value": {"arrayValue": {"values": [], "entities": [_SECRET]}}}),
        ("pair", {"value": _DEEP}),
    ],
)
def test_a_secret_anywhere_in_json_that_is_in_no_span_is_not_kept(
    post: Post, place: str, added: dict[str, Any]
) -> None:
    document = as_json(request_of([span(1, note="fine")]))
    (group,) = document["resourceSpans"]
    (scoped,) = group["scopeSpans"]
    (named,) = scoped["spans"]
    for holder, name in ((group, "resource"), (scoped, "scope"), (named, "status")):
        holder.setdefault(name, {})
    named["events"] = [{"name": "e", "timeUnixNano": "1"}]
    named["links"] = [{"traceId": "ab" * 16, "spanId": "cd" * 8}]
    places = {
        "resource": group["resource"],
        "scope": scoped["scope"],
        "event": named["events"][0],
        "link": named["links"][0],
        "status": named["status"],
        "pair": named["attributes"][0],
    }
    places[place].update(added)
    assert post(json.dumps(document).encode(), "application/json").status_code == 200
    assert Batch.objects.get().redactions == {}, "no span holds it"
    assert not Body.objects.exists()


def _unknown(number: int = 99) -> bytes:
    """A field of protobuf that nobody knows, which holds a pair."""
    pair = KeyValue(key="password", value=AnyValue(string_value="hunter2!")).SerializeToString()
    return bytes([number << 3 & 0x7F | 2 | 0x80, number >> 4, len(pair), *pair])


@pytest.mark.parametrize("place", ["request", "group", "resource", "scope", "span", "event", "link", "status", "pair"])
def test_a_field_of_protobuf_that_nobody_knows_keeps_its_request_from_being_kept(post: Post, place: str) -> None:
    request = request_of([span(1, note="fine")])
    (group,) = request.resource_spans
    (scoped,) = group.scope_spans
    (named,) = scoped.spans
    places = {
        "request": request,
        "group": group,
        "resource": group.resource,
        "scope": scoped.scope,
        "span": named,
        "event": named.events.add(name="e"),
        "link": named.links.add(trace_id=b"a" * 16, span_id=b"b" * 8),
        "status": named.status,
        "pair": named.attributes[0],
    }
    post(request.SerializeToString())
    assert Body.objects.count() == 1
    Body.objects.all().delete()
    places[place].MergeFromString(_unknown())
    assert post(request.SerializeToString()).status_code == 200
    assert not Body.objects.exists()


@pytest.mark.parametrize("place", ["resource", "scope", "event", "link", "value"])
def test_the_first_of_two_attributes_anywhere_in_protobuf_is_looked_at(post: Post, place: str) -> None:
    request = request_of([span(1)])
    (group,) = request.resource_spans
    (scoped,) = group.scope_spans
    (named,) = scoped.spans
    places = {
        "resource": group.resource.attributes,
        "scope": scoped.scope.attributes,
        "event": named.events.add(name="e").attributes,
        "link": named.links.add(trace_id=b"a" * 16, span_id=b"b" * 8).attributes,
        "value": named.attributes.add(key="list").value.kvlist_value.values,
    }
    for value in ("ghp_1abcdefghijklmnopqrstuvwxyz0123456789", "fine"):
        places[place].add(key="note", value=AnyValue(string_value=value))
    assert post(request.SerializeToString()).status_code == 200
    assert not Body.objects.exists()


def test_the_first_of_two_values_in_protobuf_is_not_kept(post: Post) -> None:
    sent = span(1)
    first, second = (AnyValue(string_value=said).SerializeToString() for said in ("password=hunter2!", "fine"))
    pair = b"\x0a\x04note\x12" + bytes([len(first + second)]) + first + second
    named = sent.SerializeToString() + b"\x4a" + bytes([len(pair)]) + pair
    body = otlp_protobuf.message(1, otlp_protobuf.message(2, otlp_protobuf.message(2, named)))
    assert post(body).status_code == 200
    assert Step.objects.get().body["attributes"]["note"] == "fine"
    assert not Body.objects.exists()


def test_logs_sent_as_traces_are_not_kept_with_their_secrets(post: Post) -> None:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add(severity_number=9, severity_text="INFO")
    record.body.string_value = "hello"
    record.attributes.add(key="password", value=AnyValue(string_value="hunter2!"))
    response = post(request.SerializeToString())
    assert b"look like OTLP logs" in response.content
    assert "hunter2" not in dump()
    assert not Body.objects.exists()


def test_a_project_chooses_what_is_redacted(cast: Cast, post: Post) -> None:
    redaction_policy.set_policy(
        project=cast.project,
        actor=Actor(cast.admin),
        mode="strict",
        rules=[{"name": "orders", "pattern": r"ORD-\d{4}", "kind": "order"}],
    )
    post(body_of([span(1, to="ana@example.com", note="ORD-1234 is late")]))
    attributes = Step.objects.get().body["attributes"]
    assert attributes["to"].startswith("[redacted:email:")
    assert attributes["note"].startswith("[redacted:order:")
    assert Batch.objects.get().redactor.startswith("1-strict-")
    redaction_policy.set_policy(project=cast.project, actor=Actor(cast.admin), mode="off", rules=[])
    post(body_of([span(2, password="hunter2!")]))
    assert "hunter2!" in dump()


def test_the_same_span_again_is_a_duplicate_still(post: Post) -> None:
    body = body_of([span(1, password="hunter2!", gen_ai__agent__name="a")])
    post(body)
    post(body)
    first, second = Batch.objects.order_by("id")
    assert (first.inserted, second.duplicate) == (1, 1)
    assert Trajectory.objects.get().agent_name == "a"


def test_what_is_stored_is_looked_through_and_rewritten(cast: Cast, post: Post, sign_in: Callable[..., Client]) -> None:
    redaction_policy.set_policy(project=cast.project, actor=Actor(cast.admin), mode="off", rules=[])
    long = "x" * 70_000 + " password=hunter2! " + "y" * 100
    post(
        body_of(
            [span(1, db__password="hunter2!", note="a ghp_1abcdefghijklmnopqrstuvwxyz0123456789"), span(2, big=long)]
        )
    )
    post(body_of([span(0, db__password="hunter2!")]))
    kept = dump()
    assert "hunter2!" in kept
    redaction_policy.set_policy(project=cast.project, actor=Actor(cast.admin), mode="secrets", rules=[])
    page = page_of(sign_in(cast.admin).get("/p/acme/trajectories/redaction/dry-run/"))
    assert "× password" in page
    assert "attributes.db.password" in page
    assert "hunter2" not in page
    assert sign_in(cast.builder).get("/p/acme/trajectories/redaction/dry-run/").status_code == 403
    assert dump() == kept, "a dry run changes nothing"
    with pytest.raises(CommandError):
        call_command("redact", "--project", "acme", "--apply", "--user", cast.builder.username, stdout=StringIO())
    out = StringIO()
    call_command("redact", "--project", "acme", stdout=out)
    assert "nothing is changed" in out.getvalue()
    call_command("redact", "--project", "acme", "--apply", "--user", cast.admin.username, stdout=out)
    left = dump()
    assert "hunter2!" not in left
    assert "ghp_1" not in left
    assert AuditEntry.objects.get(action="trajectories.redact").data["counts"]["password"] >= 2
    again = StringIO()
    call_command("redact", "--project", "acme", stdout=again)
    assert again.getvalue().startswith("0 found")


def _apply(cast: Cast) -> None:
    redaction_policy.set_policy(project=cast.project, actor=Actor(cast.admin), mode="strict", rules=[])
    call_command("redact", "--project", "acme", "--apply", "--user", cast.admin.username, stdout=StringIO())


def test_placeholders_that_are_longer_than_their_column_are_cut(cast: Cast, post: Post) -> None:
    redaction_policy.set_policy(project=cast.project, actor=Actor(cast.admin), mode="off", rules=[])
    mails = " ".join(f"a@{number}.com" for number in range(40))
    said = {
        "session.id": mails[:200],
        "user.id": mails[:200],
        "gen_ai.agent.name": "a@b.com",
        "flywheel.meta.password": "hunter2!",
    }
    sent = span(1, name=mails[:300], gen_ai__operation__name="execute_tool", gen_ai__tool__call__id=mails[:200])
    for name, value in {**said, "gen_ai.agent.version": "v@b.com", "flywheel.tags": json.dumps([mails[:100]])}.items():
        attribute = sent.attributes.add()
        attribute.key, attribute.value.string_value = name, value
    assert post(body_of([sent])).status_code == 200
    Trajectory.objects.update(tags=[mails[:100]], title=mails[:300])
    _apply(cast)
    row = Trajectory.objects.get()
    assert row.session_id.startswith("[redacted:email:")
    assert row.agent_name.startswith("[redacted:email:")
    assert "@" not in json.dumps([row.tags, row.title, row.claims, row.version_label, row.metadata])
    assert post(body_of([span(2, flywheel__meta__password="other")])).status_code == 200, (
        "what was said can be merged with still"
    )
    assert Trajectory.objects.get().step_count == 2


def test_when_something_was_said_stays_with_it_where_two_names_become_one(cast: Cast, post: Post) -> None:
    redaction_policy.set_policy(project=cast.project, actor=Actor(cast.admin), mode="off", rules=[])
    names = ("4111111111111111", "4111 1111 1111 1111", "the tier of this customer")
    for number, name in enumerate(names, 1):
        sent = span(number, at_ms=number * 1000)
        sent.attributes.add(key=f"flywheel.meta.{name}", value=AnyValue(string_value="gold"))
        assert post(body_of([sent])).status_code == 200
    before = Trajectory.objects.get().claims["metadata"]
    assert set(before) > set(names)
    redaction_policy.set_policy(
        project=cast.project,
        actor=Actor(cast.admin),
        mode="secrets",
        rules=[{"name": "cards", "pattern": r"4111[\d ]+", "kind": "card"}],
    )
    call_command("redact", "--project", "acme", "--apply", "--user", cast.admin.username, stdout=StringIO())
    row = Trajectory.objects.get()
    assert row.claims["metadata"].pop(names[2]) == before[names[2]]
    row.claims["metadata"].pop("service.name")
    assert list(row.claims["metadata"].values()) == [before[names[1]]]


def test_one_that_is_deleted_meanwhile_is_passed_over(cast: Cast, post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    redaction_policy.set_policy(project=cast.project, actor=Actor(cast.admin), mode="off", rules=[])
    post(body_of([span(1, db__password="hunter2!")]))
    rows = list(Trajectory.objects.all())
    Trajectory.objects.all().delete()
    newest = redaction_scan._newest
    monkeypatch.setattr(
        redaction_scan, "_newest", lambda model, *more: rows if model is Trajectory else newest(model, *more)
    )
    _apply(cast)


def test_what_lies_beside_trajectories_is_found_and_rewritten(
    cast: Cast, post: Post, sign_in: Callable[..., Client]
) -> None:
    redaction_policy.set_policy(project=cast.project, actor=Actor(cast.admin), mode="off", rules=[])
    bad = [span(0, name="ana@example.com"), span(0, name="ana@example.com"), span(0, name="eva@example.com")]
    for each in bad:
        post(body_of([each]))
    Quarantined.objects.update(reason='name: "ana@example.com"')
    Batch.objects.update(warnings=["ana@example.com is odd"], problems=[{"at": "span 0", "reason": "ana@example.com"}])
    Event.objects.create(project=cast.project, trace_id="aa", name="e", body={"to": "ana@example.com"}, digest=b"1")
    redaction_policy.set_policy(project=cast.project, actor=Actor(cast.admin), mode="strict", rules=[])
    page = page_of(sign_in(cast.admin).get("/p/acme/trajectories/redaction/dry-run/"))
    for place in ("log event", "rejected", "ledger"):
        assert f"<td>{place}</td>" in page
    assert "--apply" in page
    _apply(cast)
    assert "@example.com" not in dump()
    assert Event.objects.get().body["to"].startswith("[redacted:email:")


def test_a_dry_run_on_a_page_is_bounded_and_names_the_command_in_any_case(
    cast: Cast, post: Post, sign_in: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    post(body_of([span(1), span(2)]))
    page = page_of(sign_in(cast.admin).get("/p/acme/trajectories/redaction/dry-run/"))
    assert "Nothing found." in page
    assert "the newest 1 trajectory (2 steps)" in page
    assert "--apply" in page
    monkeypatch.setattr(redaction_views, "WITHIN_S", -1.0)
    page = page_of(sign_in(cast.admin).get("/p/acme/trajectories/redaction/dry-run/"))
    assert "Stopped before all" in page


def test_search_forgets_what_was_taken_out(cast: Cast, post: Post) -> None:
    redaction_policy.set_policy(project=cast.project, actor=Actor(cast.admin), mode="off", rules=[])
    secret = "ghp_1abcdefghijklmnopqrstuvwxyz0123456789"
    post(body_of([span(1, gen_ai__operation__name="chat", gen_ai__input__messages=[text("user", f"my key {secret}")])]))
    detect_waiting()
    found = says(secret)
    assert found is not None
    assert Trajectory.objects.filter(found).exists()
    redaction_policy.set_policy(project=cast.project, actor=Actor(cast.admin), mode="secrets", rules=[])
    call_command("redact", "--project", "acme", "--apply", "--user", cast.admin.username, stdout=StringIO())
    assert secret[4:] not in dump()
    assert detect_waiting() == 1
    assert not Trajectory.objects.filter(found).exists()
    assert Trajectory.objects.filter(says("my key") or Q()).exists()
