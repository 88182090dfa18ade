"""Comments on a trajectory and its steps, whom they call, and what reviewers who are blind to each other do not see."""

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, Membership, Notice, Role, User
from flywheel.edge.refusals import Refused
from flywheel.failures.models import Queue, QueueItem
from flywheel.failures.queues.reviews import give
from flywheel.trajectories.annotations import comments as talk
from flywheel.trajectories.models import Comment, Mention, Trajectory
from flywheel.trajectories.operations.deletion import delete, held_by
from flywheel.trajectories.search.query import parse
from tests.conftest import Build, Cast

SignIn = Callable[[User], Client]


def post(client: Client, name: str, *args: Any, **data: Any) -> Any:
    return client.post(reverse(f"trajectories:{name}", args=["acme", *args]), data, headers={"HX-Request": "true"})


def shown(client: Client, row: Trajectory) -> str:
    return str(client.get(reverse("trajectories:comments", args=["acme", row.trace_id])).content.decode())


def blind_item(cast: Cast, row: Trajectory, *named: User) -> QueueItem:
    queue = Queue.objects.create(project=cast.project, name="hard ones", needed=2, created_by=cast.builder)
    queue.assignees.set(named)
    return QueueItem.objects.create(queue=queue, trajectory=row)


def test_what_is_said_stands_by_step_in_the_order_of_the_steps(cast: Cast, build: Build, sign_in: SignIn) -> None:
    row = build.trajectory()
    client = sign_in(cast.reviewer)
    for step, text in [("s2", "second"), ("", "whole"), ("s0", "first"), ("s2", "third")]:
        assert post(client, "say", row.trace_id, text=text, step=step).status_code == 200
    answer = shown(sign_in(cast.viewer), row)
    places = [answer.index(f'class="said">{text}<') for text in ("whole", "first", "second", "third")]
    assert places == sorted(places)
    assert "Step 3" in answer
    assert "data-say" not in answer, "viewers may look"
    assert AuditEntry.objects.filter(action="trajectories.comment").count() == 4
    assert "second" not in str(list(AuditEntry.objects.values_list("data", "subject", "reason")))


def test_a_double_click_says_it_once(cast: Cast, build: Build, sign_in: SignIn) -> None:
    row = build.trajectory()
    client, key = sign_in(cast.reviewer), str(uuid.uuid4())
    for _ in range(2):
        post(client, "say", row.trace_id, text="once", key=key)
    assert Comment.objects.count() == 1


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"text": "  \n"}, "text: write something"),
        ({"text": "x" * 10_001}, "10001 characters; at most"),
        ({"text": "a\0b"}, "null character"),
        ({"text": "x", "step": "s9"}, "has no step"),
    ],
)
def test_what_cannot_be_kept_comes_back(
    cast: Cast, build: Build, sign_in: SignIn, said: dict[str, str], told: str
) -> None:
    row = build.trajectory()
    client = sign_in(cast.reviewer)
    answer = post(client, "say", row.trace_id, **said)
    assert (answer.status_code, Comment.objects.count()) == (422, 0)
    assert told in answer.content.decode()
    again = client.post(reverse("trajectories:say", args=["acme", row.trace_id]), said, follow=True)
    assert told in again.content.decode()


def test_only_its_author_edits_and_a_deleted_one_leaves_a_trace(cast: Cast, build: Build, sign_in: SignIn) -> None:
    row = build.trajectory()
    said = talk.say(trajectory=row, actor=Actor(cast.reviewer), text="wrnog @builder")
    assert post(sign_in(cast.admin), "edit_comment", row.trace_id, said.pk, text="mine").status_code == 422
    assert post(sign_in(cast.reviewer), "edit_comment", row.trace_id, said.pk, text="wrong").status_code == 200
    said.refresh_from_db()
    assert (said.text, said.edited_at is not None, Mention.objects.count()) == ("wrong", True, 0)
    assert "edited</span>" in shown(sign_in(cast.viewer), row)
    assert post(sign_in(cast.builder), "delete_comment", row.trace_id, said.pk).status_code == 422
    answer = post(sign_in(cast.admin), "delete_comment", row.trace_id, said.pk).content.decode()
    said.refresh_from_db()
    assert (said.text, said.deleted_by) == ("", cast.admin)
    assert "deleted by admin" in answer
    assert post(sign_in(cast.reviewer), "edit_comment", row.trace_id, said.pk, text="again").status_code == 422
    assert post(sign_in(cast.reviewer), "edit_comment", build.trajectory().trace_id, said.pk).status_code == 404
    actions = AuditEntry.objects.order_by("pk").values_list("action", flat=True)
    assert [action.partition(".")[2] for action in actions] == ["comment", "edit_comment", "delete_comment"]


