"""Recording never fails a call, and loses none that the disk has taken."""

from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client

from flywheel.accounts.models import Project
from flywheel.trajectories.ingest.gateway import recorder as recording
from flywheel.trajectories.ingest.gateway.journals import journal as journals
from flywheel.trajectories.ingest.gateway.journals.journal import Journal
from flywheel.trajectories.models import Batch, Step, Trajectory
from flywheel.trajectories.store import merge as storing
from tests.trajectories.ingest.gateway.calls import Headers, ask, begin, leave, only_step
from tests.trajectories.ingest.upstream import Upstream, completion, hello

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("recorded")]


def test_what_the_database_refuses_lies_on_the_disk_and_is_recorded_once(
    client: Client, gate: Headers, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("the database is away")

    held: list[Journal] = []
    monkeypatch.setattr(recording.recorder, "put", held.append)
    assert ask(client, gate)[0].status_code == 200
    with monkeypatch.context() as outage:
        outage.setattr(recording, "store", away)
        assert recording.recorder._record(held) == []
    assert Trajectory.objects.count() == 0
    (path,) = settings.GATEWAY_DIR.iterdir()
    assert (path.stat().st_mode & 0o777, settings.GATEWAY_DIR.stat().st_mode & 0o777) == (0o600, 0o700)
    copy = path.read_bytes()
    assert recording.sweep() == 1
    assert only_step().output[0].content == "Hello."
    path.write_bytes(copy)
    recording.sweep()
    assert (Step.objects.count(), Batch.objects.order_by("id").last().duplicate) == (1, 1)  # type: ignore[union-attr]
    assert list(settings.GATEWAY_DIR.iterdir()) == []


def test_a_call_under_way_is_not_swept_and_one_of_a_killed_process_is(
    client: Client, gate: Headers, upstream: Upstream, settings: Any
) -> None:
    upstream.say(hello(wait_s=0.01))
    answer = begin(client, gate, stream=True)
    pieces = iter(answer.streaming_content)
    seen = next(pieces)
    while b"Hel" not in seen:
        seen += next(pieces)
    assert recording.sweep() == 0
    (path,) = settings.GATEWAY_DIR.iterdir()
    (settings.GATEWAY_DIR / f"killed{journals.SUFFIX}").write_bytes(path.read_bytes()[:-3])
    assert recording.sweep() == 1
    step = only_step()
    assert "process ended" in step.error
    assert step.raw["gateway"]["ended"] == "killed"
    list(pieces)
    leave(answer)
    assert Step.objects.count() == 1, "the same call under the same id"
    assert only_step().output[0].content == "Hello."
    assert only_step().status == "ok"


def test_a_full_disk_costs_nothing_but_the_write_ahead(
    client: Client, gate: Headers, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    written = journals._write
    full = [False]

    def write(file: int, data: bytes) -> None:
        if full[0]:
            written(file, data[:3])
            raise OSError(28, "No space left on device")
        full[0] = True
        written(file, data)

    monkeypatch.setattr(journals, "_write", write)
    answer, content = ask(client, gate)
    assert (answer.status_code, content) == (200, completion("Hello."))
    assert only_step().output[0].content == "Hello."
    assert (list(settings.GATEWAY_DIR.iterdir()), Journal.in_memory) == ([], 0)
    monkeypatch.setattr(journals, "DISK_SPARED", 2**62)
    monkeypatch.setattr(journals, "_disk_seen_at", 0.0)
    ask(client, gate)
    assert (Step.objects.count(), list(settings.GATEWAY_DIR.iterdir())) == (2, [])


def test_a_call_that_fits_nowhere_is_counted_and_answered(
    client: Client, gate: Headers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "DISK_SPARED", 2**62)
    monkeypatch.setattr(journals, "_disk_seen_at", 0.0)
    monkeypatch.setattr(journals, "MEMORY_MAX", 300)
    monkeypatch.setattr(Journal, "lost", 0)
    assert ask(client, gate)[0].status_code == 200
    assert (Trajectory.objects.count(), Journal.lost, Journal.in_memory) == (0, 1, 0)


def test_a_call_in_memory_that_cannot_be_recorded_is_counted_as_lost(
    client: Client, gate: Headers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("no")

    monkeypatch.setattr(journals, "DISK_SPARED", 2**62)
    monkeypatch.setattr(journals, "_disk_seen_at", 0.0)
    monkeypatch.setattr(recording, "store", refuse)
    monkeypatch.setattr(Journal, "lost", 0)
    assert ask(client, gate)[0].status_code == 200
    assert (Journal.lost, Journal.in_memory) == (1, 0)


def test_a_long_outage_holds_no_files_open_and_is_made_up_for(
    client: Client, gate: Headers, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("the database is away")

    recorder = recording.Recorder()
    monkeypatch.setattr(recorder, "_ensure_thread", lambda: None)
    monkeypatch.setattr(recording.recorder, "put", recorder.put)
    with monkeypatch.context() as outage:
        outage.setattr(recording, "store", away)
        ask(client, gate)
        recorder._record([recorder._waiting.get()])
        open_before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(40):
            ask(client, gate)
        assert len(list(Path("/proc/self/fd").iterdir())) <= open_before
        assert (recorder._waiting.qsize(), recorder.sweep(limit=10)) == (0, 0)
    assert len(list(settings.GATEWAY_DIR.iterdir())) == 41
    assert recorder.sweep(limit=10) == 41
    assert (Trajectory.objects.count(), list(settings.GATEWAY_DIR.iterdir())) == (41, [])
    ask(client, gate)
    assert recorder._waiting.qsize() == 1, "and it goes on as before"


def test_calls_are_stored_together_only_up_to_a_size(
    client: Client, gate: Headers, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Journal] = []
    monkeypatch.setattr(recording.recorder, "put", held.append)
    monkeypatch.setattr(recording, "BYTES_AT_ONCE", 5000)
    for size in (10, 10, 4900, 10, 9000, 10):
        ask(client, gate, messages=[{"role": "user", "content": "x" * size}])
    recording.recorder.record(held)
    assert list(Batch.objects.order_by("id").values_list("received", flat=True)) == [2, 1, 1, 1, 1]


def test_one_that_cannot_be_recorded_is_put_aside_until_the_next_start_and_its_siblings_are_kept(
    client: Client, gate: Headers, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    held: list[Journal] = []
    monkeypatch.setattr(recording.recorder, "put", held.append)
    for text in ("good", "bad", "fine"):
        ask(client, gate, messages=[{"role": "user", "content": text}])

    def store(project: Project, parts: list[Any], **more: Any) -> Any:
        if any(part.steps[0].input[0].content == "bad" for part in parts):
            raise ValueError("no")
        return storing.store(project, parts, **more)

    monkeypatch.setattr(recording, "store", store)
    recording.recorder.record(held)
    assert sorted(Trajectory.objects.values_list("title", flat=True)) == ["fine", "good"]
    assert len(list((settings.GATEWAY_DIR / "bad").iterdir())) == 1
    assert recording.sweep() == 0
    monkeypatch.setattr(recording, "store", storing.store)
    journals.second_chance()
    assert recording.sweep() == 1
    assert Trajectory.objects.count() == 3
