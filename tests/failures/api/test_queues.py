"""The API of queues does what the pages do, with the same words when it refuses."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from flywheel.accounts.models import AuditEntry
from flywheel.failures.models import Queue, QueueItem
from tests.conftest import Build, Cast

pytestmark = pytest.mark.django_db
Key = Callable[..., dict[str, str]]
JSON = "application/json"
ROOT = "/api/v1/queues"


def test_a_queue_is_made_filled_reviewed_and_read(cast: Cast, build: Build, key: Key, client: Client) -> None:
    builder, headers = key("read", "build", by=cast.builder), key("read", "review", by=cast.reviewer)
    made = client.post(ROOT, {"name": "mine", "needed": 1, "assignees": ["reviewer"]}, JSON, headers=builder)
    assert made.status_code == 201, made.content
    path = f"{ROOT}/{made.json()['id']}"
    rows = [build.trajectory() for _ in range(3)]
    body = {"trace_ids": [*(row.trace_id for row in rows), "nothing"]}
    assert client.post(f"{path}/items", body, JSON, headers=headers).json() == {"added": 3, "unknown": ["nothing"]}
    taken = client.post(f"{path}/take", {}, JSON, headers=headers).json()
    assert (taken["trace_id"], taken["state"], taken["reserved_by"]) == (rows[0].trace_id, "in_review", "reviewer")
    item = f"{path}/items/{taken['id']}"
    assert client.post(f"{item}/hold", headers=headers).status_code == 200
    said = client.post(f"{item}/review", {"bucket": "wrong_tool", "seen": 0}, JSON, headers=headers)
    assert said.status_code == 201
    assert (said.json()["state"], said.json()["outcome"]["bucket"]) == ("done", "wrong_tool")
    assert [review["reviewer"] for review in said.json()["reviews"]] == ["reviewer"]
    undone = client.post(f"{item}/undo", headers=headers).json()
    assert (undone["state"], undone["outcome"], undone["reviews"][0]["current"]) == ("to_review", None, False)
    second = client.post(f"{path}/take", {"after": taken["id"]}, JSON, headers=headers).json()
    assert second["trace_id"] == rows[1].trace_id
    other = f"{path}/items/{second['id']}"
    assert client.post(f"{other}/decline", {"reason": "a test"}, JSON, headers=headers).json()["state"] == "declined"
    assert client.post(f"{other}/reopen", headers=headers).json()["state"] == "needs_another"
    client.post(f"{item}/release?at_the_end=true", headers=headers)
    listed = client.get(f"{path}/items?state=to_review&limit=1", headers=headers).json()
    assert len(listed["items"]) == 1
    more = client.get(f"{path}/items?state=to_review&limit=1&cursor={listed['next']}", headers=headers).json()
    assert {row["trace_id"] for row in (*listed["items"], *more["items"])} == {rows[0].trace_id, rows[2].trace_id}
    found = client.get(path, headers=headers).json()
    assert found["progress"] == {"to_review": 2, "needs_another": 1, "in_review": 0, "done": 0, "declined": 0}
    assert AuditEntry.objects.get(action="failures.add_to_queue").through.startswith("key ")
    changed = client.put(path, {"name": "ours", "archived": True}, JSON, headers=builder).json()
    assert (changed["name"], changed["assignees"], changed["archived_at"] is not None) == ("ours", [], True)
    assert client.post(f"{path}/take", {}, JSON, headers=headers).status_code == 204
    assert client.get(ROOT, headers=headers).json() == []
    assert [row["name"] for row in client.get(f"{ROOT}?archived=true", headers=headers).json()] == ["ours"]


def test_reviewers_are_blind_in_the_api_too(cast: Cast, build: Build, key: Key, client: Client) -> None:
    queue = Queue.objects.create(project=cast.project, name="q", needed=2, created_by=cast.builder)
    item = QueueItem.objects.create(queue=queue, trajectory=build.trajectory())
    path = f"{ROOT}/{queue.pk}/items/{item.pk}"
    people = [key("read", "review", by=person) for person in (cast.reviewer, cast.trainer, cast.builder)]
    client.post(f"{path}/review", {"bucket": "wrong_tool"}, JSON, headers=people[0])
    assert client.get(path, headers=people[1]).json()["reviews"] == []
    assert len(client.get(path, headers=people[0]).json()["reviews"]) == 1
    client.post(f"{path}/review", {"bucket": ""}, JSON, headers=people[1])
    settle = {"bucket": "wrong_tool", "settles": True}
    assert client.post(f"{path}/review", settle, JSON, headers=people[0]).status_code == 403
    done = client.post(f"{path}/review", settle, JSON, headers=people[2]).json()
    assert (done["state"], len(done["reviews"])) == ("done", 3)
    found = client.get(f"{ROOT}/{queue.pk}/agreement", headers=people[0]).json()
    assert (found["items"], [pair["first"] for pair in found["pairs"]]) == (1, ["reviewer"])
    assert {row["bucket"] for row in found["buckets"]} == {"wrong_tool", ""}


def test_what_was_decided_is_not_told_while_another_blind_reviewer_is_wanted(
    cast: Cast, build: Build, key: Key, client: Client
) -> None:
    queue = Queue.objects.create(project=cast.project, name="q", needed=2, created_by=cast.builder)
    item = QueueItem.objects.create(queue=queue, trajectory=build.trajectory())
    items, path = f"{ROOT}/{queue.pk}/items", f"{ROOT}/{queue.pk}/items/{item.pk}"
    page = f"/p/acme/failures/queues/{queue.pk}/"
    client.force_login(cast.approver)
    for person in (cast.reviewer, cast.trainer):
        client.post(f"{path}/review", {"bucket": "wrong_tool"}, JSON, headers=key("review", by=person))
    third = key("read", "review", by=cast.approver)
    assert client.get(path, headers=third).json()["outcome"]["bucket"] == "wrong_tool"
    assert "wrong tool</td>" in client.get(page).content.decode()
    client.post(f"{path}/reopen", headers=third)
    assert client.get(path, headers=third).json()["outcome"] is None
    assert client.get(items, headers=third).json()["items"][0]["outcome"] is None
    assert "wrong tool</td>" not in client.get(page).content.decode()


def test_refusals_are_precise(cast: Cast, build: Build, key: Key, client: Client) -> None:
    queue = Queue.objects.create(project=cast.project, name="q", created_by=cast.builder)
    item = QueueItem.objects.create(queue=queue, trajectory=build.trajectory())
    path = f"{ROOT}/{queue.pk}"
    headers, other = key("read", "review", by=cast.reviewer), key("review", "build", by=cast.builder)

    def told(method: str, where: str, body: dict[str, Any], as_whom: dict[str, str]) -> tuple[int, str]:
        answer = client.generic(method, where, json.dumps(body), JSON, headers=as_whom)
        return answer.status_code, str(answer.json()["detail"])

    assert told("POST", ROOT, {"name": "q"}, other) == (422, "name: a queue 'q' already exists")
    client.post(f"{path}/take", {}, JSON, headers=other)
    bodies = {"hold": {}, "review": {"bucket": "wrong_tool"}, "decline": {"reason": "r"}, "release?at_the_end=true": {}}
    for where, body in bodies.items():
        status, words = told("POST", f"{path}/items/{item.pk}/{where}", body, headers)
        assert (status, words[:27]) == (409, "builder has this item, for "), where
    assert told("POST", f"{path}/items/{item.pk}/review", {"bucket": "weird"}, other)[0] == 422
    assert told("POST", f"{path}/items/0/review", {}, other) == (404, "there is no queue item 0")
    assert told("GET", f"{path}/items?state=weird", {}, headers)[0] == 400
    queue.assignees.add(cast.trainer)
    for where, body in (("take", {}), (f"items/{item.pk}/review", {"bucket": "wrong_tool"})):
        assert told("POST", f"{path}/{where}", body, other)[0] == 403, where
    elsewhere = key("read", "review", by=cast.stranger, project=cast.elsewhere)
    assert told("GET", path, {}, elsewhere)[0] == 404
    assert told("POST", f"{path}/take", {}, elsewhere)[0] == 404
