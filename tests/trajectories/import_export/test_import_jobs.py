"""Large files are imported by a worker: once, however often it is killed, and for as long as nobody stops it."""

import gzip
import io
import os
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, User
from flywheel.edge.jobs import Lease, State
from flywheel.trajectories.formats.files import file_limits
from flywheel.trajectories.import_export import import_jobs, trajectory_import, uploads
from flywheel.trajectories.models import Batch, Import, Step, Trajectory
from flywheel.trajectories.operations import retention
from tests.conftest import Cast
from tests.trajectories.import_export.test_trajectory_import import URL, chat
from tests.worker import Worker
from workers.jobs.trajectories import file_imports as worker_side

SignIn = Callable[[User], Client]
LINES = 10
FILE = b"\n".join([*(chat(f"question {number}") for number in range(LINES)), b"{broken"])
COLUMNS = ("received", "inserted", "updated", "duplicate", "rejected")


@pytest.fixture(autouse=True)
def _parts_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of ten lines takes as many transactions as one of a hundred megabytes."""
    monkeypatch.setattr(trajectory_import, "STEPS_AT_ONCE", 4)
    monkeypatch.setattr(import_jobs, "SMALL", 100)


def upload(client: Client, content: bytes = FILE, name: str = "runs.jsonl", **more: Any) -> Any:
    return client.post(URL, {"file": SimpleUploadedFile(name, content), "format": "auto", **more})


def submitted(cast: Cast, content: bytes = FILE, **more: Any) -> Import:
    kept = uploads.keep(cast.project, cast.builder, "runs.jsonl", io.BytesIO(content))
    return import_jobs.submit(project=cast.project, actor=Actor(cast.builder), upload=kept, key=uuid.uuid4(), **more)


def work(job: Import) -> Import:
    lease = Import.claim(job.pk)
    assert isinstance(lease, Lease)
    with lease:
        worker_side.import_file(lease)
    job.refresh_from_db()
    return job


def ledger() -> dict[str, int]:
    return {name: sum(getattr(batch, name) for batch in Batch.objects.all()) for name in COLUMNS}


def files(cast: Cast) -> int:
    return len(list(uploads._directory(cast.project).glob("*")))


@pytest.mark.django_db(transaction=True)
def test_a_large_file_waits_for_a_worker_who_imports_it(cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.builder)
    page = upload(client)["Location"]
    assert not Batch.objects.exists()
    waiting = client.get(page).content.decode()
    assert "runs.jsonl" in waiting
    assert "waiting for a worker" in waiting
    job = work(Import.objects.get())
    assert (job.state, job.done, job.total) == (State.SUCCEEDED, len(FILE), len(FILE))
    assert job.report == {"trajectories": LINES, "formats": {"openai": LINES}, "notes": 0}
    assert ledger() == {"received": 21, "inserted": 20, "updated": 0, "duplicate": 0, "rejected": 1}
    assert len(job.batches) == Batch.objects.count() == 6
    over = client.get(page).content.decode()
    for words in ("10 trajectories kept", "10 OpenAI chat", "20 steps new", "1 left out", "line 11"):
        assert words in over
    assert files(cast) == 0
    entry = AuditEntry.objects.get(action="trajectories.import")
    assert (entry.actor, entry.data["job"]) == (cast.builder, job.pk)


def test_a_small_file_is_imported_at_once(cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_jobs, "SMALL", len(FILE))
    assert "batch=" in upload(sign_in(cast.builder))["Location"]
    assert not Import.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_small_file_that_holds_more_than_anybody_waits_for_is_left_to_a_worker(
    cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_jobs, "SMALL", len(FILE))
    monkeypatch.setattr(trajectory_import, "VALUES_WAITED_FOR", 3)
    upload(sign_in(cast.builder))
    job = work(Import.objects.get())
    assert (job.state, job.report["trajectories"]) == (State.SUCCEEDED, LINES)
    assert Trajectory.objects.count() == LINES


@pytest.mark.django_db(transaction=True)
def test_a_worker_says_what_it_kept_of_a_file_that_is_too_large(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_limits, "UNPACKED_MAX", 100_000)
    monkeypatch.setattr(file_limits, "CHUNK", 1_000)
    monkeypatch.setattr(trajectory_import, "STEPS_AT_ONCE", 100)
    job = submitted(cast, gzip.compress(b"\n".join(chat(f"{number:01000}") for number in range(150))))
    lease = Import.claim(job.pk)
    assert lease is not None
    with lease:
        worker_side.import_file(lease)
    job.refresh_from_db()
    assert (job.state, "gzip: unpacks to more than" in job.error) == (State.FAILED, True)
    kept = Trajectory.objects.count()
    assert 50 < kept < 100
    assert f"; {kept} trajectories before that are kept" in job.error


@pytest.mark.parametrize("head", [b"\x1f\x8b", b"PK\x03\x04", b"PAR1"])
def test_a_compressed_file_counts_for_more(head: bytes) -> None:
    assert import_jobs.is_small(io.BytesIO(head), 100 // import_jobs.EXPANDS)
    assert not import_jobs.is_small(io.BytesIO(head), 100)
    assert import_jobs.is_small(io.BytesIO(b'{"a": 1}'), 100)


def test_what_cannot_be_read_at_all_is_told_at_once(cast: Cast, sign_in: SignIn) -> None:
    response = upload(sign_in(cast.builder), b"PK\x03\x04" + b"x" * 1000, "log.eval")
    assert 'class="errors"' in response.content.decode()
    assert (Import.objects.count(), files(cast)) == (0, 0)


def test_a_double_click_makes_one(cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.builder)
    pages = {upload(client, key="6f2c1a52-9f0f-4f3e-9a38-6c0a9b4b7b11")["Location"] for _ in range(2)}
    assert (len(pages), Import.objects.count(), files(cast)) == (1, 1, 2)
    assert AuditEntry.objects.filter(action="trajectories.import").count() == 1


class Killed(BaseException):
    """What ends a process without a word."""


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("transaction", [1, 3, 6])
def test_who_takes_over_counts_nothing_twice(
    cast: Cast, monkeypatch: pytest.MonkeyPatch, transaction: int, when: str
) -> None:
    job = submitted(cast)
    left = iter(range(transaction, 0, -1))
    keep = worker_side._keep

    def killed(*given: Any) -> Batch:
        is_last = next(left, 0) == 1
        if is_last and when == "before":
            raise Killed
        batch = keep(*given)
        if is_last:
            raise Killed
        return batch

    lease = Import.claim(job.pk)
    assert lease is not None
    with monkeypatch.context() as patch:
        patch.setattr(worker_side, "_keep", killed)
        with pytest.raises(Killed):
            worker_side.import_file(lease)
    done = transaction - (when == "before")
    assert (Batch.objects.count(), Import.objects.get().at) == (done, min(2 * done, LINES + 1))
    Import.objects.update(lease_until="2020-01-01T00:00:00Z")
    work(job)
    assert job.state == State.SUCCEEDED
    assert ledger() == {"received": 21, "inserted": 20, "updated": 0, "duplicate": 0, "rejected": 1}
    assert job.report == {"trajectories": LINES, "formats": {"openai": LINES}, "notes": 0}
    assert (Trajectory.objects.count(), Step.objects.count()) == (LINES, 2 * LINES)
    assert job.batches == list(Batch.objects.order_by("id").values_list("id", flat=True))


@pytest.mark.django_db(transaction=True)
def test_an_owner_that_was_replaced_stores_nothing_more(cast: Cast) -> None:
    job = submitted(cast)
    late = Import.claim(job.pk)
    assert late is not None
    Import.objects.update(lease_until="2020-01-01T00:00:00Z")
    work(job)
    before = ledger()
    with late:
        worker_side.import_file(late)
    job.refresh_from_db()
    assert (job.state, ledger()) == (State.SUCCEEDED, before)


@pytest.mark.django_db(transaction=True)
def test_it_can_be_stopped_and_resumed(cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch) -> None:
    client = sign_in(cast.builder)
    page = upload(client)["Location"]
    job = Import.objects.get()
    keep = worker_side._keep

    def then_stopped(lease: Lease, *rest: Any) -> Batch:
        batch = keep(lease, *rest)
        if Batch.objects.count() == 2:
            assert client.post(f"{page}cancel/")["Location"] == page
            assert "stopping" in client.get(f"{page}live/").content.decode()
            lease._cancelled.set()
        return batch

    with monkeypatch.context() as patch:
        patch.setattr(worker_side, "_keep", then_stopped)
        work(job)
    assert (job.state, Trajectory.objects.count(), files(cast)) == (State.CANCELLED, 4, 2)
    stopped = client.get(page).content.decode()
    assert "Stopped" in stopped
    assert "4 trajectories kept" in stopped
    client.post(f"{page}resume/")
    work(job)
    assert (job.state, ledger()["inserted"], files(cast)) == (State.SUCCEEDED, 20, 0)
    actions = AuditEntry.objects.order_by("id").values_list("action", flat=True)
    assert list(actions) == ["trajectories.import", "trajectories.cancel_import", "trajectories.resume_import"]
    assert "over already" in client.post(f"{page}cancel/", follow=True).content.decode()


@pytest.mark.django_db(transaction=True)
def test_a_file_that_is_gone_says_so(cast: Cast, sign_in: SignIn) -> None:
    job = submitted(cast)
    for path in uploads._directory(cast.project).glob("*"):
        path.unlink()
    work(job)
    assert (job.state, job.error_kind) == (State.FAILED, "file_gone")
    page = sign_in(cast.builder).get(f"{URL}runs/{job.pk}/").content.decode()
    assert "The file is no longer here; send it again" in page
    assert "Resume" not in page


@pytest.mark.django_db(transaction=True)
def test_a_file_without_a_line_changes_nothing(cast: Cast, sign_in: SignIn) -> None:
    job = work(submitted(cast, b"\n" * 200))
    assert (job.state, Batch.objects.count()) == (State.SUCCEEDED, 0)
    assert "has no lines" in sign_in(cast.builder).get(f"{URL}runs/{job.pk}/").content.decode()


@pytest.mark.django_db(transaction=True)
def test_a_large_table_goes_with_its_mapping(cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.builder)
    content = b"asked,said\n" + b"".join(b"Question %d,Answer\n" % number for number in range(LINES))
    page = upload(client, content, "log.csv")["Location"]
    answers = [client.post(page, {"input": "asked", "output": "said"})["Location"] for _ in range(2)]
    assert (answers[0] == answers[1], Import.objects.count(), files(cast)) == (True, 1, 2)
    job = work(Import.objects.get())
    assert (job.state, job.report["formats"]) == (State.SUCCEEDED, {"table": LINES})
    assert (Trajectory.objects.count(), files(cast)) == (LINES, 0)
    assert f"{LINES} rows of a table" in client.get(answers[0]).content.decode()


@pytest.mark.django_db(transaction=True)
def test_scores_are_told_once(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    said = b'{"id": "sc", "traceId": "lf-1", "name": "success", "value": 0, "dataType": "BOOLEAN", "source": "API"}'
    made = (
        b'{"id": "ob-1", "traceId": "lf-1", "type": "GENERATION", "startTime": "2026-01-31T12:00:00Z", "output": "Hi"}'
    )

    def killed(*_: Any) -> None:
        raise Killed

    job = submitted(cast, said + b"\n" + made)
    with monkeypatch.context() as patch:
        patch.setattr(Lease, "finish", killed)
        lease = Import.claim(job.pk)
        assert lease is not None
        with pytest.raises(Killed):
            worker_side.import_file(lease)
    Import.objects.update(lease_until="2020-01-01T00:00:00Z")
    before = Batch.objects.count()
    work(job)
    assert (job.report["notes"], Batch.objects.count()) == (1, before)
    assert Trajectory.objects.get().outcome == "failed"


def test_housekeeping_deletes_old_files_that_no_import_wants(cast: Cast) -> None:
    job = submitted(cast)
    forgotten = uploads.keep(cast.project, cast.builder, "log.csv", io.BytesIO(b"a,b\n1,2\n"))
    young = uploads.keep(cast.project, cast.builder, "new.csv", io.BytesIO(b"a,b\n1,2\n"))
    old = time.time() - uploads.KEPT_SECONDS - 1
    for token in (job.upload, forgotten.token):
        kept = uploads.find(cast.project, token)
        assert kept is not None
        for path in (kept.path, kept.path.with_suffix(".json")):
            os.utime(path, (old, old))
    retention.sweep()
    found = {token for token in (job.upload, forgotten.token, young.token) if uploads.find(cast.project, token)}
    assert found == {job.upload, young.token}
    Import.objects.update(state=State.FAILED)
    retention.sweep()
    assert uploads.find(cast.project, job.upload) is None


def test_only_who_may_build_sees_and_stops_it(cast: Cast, sign_in: SignIn) -> None:
    job = submitted(cast)
    page = f"{URL}runs/{job.pk}/"
    for client, status in ((sign_in(cast.viewer), 403), (sign_in(cast.stranger), 404)):
        assert client.get(page).status_code == status
        assert client.post(f"{page}cancel/").status_code == status
    assert sign_in(cast.stranger).get(page.replace("acme", "elsewhere")).status_code == 404
    assert Import.objects.get().state == State.QUEUED


@pytest.mark.worker
@pytest.mark.django_db(transaction=True)
def test_a_real_worker_imports_it(worker: Worker, cast: Cast, sign_in: SignIn) -> None:
    upload(sign_in(cast.builder))
    job = Import.objects.get()
    worker.finish(job)
    assert (job.state, job.error, Trajectory.objects.count()) == (State.SUCCEEDED, "", LINES)
