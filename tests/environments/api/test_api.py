"""The API of the room: the whole way from a failure to a frozen set, and the same refusals as on the page."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.environments.models import Environment, Opening, Split
from flywheel.failures.labels.decisions import decide
from tests.conftest import Build, Cast

pytestmark = pytest.mark.django_db
Key = Callable[..., dict[str, str]]
JSON = "application/json"
RIGHT = {"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "friday"}}
API = "/api/v1/environments"


@pytest.fixture
def headers(cast: Cast, key: Key) -> dict[str, str]:
    return key("read", "build", by=cast.builder)


def test_from_a_failure_to_a_frozen_set(cast: Cast, build: Build, client: Client, headers: dict[str, str]) -> None:
    version = build.version()
    wanted = {"name": "mail", "version": str(version), "held_out_share": 0.5, "sealed_share": 0}
    made = client.post(API, wanted, JSON, headers=headers)
    assert made.status_code == 201
    assert made.json()["latest"]["number"] == 1
    rows = []
    for number in range(12):
        row = build.trajectory(
            answer="{", prompt=f"Meet Bako on friday {number}", metadata={"state": {"people": ["Bako"]}}
        )
        decide(trajectory=row, actor=Actor(cast.reviewer), bucket="format_error", corrected=RIGHT)
        rows.append(row)
    one = client.post(f"{API}/mail/tasks", {"trace_id": rows[0].trace_id}, JSON, headers=headers)
    assert (one.status_code, one.json()["number"], one.json()["is_proved"]) == (201, 1, True)
    assert client.post(f"{API}/mail/tasks", {"trace_id": rows[0].trace_id}, JSON, headers=headers).status_code == 200
    bulk = client.post(f"{API}/mail/tasks/bulk", headers=headers).json()
    assert (len(bulk["made"]), bulk["refused"], bulk["left"]) == (11, {}, 0)
    listed = client.get(f"{API}/mail/tasks?limit=5", headers=headers).json()
    more = client.get(f"{API}/mail/tasks?limit=200&cursor={listed['next']}", headers=headers).json()
    assert sorted(task["number"] for task in (*listed["items"], *more["items"])) == list(range(1, 13))
    frozen = client.post(f"{API}/mail/task-sets", {"name": "mail"}, JSON, headers=headers)
    assert frozen.status_code == 201
    assert frozen.json()["train"] + frozen.json()["held_out"] == 12
    got = client.get("/api/v1/task-sets/mail/1", headers=headers).json()
    assert (got["digest"], len(got["members"]), got["opened"]) == (frozen.json()["digest"], 12, 0)
    assert [item["name"] for item in client.get("/api/v1/task-sets", headers=headers).json()["items"]] == ["mail"]
    assert client.get(API, headers=headers).json()["items"][0]["tasks"]["proved"] == 12


def test_lists_cost_the_same_for_any_number(
    build: Build, cast: Cast, sign_in: Callable[[User], Client], headers: dict[str, str]
) -> None:
    def cost() -> list[int]:
        spent = []
        for address, given in (
            (API, headers),
            ("/api/v1/task-sets", headers),
            (reverse("environments:index", args=["acme"]), {}),
        ):
            with CaptureQueriesContext(connection) as queries:
                assert viewer.get(address, headers=given).status_code == 200
            spent.append(len(queries))
        return spent

    build.task_set()
    viewer = sign_in(cast.viewer)
    cost()
    before = cost()
    for name in ("one", "two", "three"):
        build.task_set(environment=build.environment(name))
    assert cost() == before


def test_a_new_version_keeps_what_is_left_out(build: Build, client: Client, headers: dict[str, str]) -> None:
    build.environment()
    made = client.post(f"{API}/mail/versions", {"weights": {"exact": 1}}, JSON, headers=headers)
    assert (made.status_code, made.json()["number"]) == (201, 2)
    assert made.json()["config"]["tools"]
    again = client.post(f"{API}/mail/versions", {"weights": {"exact": 1}}, JSON, headers=headers)
    assert again.json()["number"] == 2


def test_tools_are_taken_in_a_providers_format(build: Build, client: Client, headers: dict[str, str]) -> None:
    build.environment()
    given = [{"type": "function", "function": {"name": "send", "parameters": {"type": "object"}, "strict": True}}]
    made = client.post(f"{API}/mail/versions", {"tools": given}, JSON, headers=headers)
    assert (made.status_code, made.json()["config"]["tools"]) == (
        201,
        [{"name": "send", "parameters": {"type": "object"}}],
    )


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("", {"name": "a b", "version": "assistant@1"}, 422, "name: 'a b' is not of the form"),
        ("", {"name": "new", "version": "nobody@1"}, 422, "version: there is no agent 'nobody'"),
        ("", {"name": "new", "version": "assistant@1", "kind": "x"}, 422, "kind: 'x' is unknown"),
        ("", {"name": "new", "version": "assistant@1", "held_out_share": 2}, 422, "held_out_share: 2.0 is not between"),
        ("", {"name": "mail", "version": "assistant@1"}, 422, "an environment 'mail' already exists"),
        ("", {"name": "new", "version": "assistant@1", "weights": {"x": 1}}, 422, "weights.x: unknown part"),
        ("/mail/versions", {"weights": {"exact": 0}}, 422, "at least one must be above 0"),
        ("/mail/versions", {"tools": [{"x": 1}]}, 422, "tools[0]"),
        ("/mail/versions", {"tools": []}, 422, "tools: expected at least one definition"),
        ("", {"name": "new", "version": "idle@1"}, 422, "tools: expected at least one definition"),
        (
            "/mail/versions",
            {"tools": [{"name": "x", "parameters": {"properties": {"a": {"pattern": "(?=a)b"}}}}]},
            422,
            "tools[0].parameters.properties.a.pattern: ",
        ),
        (
            "/mail/versions",
            {"config": {"tools": [{"name": "x"}], "tool": 1}},
            422,
            "tool: there is no such setting, only ",
        ),
        (
            "",
            {"name": "new", "kind": "workplace", "config": {"system_prompt": 5}},
            422,
            "system_prompt: expected a text",
        ),
        (
            "",
            {"name": "new", "kind": "tictactoe", "config": {"system_prompt": ["x"]}},
            422,
            "system_prompt: expected a text",
        ),
        (
            "",
            {"name": "new", "kind": "workplace", "config": {"max_turn": 5}},
            422,
            "max_turn: there is no such setting, only system_prompt, max_turns, token_limit, now, database",
        ),
        (
            "",
            {"name": "new", "kind": "tictactoe", "config": {"tokens_limit": 5}},
            422,
            "tokens_limit: there is no such",
        ),
        ("/mail/tasks", {"trace_id": "nowhere"}, 404, "no decision on a trajectory 'nowhere'"),
        ("/mail/task-sets", {"name": "mail"}, 422, "no proved train task"),
        ("/mail/task-sets", {"name": "mail", "tasks": [7]}, 422, "mail has no task 7"),
        ("/mail/tasks/9/retire", {"reason": "x"}, 404, "there is no task 9"),
        ("/none/tasks/bulk", {}, 404, "there is no environment none"),
    ],
)
def test_refusals_are_precise(
    build: Build,
    client: Client,
    headers: dict[str, str],
    path: str,
    body: dict[str, Any],
    status: int,
    message: str,
) -> None:
    build.environment()
    build.version()
    build.version(build.agent("idle"), tools=[])
    answer = client.post(API + path, body, JSON, headers=headers)
    assert answer.status_code == status
    assert message in answer.json()["detail"]


def test_retiring_needs_a_reason(build: Build, client: Client, headers: dict[str, str]) -> None:
    task = build.task(Split.TRAIN)
    path = f"{API}/mail/tasks/{task.number}/retire"
    assert client.post(path, {"reason": " "}, JSON, headers=headers).status_code == 422
    assert client.post(path, {"reason": "ambiguous"}, JSON, headers=headers).json()["retired_at"]
    assert client.get(f"{API}/mail/tasks", headers=headers).json()["items"] == []
    assert len(client.get(f"{API}/mail/tasks?retired=true", headers=headers).json()["items"]) == 1


def test_scopes_and_projects(cast: Cast, build: Build, client: Client, key: Key) -> None:
    build.task()
    assert client.get(API).status_code == 401
    assert client.post(f"{API}/mail/tasks/bulk", headers=key("read")).status_code == 403
    assert client.post(f"{API}/mail/tasks/bulk", headers=key("build", by=cast.reviewer)).status_code == 403
    other = key("read", "build", by=cast.stranger, project=cast.elsewhere)
    for path in ("/mail", "/mail/tasks", "/mail/tasks/1"):
        assert client.get(API + path, headers=other).status_code == 404
    assert client.get(API, headers=other).json()["items"] == []
    assert client.get(f"{API}/mail/tasks?split=weird", headers=key("read")).status_code == 400
    assert Environment.objects.count() == 1


@pytest.mark.parametrize(
    ("asked", "sealed"),
    [
        ({}, 0.1),
        ({"held_out_share": 0.2}, 0.05),
        ({"sealed_share": 0}, 0),
        ({"sealed_share": 0.3}, 0.3),
        ({"held_out_share": 1}, 0),
    ],
)
def test_a_quarter_of_what_is_held_out_is_sealed_unless_one_says_otherwise(
    build: Build, client: Client, headers: dict[str, str], asked: dict[str, float], sealed: float
) -> None:
    wanted = {"name": "mail", "version": str(build.version()), **asked}
    made = client.post(API, wanted, JSON, headers=headers).json()
    assert made["sealed_share"] == pytest.approx(sealed)


def test_more_cannot_be_sealed_than_is_held_out(build: Build, client: Client, headers: dict[str, str]) -> None:
    wanted = {"name": "mail", "version": str(build.version()), "held_out_share": 0.3, "sealed_share": 0.3}
    refused = client.post(API, wanted, JSON, headers=headers)
    assert (refused.status_code, refused.json()["detail"]) == (
        422,
        "sealed_share: 0.3 is not from 0 to below the held-out share, 0.3",
    )


def test_sealed_tasks_are_listed_where_they_are_asked_for_and_reading_is_noted(
    build: Build, cast: Cast, client: Client, headers: dict[str, str]
) -> None:
    task_set = build.task_set(train=2, held_out=1, sealed=1)
    place = f"{API}/{task_set.environment_version.environment}/tasks"
    assert {task["split"] for task in client.get(place, headers=headers).json()["items"]} == {"train", "held_out"}
    (sealed,) = client.get(f"{place}?split=sealed", headers=headers).json()["items"]
    client.get(f"{place}/{sealed['number']}", headers=headers)
    noted = Opening.objects.filter(task_set=task_set, kind="export").order_by("subject")
    assert list(noted.values_list("subject", "times")) == [("its sealed tasks", 2), ("its tasks", 1)]
    found = client.get(f"/api/v1/task-sets/{task_set.name}/{task_set.version}", headers=headers).json()
    assert (found["sealed"], [row["split"] for row in found["members"]]) == (1, ["train", "train", "held_out"])
