"""One thing done with many trajectories: to those that were there, once, whoever dies on the way."""

import json
import os
import re
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import QuerySet
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, User
from flywheel.edge.jobs import Lease, State
from flywheel.edge.paging import about
from flywheel.failures.models import QueueItem
from flywheel.failures.queues import queue_definitions
from flywheel.trajectories.import_export.trajectory_export import EXPORTS
from flywheel.trajectories.models import Bulk, BulkKeys, Source, Trajectory
from flywheel.trajectories.operations import bulk_actions, rereads
from flywheel.trajectories.operations.deletion import delete, delete_all
from flywheel.trajectories.pages.trajectory_list import bulk_views
from flywheel.trajectories.store.stored_traces import traces_of
from tests.conftest import Build, Cast
from tests.worker import Worker
from workers.jobs.trajectories import bulk_changes as worker_side

SignIn = Callable[[User], Client]
OPTIONS: dict[str, dict[str, Any]] = {
    "tag": {"tags": ["vip"]},
    "untag": {"tags": ["vip"]},
    "export": {"format": "openai"},
}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.HOME = tmp_path
    for name, action in list(bulk_actions.ACTIONS.items()):
        small = {field: getattr(action, field) for field in action.__dataclass_fields__} | {"at_once": 2}
        monkeypatch.setitem(bulk_actions.ACTIONS, name, bulk_actions.Action(**small))


def submitted(cast: Cast, action: str = "tag", q: str = "", actor: User | None = None, **options: Any) -> Bulk:
    ids = options.pop("ids", ())
    wanted = OPTIONS.get(action, {})
    return bulk_actions.submit(
        project=cast.project,
        actor=Actor(actor or cast.admin),
        action=action,
        options=options or wanted,
        key=uuid.uuid4(),
        q=q,
        ids=ids,
    )


def work(job: Bulk) -> Bulk:
    lease = Bulk.claim(job.pk)
    assert isinstance(lease, Lease)
    with lease:
        worker_side.carry_out(lease)
    job.refresh_from_db()
    return job


def tagged() -> set[str]:
    return set(Trajectory.objects.filter(tags__contains=["vip"]).values_list("trace_id", flat=True))


@pytest.fixture
def rows(cast: Cast, build: Build) -> list[Trajectory]:
    made = [build.trajectory(outcome="failed" if at % 2 else "success", tags=["a"]) for at in range(7)]
    build.trajectory(source=Source.ROLLOUT)
    build.trajectory(project=cast.elsewhere)
    return made


@pytest.mark.django_db(transaction=True)
def test_those_that_matched_are_tagged_and_what_arrives_later_is_not(
    cast: Cast, build: Build, rows: list[Trajectory]
) -> None:
    Trajectory.objects.filter(pk=rows[1].pk).update(tags=["a", "vip"])
    job = submitted(cast, q="outcome:failed")
    build.trajectory(outcome="failed")
    job = work(job)
    assert tagged() == {row.trace_id for row in rows[1::2]}
    assert (job.state, job.done, job.total) == (State.SUCCEEDED, 3, 3)
    assert job.report == {"changed": 2, "skipped": {"tagged already": 1}, "failed": {}, "examples": []}
    assert Trajectory.objects.get(pk=rows[3].pk).tags == ["a", "vip"]
    entry = AuditEntry.objects.get(action="trajectories.bulk")
    assert (entry.data["bulk"], entry.data["q"], entry.data["tags"]) == ("tag", "outcome:failed", ["vip"])
    assert work(submitted(cast, "untag")).report["changed"] == 3
    assert not tagged()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_resumed", [False, True])
def test_what_comes_to_match_before_it_is_done_is_not_deleted(
    cast: Cast, rows: list[Trajectory], is_resumed: bool
) -> None:
    job = submitted(cast, "delete", q="outcome:failed", reason="-")
    if is_resumed:
        job.cancel(Actor(cast.admin))
    Trajectory.objects.filter(pk__in=[rows[0].pk, rows[6].pk]).update(outcome="failed")
    Trajectory.objects.filter(pk=rows[1].pk).update(outcome="success")
    if is_resumed:
        job.resume(Actor(cast.admin))
    assert work(job).report["changed"] == 3
    left = Trajectory.objects.filter(pk__in=[row.pk for row in rows]).order_by("pk")
    assert list(left) == rows[::2], "those that were counted went, and no other"


