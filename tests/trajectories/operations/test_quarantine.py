"""What was rejected waits as it came, and goes through the same door again."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, User
from flywheel.trajectories.import_export.trajectory_import import import_file
from flywheel.trajectories.models import Batch, Quarantined, Step, Trajectory
from flywheel.trajectories.operations import quarantine
from tests.conftest import Cast
from tests.trajectories.formats.sending import as_json
from tests.trajectories.talking import TRACE, body_of, episode, request_of, span

PROTOBUF = "application/x-protobuf"


@pytest.fixture
def send(client: Client, key: Callable[..., dict[str, str]]) -> Callable[..., Any]:
    headers = key("ingest")

    def go(body: bytes, content_type: str = PROTOBUF) -> Any:
        return client.post("/v1/traces", body, content_type=content_type, headers=headers)

    return go


def bad(number: int = 7, ident: bytes = b"short") -> Any:
    made = span(number)
    made.trace_id = ident
    return made


def page(cast: Cast, name: str, *args: Any) -> str:
    return reverse(f"trajectories:{name}", args=[cast.project.slug, *args])


def repaired(item: Quarantined) -> str:
    """What a person makes of it: the id that it should have had."""
    row = json.loads(quarantine.shown(item).text)
    row["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["traceId"] = TRACE
    return json.dumps(row)


@pytest.mark.parametrize("as_what", ["protobuf", "json"])
def test_a_rejected_span_waits_alone_with_its_resource(cast: Cast, send: Callable[..., Any], as_what: str) -> None:
    request = request_of([*episode(), bad()])
    if as_what == "json":
        send(json.dumps(as_json(request)).encode(), "application/json")
    else:
        send(request.SerializeToString())
    item = Quarantined.objects.get()
    assert (item.at, item.state, item.batch, item.project) == ("span 6", "open", Batch.objects.get(), cast.project)
    shown = quarantine.shown(item)
    (group,) = json.loads(shown.text)["resourceSpans"]
    assert shown.is_editable
    assert group["resource"]["attributes"]
    (only,) = group["scopeSpans"][0]["spans"]
    assert (only["traceId"], only["spanId"]) == (b"short".hex(), span(7).span_id.hex())


def test_an_edited_span_is_stored_as_a_request_of_its_own(
    cast: Cast, send: Callable[..., Any], sign_in: Callable[[User], Client]
) -> None:
    send(body_of([*episode(), bad()]))
    item = Quarantined.objects.get()
    came = bytes(item.content)
    answer = sign_in(cast.builder).post(page(cast, "replay", item.pk), {"body": repaired(item)})
    assert answer.status_code == 302
    item.refresh_from_db()
    assert (item.state, item.trace_id, item.decided_by, bytes(item.content)) == ("replayed", TRACE, cast.builder, came)
    assert Trajectory.objects.get().step_count == 7
    batch = Batch.objects.latest("id")
    assert (batch.received, batch.inserted, batch.rejected, batch.format) == (1, 1, 0, "otlp")
    entry = AuditEntry.objects.get(action="trajectories.replay")
    assert (entry.actor, entry.data["edited"], entry.data["batch"]) == (cast.builder, True, batch.pk)
    body = sign_in(cast.builder).get(page(cast, "quarantined", item.pk)).content.decode()
    assert reverse("trajectories:detail", args=[cast.project.slug, TRACE]) in body


def test_what_is_still_wrong_stays_with_what_was_written(
    cast: Cast, send: Callable[..., Any], sign_in: Callable[[User], Client]
) -> None:
    send(body_of([bad()]))
    item = Quarantined.objects.get()
    text = quarantine.shown(item).text.replace(b"short".hex(), "77" * 12)
    answer = sign_in(cast.builder).post(page(cast, "replay", item.pk), {"body": text})
    assert answer.status_code == 422
    assert "77" * 12 in answer.content.decode()
    assert "Still rejected" in answer.content.decode()
    item.refresh_from_db()
    assert (item.state, Trajectory.objects.count(), Batch.objects.count()) == ("open", 0, 1)
    answer = sign_in(cast.builder).post(page(cast, "replay", item.pk), {"body": "{nonsense"})
    assert "your text is not JSON" in answer.content.decode()


def test_unedited_text_is_replayed_as_the_bytes_that_came(cast: Cast, send: Callable[..., Any]) -> None:
    """The cause may have been ours: after an upgrade the same bytes go through."""
    send(body_of([bad()]))
    good = Quarantined.objects.get()
    Quarantined.objects.update(content=body_of([span(7)]))
    good.refresh_from_db()
    quarantine.replay(item=good, actor=Actor(cast.builder))
    assert (Trajectory.objects.get().trace_id, good.state) == (TRACE, "open")
    assert Quarantined.objects.get().state == "replayed"


def test_replaying_twice_stores_once(cast: Cast, send: Callable[..., Any], sign_in: Callable[[User], Client]) -> None:
    send(body_of([bad()]))
    item = Quarantined.objects.get()
    for _ in range(2):
        sign_in(cast.builder).post(page(cast, "replay", item.pk), {"body": repaired(item)})
    assert (Step.objects.count(), AuditEntry.objects.filter(action="trajectories.replay").count()) == (1, 1)


def test_causes_are_groups_whatever_values_they_quote(cast: Cast, send: Callable[..., Any]) -> None:
    send(body_of([bad(7, b"short"), bad(8, b"longer"), bad(9, b"")]))
    row = as_json(request_of([span(10), span(11)]))
    for found, ident in zip(row["resourceSpans"][0]["scopeSpans"][0]["spans"], ['a"b', "c"], strict=True):
        found["traceId"] = ident
    send(json.dumps(row).encode(), "application/json")
    found = quarantine.groups(Quarantined.objects.all())
    assert [group.count for group in found] == [2, 1, 2]
    assert len({group.kind for group in found}) == 3


def test_the_same_rejected_bytes_wait_once(cast: Cast, send: Callable[..., Any]) -> None:
    for _ in range(3):
        send(body_of([bad()]))
    assert Quarantined.objects.count() == 1
    assert [batch.rejected for batch in Batch.objects.all()] == [1, 1, 1]


def test_a_whole_cause_is_replayed_or_dismissed(
    cast: Cast, send: Callable[..., Any], sign_in: Callable[[User], Client]
) -> None:
    send(body_of([bad(7), bad(8)]))
    first = Quarantined.objects.order_by("pk")[0]
    Quarantined.objects.filter(pk=first.pk).update(content=body_of([span(7)]))
    answer = sign_in(cast.builder).post(page(cast, "replay_group"), {"kind": first.kind}, follow=True)
    assert "1 stored, 1 still rejected." in answer.content.decode()
    sign_in(cast.builder).post(page(cast, "dismiss_group"), {"kind": first.kind})
    assert sorted(Quarantined.objects.values_list("state", flat=True)) == ["dismissed", "replayed"]
    assert AuditEntry.objects.filter(action="trajectories.dismiss").count() == 1


def test_a_line_of_a_file_is_repaired_too(cast: Cast, tmp_path: Any) -> None:
    path = tmp_path / "runs.jsonl"
    good = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]}
    path.write_text(json.dumps(good) + '\n{"messages": 7}\n')
    with path.open("rb") as file:
        import_file(cast.project, file)
    item = Quarantined.objects.get()
    assert (item.at, item.media_type) == ("line 2", "")
    with pytest.raises(quarantine.StillWrong, match="messages"):
        quarantine.replay(item=item, actor=Actor(cast.builder))
    quarantine.replay(item=item, actor=Actor(cast.builder), text=json.dumps(good | {"id": "a"}))
    item.refresh_from_db()
    assert Trajectory.objects.get(trace_id=item.trace_id).source == "import"


@pytest.mark.parametrize("content", [b"\xff\xfe\x00garbage" * 900, b"", b"\x0a\x02"])
def test_bytes_that_nothing_reads_are_shown_as_bytes(cast: Cast, content: bytes) -> None:
    batch = Batch.objects.create(
        project=cast.project, format="otlp", received=1, inserted=0, updated=0, duplicate=0, rejected=1
    )
    for media_type in (PROTOBUF, "application/json", ""):
        item = Quarantined(project=cast.project, batch=batch, media_type=media_type, content=content, reason="span: x")
        quarantine.shown(item)


def test_pages_and_files(cast: Cast, send: Callable[..., Any], sign_in: Callable[[User], Client]) -> None:
    client = sign_in(cast.builder)
    assert "Nothing was rejected" in client.get(page(cast, "quarantine")).content.decode()
    send(body_of([bad(number, bytes([number])) for number in range(7, 67)]))
    first = client.get(page(cast, "quarantine"))
    assert len(first.context["page"].items) == 50
    assert len(client.get(page(cast, "quarantine") + first.context["page"].next).context["page"].items) == 10
    item = Quarantined.objects.order_by("-pk")[0]
    raw = client.get(page(cast, "quarantined_raw", item.pk))
    assert (raw.content, raw["X-Content-Type-Options"]) == (bytes(item.content), "nosniff")
    assert raw["Content-Disposition"].startswith("attachment")
    assert sign_in(cast.reviewer).get(page(cast, "quarantine")).status_code == 403
    assert sign_in(cast.stranger).get(page(cast, "quarantined", item.pk)).status_code == 404


def test_the_overview_says_what_waits(cast: Cast, send: Callable[..., Any], sign_in: Callable[[User], Client]) -> None:
    send(body_of([*episode(), bad(7), bad(8)]))
    body = sign_in(cast.builder).get(reverse("overview:index", args=[cast.project.slug])).content.decode()
    assert page(cast, "quarantine") in body
    assert "in quarantine" in body


def test_hostile_content_stays_text(cast: Cast, send: Callable[..., Any], sign_in: Callable[[User], Client]) -> None:
    row = as_json(request_of([span(7)]))
    found = row["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    found["traceId"] = "</textarea><script>alert(1)</script>"
    found["name"] = "</textarea><b>"
    send(json.dumps(row).encode(), "application/json")
    client = sign_in(cast.builder)
    for address in (page(cast, "quarantine"), page(cast, "quarantined", Quarantined.objects.get().pk)):
        body = client.get(address).content.decode()
        assert "<script>alert" not in body
        assert "</textarea><b>" not in body


def test_it_ends_with_its_time(cast: Cast, send: Callable[..., Any]) -> None:
    from flywheel.trajectories.operations import retention

    send(body_of([bad()]))
    assert not retention.expire(cast.project)["quarantined"]
    assert retention.expire(cast.project, timezone.now() + timedelta(days=31))["quarantined"] == 1
    assert not Quarantined.objects.exists()


def test_the_api_does_the_same(
    cast: Cast, client: Client, send: Callable[..., Any], key: Callable[..., dict[str, str]]
) -> None:
    send(body_of([*episode(), bad(7), bad(8)]))
    build, admin = key("build"), key("admin")
    first, second = client.get("/api/v1/quarantine", headers=build).json()["items"]
    one = client.get(f"/api/v1/quarantine/{first['id']}", headers=build).json()
    assert (one["batch"], one["is_editable"], one["state"]) == (Batch.objects.get().pk, True, "open")
    replay = f"/api/v1/quarantine/{first['id']}/replay"
    assert client.post(replay, "{}", "application/json", headers=build).status_code == 422
    text = repaired(Quarantined.objects.get(pk=first["id"]))
    done = client.post(replay, json.dumps({"content": text}), "application/json", headers=build)
    assert (done.status_code, done.json()["trace_id"]) == (200, TRACE)
    assert client.post(replay, "{}", "application/json", headers=build).status_code == 409
    assert client.post(f"/api/v1/quarantine/{second['id']}/dismiss", headers=build).json()["state"] == "dismissed"
    assert AuditEntry.objects.get(action="trajectories.dismiss").through.startswith("key ")

    days = {"bodies_days": 0, "production_days": 90}
    saved = client.put("/api/v1/retention", json.dumps(days), "application/json", headers=admin).json()
    assert saved == client.get("/api/v1/retention", headers=admin).json()
    assert (saved["bodies_days"], saved["production_days"], saved["quarantine_days"]) == (0, 90, 30)
    bad_days = client.put("/api/v1/retention", '{"bodies_days": -1}', "application/json", headers=admin)
    assert bad_days.status_code == 422

    address = f"/api/v1/trajectories/{TRACE}"
    assert client.delete(address, headers=build).status_code == 403
    assert client.delete(f"{address}?reason=asked", headers=admin).json() == {"steps": 7}
    assert client.delete(address, headers=admin).status_code == 404
    assert AuditEntry.objects.get(action="trajectories.delete").reason == "asked"
