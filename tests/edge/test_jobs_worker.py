"""Jobs with real workers: what survives the death, the silence and the stop of whoever carries them out."""

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from flywheel.accounts.actors import Actor
from flywheel.edge.jobs import MAX_ATTEMPTS, Job, State
from flywheel.evals.models import EvalRun
from flywheel.training.models import TrainingRun
from tests.conftest import Build
from tests.edge.test_jobs import training_run
from tests.worker import Worker, empty_broker
from workers.celery import IDLE_FOR_S, end_when_idle

pytestmark = [pytest.mark.worker, pytest.mark.django_db(transaction=True)]


def submit(build: Build, **play: Any) -> EvalRun:
    run, _ = EvalRun.submit(
        key=uuid.uuid4(),
        project=build.cast.project,
        actor=Actor(build.cast.builder),
        version=build.version(),
        task_set=build.task_set(train=1, held_out=1),
        verifier_digest="0" * 64,
        sampling=play,
    )
    return run


def wait_for_progress(worker: Worker, job: Job, done: int = 1) -> None:
    def moves() -> bool:
        job.refresh_from_db()
        return job.state == State.RUNNING and job.done >= done

    worker.wait_until(moves, f"{job.label} {job.pk} has done {done}")


def wait_for_attempt(worker: Worker, job: Job, attempt: int) -> None:
    def taken() -> bool:
        job.refresh_from_db()
        return job.attempt >= attempt

    worker.wait_until(taken, f"attempt {attempt}")


def test_a_submitted_job_needs_no_sweep_to_run(worker: Worker, build: Build) -> None:
    assert worker.beat is not None
    worker.beat.kill9()
    for _ in range(5):
        run = submit(build, play="count", steps=1, pause=0)
        worker.finish(run)
        assert (run.state, run.done, run.attempt) == (State.SUCCEEDED, 1, 1)


def test_a_failing_job_tells_why(worker: Worker, build: Build) -> None:
    run = submit(build, play="raise", text="the model 'tiny-2' is not there")
    worker.finish(run)
    assert (run.state, run.error, run.error_kind) == (State.FAILED, "the model 'tiny-2' is not there", "ValueError")