# Mentions


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ("@builder look", ["builder"]),
        ("see, @Builder.", ["builder"]),
        ("(@builder, @trainer)", ["builder", "trainer"]),
        ("@builder @builder", ["builder"]),
        ("@nobody and @stranger", []),
        ("mail builder@example.com or a@builder", []),
        ("@reviewer", []),  # oneself
        ("@ada.b@x-y+z!", ["ada.b@x-y+z"]),
        ("@closed", []),
    ],
)
def test_a_name_with_an_at_calls_a_member(cast: Cast, build: Build, text: str, called: list[str]) -> None:
    for name, is_active in (("ada.b@x-y+z", True), ("closed", False)):
        person = User.objects.create_user(username=name, is_active=is_active)
        Membership.objects.create(user=person, project=cast.project, role=Role.VIEWER)
    said = talk.say(trajectory=build.trajectory(), actor=Actor(cast.reviewer), text=text)
    assert sorted(Mention.objects.values_list("user__username", flat=True)) == called
    pieces = talk.pieces(said)
    assert "".join(piece.text for piece in pieces) == text
    assert {piece.text[1:].lower() for piece in pieces if piece.is_mention} == set(called)


def test_who_is_called_is_told_everywhere_until_they_looked(cast: Cast, build: Build, sign_in: SignIn) -> None:
    row = build.trajectory(title="the request")
    said = talk.say(trajectory=row, actor=Actor(cast.reviewer), text="@viewer what do you think?", step="s2")
    client, overview = sign_in(cast.viewer), reverse("overview:index", args=["acme"])
    page = client.get(overview).content.decode()
    assert "unread mention<" in page
    assert "unread notices" in page
    assert "unread notices" not in sign_in(cast.builder).get(overview).content.decode()
    notice = Notice.objects.get()
    assert notice.title == "reviewer mentioned viewer in a comment"
    assert notice.url == f"{reverse('trajectories:detail', args=['acme', row.trace_id])}?step=s2#comment-{said.pk}"
    listed = reverse("notices:index", args=["acme"])
    assert f"{listed}?unread=1&amp;event=comment.mention" in page
    for asked, is_there in (("?unread=1&event=comment.mention", True), ("?event=run.ended", False)):
        assert (notice.title in client.get(listed + asked).content.decode()) is is_there, asked
    assert "hx-post" in shown(client, row)
    assert talk.unread(cast.project, cast.viewer).count() == 1, "looking up changes nothing"
    assert post(client, "read_comments", row.trace_id).status_code == 204
    assert talk.unread(cast.project, cast.viewer).count() == 0
    page = client.get(overview).content.decode()
    assert ("unread mention<" in page, "unread notices" in page) == (False, False), "one look reads both"
    talk.edit(comment=said, actor=Actor(cast.reviewer), text="@viewer @builder what do you think now?")
    assert talk.unread(cast.project, cast.viewer).count() == 0, "seen is seen"
    assert list(Notice.objects.values_list("entries__user__username", flat=True).order_by("pk")) == [
        "viewer",
        "builder",
    ]
    builder = sign_in(cast.builder)
    assert "unread mention<" in builder.get(overview).content.decode()
    builder.post(reverse("notices:read_all", args=["acme"]))
    assert "unread mention<" not in builder.get(overview).content.decode()


def test_the_names_that_can_be_called_are_those_of_members(cast: Cast, sign_in: SignIn) -> None:
    found = sign_in(cast.reviewer).get(reverse("trajectories:people", args=["acme"])).json()["people"]
    assert [name for name, _ in found] == sorted(Role.values)


# Blind


def test_blind_reviewers_see_only_their_own_words_until_all_have_decided(
    cast: Cast, build: Build, sign_in: SignIn, key: Callable[..., dict[str, str]], client: Client
) -> None:
    row = build.trajectory()
    item = blind_item(cast, row)
    talk.say(trajectory=row, actor=Actor(cast.reviewer), text="it is the tool, @builder")
    talk.say(trajectory=row, actor=Actor(cast.builder), text="I am not sure")

    def sees(user: User) -> tuple[bool, bool]:
        answer = shown(sign_in(user), row)
        return "it is the tool" in answer, "I am not sure" in answer

    def reads(user: User) -> list[str]:
        answer = client.get(f"/api/v1/trajectories/{row.trace_id}/comments", headers=key("read", by=user)).json()
        assert answer["is_blind"] == (len(answer["items"]) < 2)
        return [each["text"] for each in answer["items"]]

    assert (sees(cast.reviewer), sees(cast.builder)) == ((True, False), (False, True))
    assert sees(cast.viewer) == (True, True), "who cannot review cannot be swayed"
    assert reads(cast.builder) == ["I am not sure"]
    listed = sign_in(cast.builder).get(reverse("notices:index", args=["acme"])).content.decode()
    assert "it is the tool" not in listed
    mentions = client.get("/api/v1/mentions", headers=key("read", by=cast.builder)).json()["items"]
    assert [each["text"] for each in mentions] == [None]
    assert talk.mark_read(project=cast.project, user=cast.builder, trajectory=row) == 0
    desk = sign_in(cast.reviewer).get(reverse("failures:item", args=["acme", item.queue_id, item.pk]))
    assert f"{row.trace_id}/comments/" not in desk.content.decode()

    give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool")
    assert sees(cast.reviewer) == (True, False), "the item is open still"
    give(item=item, actor=Actor(cast.builder), bucket="wrong_tool")
    assert QueueItem.objects.get().state == QueueItem.State.DONE
    assert (sees(cast.reviewer), sees(cast.builder)) == ((True, True), (True, True))
    assert reads(cast.builder) == ["I am not sure", "it is the tool, @builder"]
    desk = sign_in(cast.reviewer).get(reverse("failures:item", args=["acme", item.queue_id, item.pk]))
    assert f"{row.trace_id}/comments/" in desk.content.decode()


