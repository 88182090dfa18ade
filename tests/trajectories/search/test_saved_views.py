"""Saved views, chosen columns, and the preview of a row."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, User
from flywheel.trajectories.models import Taste, View
from flywheel.trajectories.search import list_columns, saved_views
from tests.conftest import Build, Cast

SignIn = Callable[[User], Client]
URL = "/p/acme/trajectories/"


def post(client: Client, name: str, /, *args: Any, **data: Any) -> Any:
    return client.post(reverse(f"trajectories:{name}", args=["acme", *args]), data)


def heads(client: Client, **asked: str) -> list[str]:
    answer = client.get(URL, asked)
    shown: list[str] = answer.context["shown_cols"].split(",")
    heads = answer.content.decode().partition("<thead>")[2].partition("</thead>")[0]
    assert [list_columns.COLUMNS[key].label for key in shown] == re.findall(
        r"<th(?: class=\"num\")?>([^<]+)</th>", heads
    )
    return shown


def test_a_view_is_an_address(cast: Cast, build: Build, sign_in: SignIn) -> None:
    build.trajectory(outcome="failed")
    client = sign_in(cast.reviewer)
    asked = {"q": "outcome:failed", "cols": "when,request,no_such", "name": "Failed", "is_shared": "1"}
    address = post(client, "save_view", **asked)["Location"]
    assert address == f"{URL}?q=outcome%3Afailed&cols=when%2Crequest"
    content = client.get(address).content.decode()
    assert '<span class="clip">Failed</span>' in content
    assert heads(client, q="outcome:failed", cols="when,request") == ["when", "request"]
    seen = sign_in(cast.viewer).get(URL).content.decode()
    assert "outcome%3Afailed" in seen
    assert "by reviewer" in seen
    post(client, "save_view", **{**asked, "q": "has:error", "is_shared": ""})
    view = View.objects.get()
    assert (view.q, view.is_shared) == ("has:error", False)
    assert "by reviewer" not in sign_in(cast.viewer).get(URL).content.decode()
    assert AuditEntry.objects.filter(action="trajectories.save_view").count() == 2


@pytest.mark.parametrize(
    ("asked", "told"),
    [({"name": " "}, "name: expected between"), ({"name": "x", "q": "buket:x"}, "Did you mean bucket")],
)
def test_what_cannot_be_saved_is_told(cast: Cast, sign_in: SignIn, asked: dict[str, str], told: str) -> None:
    client = sign_in(cast.reviewer)
    answer = client.post(reverse("trajectories:save_view", args=["acme"]), asked, follow=True)
    assert told in answer.content.decode()
    assert not View.objects.exists()


def test_viewers_keep_views_for_themselves(cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.viewer)
    post(client, "save_view", name="a", is_shared="1")
    assert not View.objects.exists()
    post(client, "save_view", name="a")
    assert View.objects.get().owner == cast.viewer


def test_the_list_opens_with_what_each_person_chose(cast: Cast, build: Build, sign_in: SignIn) -> None:
    build.trajectory()
    client, other = sign_in(cast.reviewer), sign_in(cast.viewer)
    post(client, "save_view", name="Slow", q="latency:>2", is_shared="1", is_first="1")
    assert client.get(URL)["Location"] == f"{URL}?q=latency%3A%3E2"
    assert client.get(URL, {"q": ""}).status_code == 200
    assert other.get(URL).status_code == 200
    view = View.objects.get()
    post(other, "open_with", view=view.pk)
    assert other.get(URL).status_code == 302
    View.objects.update(is_shared=False)
    assert other.get(URL).status_code == 200
    assert post(sign_in(cast.trainer), "open_with", view=view.pk).status_code == 404
    for none in ("²", "9" * 4400, "1_0"):
        assert post(client, "open_with", view=none).status_code == 404
        assert client.get(URL).status_code == 302, "a view that is none changes nothing"
    post(client, "open_with")
    assert client.get(URL).status_code == 200


def test_only_its_owner_deletes_a_view(cast: Cast, sign_in: SignIn) -> None:
    view = saved_views.save(project=cast.project, actor=Actor(cast.reviewer), name="mine", is_first=True)
    assert post(sign_in(cast.admin), "delete_view", view.pk).status_code == 404
    assert post(sign_in(cast.reviewer), "delete_view", view.pk).status_code == 302
    assert not View.objects.exists()
    assert Taste.objects.get().view is None


def test_a_shared_view_is_deleted_by_an_admin_too(
    cast: Cast, sign_in: SignIn, client: Client, key: Callable[..., Any]
) -> None:
    """Whoever made it may have left."""
    first, second = (
        saved_views.save(project=cast.project, actor=Actor(cast.reviewer), name=name, q=f"env:{name}", is_shared=True)
        for name in ("a", "b")
    )
    assert post(sign_in(cast.trainer), "delete_view", first.pk).status_code == 404
    assert "Delete a…" not in sign_in(cast.trainer).get(saved_views.address(first)).content.decode()
    assert "Delete a…" in sign_in(cast.admin).get(saved_views.address(first)).content.decode()
    assert post(sign_in(cast.admin), "delete_view", first.pk).status_code == 302
    address = f"/api/v1/views/{second.pk}"
    assert client.delete(address, headers=key("review")).status_code == 404, "without the scope"
    assert client.delete(address, headers=key("review", "admin")).status_code == 204
    assert not View.objects.exists()


def test_columns_are_remembered_for_each_person(cast: Cast, build: Build, sign_in: SignIn) -> None:
    build.trajectory(tags=["<i>vip"], environment="dev", agent=build.agent())
    client = sign_in(cast.reviewer)
    assert heads(client) == list_columns.USUAL
    assert post(client, "choose_columns", column=["tags", "env", "gone", "when"], q="env:dev")["Location"].endswith(
        "dev"
    )
    assert heads(client) == ["when", "tags", "env"]
    content = client.get(URL).content.decode()
    assert "&lt;i&gt;vip" in content
    assert "Tokens</th>" not in content
    assert heads(sign_in(cast.viewer)) == list_columns.USUAL
    Taste.objects.update(columns=["gone", "cost"])
    assert heads(client) == ["cost"]
    post(client, "choose_columns")
    assert heads(client) == list_columns.USUAL
    every = ",".join(list_columns.COLUMNS)
    assert client.get(URL, {"cols": every}).content.decode().count("</th>") == len(list_columns.COLUMNS) + 1


def test_a_row_can_be_looked_into(cast: Cast, build: Build, sign_in: SignIn) -> None:
    row = build.trajectory(prompt="First <b>line</b>\nsecond line", answer="Done, see you")
    content = sign_in(cast.viewer).get(reverse("trajectories:preview", args=["acme", row.trace_id])).content.decode()
    assert "First &lt;b&gt;line" in content
    assert "second line" in content
    assert "Done, see you" in content
    empty = build.trajectory()
    empty.steps.all().delete()
    content = sign_in(cast.viewer).get(reverse("trajectories:preview", args=["acme", empty.trace_id])).content.decode()
    assert "No request was recorded" in content


def test_programs_keep_views_too(cast: Cast, client: Client, key: Callable[..., Any]) -> None:
    headers = key("read", "review", by=cast.reviewer)
    body = {"name": "Slow", "q": "latency:>2", "columns": ["when", "latency"], "is_shared": True}
    made = client.put("/api/v1/views", json.dumps(body), "application/json", headers=headers).json()
    assert (made["owner"], made["columns"]) == ("reviewer", ["when", "latency"])
    wrong = client.put("/api/v1/views", json.dumps({**body, "q": "x:y"}), "application/json", headers=headers)
    assert wrong.status_code == 422
    assert [view["name"] for view in client.get("/api/v1/views", headers=key("read")).json()] == ["Slow"]
    assert client.delete(f"/api/v1/views/{made['id']}", headers=key("review")).status_code == 404
    assert client.delete(f"/api/v1/views/{made['id']}", headers=headers).status_code == 204