@pytest.fixture
def announcements(broker_installed: None) -> Iterator[Callable[[], int]]:
    """How often a worker has told others something: to all at once, for which pgmq lacks this function."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SEQUENCE pgmq.announcements MINVALUE 0")
        cursor.execute(
            "CREATE FUNCTION pgmq.send_topic(routing_key text, msg jsonb, headers jsonb)"
            " RETURNS bigint LANGUAGE sql AS $$ SELECT nextval('pgmq.announcements') $$"
        )

    def count() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT nextval('pgmq.announcements')")
            return int(cursor.fetchone()[0])

    yield count
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION pgmq.send_topic(text, jsonb, jsonb); DROP SEQUENCE pgmq.announcements")


def test_a_worker_sends_nothing_that_the_broker_has_no_way_for(
    announcements: Callable[[], int], start_worker: Callable[..., Worker], build: Build
) -> None:
    worker = start_worker()
    worker.finish(submit(build, play="count", steps=1, pause=0))
    assert announcements() == 0


def owner_and_other(job: Job, workers: list[Worker]) -> tuple[Worker, Worker]:
    """Which of two workers has the job, and which has not."""
    group = os.getpgid(int(job.owner.rpartition(":")[2]))
    owner, other = sorted(workers, key=lambda worker: worker.pid != group)
    assert owner.pid == group
    return owner, other


def test_a_worker_killed_in_the_middle_is_replaced(
    worker: Worker, start_worker: Callable[..., Worker], build: Build
) -> None:
    workers = [worker, start_worker()]
    run = submit(build, play="count", steps=60, pause=0.05)
    wait_for_progress(worker, run, done=5)
    owner, other = owner_and_other(run, workers)
    owner.kill9()
    run.refresh_from_db()
    before = run.done
    wait_for_attempt(other, run, 2)
    other.finish(run)
    assert (run.state, run.done, run.attempt) == (State.SUCCEEDED, 60, 2)
    assert f"attempt 2 starts at {before}" in "\n".join(run.events.values_list("text", flat=True))


def test_a_job_that_kills_its_worker_three_times_fails_with_the_reason(
    start_worker: Callable[..., Worker], build: Build
) -> None:
    worker = start_worker()
    run = submit(build, play="die")
    for _ in range(MAX_ATTEMPTS):
        assert worker.exit_code() == os.EX_SOFTWARE
        worker = start_worker()
    worker.finish(run)
    assert (run.state, run.attempt, run.error_kind) == (State.FAILED, MAX_ATTEMPTS, "worker_lost")
    assert "lost 3 times" in run.error
    after = submit(build, play="count", steps=1)
    worker.finish(after)
    assert after.state == State.SUCCEEDED, "the worker goes on with the next"


def test_a_job_runs_though_the_broker_lost_its_message(
    worker: Worker, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Job, "nudge", lambda _: None)
    run = submit(build, play="count", steps=2)
    empty_broker()
    worker.finish(run)
    assert run.state == State.SUCCEEDED


def test_a_stopped_and_continued_owner_cannot_write(
    worker: Worker, start_worker: Callable[..., Worker], build: Build
) -> None:
    workers = [worker, start_worker()]
    run = submit(build, play="count", steps=40, pause=0.1)
    wait_for_progress(worker, run)
    owner, other = owner_and_other(run, workers)
    owner.signal_all(signal.SIGSTOP)
    try:
        wait_for_attempt(other, run, 2)
        fence = run.fence
    finally:
        owner.signal_all(signal.SIGCONT)
    other.finish(run)
    assert (run.state, run.done, run.fence, run.attempt) == (State.SUCCEEDED, 40, fence, 2)
    marks = list(run.events.values_list("text", flat=True))
    assert len([mark for mark in marks if mark.startswith("attempt")]) == 2, marks


def test_a_session_of_a_worker_ends_when_it_stands_still_in_a_transaction() -> None:
    fresh = connection.copy()
    try:
        end_when_idle(fresh)
        with fresh.cursor() as cursor:
            cursor.execute("SHOW idle_in_transaction_session_timeout")
            assert cursor.fetchone() == (f"{IDLE_FOR_S // 60}min",)
    finally:
        fresh.close()


def test_a_worker_that_is_told_to_stop_gives_its_job_to_the_next(
    worker: Worker, start_worker: Callable[..., Worker], build: Build
) -> None:
    run = submit(build, play="count", steps=60, pause=0.1)
    wait_for_progress(worker, run, done=3)
    worker.stop()
    run.refresh_from_db()
    assert (run.state, run.attempt) == (State.QUEUED, 0)
    assert run.done >= 3
    other = start_worker()
    wait_for_attempt(other, run, 1)
    run.ask_to_end()
    other.finish(run)


def test_a_running_job_ends_in_the_middle_when_it_is_cancelled(worker: Worker, build: Build) -> None:
    run = submit(build, play="count", steps=1000, pause=0.05)
    wait_for_progress(worker, run)
    run.ask_to_end()
    worker.finish(run)
    assert (run.state, run.attempt) == (State.CANCELLED, 1)
    assert run.done < 1000


def test_the_second_trainer_waits_for_the_slot_and_then_runs(worker: Worker, build: Build) -> None:
    first, second = (training_run(build, play="count", steps=20, pause=0.05) for _ in range(2))
    worker.finish(first)
    assert first.state == State.SUCCEEDED
    worker.finish(second)
    assert second.state == State.SUCCEEDED
    assert second.started_at is not None
    assert first.finished_at is not None
    assert second.started_at >= first.finished_at


def test_a_worker_with_gpus_hears_of_runs_that_want_them(
    start_worker: Callable[..., Worker], build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWHEEL_DEVICES", "cuda:2")
    worker = start_worker()
    runs = [training_run(build, play="count", steps=20, pause=0.05) for _ in range(2)]
    TrainingRun.objects.update(device="cuda")
    worker.finish(runs[0])
    worker.finish(runs[1])
    assert sorted(run.held["names"] for run in runs) == [["0"], ["1"]]


def test_beat_and_the_worker_say_that_they_live(worker: Worker, client: Any) -> None:
    assert client.get("/readyz").json()["problems"] == {}
    assert client.get("/readyz").status_code == 200


def test_a_worker_ends_when_one_of_its_pool_is_killed_and_gives_back_what_the_others_hold(
    start_worker: Callable[..., Worker], build: Build
) -> None:
    """The supervisor starts it anew. A process that dies idle may have held the lock that all the others wait for."""
    idle = start_worker()
    idle.is_starting = False
    reads, waits_for_its_turn, *_ = pool_of(idle)
    os.kill(reads, signal.SIGKILL)
    assert idle.exit_code() == os.EX_SOFTWARE
    idle.wait_until(lambda: is_gone(waits_for_its_turn), "the other has ended")

    worker = start_worker()
    killed, other = (submit(build, play="count", steps=400, pause=0.05) for _ in range(2))
    for run in (killed, other):
        wait_for_progress(worker, run)
    worker.is_starting = False
    os.kill(int(killed.owner.rpartition(":")[2]), signal.SIGKILL)
    assert worker.exit_code() == os.EX_SOFTWARE
    assert "was killed by signal 9: the worker starts anew" in worker.log
    other.refresh_from_db()
    assert (other.state, other.attempt) == (State.QUEUED, 0)

    anew = start_worker()
    wait_for_attempt(anew, killed, 2)
    # The worker that died may have held its message.
    wait_for_attempt(anew, other, 1)


def pool_of(worker: Worker) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