def test_who_is_no_reviewer_of_the_queue_sees_everything(cast: Cast, build: Build, sign_in: SignIn) -> None:
    row = build.trajectory()
    item = blind_item(cast, row, cast.reviewer, cast.builder)
    talk.say(trajectory=row, actor=Actor(cast.builder), text="spoken")
    assert "spoken" not in shown(sign_in(cast.reviewer), row)
    assert "spoken" in shown(sign_in(cast.trainer), row)
    Queue.objects.filter(pk=item.queue_id).update(archived_at="2026-11-01T00:00Z")
    assert "spoken" in shown(sign_in(cast.reviewer), row)


# Deletion, and programs


def test_deleting_the_trajectory_deletes_what_was_said(cast: Cast, build: Build) -> None:
    row = build.trajectory()
    talk.say(trajectory=row, actor=Actor(cast.reviewer), text="@builder")
    assert held_by(row).comments == 1
    delete(trajectory=row, actor=Actor(cast.admin))
    assert (Comment.objects.count(), Mention.objects.count()) == (0, 0)
    with pytest.raises(Refused, match="deleted meanwhile"):
        talk.say(trajectory=row, actor=Actor(cast.reviewer), text="late")


def test_programs_talk_too(cast: Cast, build: Build, client: Client, key: Callable[..., dict[str, str]]) -> None:
    row = build.trajectory()
    address = f"/api/v1/trajectories/{row.trace_id}/comments"

    def call(method: str, path: str, by: User, body: Any = None, scopes: tuple[str, ...] = ("review",)) -> Any:
        return client.generic(method, path, json.dumps(body), "application/json", headers=key(*scopes, by=by))

    again = {"text": "look, @builder", "step": "s1", "key": str(uuid.uuid4())}
    first = call("POST", address, cast.reviewer, again).json()
    assert call("POST", address, cast.reviewer, again).json()["id"] == first["id"]
    assert (first["author"], first["mentions"], first["step"]) == ("reviewer", ["builder"], "s1")
    assert call("POST", address, cast.reviewer, {"text": "x", "step": "none"}).status_code == 422
    assert call("POST", address.replace(row.trace_id, "f" * 32), cast.reviewer, {"text": "x"}).status_code == 404
    one = f"{address}/{first['id']}"
    assert call("PUT", one, cast.builder, {"text": "x"}).status_code == 403
    assert call("PUT", f"{address}/0", cast.reviewer, {"text": "x"}).json() == {"detail": "there is no comment 0"}
    assert call("PUT", one, cast.reviewer, {"text": "look"}).json()["mentions"] == []
    assert call("DELETE", one, cast.admin).status_code == 403, "the key has no scope admin"
    assert call("DELETE", one, cast.admin, scopes=("review", "admin")).json()["text"] == ""
    assert AuditEntry.objects.filter(action="trajectories.delete_comment").get().through.startswith("key ")
    listed = client.get(f"{address}?limit=1", headers=key("read")).json()
    assert (len(listed["items"]), listed["next"]) == (1, None)
    assert client.get(f"{address}?cursor=x", headers=key("read")).status_code == 400


# In the list


def test_the_list_finds_and_counts_what_is_said(cast: Cast, build: Build, sign_in: SignIn) -> None:
    quiet, talked, taken_back = (build.trajectory() for _ in range(3))
    for _ in range(2):
        talk.say(trajectory=talked, actor=Actor(cast.reviewer), text="look")
    talk.delete(
        comment=talk.say(trajectory=taken_back, actor=Actor(cast.reviewer), text="never mind"),
        actor=Actor(cast.reviewer),
    )
    page = sign_in(cast.viewer).get(
        reverse("trajectories:index", args=["acme"]), {"q": "has:comment", "cols": "request,comments"}
    )
    html = page.content.decode()
    assert [row.trace_id in html for row in (quiet, talked, taken_back)] == [False, True, False]
    assert f'{talked.trace_id}/#comments">2</a>' in html
    rest = parse("-has:comment").apply(Trajectory.objects.filter(project=cast.project))
    assert set(rest) == {quiet, taken_back}


def test_what_is_said_is_found_by_an_index(cast: Cast, build: Build) -> None:
    talk.say(trajectory=build.trajectory(), actor=Actor(cast.reviewer), text="look")
    rows = parse("has:comment").apply(Trajectory.objects.filter(project=cast.project)).order_by("-started_at", "-id")
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
    plan = rows.values("pk").explain()
    assert "comment_stands" in plan
    assert "Seq Scan" not in plan