@pytest.mark.django_db(transaction=True)
def test_what_an_older_version_asked_for_is_done(cast: Cast, rows: list[Trajectory]) -> None:
    job = submitted(cast)
    BulkKeys.objects.all().delete()
    assert work(job).report["changed"] == 7


@pytest.mark.django_db(transaction=True)
def test_the_keys_are_kept_until_all_is_done_and_no_longer(cast: Cast, rows: list[Trajectory]) -> None:
    job = submitted(cast, q="outcome:failed")
    job.cancel(Actor(cast.admin))
    assert BulkKeys.objects.get(job=job).keys == [row.pk for row in rows[1::2]], "to go on with"
    job.resume(Actor(cast.admin))
    with CaptureQueriesContext(connection) as queries:
        assert work(job).state == State.SUCCEEDED
    assert not BulkKeys.objects.exists()
    read = [query for query in queries if '"trajectories_bulkkeys"."keys"' in query["sql"]]
    assert len(read) == 1, "they may be a million"


@pytest.mark.django_db(transaction=True)
def test_who_asks_does_not_read_the_keys(cast: Cast, rows: list[Trajectory]) -> None:
    with CaptureQueriesContext(connection) as queries:
        submitted(cast, q='outcome:failed "100%" or tag:a')
    (asked,) = [query["sql"] for query in queries if "bulkkeys" in query["sql"]]
    assert "array_agg" in asked
    assert not any(query["sql"].startswith('SELECT "trajectories_trajectory"') for query in queries)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("asked", [{"q": "outcome:failed tag:none"}, {"ids": ["0" * 32]}])
def test_nothing_is_done_to_nothing(cast: Cast, rows: list[Trajectory], asked: dict[str, Any]) -> None:
    job = work(submitted(cast, **asked, tags=["vip"]))
    assert (job.state, job.total, job.report) == (State.SUCCEEDED, 0, {})
    assert not tagged()


@pytest.mark.django_db(transaction=True)
def test_times_counted_from_now_mean_what_they_meant_then(cast: Cast, build: Build) -> None:
    now = timezone.now()
    young = build.trajectory(started_at=now - timedelta(days=6, hours=23))
    build.trajectory(started_at=now - timedelta(days=7, hours=1))
    jobs = [submitted(cast, q=q) for q in ("after:7d", "started:7d", "started:>1w", "started:8d..2d -before:7d")]
    for job in jobs:
        assert not re.search(r"\d[dw]\b", job.q)
        assert list(bulk_actions.rows_of(job)) == [young]


class Killed(BaseException):
    """What ends a process without a word."""


