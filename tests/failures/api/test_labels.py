"""The API of the room does what the page does, with the same words when it refuses."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Failure
from tests.conftest import Build, Cast
from workers.jobs.detection import detect_waiting

pytestmark = pytest.mark.django_db
Key = Callable[..., dict[str, str]]
JSON = "application/json"


def test_label_list_and_undo(cast: Cast, build: Build, key: Key, client: Client) -> None:
    row = build.trajectory(answer="{")
    detect_waiting()
    headers = key("read", "review", by=cast.reviewer)
    path = f"/api/v1/trajectories/{row.trace_id}/failures"
    body: dict[str, Any] = {"bucket": "format_error", "step": "s2", "note": "cut off", "seen": 0}
    made = client.post(path, body, JSON, headers=headers)
    assert made.status_code == 201
    assert made.json()["decision"] == "confirmed"
    assert client.post(path, body, JSON, headers=headers).json()["id"] == made.json()["id"]
    assert AuditEntry.objects.get().through.startswith("key ")
    listed = client.get("/api/v1/failures?bucket=format_error", headers=headers).json()
    assert [item["trace_id"] for item in listed["items"]] == [row.trace_id]
    labels = client.get(path, headers=headers).json()
    assert labels["proposals"][0]["bucket"] == "format_error"
    undone = client.post(f"{path}/undo", {"seen": made.json()["id"]}, JSON, headers=headers)
    assert undone.status_code == 200
    assert [item["current"] for item in undone.json()["decisions"]] == [False]
    assert client.get("/api/v1/failures", headers=headers).json()["items"] == []
    assert len(client.get("/api/v1/failures?current=false", headers=headers).json()["items"]) == 1


def test_refusals_are_precise(cast: Cast, build: Build, key: Key, client: Client) -> None:
    row = build.trajectory()
    headers = key("read", "review", by=cast.reviewer)
    path = f"/api/v1/trajectories/{row.trace_id}/failures"
    bad = client.post(path, {"bucket": "weird"}, JSON, headers=headers)
    assert (bad.status_code, bad.json()["detail"][:27]) == (422, "bucket: 'weird' is unknown,")
    decide(trajectory=row, actor=Actor(cast.builder), bucket="wrong_tool")
    late = client.post(path, {"bucket": "format_error", "seen": 0}, JSON, headers=headers)
    assert late.status_code == 409
    assert "builder decided wrong tool" in late.json()["detail"]
    assert client.get("/api/v1/failures?bucket=weird", headers=headers).status_code == 400
    assert client.get("/api/v1/failures?cursor=zzz", headers=headers).status_code == 400
    assert client.post(path, {"bucket": "wrong_tool"}, JSON, headers=key("read")).status_code == 403
    assert client.post(path, {"bucket": "wrong_tool"}, JSON).status_code == 401


def test_another_projects_trajectory_is_not_there(cast: Cast, build: Build, key: Key, client: Client) -> None:
    other = build.trajectory(project=cast.elsewhere)
    headers = key("read", "review")
    path = f"/api/v1/trajectories/{other.trace_id}/failures"
    assert client.get(path, headers=headers).status_code == 404
    assert client.post(path, {"bucket": "wrong_tool"}, JSON, headers=headers).status_code == 404
    assert client.post(f"{path}/undo", {}, JSON, headers=headers).status_code == 404
    assert not Failure.objects.exists()


def test_the_list_goes_on_where_the_cursor_stands(cast: Cast, build: Build, key: Key, client: Client) -> None:
    for _ in range(5):
        decide(trajectory=build.trajectory(), actor=Actor(cast.reviewer), bucket="wrong_tool")
    headers = key("read")
    first = client.get("/api/v1/failures?limit=3", headers=headers).json()
    second = client.get(f"/api/v1/failures?limit=3&cursor={first['next']}", headers=headers).json()
    ids = [item["id"] for item in (*first["items"], *second["items"])]
    assert len(set(ids)) == 5
    assert second["next"] is None


def test_buckets_come_with_their_counts(cast: Cast, build: Build, key: Key, client: Client) -> None:
    decide(trajectory=build.trajectory(), actor=Actor(cast.reviewer), bucket="wrong_tool")
    found = {row["key"]: row for row in client.get("/api/v1/buckets", headers=key("read")).json()}
    assert found["wrong_tool"]["confirmed"] == 1
    assert found["format_error"]["waiting"] == 0
    assert found["other"]["shortcut"] == "0"


@pytest.mark.parametrize(
    "corrected",
    [
        {"calls": [{"tool": "email.send", "arguments": {"to": "Bako", "subject": "hi"}}] * 2, "order": "any"},
        {"refuse": ""},
        {"ask": "To whom?"},
        {"avoid": ["email.send"], "text": ""},
    ],
)
def test_every_kind_of_correction_is_taken(
    cast: Cast, build: Build, key: Key, client: Client, corrected: dict[str, Any]
) -> None:
    row = build.trajectory()
    sent = {"bucket": "wrong_tool", "corrected": corrected}
    path = f"/api/v1/trajectories/{row.trace_id}/failures"
    made = client.post(path, sent, JSON, headers=key("review", by=cast.reviewer))
    assert (made.status_code, made.json()["corrected"]) == (201, corrected)


def test_a_correction_is_refused_by_its_field(cast: Cast, build: Build, key: Key, client: Client) -> None:
    row = build.trajectory()
    good, bad = ({"tool": "email.send", "arguments": {"to": to, "subject": "hi"}} for to in ("Bako", 7))
    sent = {"bucket": "wrong_tool", "corrected": {"calls": [good, bad]}}
    path = f"/api/v1/trajectories/{row.trace_id}/failures"
    answer = client.post(path, sent, JSON, headers=key("review", by=cast.reviewer))
    assert (answer.status_code, answer.json()["detail"]) == (422, "calls.1.arguments.to: 7 is not of type 'string'")
