"""The life of a bucket: what people say of it, closing with a reason, and coming back exactly once."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, User
from flywheel.edge.refusals import Refused
from flywheel.failures.buckets import bucket_lifecycle
from flywheel.failures.buckets.bucket_definitions import Wanted, archive, define
from flywheel.failures.buckets.bucket_lifecycle import State
from flywheel.failures.labels.decisions import decide, undo
from flywheel.failures.models import BucketLife
from flywheel.trajectories.models import Source, Trajectory
from tests.conftest import Build, Cast
from tests.pages import page_of
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
Key = Callable[..., dict[str, str]]
JSON = "application/json"
PAGE = "/p/acme/failures/buckets/wrong_tool/"


def later(build: Build, **fields: Any) -> Trajectory:
    """Begun after whatever the test has done so far."""
    return build.trajectory(started_at=timezone.now() + timedelta(seconds=1), **fields)


def closed(cast: Cast, key: str = "wrong_tool") -> BucketLife:
    return bucket_lifecycle.close(
        project=cast.project, key=key, actor=Actor(cast.builder), reason="the tool descriptions are clear now"
    )


def test_a_bucket_is_open_until_something_is_made_of_it(cast: Cast, build: Build) -> None:
    assert bucket_lifecycle.of(cast.project, "wrong_tool").state == State.OPEN
    task = build.task(bucket="wrong_tool")
    found = bucket_lifecycle.of_project(cast.project, ["wrong_tool", "other"])
    assert (found["wrong_tool"].state, found["wrong_tool"].tasks, found["other"].state) == ("fixing", 1, "open")
    task.retired_at = timezone.now()
    task.save()
    assert bucket_lifecycle.of(cast.project, "wrong_tool").state == State.OPEN
    assert not BucketLife.objects.exists()


def test_people_say_whose_it_is_and_how_urgent_and_each_change_is_kept(cast: Cast) -> None:
    said: dict[str, Any] = {"project": cast.project, "key": "wrong_tool", "actor": Actor(cast.reviewer)}
    bucket_lifecycle.steer(**said, owner="builder", priority="high")
    bucket_lifecycle.steer(**said, severity="critical")
    bucket_lifecycle.steer(**said, severity="critical")
    row = bucket_lifecycle.steer(**said, owner="")
    assert (row.owner, row.priority, row.severity) == (None, "high", "critical")
    entries = list(AuditEntry.objects.order_by("pk").values_list("subject", "data"))
    assert entries == [
        ("bucket wrong_tool", {"owner": "builder", "priority": "high"}),
        ("bucket wrong_tool", {"severity": "critical"}),
        ("bucket wrong_tool", {"owner": ""}),
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"owner": "viewer"}, "owner: 'viewer' may not label here; expected one of admin"),
        ({"owner": "stranger"}, "owner: 'stranger' may not label here"),
        ({"priority": "asap"}, "priority: 'asap' is unknown; use one of urgent, high"),
        ({"priority": ""}, "priority: '' is unknown"),
        ({"severity": "bad"}, "severity: 'bad' is unknown; use one of critical"),
        ({"key": "nothing", "owner": "builder"}, "bucket: 'nothing' is unknown"),
    ],
)
def test_what_does_not_fit_is_refused_by_field(cast: Cast, fields: dict[str, str], message: str) -> None:
    with pytest.raises(Refused) as caught:
        bucket_lifecycle.steer(project=cast.project, actor=Actor(cast.reviewer), **{"key": "wrong_tool", **fields})
    assert message in str(caught.value)
    assert not AuditEntry.objects.exists()


def test_closing_wants_a_reason_and_twice_is_once(cast: Cast) -> None:
    for reason in (" ", "x" * 2001, "a\0"):
        with pytest.raises(Refused, match="reason: expected between 1"):
            bucket_lifecycle.close(project=cast.project, key="wrong_tool", actor=Actor(cast.builder), reason=reason)
    first, second = closed(cast), closed(cast)
    assert (second.closed_at, bucket_lifecycle.of(cast.project, "wrong_tool").state) == (first.closed_at, State.CLOSED)
    assert AuditEntry.objects.get().reason == "the tool descriptions are clear now"
    bucket_lifecycle.reopen(project=cast.project, key="wrong_tool", actor=Actor(cast.reviewer), reason="too early")
    assert bucket_lifecycle.of(cast.project, "wrong_tool").state == State.REOPENED


def test_only_a_confirmed_failure_that_began_after_closing_reopens(cast: Cast, build: Build) -> None:
    old = build.trajectory()
    closed(cast)
    proposed = later(build, proposed_bucket="wrong_tool", proposed_score=0.9)
    decide(trajectory=old, actor=Actor(cast.reviewer), bucket="wrong_tool")
    decide(trajectory=later(build), actor=Actor(cast.reviewer), bucket="wrong_arguments")
    decide(trajectory=later(build), actor=Actor(cast.reviewer), bucket="")
    decide(trajectory=later(build, source=Source.ROLLOUT), actor=Actor(cast.reviewer), bucket="wrong_tool")
    found = bucket_lifecycle.of(cast.project, "wrong_tool")
    assert (found.state, bucket_lifecycle.since_closing(found)) == (State.CLOSED, 1)
    failure = decide(trajectory=proposed, actor=Actor(cast.reviewer), bucket="wrong_tool")
    found = bucket_lifecycle.of(cast.project, "wrong_tool")
    assert (found.state, found.row.reopened_for, found.row.reopened_by) == (State.REOPENED, failure, cast.reviewer)
    undo(trajectory=proposed, actor=Actor(cast.reviewer))
    assert (
        bucket_lifecycle.of(cast.project, "wrong_tool").state == State.REOPENED
    )  # what was said aloud stays said; a person closes


def test_what_was_made_before_it_came_back_does_not_count_as_fixing_it(cast: Cast, build: Build) -> None:
    build.task(bucket="wrong_tool")
    closed(cast)
    decide(trajectory=later(build), actor=Actor(cast.reviewer), bucket="wrong_tool")
    assert bucket_lifecycle.of(cast.project, "wrong_tool").state == State.REOPENED
    build.task(bucket="wrong_tool")
    assert bucket_lifecycle.of(cast.project, "wrong_tool").state == State.FIXING


@pytest.mark.django_db(transaction=True)
def test_two_labels_at_the_same_moment_reopen_it_once(cast: Cast, build: Build) -> None:
    closed(cast)
    rows = [later(build) for _ in range(6)]
    gate = threading.Barrier(len(rows))

    def label(row: Trajectory) -> None:
        gate.wait()
        try:
            decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool")
        finally:
            connection.close()

    threads = [threading.Thread(target=label, args=[row]) for row in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert AuditEntry.objects.filter(action="failures.reopen_bucket").count() == 1
    row = BucketLife.objects.get()
    assert row.reopened_for is not None
    assert row.reopened_for.bucket == "wrong_tool"


def test_the_page_steers_closes_and_reopens(cast: Cast, build: Build, sign_in: SignIn) -> None:
    client = sign_in(cast.reviewer)
    assert client.post(f"{PAGE}steer/", {"priority": "urgent"}).status_code == 302
    assert client.post(f"{PAGE}steer/", {"owner": "builder"}).status_code == 302
    page = page_of(client.post(f"{PAGE}steer/", {"owner": "nobody"}, follow=True))
    assert "Nothing was changed: owner: &#x27;nobody&#x27; may not label here" in page
    refused = client.post(f"{PAGE}close/", {"reason": " "})
    assert (refused.status_code, "reason: expected between 1 and 2000" in page_of(refused)) == (422, True)
    assert client.post(f"{PAGE}close/", {"reason": "<b>done</b>"}).status_code == 302
    row = later(build, title="Again the wrong one")
    later(build, proposed_bucket="wrong_tool", proposed_score=0.9)
    page = page_of(client.get(PAGE))
    assert "Closed by reviewer" in page
    assert "&lt;b&gt;done&lt;/b&gt;" in page
    assert "1 proposed since" in page
    assert "set priority to urgent" in page
    index = page_of(client.get("/p/acme/failures/"))
    assert "1 closed" in index
    assert index.index("1 closed") < index.index(PAGE)
    decide(trajectory=row, actor=Actor(cast.builder), bucket="wrong_tool")
    page = page_of(client.get(PAGE))
    assert "began after it was closed; builder confirmed it" in page
    assert "Again the wrong one" in page
    assert "reopened it by confirming a failure" in page
    assert "closed</summary>" not in page_of(client.get("/p/acme/failures/"))


def test_a_bucket_is_defined_changed_and_archived_by_page(cast: Cast, build: Build, sign_in: SignIn) -> None:
    client = sign_in(cast.builder)
    new = "/p/acme/failures/buckets/new/"
    form = {"label": "Refund promised", "description": "Money.", "parent": "unsafe_action", "shortcut": "o"}
    assert client.get(new).status_code == 200
    assert client.post(new, {**form, "parent": ""}).status_code == 422
    refused = client.post(new, {**form, "label": "wrong tool"})
    assert (refused.status_code, "already exists" in page_of(refused)) == (422, True)
    made = client.post(new, form, follow=True)
    assert made.redirect_chain == [("/p/acme/failures/buckets/refund_promised/", 302)]
    assert "A kind of" in page_of(made)
    build.trajectory()
    assert "Refund promised" in page_of(client.get("/p/acme/failures/"))
    edit = "/p/acme/failures/buckets/refund_promised/edit/"
    assert 'value="o" selected' in page_of(client.get(edit))
    assert client.post(edit, {**form, "label": "Money promised"}).status_code == 302
    assert client.post("/p/acme/failures/buckets/refund_promised/archive/").status_code == 302
    page = page_of(client.get("/p/acme/failures/buckets/refund_promised/"))
    assert "archived" in page
    assert "Restore" in page
    assert client.post("/p/acme/failures/buckets/refund_promised/archive/", {"archived": "0"}).status_code == 302
    assert client.get("/p/acme/failures/buckets/wrong_tool/edit/").status_code == 404
    assert client.get("/p/acme/failures/buckets/nothing/").status_code == 404
    assert sign_in(cast.reviewer).get(new).status_code == 403


def test_the_index_puts_what_is_urgent_first(cast: Cast, build: Build, sign_in: SignIn) -> None:
    for bucket in ("wrong_tool", "wrong_tool", "format_error"):
        decide(trajectory=build.trajectory(), actor=Actor(cast.reviewer), bucket=bucket)
    bucket_lifecycle.steer(
        project=cast.project, key="format_error", actor=Actor(cast.reviewer), priority="urgent", owner="admin"
    )
    page = page_of(sign_in(cast.viewer).get("/p/acme/failures/"))
    assert page.index("buckets/format_error/") < page.index("buckets/wrong_tool/")
    assert "Define category" not in page


def test_the_index_costs_the_same_however_many_buckets(
    cast: Cast, build: Build, sign_in: SignIn, django_assert_max_num_queries: Any
) -> None:
    client = sign_in(cast.reviewer)
    for number in range(12):
        row = define(project=cast.project, actor=Actor(cast.builder), wanted=Wanted(f"Own {number}", "other"))
        decide(trajectory=build.trajectory(), actor=Actor(cast.reviewer), bucket=row.key)
        build.task(bucket=row.key)
        bucket_lifecycle.steer(project=cast.project, key=row.key, actor=Actor(cast.reviewer), owner="builder")
    with django_assert_max_num_queries(45):
        page = page_of(client.get("/p/acme/failures/"))
    assert page.count("Own 1") >= 3


def test_the_api_does_what_the_pages_do(cast: Cast, build: Build, key: Key, client: Client) -> None:
    builder, reviewer = key("read", "build", by=cast.builder), key("read", "review", by=cast.reviewer)
    root = "/api/v1/buckets"
    made = client.post(
        root, {"label": "Refund promised", "parent": "unsafe_action", "shortcut": "o"}, JSON, headers=builder
    )
    assert (made.status_code, made.json()["key"], made.json()["state"]) == (201, "refund_promised", "open")
    again = client.post(root, {"label": "Refund promised", "parent": "unsafe_action"}, JSON, headers=builder)
    assert (again.status_code, again.json()["detail"][:6]) == (422, "label:")
    own = f"{root}/refund_promised"
    changed = client.put(
        own, {"label": "Money promised", "parent": "other", "archived": True}, JSON, headers=builder
    ).json()
    assert (changed["label"], changed["parent"], changed["shortcut"], changed["is_archived"]) == (
        "Money promised",
        "other",
        "",
        True,
    )
    assert [row["key"] for row in client.get(root, headers=reviewer).json()][-1] == "refund_promised"
    assert client.put(f"{root}/wrong_tool", {"label": "x", "parent": "other"}, JSON, headers=builder).status_code == 404
    tool = f"{root}/wrong_tool"
    steered = client.post(f"{tool}/steer", {"owner": "reviewer", "severity": "major"}, JSON, headers=reviewer).json()
    assert (steered["owner"], steered["priority"], steered["severity"]) == ("reviewer", "normal", "major")
    assert client.post(f"{tool}/steer", {"owner": "x"}, JSON, headers=reviewer).status_code == 422
    assert client.post(f"{tool}/close", {"reason": ""}, JSON, headers=reviewer).status_code == 422
    shut = client.post(f"{tool}/close", {"reason": "done"}, JSON, headers=reviewer).json()
    assert (shut["state"], shut["closed_by"], shut["closed_because"]) == ("closed", "reviewer", "done")
    row = later(build)
    body = {"bucket": "wrong_tool"}
    client.post(f"/api/v1/trajectories/{row.trace_id}/failures", body, JSON, headers=reviewer)
    found = client.get(tool, headers=reviewer).json()
    assert (found["state"], found["reopened_for"], found["confirmed"]) == ("reopened", row.trace_id, 1)
    assert AuditEntry.objects.get(action="failures.reopen_bucket").through.startswith("key ")
    assert client.post(f"{tool}/reopen", {"reason": "twice"}, JSON, headers=reviewer).json()["state"] == "reopened"
    assert client.get(f"{root}/nothing", headers=reviewer).status_code == 404


def test_closing_an_archived_bucket_is_as_any(cast: Cast) -> None:
    row = define(project=cast.project, actor=Actor(cast.builder), wanted=Wanted("Old one", "other"))
    archive(bucket=row, actor=Actor(cast.builder))
    assert closed(cast, "old_one").is_closed