@pytest.mark.parametrize("format", ["csv", "atif"])
def test_an_export_in_parts_is_one_file(cast: Cast, rows: list[Trajectory], format: str) -> None:
    job = submitted(cast, "export", format=format)
    for row in sorted(bulk_actions.rows_of(job).values_list("pk", flat=True)):
        job.report = bulk_actions.do(job, [row])
    entry = EXPORTS[format]
    at_once = [entry.line(row, traces_of([row])[row.pk], []) for row in bulk_actions.rows_of(job).order_by("pk")]
    assert bulk_actions.file_of(job).read_bytes() == entry.head([]) + b"".join(at_once)
    assert bulk_actions.file_of(job).suffix == (".csv" if format == "csv" else ".jsonl")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("action", ["tag", "export", "delete"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_who_takes_over_does_nothing_twice(
    cast: Cast, rows: list[Trajectory], monkeypatch: pytest.MonkeyPatch, action: str, when: str
) -> None:
    job, calls = submitted(cast, action), 0
    real = worker_side._few

    def dies(lease: Lease, job: Bulk, keys: list[int]) -> None:
        nonlocal calls
        calls += 1
        if calls != 3:
            real(lease, job, keys)
        elif when == "after":
            real(lease, job, keys)
            raise Killed
        else:
            with transaction.atomic():
                bulk_actions.do(job, keys)
                raise Killed

    monkeypatch.setattr(worker_side, "_few", dies)
    lease = Bulk.claim(job.pk)
    assert lease is not None
    with pytest.raises(Killed):
        worker_side.carry_out(lease)
    Bulk.objects.filter(pk=job.pk).update(lease_until=timezone.now() - timedelta(seconds=1))
    job = work(job)
    assert (job.state, job.attempt, job.done, job.report["changed"]) == (State.SUCCEEDED, 2, 7, 7)
    if action == "export":
        lines = bulk_actions.file_of(job).read_text().splitlines()
        assert len(lines) == 7
        assert len(set(lines)) == 7
        assert len(list(bulk_actions.file_of(job).parent.iterdir())) == 1
    if action == "delete":
        assert AuditEntry.objects.filter(action="trajectories.delete").count() == 7


@pytest.mark.django_db(transaction=True)
def test_it_can_be_stopped_and_resumed(cast: Cast, rows: list[Trajectory], monkeypatch: pytest.MonkeyPatch) -> None:
    job = submitted(cast)
    lease = Bulk.claim(job.pk)
    assert lease is not None
    real = worker_side._few

    def stops(lease: Lease, job: Bulk, keys: list[int]) -> None:
        real(lease, job, keys)
        lease._cancelled.set()

    monkeypatch.setattr(worker_side, "_few", stops)
    with lease:
        worker_side.carry_out(lease)
    monkeypatch.setattr(worker_side, "_few", real)
    job.refresh_from_db()
    assert (job.state, job.done, len(tagged())) == (State.CANCELLED, 2, 2)
    job.resume(Actor(cast.admin))
    job = work(job)
    assert (job.state, job.done, len(tagged())) == (State.SUCCEEDED, 7, 7)


@pytest.mark.django_db(transaction=True)
def test_what_cannot_be_deleted_is_told_and_the_rest_goes(
    cast: Cast, rows: list[Trajectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*, keys: list[int], **rest: Any) -> dict[int, int]:
        if rows[2].pk in keys:
            raise IntegrityError("something holds it")
        return delete_all(keys=keys, **rest)

    monkeypatch.setattr("flywheel.trajectories.operations.deletion.delete_all", fails)
    job = work(submitted(cast, "delete", reason="asked for"))
    assert job.report["changed"] == 6
    assert job.report["examples"] == [{"trace_id": rows[2].trace_id, "reason": "IntegrityError: something holds it"}]
    left = Trajectory.objects.filter(project=cast.project).exclude(source__in=Source.ATTEMPTS)
    assert [row.pk for row in left] == [rows[2].pk]
    entry = AuditEntry.objects.filter(action="trajectories.delete").first()
    assert entry is not None
    assert (entry.reason, entry.through) == ("asked for", f"bulk action {job.pk}")


def test_one_that_went_meanwhile_is_skipped(
    cast: Cast, rows: list[Trajectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submitted(cast, ids=[row.trace_id for row in rows[:3]])
    keys = next(bulk_actions.parts(job, bulk_actions.keys_of(job)))
    delete(trajectory=rows[0], actor=Actor(cast.admin))
    assert bulk_actions.do(job, keys)["skipped"] == {"deleted meanwhile": 1}


@pytest.mark.django_db(transaction=True)
def test_they_are_sent_to_a_queue(cast: Cast, rows: list[Trajectory]) -> None:
    queue = queue_definitions.make(
        project=cast.project, actor=Actor(cast.builder), wanted=queue_definitions.Wanted("odd ones")
    )
    QueueItem.objects.create(queue=queue, trajectory=rows[0])
    job = work(submitted(cast, "queue", queue=queue.pk))
    assert (job.report["changed"], job.report["skipped"]) == (6, {"already in the queue": 1})
    assert QueueItem.objects.count() == 7


def test_what_a_person_said_of_a_tag_holds_when_spans_are_read_again(cast: Cast, build: Build) -> None:
    row = build.trajectory(tags=["sent", "both"])
    row.steps.update(is_span=True)
    keys = [row.pk]
    job = Bulk(project=cast.project, action="tag", options={"tags": ["vip"]})
    bulk_actions.do(job, keys)
    bulk_actions.do(Bulk(project=cast.project, action="untag", options={"tags": ["sent"]}), keys)
    row.refresh_from_db()
    assert (row.tags, row.claims["by_hand"]) == (["both", "vip"], {"vip": True, "sent": False})
    rereads.read_again(cast.project, row.pk)
    row.refresh_from_db()
    assert row.tags == ["vip"]


@pytest.mark.parametrize(
    ("action", "options", "told"),
    [
        ("tag", {"tags": [" "]}, "tags: expected between 1"),
        ("tag", {"tags": ["x" * 101]}, "at most 100"),
        ("export", {"format": "xlsx"}, "one of atif"),
        ("queue", {"queue": "7"}, "no open queue"),
        ("burn", {}, "one of tag"),
    ],
)
def test_what_cannot_be_is_told(cast: Cast, action: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(bulk_actions.BadBulk, match=told):
        submitted(cast, action, **options)
    with pytest.raises(bulk_actions.BadBulk, match="Did you mean bucket"):
        submitted(cast, "delete", q="buket:x", reason="-")


def test_old_exports_are_swept(cast: Cast) -> None:
    job = Bulk(pk=1, project=cast.project, report={"file": "1-1.atif.jsonl"})
    path = bulk_actions.file_of(job)
    path.parent.mkdir(parents=True)
    path.write_text("x")
    assert bulk_actions.sweep() == 0
    os.utime(path, (time.time() - 8 * 86400,) * 2)
    assert (bulk_actions.sweep(), path.exists()) == (1, False)


@pytest.mark.worker
@pytest.mark.django_db(transaction=True)
def test_of_a_real_worker_that_is_killed_nothing_is_done_twice(
    start_worker: Callable[..., Worker], cast: Cast, build: Build
) -> None:
    row = build.trajectory()
    fields = {name: getattr(row, name) for name in ("project_id", "source", "title", "started_at")}
    count = 30_000
    more = [Trajectory(trace_id=f"{number:032x}", tags=["a"], **fields) for number in range(count - 1)]
    Trajectory.objects.bulk_create(more, batch_size=5000)
    first = start_worker()
    job = submitted(cast)
    first.wait_until(lambda: Bulk.objects.get(pk=job.pk).done > 0, "the first few are tagged")
    first.kill9()
    half_way = Bulk.objects.get(pk=job.pk)
    assert half_way.done < count
    assert len(tagged()) == half_way.done
    second = start_worker()
    second.finish(job)
    assert (job.state, job.attempt, job.done) == (State.SUCCEEDED, 2, count)
    assert (job.report["changed"], job.report["skipped"]) == (count, {})


# Pages


def start(client: Client, action: str, **more: Any) -> Any:
    return client.post(
        reverse("trajectories:start_bulk", args=["acme"]), {"action": action, "key": uuid.uuid4(), **more}
    )


@pytest.mark.django_db(transaction=True)
def test_the_ticked_rows_or_all_that_match(cast: Cast, rows: list[Trajectory], sign_in: SignIn) -> None:
    client = sign_in(cast.reviewer)
    content = client.get(reverse("trajectories:index", args=["acme"]), {"q": "outcome:failed"}).content.decode()
    assert f'name="id" value="{rows[1].trace_id}" form="bulk"' in content
    some = {"q": "outcome:failed", "id": [rows[1].trace_id, rows[3].trace_id], "tags": "vip, new"}
    page = start(client, "tag", **some)["Location"]
    assert "waiting for a worker" in client.get(page).content.decode()
    job = work(Bulk.objects.get())
    assert tagged() == {rows[1].trace_id, rows[3].trace_id}
    over = client.get(page).content.decode()
    assert "chosen by hand" in over
    assert client.get(reverse("trajectories:bulk_live", args=["acme", job.pk])).status_code == 286
    start(client, "tag", **{**some, "all": "1"})
    assert work(Bulk.objects.first() or job).report["changed"] == 1
    assert start(client, "tag", tags="").status_code == 400


def test_a_double_click_makes_one(cast: Cast, rows: list[Trajectory], sign_in: SignIn) -> None:
    client, key = sign_in(cast.reviewer), uuid.uuid4()
    assert len({start(client, "tag", tags="vip", key=key)["Location"] for _ in range(2)}) == 1
    assert Bulk.objects.count() == 1


def test_what_arrives_while_a_deletion_is_typed_is_left_alone(
    cast: Cast, build: Build, rows: list[Trajectory], sign_in: SignIn
) -> None:
    client = sign_in(cast.admin)
    asked = start(client, "delete", q="outcome:failed", all="1").content.decode()
    sent = re.search(r'name="up_to" value="(\d+)"', asked)
    assert sent
    build.trajectory(outcome="failed")
    start(client, "delete", q="outcome:failed", typed="acme", up_to=sent[1])
    assert bulk_actions.keys_of(Bulk.objects.get()) == [row.pk for row in rows[1::2]]


def test_no_more_are_deleted_than_were_told(
    cast: Cast, build: Build, rows: list[Trajectory], sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def while_they_arrive(found: QuerySet[Any]) -> tuple[int, bool]:
        build.trajectory(outcome="failed")
        told = about(found)
        build.trajectory(outcome="failed")
        return told

    monkeypatch.setattr(bulk_views, "about", while_they_arrive)
    client = sign_in(cast.admin)
    asked = start(client, "delete", q="outcome:failed", all="1").content.decode()
    assert "Delete 3 trajectories" in asked
    sent = re.search(r'name="up_to" value="(\d+)"', asked)
    assert sent
    start(client, "delete", q="outcome:failed", typed="acme", up_to=sent[1])
    assert bulk_actions.keys_of(Bulk.objects.get()) == [row.pk for row in rows[1::2]]


def test_a_deletion_is_typed(cast: Cast, rows: list[Trajectory], sign_in: SignIn) -> None:
    client = sign_in(cast.admin)
    asked = start(client, "delete", q="outcome:failed", all="1")
    assert "Delete 3 trajectories" in asked.content.decode()
    assert start(client, "delete", q="outcome:failed", typed="acm").status_code == 422
    assert not Bulk.objects.exists()
    assert start(client, "delete", q="outcome:failed", typed="acme").status_code == 302
    assert Bulk.objects.get().action == "delete"


def test_an_export_without_a_file_says_so(cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.viewer)
    start(client, "export", format="atif")
    shown = client.get(reverse("trajectories:bulk_file", args=["acme", Bulk.objects.get().pk]))
    assert shown.status_code == 404
    assert "this export has no file, or has it no longer" in shown.content.decode()


def test_each_action_has_its_permission(cast: Cast, rows: list[Trajectory], sign_in: SignIn) -> None:
    assert start(sign_in(cast.viewer), "tag", tags="x").status_code == 403
    assert start(sign_in(cast.trainer), "delete", typed="acme").status_code == 403
    assert start(sign_in(cast.viewer), "export", format="atif").status_code == 302
    assert start(sign_in(cast.stranger), "export", format="atif").status_code == 404
    assert start(sign_in(cast.admin), "burn").status_code == 404
    job = submitted(cast)
    for name in ("cancel_bulk", "resume_bulk"):
        address = reverse(f"trajectories:{name}", args=["acme", job.pk])
        assert sign_in(cast.viewer).post(address).status_code == 403
    assert sign_in(cast.reviewer).post(reverse("trajectories:cancel_bulk", args=["acme", job.pk])).status_code == 302
    job.refresh_from_db()
    assert job.state == State.CANCELLED


# API


@pytest.mark.parametrize(
    ("path", "options"),
    [("tag", {"tags": ["x"]}), ("export", {}), ("queue", {"queue": 1}), ("tasks", {"environment": "mail"})],
)
@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"q": ""},
        {"q": " "},
        {"everything": False},
        {"ids": ["misspelt"]},
        {"everything": True, "q": "outcome:failed"},
        {"everything": True, "id": ["x"]},
        {"q": "outcome:failed", "id": ["x"]},
    ],
)
def test_the_whole_project_is_selected_by_its_name_alone(
    path: str,
    options: dict[str, Any],
    chosen: dict[str, Any],
    rows: list[Trajectory],
    client: Client,
    key: Callable[..., Any],
) -> None:
    body = json.dumps({**options, **chosen})
    answer = client.post(f"/api/v1/bulk/{path}", body, "application/json", headers=key("read", "review", "build"))
    assert answer.status_code == 422, answer.content
    assert not Bulk.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_everything_is_the_whole_project(rows: list[Trajectory], client: Client, key: Callable[..., Any]) -> None:
    body = json.dumps({"tags": ["x"], "everything": True})
    answer = client.post("/api/v1/bulk/tag", body, "application/json", headers=key("review"))
    assert answer.status_code == 202
    work(Bulk.objects.get())
    assert Bulk.objects.get().report["changed"] == len(rows)


@pytest.mark.django_db(transaction=True)
def test_programs_do_the_same(cast: Cast, rows: list[Trajectory], client: Client, key: Callable[..., Any]) -> None:
    def post(path: str, body: dict[str, Any], *scopes: str) -> Any:
        return client.post(f"/api/v1/bulk{path}", json.dumps(body), "application/json", headers=key(*scopes))

    made = post("/export", {"q": "outcome:failed", "format": "atif"}, "read")
    assert made.status_code == 202
    address = f"/api/v1/bulk/{made.json()['id']}"
    early = client.get(f"{address}/file", headers=key("read"))
    assert (early.status_code, early.json()["detail"]) == (404, "this export has no file, or has it no longer")
    work(Bulk.objects.get())
    told = client.get(address, headers=key("read")).json()
    assert (told["state"], told["changed"], told["skipped"]) == ("succeeded", 3, {})
    answer: Any = client.get(f"{address}/file", headers=key("read"))
    file = b"".join(answer.streaming_content)
    assert len(file.splitlines()) == 3
    assert AuditEntry.objects.filter(action="trajectories.export").count() == 1
    assert post("/tag", {"tags": ["x"], "q": "buket:x"}, "review").status_code == 422
    assert post("/tag", {"tags": ["vip"], "id": [rows[0].trace_id]}, "review").status_code == 202
    assert post("/tag", {"tags": ["vip"]}, "read").status_code == 403
    assert post("/delete", {"confirm": "no"}, "admin").status_code == 422
    says_nothing: list[dict[str, Any]] = [{}, {"q": " "}, {"id": []}, {"q": "outcome:failed", "id": []}]
    for nothing in says_nothing:
        assert post("/delete", {"confirm": "acme", **nothing}, "admin").status_code == 422, nothing
    assert post("/tag", {"tags": ["x"], "id": []}, "review").status_code == 422
    assert post("/delete", {"confirm": "acme", "everything": True}, "admin").status_code == 422
    deletion = post("/delete", {"confirm": "acme", "q": "outcome:failed"}, "admin").json()
    assert post(f"/{deletion['id']}/cancel", {}, "review").status_code == 403
    assert post(f"/{deletion['id']}/cancel", {}, "review", "admin").json()["state"] == "cancelled"
    assert post(f"/{deletion['id']}/resume", {}, "review").status_code == 403
    assert post(f"/{deletion['id']}/resume", {}, "review", "admin").json()["state"] == "queued"
    assert post(f"/{deletion['id']}/resume", {}, "review", "admin").status_code == 409
    assert post(f"/{deletion['id']}/cancel", {}, "review", "admin").json()["state"] == "cancelled"
    listed = client.get("/api/v1/bulk", headers=key("read")).json()["items"]
    assert [item["action"] for item in listed] == ["delete", "tag", "export"]
